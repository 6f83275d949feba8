#!/bin/sh
# SPDX-License-Identifier: MIT
# prompt_cache.sh KVSTATE TINY_MODEL: run --prompt-cache: warm equals cold, what is written when, and
# what is refused.
set -u
kvstate=$1
tiny_model=$2
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
cd "$dir" || exit 1
bad=0
n=0

"$tiny_model" llama m.gguf || exit 1

# check NAME STATUS PATTERN: what the last run left in out, err and got; the pattern in both streams.
check() {
    n=$((n + 1))
    cat out err >both
    if [ "$got" = "$2" ] && grep -q -- "$3" both; then
        echo "ok $n - $1"
    else
        echo "not ok $n - $1: status $got, expected $2 and \"$3\""
        sed 's/^/# /' both | head -8
        bad=1
    fi
}

# run ARGS...: greedy, so that the same state gives the same text.
run() {
    "$kvstate" run -m m.gguf --raw --temp 0 -n 8 "$@" >out 2>err </dev/null
    got=$?
}

same() {
    n=$((n + 1))
    if cmp -s "$2" "$3"; then
        echo "ok $n - $1"
    else
        echo "not ok $n - $1"
        bad=1
    fi
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
n=$((n + 1))
if cmp -s f.safetensors first; then
    echo "not ok $n - written after the answer"
    bad=1
else
    echo "ok $n - written after the answer"
fi
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
exit $bad
