# SPDX-License-Identifier: MIT
# Random programs over a prefix index against cold computation (tests/diff/prefixops.h).
kvs_program(test_prefix tests/diff/test_prefix.c ${KVS_PREFIXOPS_SRC})
add_test(NAME prefix_ops COMMAND test_prefix --programs 400)
set_tests_properties(prefix_ops PROPERTIES LABELS "quick;diff" TIMEOUT 300)
# Long programs: 10^5 operations on one index do not grow.
add_test(NAME prefix_ops_long COMMAND test_prefix --first 1000001 --programs 20 --bytes 200000)
set_tests_properties(prefix_ops_long PROPERTIES LABELS "long;diff" TIMEOUT 1800)
