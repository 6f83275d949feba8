# SPDX-License-Identifier: MIT
# Random programs over sets of rows against the naive model (tests/diff/rowops.h).
kvs_program(test_rows tests/diff/test_rows.c ${KVS_ROWOPS_SRC})
add_test(NAME rows_ops COMMAND test_rows --programs 2000)
set_tests_properties(rows_ops PROPERTIES LABELS "quick;diff" TIMEOUT 600)
add_test(NAME rows_ops_long COMMAND test_rows --first 1000001 --programs 20000)
set_tests_properties(rows_ops_long PROPERTIES LABELS "long;diff" TIMEOUT 1800)

# Every allocation of every call on rows fails once.
if(CMOCKA_LIB AND NOT CMAKE_CROSSCOMPILING)
  kvs_program(test_fault_rows CMOCKA tests/fault/test_fault_rows.c)
  add_test(NAME fault_rows COMMAND test_fault_rows)
  set_tests_properties(fault_rows PROPERTIES LABELS "quick;fault" TIMEOUT 120)
endif()
