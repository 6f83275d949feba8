# SPDX-License-Identifier: MIT
# Attention reads in chosen shapes against the naive model, and against each other (tests/diff).
if(CMOCKA_LIB AND NOT CMAKE_CROSSCOMPILING)
  kvs_program(test_cache_read CMOCKA tests/diff/test_cache_read.c tests/diff/naive.c)
  add_test(NAME cache_read COMMAND test_cache_read)
  set_tests_properties(cache_read PROPERTIES LABELS "quick;diff" TIMEOUT 300)
  foreach(block 1 3 16 17 64 256)
    add_test(NAME cache_read_paged_${block} COMMAND test_cache_read ${block})
    set_tests_properties(cache_read_paged_${block} PROPERTIES LABELS "diff" TIMEOUT 300)
  endforeach()
endif()
