# SPDX-License-Identifier: MIT
# Every allocation of every call on caches, views, steps and masks fails once (tests/fault).
if(CMOCKA_LIB AND NOT CMAKE_CROSSCOMPILING)
  kvs_program(test_fault CMOCKA tests/fault/test_fault.c)
  add_test(NAME fault COMMAND test_fault)
  set_tests_properties(fault PROPERTIES LABELS "quick;fault" TIMEOUT 120)
endif()
