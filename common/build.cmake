# What all our targets are built with. SLUICE_SOURCE_DIR is the top folder.

# Warnings for our own code; every library of ours links it.
add_library(sluice_warnings INTERFACE)
target_compile_options(sluice_warnings INTERFACE
  $<BUILD_INTERFACE:-Wall;-Wextra;-Wno-unused-parameter>
  $<BUILD_INTERFACE:$<$<CXX_COMPILER_ID:Clang>:-Wthread-safety>>)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # False positives of gcc 12 at -O2, in <bits/stl_*> and <bits/char_traits.h>.
  target_compile_options(sluice_warnings INTERFACE $<BUILD_INTERFACE:-Wno-maybe-uninitialized>
    $<BUILD_INTERFACE:-Wno-restrict;-Wno-array-bounds;-Wno-stringop-overflow>)
endif()

# sluice_harden(): makes attacks on memory errors harder, in what users run, and keeps the folder of
# the checkout out of the objects, so that two builds have the same bytes. ADR 151 has the costs.
macro(sluice_harden)
  add_compile_options(-fstack-protector-strong -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2)
  # The last one that matches counts. ccache writes ../ for the checkout, and nothing for the build.
  add_compile_options(-ffile-prefix-map=../= -ffile-prefix-map=${CMAKE_SOURCE_DIR}/=
    -ffile-prefix-map=${CMAKE_BINARY_DIR}=build -ffile-prefix-map=${CMAKE_BINARY_DIR}/=)
  add_link_options(LINKER:-z,relro,-z,now,-z,noexecstack)
  # Here, not in the options: libraries that are loaded override it with -fPIC, which costs more.
  string(PREPEND CMAKE_CXX_FLAGS "-fPIE ")
  string(PREPEND CMAKE_EXE_LINKER_FLAGS "-pie ")
endmacro()

# sluice_headers(TARGET FOLDER...): TARGET owns the headers of these folders. Only TARGET and what
# links it can include them, by their path from here: a folder of links to the headers is all that
# the compiler searches. So an include that the map in CONTRIBUTING.md forbids does not compile.
function(sluice_headers target)
  set(view ${CMAKE_BINARY_DIR}/headers/${target})
  list(TRANSFORM ARGN APPEND "/*.h" OUTPUT_VARIABLE patterns)
  list(TRANSFORM patterns PREPEND "${SLUICE_SOURCE_DIR}/")
  file(GLOB headers RELATIVE ${SLUICE_SOURCE_DIR} CONFIGURE_DEPENDS ${patterns})
  foreach(header IN LISTS headers)
    cmake_path(GET header PARENT_PATH folder)
    file(MAKE_DIRECTORY ${view}/${folder})
    file(CREATE_LINK ${SLUICE_SOURCE_DIR}/${header} ${view}/${header} SYMBOLIC)
  endforeach()
  get_target_property(type ${target} TYPE)
  set(scope PUBLIC)
  if(type STREQUAL INTERFACE_LIBRARY)
    set(scope INTERFACE)
  endif()
  target_include_directories(${target} ${scope} $<BUILD_INTERFACE:${view}>)
  set_property(GLOBAL APPEND PROPERTY SLUICE_TARGETS ${target})
endfunction()

# sluice_precompile(): all targets that own headers share two precompiled headers: one of
# position-independent code, and one of other code.
function(sluice_precompile)
  file(WRITE ${CMAKE_BINARY_DIR}/precompiled.cc "")
  foreach(kind shared static)
    add_library(sluice_${kind}_headers OBJECT ${CMAKE_BINARY_DIR}/precompiled.cc)
    target_link_libraries(sluice_${kind}_headers PRIVATE sluice_warnings absl::any_invocable
      absl::flat_hash_map absl::statusor)
    target_precompile_headers(sluice_${kind}_headers PRIVATE
      ${SLUICE_SOURCE_DIR}/common/precompiled.h)
  endforeach()
  set_target_properties(sluice_shared_headers PROPERTIES POSITION_INDEPENDENT_CODE ON)
  get_property(targets GLOBAL PROPERTY SLUICE_TARGETS)
  foreach(target IN LISTS targets)
    get_target_property(type ${target} TYPE)
    get_target_property(shared ${target} POSITION_INDEPENDENT_CODE)
    if(type STREQUAL INTERFACE_LIBRARY)
      continue()
    elseif(shared)
      target_precompile_headers(${target} REUSE_FROM sluice_shared_headers)
    else()
      target_precompile_headers(${target} REUSE_FROM sluice_static_headers)
    endif()
  endforeach()
endfunction()
