# What the top folder's CMakeLists.txt provides, for a program that adds only this folder.
get_filename_component(SLUICE_SOURCE_DIR ${CMAKE_CURRENT_LIST_DIR}/.. ABSOLUTE)
file(STRINGS ${SLUICE_SOURCE_DIR}/CMakeLists.txt version REGEX "^project\\(Sluice VERSION")
string(REGEX REPLACE ".*VERSION ([0-9.]+).*" "\\1" version "${version}")
project(SluiceClient VERSION ${version} LANGUAGES CXX)

if(NOT CMAKE_CXX_STANDARD)
  set(CMAKE_CXX_STANDARD 20)
  set(CMAKE_CXX_STANDARD_REQUIRED ON)
endif()
find_package(Threads REQUIRED)
find_package(absl REQUIRED)
include(${SLUICE_SOURCE_DIR}/common/build.cmake)
# Only what the client links is built.
add_subdirectory(${SLUICE_SOURCE_DIR}/common ${CMAKE_CURRENT_BINARY_DIR}/common EXCLUDE_FROM_ALL)
