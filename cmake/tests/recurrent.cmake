# SPDX-License-Identifier: MIT
# Recurrent layers: random programs against the naive model (tests/diff).
kvs_program(test_recurrent_ops tests/diff/test_recurrent_ops.c tests/diff/rec_naive.c)
add_test(NAME recurrent_ops COMMAND test_recurrent_ops 1 300)
add_test(NAME recurrent_ops_fail COMMAND test_recurrent_ops 100001 300 fail)
set_tests_properties(recurrent_ops recurrent_ops_fail PROPERTIES LABELS "quick;diff" TIMEOUT 600)
add_test(NAME recurrent_ops_long COMMAND test_recurrent_ops 1000001 10000)
add_test(NAME recurrent_ops_fail_long COMMAND test_recurrent_ops 2000001 10000 fail)
set_tests_properties(recurrent_ops_long recurrent_ops_fail_long PROPERTIES LABELS "long;diff" TIMEOUT 1800)
if(TARGET test_recurrent) # tests/unit
  target_sources(test_recurrent PRIVATE tests/diff/rec_naive.c)
endif()

# What mlx-lm answered (tests/golden/recurrent.kvg).
kvs_program(golden_recurrent tests/diff/golden_recurrent.c)
target_compile_definitions(golden_recurrent PRIVATE KVS_GOLDEN_FILE="${PROJECT_SOURCE_DIR}/tests/golden/recurrent.kvg")
add_test(NAME golden_recurrent COMMAND golden_recurrent)
set_tests_properties(golden_recurrent PROPERTIES LABELS "quick;diff" TIMEOUT 60)

# The recording against the packages it came from, in both sets of versions; label oracle.
find_program(KVS_PYTHON NAMES python3)
if(KVS_PYTHON AND NOT CMAKE_CROSSCOMPILING AND NOT KVS_SANITIZE)
  foreach(set mlx mlx-parent)
    add_test(NAME oracle_recurrent_${set} COMMAND ${KVS_PYTHON}
      ${PROJECT_SOURCE_DIR}/tests/oracle/run.py
      ${PROJECT_SOURCE_DIR}/tests/golden/requirements-${set}.txt ${PROJECT_BINARY_DIR}/oracle-${set}
      --run ${PROJECT_SOURCE_DIR}/tests/golden/record_recurrent.py
      ${PROJECT_SOURCE_DIR}/tests/golden/recurrent.kvg --check)
    # the environment is made by whichever of the two comes first
    set_tests_properties(oracle_recurrent_${set} PROPERTIES LABELS oracle TIMEOUT 900
      SKIP_RETURN_CODE 77 DEPENDS oracle_${set})
  endforeach()
endif()
