# SPDX-License-Identifier: MIT
# Every tests/fuzz/fuzz_*.c is one libFuzzer program, run as
#   fuzz_X FOUND_DIR tests/fuzz/corpus/X
# (new inputs go to the first folder). cmake/tests/fuzz.cmake builds the same files as replayers.
include(cmake/fuzz_program.cmake)
if(NOT CMAKE_C_COMPILER_ID MATCHES "Clang")
  message(FATAL_ERROR "KVS_FUZZ needs clang (libFuzzer)")
endif()
file(GLOB KVS_FUZZ_SRC CONFIGURE_DEPENDS tests/fuzz/fuzz_*.c)
foreach(src IN LISTS KVS_FUZZ_SRC)
  kvs_fuzz_program(${src} fuzz_ "")
endforeach()
