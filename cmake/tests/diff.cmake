# SPDX-License-Identifier: MIT
# Random op programs against the naive model (tests/diff). Also built as a libFuzzer target.
kvs_program(test_cache_ops tests/diff/test_cache_ops.c ${KVS_OPS_SRC})
add_test(NAME cache_ops COMMAND test_cache_ops 1 400)
add_test(NAME cache_ops_fail COMMAND test_cache_ops 100001 400 fail)
set_tests_properties(cache_ops cache_ops_fail PROPERTIES LABELS "quick;diff" TIMEOUT 600)
add_test(NAME cache_ops_long COMMAND test_cache_ops 1000001 6000)
add_test(NAME cache_ops_fail_long COMMAND test_cache_ops 2000001 6000 fail)
set_tests_properties(cache_ops_long cache_ops_fail_long PROPERTIES LABELS "long;diff" TIMEOUT 1800)
