# SPDX-License-Identifier: MIT
# Every src/kern/*_avx2, *_avx512 and *_neon object defines one global symbol: its init function.
# A second one could be picked by the linker from a file whose instructions the CPU lacks.
string(REPLACE "|" ";" objects "${OBJECTS}")
set(seen 0)
foreach(object IN LISTS objects)
  if(NOT object MATCHES "/kern/[a-z0-9]+_(avx2|avx512|neon)\\.c\\.o(bj)?$")
    continue()
  endif()
  set(want "^kvs__[a-z0-9_]*init_([a-z0-9_]+_)?${CMAKE_MATCH_1}$")
  execute_process(COMMAND ${NM} -g --defined-only ${object} OUTPUT_VARIABLE out
    RESULT_VARIABLE rc)
  string(REGEX MATCHALL "[0-9a-f]+ [A-Za-z] [^\n]+" lines "${out}")
  string(REGEX REPLACE "[0-9a-f]+ [A-Za-z] " "" names "${lines}")
  list(FILTER names EXCLUDE REGEX "^__(asan|odr_asan|sancov|start___|stop___)")
  if(NOT rc EQUAL 0 OR NOT names MATCHES "${want}")
    message(FATAL_ERROR "${object} exports \"${names}\", not one init function")
  endif()
  math(EXPR seen "${seen} + 1")
endforeach()
if(CMAKE_HOST_SYSTEM_PROCESSOR MATCHES "x86_64|aarch64" AND seen LESS 2)
  message(FATAL_ERROR "only ${seen} ISA objects found")
endif()
message(STATUS "${seen} ISA objects, one global symbol each")
