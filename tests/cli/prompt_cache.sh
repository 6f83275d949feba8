#!/bin/sh
# SPDX-License-Identifier: MIT
# prompt_cache.sh KVSTATE TINY_MODEL: run --prompt-cache: warm equals cold, what is written when, and
# what is refused.
set -u
kvstate=$1
tiny_model=$2
. "$(dirname "$0")/expect.sh"

"$tiny_model" llama m.gguf || exit 1

# run ARGS...: greedy, so that the same state gives the same text.
run() {
    "$kvstate" run -m m.gguf --raw --temp 0 -n 8 "$@" >out 2>err </dev/null
    got=$?
}

run --kv bf16 -p "hello there, all of you"
cp out cold
run --kv bf16 -p "hello there, all" --prompt-cache f.safetensors
check "written after the prompt" 0 "f.safetensors: .* tokens written"
cp f.safetensors first
run --kv bf16 -p "hello there, all of you" --prompt-cache f.safetensors
check "reused" 0 "tokens were not computed again"
same "warm equals cold" out cold
same "an existing file is not touched" f.safetensors first
run --kv bf16 -p "hello there, all of you" --prompt-cache f.safetensors --prompt-cache-all --json
check "json" 0 '"reused_tokens":[1-9]'
! cmp -s f.safetensors first
report $? "written after the answer"
run --kv bf16 -p "something else" --prompt-cache f.safetensors
check "another prompt" 0 "f.safetensors: .* tokens"
run --kv f16 -p "hello" --prompt-cache f.safetensors
check "another plan" 3 "layer 0: keys are bf16 in the file, the plan keeps f16"
head -c 300 f.safetensors >cut.safetensors
run --kv bf16 -p "hello" --prompt-cache cut.safetensors
check "a cut file" 3 "cut.safetensors"
run --kv bf16 -p "hello" --prompt-cache-all
check "no file named" 2 "which file"
run --kv bf16 -p "hello" --prompt-cache none/x.safetensors
check "no such directory" 1 "none/x.safetensors"
# what mlx-lm writes has no tokens
sed 's/kvstate_tokens/kvstate_tokenz/' first >foreign.safetensors
run --kv bf16 -p " of you" --prompt-cache foreign.safetensors
check "tokens that the file does not tell" 0 "does not tell; the prompt continues them"
same "the prompt continues them" out cold
"$kvstate" run -m m.gguf --kv config:none.json -p x >out 2>err </dev/null
got=$?
check "kv_config.json" 3 "none.json"
finish
