# Installs the libraries with their package files, and the programs.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(SLUICE_CMAKE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/Sluice)

set_target_properties(sluice_client PROPERTIES EXPORT_NAME client)
set_target_properties(sluice_c PROPERTIES EXPORT_NAME c)
set_target_properties(sluice_throttler PROPERTIES EXPORT_NAME throttler)
set_target_properties(sluice_embedded PROPERTIES EXPORT_NAME embedded)
set_target_properties(sluice_proto PROPERTIES EXPORT_NAME proto)
set_target_properties(sluice_proto_grpc PROPERTIES EXPORT_NAME proto_grpc)
foreach(library sluice_client sluice_c sluice_throttler)
  target_include_directories(${library} INTERFACE
    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
endforeach()

# Embedded throttlers need the lower layers of the server. Only the headers in include/ are
# public.
install(TARGETS sluice_client sluice_c sluice_throttler sluice_proto sluice_proto_grpc
  sluice_embedded sluice_limits sluice_store sluice_store_memory sluice_algorithm sluice_common sluice_warnings
  EXPORT SluiceTargets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT client
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT client)
install(DIRECTORY ${CMAKE_CURRENT_LIST_DIR}/include/sluice
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT client FILES_MATCHING PATTERN "*.h")
install(EXPORT SluiceTargets NAMESPACE Sluice:: DESTINATION ${SLUICE_CMAKE_DIR} COMPONENT client)

configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/SluiceConfig.cmake.in
  ${CMAKE_CURRENT_BINARY_DIR}/SluiceConfig.cmake INSTALL_DESTINATION ${SLUICE_CMAKE_DIR})
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/SluiceConfigVersion.cmake
  VERSION ${PROJECT_VERSION} COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/SluiceConfig.cmake
  ${CMAKE_CURRENT_BINARY_DIR}/SluiceConfigVersion.cmake
  DESTINATION ${SLUICE_CMAKE_DIR} COMPONENT client)

file(RELATIVE_PATH SLUICE_PC_TO_PREFIX /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
configure_file(${CMAKE_CURRENT_LIST_DIR}/sluice-client.pc.in
  ${CMAKE_CURRENT_BINARY_DIR}/sluice-client.pc @ONLY)
configure_file(${CMAKE_CURRENT_LIST_DIR}/sluice.pc.in
  ${CMAKE_CURRENT_BINARY_DIR}/sluice.pc @ONLY)
configure_file(${CMAKE_CURRENT_LIST_DIR}/sluice-embedded.pc.in
  ${CMAKE_CURRENT_BINARY_DIR}/sluice-embedded.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/sluice-client.pc
  ${CMAKE_CURRENT_BINARY_DIR}/sluice.pc
  ${CMAKE_CURRENT_BINARY_DIR}/sluice-embedded.pc
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT client)

install(TARGETS sluice RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT programs)
if(TARGET sluiced)
  install(TARGETS sluiced RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT programs)
endif()
