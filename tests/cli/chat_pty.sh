#!/bin/sh
# SPDX-License-Identifier: MIT
# chat_pty.sh KVSTATE TINY_MODEL EDITING: chat_pty.py with a tiny model; EDITING is 1 where the
# program was built with libedit.
set -eu
export KVSTATE_NO_CACHE=1
dir=$(dirname "$0")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$2" llama "$folder/m.gguf"
python3 "$dir/chat_pty.py" "$1" "$folder/m.gguf" "$3"
