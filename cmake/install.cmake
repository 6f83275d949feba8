# SPDX-License-Identifier: MIT
# Headers, libraries, pkg-config and CMake package files.
include(CMakePackageConfigHelpers)
install(TARGETS kvstate kvstate_static EXPORT kvstateTargets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY include/kvstate DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(EXPORT kvstateTargets NAMESPACE kvstate:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/kvstate)
configure_package_config_file(cmake/kvstateConfig.cmake.in ${PROJECT_BINARY_DIR}/kvstateConfig.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/kvstate)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/kvstateConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/kvstateConfig.cmake ${PROJECT_BINARY_DIR}/kvstateConfigVersion.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/kvstate)
# Relative to the file itself, so that the prefix may be chosen when installing.
file(RELATIVE_PATH KVS_PC_PREFIX /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
configure_file(cmake/kvstate.pc.in ${PROJECT_BINARY_DIR}/kvstate.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/kvstate.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
