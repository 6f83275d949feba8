# SPDX-License-Identifier: MIT
# Every tests/fuzz/fuzz_X.c is also a plain program that runs the corpus tests/fuzz/corpus/X.
include(cmake/fuzz_program.cmake)
file(GLOB KVS_REPLAY_SRC CONFIGURE_DEPENDS tests/fuzz/fuzz_*.c)
foreach(src IN LISTS KVS_REPLAY_SRC)
  if(CMAKE_CROSSCOMPILING)
    break()
  endif()
  kvs_fuzz_program(${src} replay_ tests/fuzz/replay.c)
  if(KVS_FUZZ_TARGET)
    string(REGEX REPLACE "^replay_" "" corpus ${KVS_FUZZ_TARGET})
    add_test(NAME ${KVS_FUZZ_TARGET}
      COMMAND ${KVS_FUZZ_TARGET} ${PROJECT_SOURCE_DIR}/tests/fuzz/corpus/${corpus})
    set_tests_properties(${KVS_FUZZ_TARGET} PROPERTIES LABELS quick TIMEOUT 120)
  endif()
endforeach()
