# SPDX-License-Identifier: MIT
# Every tests/unit/test_engine_*.c is one program over the state and engine objects. Those named
# test_engine_model_* need a model file (tests/support/models.h finds it) and carry that label.
file(GLOB KVS_ENGINE_UNIT_SRC CONFIGURE_DEPENDS tests/unit/test_engine_*.c)
if(KVS_ENGINE AND CMOCKA_LIB AND NOT CMAKE_CROSSCOMPILING)
  foreach(src IN LISTS KVS_ENGINE_UNIT_SRC)
    get_filename_component(name ${src} NAME_WE)
    kvs_program(${name} ENGINE CMOCKA ${src})
    target_compile_definitions(${name} PRIVATE KVS_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
    add_test(NAME ${name} COMMAND ${name})
    set(label quick)
    if(name MATCHES "^test_engine_model_")
      set(label model)
    endif()
    set_tests_properties(${name} PROPERTIES LABELS ${label} TIMEOUT 600 SKIP_RETURN_CODE 77)
  endforeach()
endif()
# Random programs over sessions, against sessions that never did anything else.
if(KVS_ENGINE AND NOT CMAKE_CROSSCOMPILING)
  kvs_program(test_sessions ENGINE tests/diff/test_sessions.c tests/diff/sessions_world.c)
  add_test(NAME sessions COMMAND test_sessions)
  set_tests_properties(sessions PROPERTIES LABELS "quick;diff" TIMEOUT 300)
  add_test(NAME sessions_long COMMAND test_sessions --first 1000 --programs 800)
  # A restored window's block of sinks, lent to one who began earlier.
  add_test(NAME sessions_restored_sinks COMMAND test_sessions --first 2488 --programs 1)
  set_tests_properties(sessions_restored_sinks PROPERTIES LABELS "quick;diff" TIMEOUT 300)
  set_tests_properties(sessions_long PROPERTIES LABELS "long;diff" TIMEOUT 1800)
endif()
