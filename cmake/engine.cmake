# SPDX-License-Identifier: MIT
# libkvstate_engine: every src/engine/*.c. The shared library holds libkvstate too, because the
# engine uses internals that libkvstate.so does not export; a program links one of the two.
find_package(PkgConfig QUIET)
if(PkgConfig_FOUND)
  pkg_check_modules(KVS_PCRE2 QUIET IMPORTED_TARGET libpcre2-8)
endif()
if(NOT TARGET PkgConfig::KVS_PCRE2)
  find_library(KVS_PCRE2_LIB pcre2-8)
  find_path(KVS_PCRE2_INCLUDE pcre2.h)
  if(NOT KVS_PCRE2_LIB OR NOT KVS_PCRE2_INCLUDE)
    message(FATAL_ERROR "The engine's tokenizer needs PCRE2 (Debian: libpcre2-dev); "
      "install it or build the state library alone with -DKVS_ENGINE=OFF")
  endif()
  add_library(PkgConfig::KVS_PCRE2 UNKNOWN IMPORTED)
  set_target_properties(PkgConfig::KVS_PCRE2 PROPERTIES IMPORTED_LOCATION ${KVS_PCRE2_LIB}
    INTERFACE_INCLUDE_DIRECTORIES ${KVS_PCRE2_INCLUDE})
endif()
if(PkgConfig_FOUND)
  pkg_check_modules(KVS_UTF8PROC QUIET IMPORTED_TARGET libutf8proc)
endif()
if(NOT TARGET PkgConfig::KVS_UTF8PROC)
  find_library(KVS_UTF8PROC_LIB utf8proc)
  find_path(KVS_UTF8PROC_INCLUDE utf8proc.h)
  if(NOT KVS_UTF8PROC_LIB OR NOT KVS_UTF8PROC_INCLUDE)
    message(FATAL_ERROR "The engine's tokenizer needs utf8proc (Debian: libutf8proc-dev); "
      "install it or build the state library alone with -DKVS_ENGINE=OFF")
  endif()
  add_library(PkgConfig::KVS_UTF8PROC UNKNOWN IMPORTED)
  set_target_properties(PkgConfig::KVS_UTF8PROC PROPERTIES IMPORTED_LOCATION ${KVS_UTF8PROC_LIB}
    INTERFACE_INCLUDE_DIRECTORIES ${KVS_UTF8PROC_INCLUDE})
endif()
# Whatever is made from the engine's objects names PCRE2, and so gets both.
set_property(TARGET PkgConfig::KVS_PCRE2 APPEND PROPERTY
  INTERFACE_LINK_LIBRARIES PkgConfig::KVS_UTF8PROC)

file(GLOB KVS_ENGINE_SRC CONFIGURE_DEPENDS src/engine/*.c)
add_library(kvstate_engine_objects OBJECT ${KVS_ENGINE_SRC})
target_include_directories(kvstate_engine_objects PUBLIC include PRIVATE src)
target_link_libraries(kvstate_engine_objects PRIVATE kvs_flags Threads::Threads PkgConfig::KVS_PCRE2)

add_library(kvstate_engine SHARED $<TARGET_OBJECTS:kvstate_engine_objects>
  $<TARGET_OBJECTS:kvstate_objects>)
add_library(kvstate_engine_static STATIC $<TARGET_OBJECTS:kvstate_engine_objects>)
set_target_properties(kvstate_engine_static PROPERTIES OUTPUT_NAME kvstate_engine)
set_target_properties(kvstate_engine PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${KVS_ABI})
target_link_libraries(kvstate_engine PRIVATE PkgConfig::KVS_PCRE2 PUBLIC Threads::Threads m)
target_link_libraries(kvstate_engine_static PUBLIC kvstate_static PkgConfig::KVS_PCRE2)
foreach(lib kvstate_engine kvstate_engine_static)
  target_include_directories(${lib} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  if(KVS_SANITIZE)
    target_link_options(${lib} PUBLIC -fsanitize=${KVS_SANITIZE})
  endif()
endforeach()
install(TARGETS kvstate_engine EXPORT kvstateTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
configure_file(cmake/kvstate_engine.pc.in ${PROJECT_BINARY_DIR}/kvstate_engine.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/kvstate_engine.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
include(cmake/app.cmake)
