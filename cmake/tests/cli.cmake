# SPDX-License-Identifier: MIT
# The kvstate program from outside, with a tiny model; with a real one its memory.
if(KVS_ENGINE AND NOT CMAKE_CROSSCOMPILING)
  kvs_program(tiny_model ENGINE tests/cli/tiny_model.c)
  add_test(NAME cli COMMAND ${PROJECT_SOURCE_DIR}/tests/cli/cli.sh $<TARGET_FILE:kvstate_app>
    $<TARGET_FILE:tiny_model>)
  set_tests_properties(cli PROPERTIES LABELS "quick" TIMEOUT 300)
  add_test(NAME cli_quality COMMAND sh ${PROJECT_SOURCE_DIR}/tests/cli/quality.sh
    $<TARGET_FILE:kvstate_app> $<TARGET_FILE:tiny_model>)
  set_tests_properties(cli_quality PROPERTIES LABELS "quick" TIMEOUT 300)
  find_package(Python3 QUIET COMPONENTS Interpreter)
  if(Python3_FOUND)
    add_test(NAME cli_warm COMMAND Python3::Interpreter ${PROJECT_SOURCE_DIR}/tests/cli/warm.py
      $<TARGET_FILE:kvstate_app> tiny $<TARGET_FILE:tiny_model>)
    set_tests_properties(cli_warm PROPERTIES LABELS quick TIMEOUT 300)
  endif()
  foreach(model SmolLM2-135M-Instruct.Q4_1 gemma-3-270m-q4_k_m)
    if(Python3_FOUND AND NOT KVS_SANITIZE)
      add_test(NAME memory_${model} COMMAND Python3::Interpreter
        ${PROJECT_SOURCE_DIR}/tests/cli/memory.py $<TARGET_FILE:kvstate_app> ${model}.gguf)
      set_tests_properties(memory_${model} PROPERTIES LABELS model TIMEOUT 300 SKIP_RETURN_CODE 77)
      add_test(NAME warm_${model} COMMAND Python3::Interpreter
        ${PROJECT_SOURCE_DIR}/tests/cli/warm.py $<TARGET_FILE:kvstate_app> ${model}.gguf)
      set_tests_properties(warm_${model} PROPERTIES LABELS model TIMEOUT 600 SKIP_RETURN_CODE 77)
    endif()
  endforeach()
  if(Python3_FOUND AND NOT KVS_SANITIZE)
    add_test(NAME quality_SmolLM2 COMMAND Python3::Interpreter
      ${PROJECT_SOURCE_DIR}/tests/cli/quality_model.py $<TARGET_FILE:kvstate_app>
      SmolLM2-135M-Instruct.Q4_1.gguf)
    set_tests_properties(quality_SmolLM2 PROPERTIES LABELS model TIMEOUT 600 SKIP_RETURN_CODE 77)
  endif()
  add_test(NAME cli_man COMMAND sh ${PROJECT_SOURCE_DIR}/tests/cli/man.sh
    $<TARGET_FILE:kvstate_app> ${PROJECT_SOURCE_DIR}/app/kvstate.1)
  set_tests_properties(cli_man PROPERTIES LABELS "quick" TIMEOUT 60)
  find_program(KVS_MANDOC mandoc)
  if(KVS_MANDOC)
    add_test(NAME man_page COMMAND ${KVS_MANDOC} -T lint -W style ${PROJECT_SOURCE_DIR}/app/kvstate.1)
    set_tests_properties(man_page PROPERTIES LABELS "quick" TIMEOUT 30)
  endif()
endif()
