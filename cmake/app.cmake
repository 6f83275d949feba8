# SPDX-License-Identifier: MIT
# The kvstate program: app/*.c over the public headers alone, linked with the static libraries so
# that it runs from anywhere.
file(GLOB KVS_APP_SRC CONFIGURE_DEPENDS app/*.c)
add_executable(kvstate_app ${KVS_APP_SRC})
set_target_properties(kvstate_app PROPERTIES OUTPUT_NAME kvstate)
target_include_directories(kvstate_app PRIVATE app)
target_compile_definitions(kvstate_app PRIVATE KVS_STATIC _DEFAULT_SOURCE)
target_link_libraries(kvstate_app PRIVATE kvs_flags kvstate_engine_static)
# Line editing of `kvstate chat`; without it a terminal is read line by line.
find_package(PkgConfig QUIET)
if(PkgConfig_FOUND)
  pkg_check_modules(KVS_LIBEDIT QUIET IMPORTED_TARGET libedit)
endif()
if(TARGET PkgConfig::KVS_LIBEDIT)
  target_link_libraries(kvstate_app PRIVATE PkgConfig::KVS_LIBEDIT)
  target_compile_definitions(kvstate_app PRIVATE KVS_HAVE_LIBEDIT)
endif()
install(TARGETS kvstate_app DESTINATION ${CMAKE_INSTALL_BINDIR})
install(FILES ${PROJECT_SOURCE_DIR}/app/kvstate.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
