#!/bin/sh
# SPDX-License-Identifier: MIT
# model.sh: prompt and answer speed of the real models that scripts/fetch-model.sh has unpacked, by
# plan and depth, with what memory bandwidth allows (`make bench B=model [CSV=FILE]`).
#
#   bench_model [--csv FILE] [--quick]
#
# Absent models are named and left out. Lines are appended to FILE.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
csv=
prompts=512,4096
repeat=3
while [ $# -gt 0 ]; do
    case $1 in
    --csv)
        csv=${2:?--csv needs a file}
        shift
        ;;
    --quick)
        prompts=512
        repeat=1
        ;;
    *)
        echo "usage: bench_model [--csv FILE] [--quick]" >&2
        exit 2
        ;;
    esac
    shift
done
models=${XDG_CACHE_HOME:-${HOME:?}/.cache}/kvstate/models

# measure FILE DEPTHS: a table on the terminal's side, lines for FILE.
measure() {
    if [ ! -f "$models/$1" ]; then
        echo "SKIP: $models/$1 is absent; scripts/fetch-model.sh gets it" >&2
        return 0
    fi
    "$here/kvstate" bench -m "$models/$1" -p "$prompts" -n 64 -d "$2" -r "$repeat" --kv f16,q8,q4 \
        -o csv -q >"$out"
    cat "$out"
    if [ -n "$csv" ]; then
        if [ -s "$csv" ]; then
            tail -n +2 "$out" >>"$csv"
        else
            cat "$out" >"$csv"
        fi
    fi
}

out=$(mktemp)
trap 'rm -f "$out"' EXIT
measure SmolLM2-135M-Instruct.Q4_1.gguf 0,2048,7168
measure gemma-3-270m-q4_k_m.gguf 0,2048,7168,16384
