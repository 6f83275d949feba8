# SPDX-License-Identifier: MIT
# Real models, end to end, against recorded logits of llama.cpp and against a numpy forward.
find_package(Python3 QUIET COMPONENTS Interpreter)
if(KVS_ENGINE AND Python3_FOUND AND NOT CMAKE_CROSSCOMPILING AND NOT KVS_SANITIZE)
  set(dir ${PROJECT_SOURCE_DIR}/tests)
  set(model_smollm2 SmolLM2-135M-Instruct.Q4_1.gguf)
  set(model_gemma3 gemma-3-270m-q4_k_m.gguf)
  foreach(model smollm2 gemma3)
    foreach(oracle llamacpp numpy)
      add_test(NAME oracle_model_${oracle}_${model} COMMAND Python3::Interpreter
        ${dir}/oracle/with_venv.py ${PROJECT_BINARY_DIR}/venv-gguf
        ${dir}/golden/requirements-gguf.txt ${dir}/oracle/model_${oracle}.py
        $<TARGET_FILE:kvstate_engine> ${dir}/golden/model_llamacpp.json ${model_${model}})
      set_tests_properties(oracle_model_${oracle}_${model} PROPERTIES LABELS "oracle;model"
        TIMEOUT 1200 SKIP_RETURN_CODE 77 RESOURCE_LOCK venv-gguf)
    endforeach()
  endforeach()
endif()
