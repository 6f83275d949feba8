# SPDX-License-Identifier: MIT
# The same programs on CPUs that lack instruction sets, emulated by qemu-user: one with AVX2 but no
# AVX-512, one with neither. An instruction that the CPU lacks ends them, which masking tiers off on
# a CPU that has them cannot show. (kcheck is left out: qemu 7.2 reads 16 bytes for the scalar operand
# of a fused multiply-add, past the fences.)
if(NOT CMAKE_CROSSCOMPILING AND CMAKE_SYSTEM_PROCESSOR STREQUAL "x86_64" AND NOT KVS_SANITIZE)
  set(KVS_CPU_TESTS test_base test_cache golden_codec golden_attention golden_recurrent wcheck)
  if(KVS_ENGINE)
    list(APPEND KVS_CPU_TESTS test_engine_graph)
  endif()
  foreach(cpu Haswell Nehalem)
    foreach(test ${KVS_CPU_TESTS})
      add_test(NAME cpu_${cpu}_${test} COMMAND sh ${PROJECT_SOURCE_DIR}/tests/support/on_cpu.sh
        ${cpu} $<TARGET_FILE:${test}>)
      set_tests_properties(cpu_${cpu}_${test} PROPERTIES LABELS kernel TIMEOUT 300
        SKIP_RETURN_CODE 77)
    endforeach()
  endforeach()
endif()
