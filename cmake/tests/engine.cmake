# SPDX-License-Identifier: MIT
# Every tests/unit/test_engine_*.c is one program over the state and engine objects. Those named
# test_engine_model_* need a model file (tests/support/models.h finds it) and carry that label.
file(GLOB KVS_ENGINE_UNIT_SRC CONFIGURE_DEPENDS tests/unit/test_engine_*.c)
if(KVS_ENGINE AND CMOCKA_LIB AND NOT CMAKE_CROSSCOMPILING)
  foreach(src IN LISTS KVS_ENGINE_UNIT_SRC)
    get_filename_component(name ${src} NAME_WE)
    add_executable(${name} ${src} $<TARGET_OBJECTS:kvstate_engine_objects>
      $<TARGET_OBJECTS:kvstate_objects>)
    target_include_directories(${name} PRIVATE include src tests)
    target_compile_definitions(${name} PRIVATE KVS_STATIC KVS_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
    target_link_libraries(${name} PRIVATE kvs_flags Threads::Threads m PkgConfig::KVS_PCRE2
      ${CMOCKA_LIB})
    add_test(NAME ${name} COMMAND ${name})
    set(label quick)
    if(name MATCHES "^test_engine_model_")
      set(label model)
    endif()
    set_tests_properties(${name} PROPERTIES LABELS ${label} TIMEOUT 600 SKIP_RETURN_CODE 77)
  endforeach()
endif()
