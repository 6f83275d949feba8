# SPDX-License-Identifier: MIT
# Every allocation of every call on caches, views, steps and masks fails once (tests/fault).
if(CMOCKA_LIB AND NOT CMAKE_CROSSCOMPILING)
  add_executable(test_fault tests/fault/test_fault.c $<TARGET_OBJECTS:kvstate_objects>)
  target_include_directories(test_fault PRIVATE include src tests)
  target_compile_definitions(test_fault PRIVATE KVS_STATIC)
  target_link_libraries(test_fault PRIVATE kvs_flags Threads::Threads m ${CMOCKA_LIB})
  add_test(NAME fault COMMAND test_fault)
  set_tests_properties(fault PROPERTIES LABELS "quick;fault" TIMEOUT 120)
endif()
