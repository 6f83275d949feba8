#!/bin/sh
# SPDX-License-Identifier: MIT
# examples.sh RING ROUNDS SAVE [PERPLEXITY SHARE TINY_MODEL]: runs the example programs; each has to print
# what its comment promises.
set -u
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cd "$tmp" || exit 1
status=0
expect() { # PATTERN PROGRAM [ARGUMENT...]
    pattern=$1
    shift
    if ! "$@" >out 2>&1 || ! grep -q -e "$pattern" out; then
        echo "$* does not print \"$pattern\":"
        cat out
        status=1
    fi
}
expect '^1000 tokens seen, stored from 920 on' "$1"
expect '^995 tokens after the rewind' "$1"
expect '^two rows of 256 tokens in 8 blocks' "$2"
expect '^row 0: 260 tokens' "$2"
expect '^row 1: 258 tokens' "$2"
expect '^100 of 120 tokens need not be computed' "$3"
expect '^100 of 120 tokens need not be computed' "$3" saved # once more, from what is there
if [ $# -ge 6 ]; then
    "$6" llama model.gguf wide || exit 1
    echo "The quick brown fox jumps over the lazy dog." >text
    expect '^perplexity [0-9.]* over [0-9]* tokens with q4' "$4" model.gguf text q4
    expect '^0 of [0-9]* tokens reused' "$5" model.gguf q4
    expect '^[1-9][0-9]* of [0-9]* tokens reused, [0-9]* bytes' "$5" model.gguf q4 tier
    expect '^[1-9][0-9]* of [0-9]* tokens reused' "$5" model.gguf q4 tier
    if grep -q '^0 of' out; then
        echo "a later run does not start warm:"
        cat out
        status=1
    fi
fi
exit $status
