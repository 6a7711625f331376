# Installs the libraries with their package files, and the programs.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(SLUICE_CMAKE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/Sluice)
file(RELATIVE_PATH SLUICE_PC_TO_PREFIX /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)

# sluice_install(SET TARGETS...): installs libraries as Sluice::NAME, in the set SluiceSET.cmake.
function(sluice_install set)
  foreach(target IN LISTS ARGN)
    string(REGEX REPLACE "^sluice_" "" name ${target})
    set_target_properties(${target} PROPERTIES EXPORT_NAME ${name})
  endforeach()
  install(TARGETS ${ARGN} EXPORT Sluice${set}
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT client
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT client)
  install(EXPORT Sluice${set} NAMESPACE Sluice:: DESTINATION ${SLUICE_CMAKE_DIR} COMPONENT client)
endfunction()

# sluice_install_pc(NAME): installs NAME.pc.
function(sluice_install_pc name)
  configure_file(${CMAKE_CURRENT_LIST_DIR}/${name}.pc.in ${CMAKE_CURRENT_BINARY_DIR}/${name}.pc @ONLY)
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/${name}.pc
    DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT client)
endfunction()

# Only the headers in include/ are public.
foreach(library sluice_client sluice_c sluice_throttler)
  target_include_directories(${library} INTERFACE
    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
endforeach()
sluice_install(Targets sluice_client sluice_c sluice_throttler sluice_http2 sluice_warnings)
sluice_install_pc(sluice)
sluice_install_pc(sluice-client)
if(TARGET sluice_embedded)
  # The lower layers of the server.
  sluice_install(EmbeddedTargets sluice_embedded sluice_limits sluice_store sluice_store_memory
    sluice_algorithm sluice_common)
  sluice_install_pc(sluice-embedded)
endif()
if(TARGET sluice_embedded_client)
  sluice_install(EmbeddedClientTargets sluice_embedded_client sluice_service sluice_waiting
    sluice_access sluice_net)
  sluice_install_pc(sluice-embedded-client)
endif()
if(TARGET sluice_admin)
  sluice_install(AdminTargets sluice_admin sluice_proto sluice_proto_grpc)
  sluice_install_pc(sluice-admin)
endif()

install(DIRECTORY ${CMAKE_CURRENT_LIST_DIR}/include/sluice
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT client FILES_MATCHING PATTERN "*.h")
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/SluiceConfig.cmake.in
  ${CMAKE_CURRENT_BINARY_DIR}/SluiceConfig.cmake INSTALL_DESTINATION ${SLUICE_CMAKE_DIR})
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/SluiceConfigVersion.cmake
  VERSION ${PROJECT_VERSION} COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/SluiceConfig.cmake
  ${CMAKE_CURRENT_BINARY_DIR}/SluiceConfigVersion.cmake
  DESTINATION ${SLUICE_CMAKE_DIR} COMPONENT client)

if(TARGET sluice)
  install(TARGETS sluice RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT programs)
endif()
if(TARGET sluiced)
  install(TARGETS sluiced RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT programs)
endif()
