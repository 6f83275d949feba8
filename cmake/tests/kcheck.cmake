# SPDX-License-Identifier: MIT
# The kernel checker: every tier against the reference; see tests/kcheck/kcheck.c.
file(GLOB KVS_KCHECK_SRC CONFIGURE_DEPENDS tests/kcheck/*.c)
list(FILTER KVS_KCHECK_SRC EXCLUDE REGEX "/wcheck\\.c$") # a program of its own, cmake/tests/wcheck.cmake
kvs_program(kcheck ${KVS_KCHECK_SRC})
add_test(NAME kcheck COMMAND kcheck)
set_tests_properties(kcheck PROPERTIES LABELS "kernel;quick" TIMEOUT 600 SKIP_RETURN_CODE 77)
# 10^7 values for every (bits, group, dtype), encoded and decoded in every tier.
add_test(NAME kcheck_full COMMAND kcheck --full)
set_tests_properties(kcheck_full PROPERTIES LABELS "kernel;long" TIMEOUT 1800 SKIP_RETURN_CODE 77)
# Each ISA file exports its init function and nothing else.
if(KVS_SIMD)
  add_test(NAME kern_symbols COMMAND ${CMAKE_COMMAND} -DNM=${CMAKE_NM}
    "-DOBJECTS=$<JOIN:$<TARGET_OBJECTS:kvstate_objects>,|>"
    -P ${PROJECT_SOURCE_DIR}/tests/kcheck/symbols.cmake)
  set_tests_properties(kern_symbols PROPERTIES LABELS "kernel;quick" TIMEOUT 60)
endif()
