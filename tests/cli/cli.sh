#!/bin/sh
# SPDX-License-Identifier: MIT
# cli.sh KVSTATE TINY_MODEL: the program from outside: exit codes, messages, streams, signals.
set -u
export KVSTATE_NO_CACHE=1
kvstate=$1
tiny_model=$2
. "$(dirname "$0")/expect.sh"

"$tiny_model" llama m.gguf && "$tiny_model" mamba other.gguf || exit 1
head -c 20000 m.gguf >cut.gguf
printf 'caf\351 au lait' >latin1.txt
printf 'one two three' >prompt.txt
printf 'a\n{{ messages | urlize }}' >bad.jinja
printf '{{ raise_exception("no such luck") }}' >raise.jinja
printf '<|im_start|>{{ messages[0].content }}<|im_end|>' >own.jinja

run() {
    "$kvstate" run -m m.gguf -p "hello there" --seed 7 -n 12 -q "$@"
}

# -- usage
expect "no command" 2 "usage: kvstate" "$kvstate"
expect "unknown command" 2 'unknown command "ran"' "$kvstate" ran
expect "help" 0 "inspect" "$kvstate" --help
expect "help of run" 0 "--chat-template" "$kvstate" run --help
expect "version" 0 "^kvstate 0\." "$kvstate" --version
expect "unknown option" 2 "unknown option --modell" "$kvstate" run --modell x
expect "missing value" 2 "option --prompt needs a value" "$kvstate" run m.gguf --prompt
expect "bad number" 2 'top-p: "1.5" is not a number from 0 to 1' run --top-p 1.5
expect "bad whole number" 2 'top-k: "3.5" is not a whole number' run --top-k 3.5
expect "no model" 2 "which model" "$kvstate" run -p x
expect "two models" 2 "one argument too many" "$kvstate" run m.gguf n.gguf -p x
expect "two prompts" 2 "give one" run -f prompt.txt
expect "bad bias" 2 'logit-bias: "900+1"' run --logit-bias 900+1
expect "a bias of the last token" 0 "" run --logit-bias 258-100
expect "a bias of the one after it" 2 'logit-bias: "259+1"' run --logit-bias 259+1
expect "bad template" 2 'chat-template: "jinja"' run --chat-template jinja
expect "template without its tokens" 2 "<start_of_turn>" run --chat-template gemma

# -- files
expect "missing file" 3 "nowhere.gguf.*No such file" "$kvstate" run -m nowhere.gguf -p x
expect "truncated file" 3 "^kvstate: cut.gguf: " "$kvstate" run -m cut.gguf -p x
expect "not a model" 3 "^kvstate: prompt.txt: " "$kvstate" run -m prompt.txt -p x
expect "wrong architecture" 3 'architecture "mamba" is not supported; supported: llama' \
    "$kvstate" run -m other.gguf -p x
expect "missing prompt file" 3 "gone.txt: No such file" "$kvstate" run -m m.gguf -f gone.txt
expect "invalid UTF-8" 2 "not UTF-8: byte 0xe9 at offset 3.*iconv" \
    "$kvstate" run -m m.gguf -f latin1.txt
expect "empty prompt" 2 "the prompt is empty" "$kvstate" run -m m.gguf --raw -p ""

# -- memory and context
expect "prompt beyond the context" 4 "do not fit into 16" run -c 16
expect "context full while answering" 0 "context of 45 tokens is full; --ctx-size" \
    "$kvstate" run -m m.gguf --raw -p "0123456789012345678901234567890123456789" -c 45 --ignore-eos
expect "length limit" 0 "stopped after 3 tokens; -n sets" \
    "$kvstate" run -m m.gguf -p x --ignore-eos -n 3
expect "memory limit" 4 "--max-memory allows 1 MiB" run --max-memory 1 -b 512

# -- plans
expect "plan the geometry can't hold" 2 "layer 0 can't keep its keys so: .*16" run --kv q4
expect "unknown plan" 2 '"q9" names no codec' run --kv q9
expect "a word for a plan" 2 '"small" names no codec; f32, f16' run --kv small
expect "window of nothing" 2 "a whole number from 1 to 2147483647" run --window 0
expect "plot that can't be written" 3 "no/such.svg can't be written: No such file" \
    "$kvstate" bench -m m.gguf --svg no/such.svg
expect "system message without a format" 2 "which --raw and --chat-template none do without" \
    "$kvstate" run -m m.gguf --raw -p x --system y
expect "plan twice" 2 "give one" run --kv f16 --kv-bits 4
expect "plan and both types" 2 "kv has no effect" run --kv q8 --ctk q4 --ctv q4
expect "bits and both types" 2 "kv-bits has no effect" run --kv-bits 8 --ctk q4 --ctv q4
expect "plan and one type" 0 "" run --kv f16 --ctk bf16
expect "layout and both types" 0 "" run --kv paged:f16 --ctk bf16 --ctv f32
expect "effective plan" 0 "kv: layers 0-2: grow window 40 sinks 4, k bf16, v bf16" \
    "$kvstate" run -m m.gguf -p x -n 1 --kv bf16 --max-kv-size 44
expect "ring" 0 "kv: layers 0-2: ring window 40, k f32" \
    "$kvstate" run -m m.gguf -p x -n 1 --kv f32 --window 40 -b 16

# -- the answer does not depend on how it is computed
tokens() {
    run --json "$@" 2>err | sed 's/.*"tokens":\[\([^]]*\)\].*/\1/'
}
want=$(tokens -t 1)
for how in "-t 2" "-b 1" "-b 7" "--isa ref" "--isa ref -t 2 -b 3" "--window 500"; do
    # shellcheck disable=SC2086 # words on purpose
    test -n "$want" && test "$(tokens $how)" = "$want"
    report $? "same tokens with $how"
done
test "$(tokens --seed 8)" != "$want"
report $? "other tokens with another seed"
test "$(KVSTATE_SEED=8 "$kvstate" run -m m.gguf -p "hello there" -n 12 -q --json |
    sed 's/.*"tokens":\[\([^]]*\)\].*/\1/')" = "$(tokens --seed 8)"
report $? "an option from the environment"
test "$(tokens -f prompt.txt -p "")" != "$want"
report $? "another prompt"

# -- drafts: the same tokens, and it is told what became of them
for how in "ngram" "ngram:1" "m.gguf"; do
    test "$(tokens --draft $how)" = "$want" && test "$(tokens --draft $how --temp 0 --draft-max 3)" = \
        "$(tokens --temp 0)"
    report $? "same tokens with --draft $how"
done
test "$(tokens -md m.gguf --kv q4 --window 24 --sinks 2 -b 16)" = \
    "$(tokens --kv q4 --window 24 --sinks 2 -b 16)"
report $? "same tokens with a draft model and a window"
test "$(tokens --draft ngram:1 -c 14 -n -1 --ignore-eos)" = "$(tokens -c 14 -n -1 --ignore-eos)"
report $? "same tokens to the end of the context"
run --json --draft m.gguf >out 2>err && grep -q '"rounds":[1-9][0-9]*,"drafts":[1-9]' out
report $? "drafts in JSON"
expect "drafts on standard error" 0 "drafts: [0-9]* of [1-9][0-9]* accepted (" \
    "$kvstate" run -m m.gguf -p "hello there" --seed 7 -n 12 --draft m.gguf
expect "drafts of a chat" 0 "drafts: [0-9]* of [0-9]* accepted" sh -c \
    "printf 'one\n/stats\n' | '$kvstate' chat -m m.gguf --seed 7 -n 4 --ignore-eos -md m.gguf"
expect "a bad n-gram" 2 'ngram:0.* from 1 to 32' run --draft ngram:0
expect "a bad n-gram" 2 'ngram:x' run --draft ngram:x
expect "the longest n-gram" 0 "" run --draft ngram:32
expect "a longer n-gram" 2 'ngram:33.* from 1 to 32' run --draft ngram:33
expect "drafts twice" 2 "give one" run --draft ngram -md m.gguf
expect "drafts of nothing" 2 "needs --draft" run --draft-max 3
expect "too many drafts" 2 "draft-max" run --draft ngram --draft-max 256
expect "no such draft model" 3 "gone.gguf" run --draft gone.gguf

# -- streams
run --json >out 2>err && test ! -s err && {
    ! command -v python3 >/dev/null || python3 -c 'import json, sys; json.load(sys.stdin)' <out
}
report $? "JSON, and nothing else with --quiet"
"$kvstate" run -m m.gguf -n 4 --ignore-eos -q <prompt.txt >out 2>err && test -s out
report $? "prompt from standard input"
"$kvstate" run -m m.gguf -p x -n 4 >/dev/null 2>err && grep -q "tok/s" err
report $? "speeds on standard error"
grep -q "$(printf '\033')" err
test $? = 1
report $? "no colour and no cursor movement off a terminal"
expect "a full disk is seen" 1 "standard output: No space" sh -c \
    "'$kvstate' run -m m.gguf -p x -n 4 -q >/dev/full"
expect "as JSON: a full disk is seen" 1 "standard output can't be written: No space" sh -c \
    "'$kvstate' run -m m.gguf -p x -n 4 -q --json >/dev/full"
{ "$kvstate" run -m m.gguf -p x --ignore-eos -q 2>err; } | head -c 1 >out
test ! -s err
report $? "a closed pipe is no news"
# a stream that is closed is not the next file that is opened
env -u KVSTATE_NO_CACHE "$kvstate" run -m m.gguf -p "x $(seq -s " " 40)" -n 4 -q --cache-dir closed \
    2>err >&-
test $? = 1 && grep -q "standard output" err && "$kvstate" cache verify --cache-dir closed >out &&
    test "$(tr -d 0-9 <closed/lock | wc -c)" -le 2
report $? "closed standard output is told, and nothing of the saved state is written over"
env -u KVSTATE_NO_CACHE "$kvstate" run -m m.gguf -n 4 -q --cache-dir closed >out 2>err <&-
test $? = 3 && grep -q "standard input: " err
report $? "closed standard input is told"

# -- signals
"$kvstate" run -m m.gguf -p x --ignore-eos -n -1 -c 1000000 >out 2>err &
pid=$!
for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    sleep 0.1
    test -s out && break
done
kill -INT $pid
wait $pid
got=$?
test $got = 130 && grep -q "interrupted after .* prompt tokens and [1-9][0-9]* answer tokens" err &&
    test -s out
report $? "Ctrl-C ends the answer and says how far it came ($got)"

# -- chat templates and chat
expect "a template that is refused" 3 'line 2: no filter "urlize"' run --chat-template bad.jinja
expect "a template that gives up" 1 "line 1: no such luck" run --chat-template raise.jinja
count_controls() {
    "$kvstate" run -m m.gguf --seed 7 -n 1 -q --json "$@" |
        sed 's/.*"tokens":\[//; s/\].*//' | tr , '\n' | grep -c '^25[678]$'
}
test "$(count_controls -p 'a<|im_start|>b<|im_end|>')" = "$(count_controls -p 'a')"
report $? "no control tokens from a message"
test "$(count_controls -p 'a<|im_start|>b' --raw)" = 1
report $? "control tokens from a raw prompt"
test "$(count_controls -p a --chat-template own.jinja)" = 2
report $? "a template from a file"
chat() {
    "$kvstate" chat -m m.gguf --seed 7 -n 4 --ignore-eos "$@"
}
printf 'one\ntwo\\\nthree\n"""\nfour\nfive\n"""\n//six\n/stats\n/exit\nseven\n' >lines.txt
chat --json -q <lines.txt >out 2>err && test "$(wc -l <out)" = 5 && test ! -s err &&
    grep -q '"turns":4,.*"recomputed":0,' out
report $? "a chat through pipes"
printf '{%% for m in messages %%}{%% if m.content == "bad" %%}{{ raise_exception("no") }}{%% endif %%}{{ m.content }} {%% endfor %%}' >picky.jinja
printf 'bad\ngood\n' | chat --chat-template picky.jinja --json -q >out 2>err
test "$(wc -l <out)" = 1 && grep -q "no" err
report $? "a question that failed is gone"
# a model with recurrent layers goes back by 16 tokens, and by snapshots of a paged plan
long="say it again and again and again and once more"
"$tiny_model" qwen3next hybrid.gguf || exit 1
expect "what undo costs" 0 "undo  *16 tokens of recurrent layers: 154.15 KiB, at most 7 computed" \
    "$kvstate" inspect hybrid.gguf
expect "more memory for undo" 0 '"undo":{"tokens":16,"interval":1,"bytes":428232,' \
    "$kvstate" inspect hybrid.gguf --undo-bytes 1M --json
expect "too little for undo" 4 "with 157848 bytes at least" "$kvstate" inspect hybrid.gguf \
    --undo-bytes 154K
expect "undo in bytes that are none" 2 '"12X" is not a number of bytes' "$kvstate" inspect \
    hybrid.gguf --undo-bytes 12X
expect "undo of nothing in bytes" 2 "undo-bytes and --undo 0" "$kvstate" inspect hybrid.gguf \
    --undo 0 --undo-bytes 1M
expect "undo without recurrent layers" 2 "no layer of this model is recurrent" "$kvstate" inspect \
    m.gguf --undo-bytes 1M
for size in 158K 1M; do
    "$kvstate" run -m hybrid.gguf -p "a b a b a b" --temp 0 -n 40 --draft ngram:1 -q --json \
        --undo-bytes $size >undo.$size 2>err
done
test "$(sed 's/.*"tokens"//; s/"undo_re.*//' undo.158K)" = \
    "$(sed 's/.*"tokens"//; s/"undo_re.*//' undo.1M)" &&
    grep -q '"undo_rewinds":[1-9][0-9]*,"undo_recomputed":[1-9]' undo.158K &&
    grep -q '"undo_rewinds":[1-9][0-9]*,"undo_recomputed":0}' undo.1M
report $? "the same tokens whatever undo takes, and what it computes again"
expect "drafts of a model that does not go back" 2 "does not go back.*as a round of drafts" \
    "$kvstate" run -m hybrid.gguf -p x -n 4 --ignore-eos --draft ngram --undo 0
printf '%s\n/clear\nno\n/clear\n%s\n' "$long" "$long" >lines.txt
for kv in f16 paged/4:f16; do # alone: a disk may have it before it is asked for, or not
    cache=--no-cache
    test $kv = f16 || cache=--cache-dir=$dir/state
    env -u KVSTATE_NO_CACHE "$kvstate" chat -m hybrid.gguf -n 2 --seed 7 --ignore-eos --kv $kv --json -q \
        "$cache" <lines.txt >"${kv#*/}.json" 2>err
done
tail -n 1 f16.json | grep -q '"computed":[1-9][0-9]' &&
    tail -n 1 4:f16.json | grep -q '"computed":1,.*"reused_from":"memory"'
report $? "a chat finds earlier prompts in memory"
printf 'one\ntwo\\\nthree\n"""\nfour\nfive\n"""\n//six\n/stats\n/exit\nseven\n' >lines.txt
chat <lines.txt >out 2>err && grep -q "chat template: the model's own" err && grep -q "4 turns" err
report $? "a chat as text"
expect "an unknown command" 2 "unknown command /what" sh -c "echo /what | '$kvstate' chat -m m.gguf"
! command -v python3 >/dev/null || printf 'one\ntwo\n/stats\n' | chat -q --json | python3 -c 'import json, sys
def members(pairs):
    names = [name for name, _ in pairs]
    assert len(set(names)) == len(names), names
for line in sys.stdin:
    json.loads(line, object_pairs_hook=members)' 2>err
report $? "JSON of a chat, no member twice"
expect "nothing to take back" 2 "no turn to take back" sh -c \
    "echo /undo | '$kvstate' chat -m m.gguf"
expect "a chat needs a template" 2 "a chat needs a template" chat --chat-template none
expect "a system message that is not UTF-8" 2 "system message is not UTF-8: byte 0xe9 at offset 3" \
    run --sys "$(cat latin1.txt)"
expect "a system message of a chat that is not UTF-8" 2 "system message is not UTF-8: byte 0xe9" sh -c \
    "{ printf '/system '; cat latin1.txt; } | '$kvstate' chat -m m.gguf"
expect "questions that can't be read" 3 "standard input: Is a directory" sh -c \
    "'$kvstate' chat -m m.gguf -q </"
expect "questions that can't be read" 3 "standard input: " sh -c "'$kvstate' chat -m m.gguf -q <&-"
expect "answers that can't be written" 1 "standard output can't be written" sh -c \
    "echo x | '$kvstate' chat -m m.gguf -q --json >/dev/full"
expect "a question that is not UTF-8" 2 "not UTF-8: byte 0xe9" sh -c \
    "'$kvstate' chat -m m.gguf <latin1.txt"
printf 'one\n/save talk.json\n' | chat -q >out 2>err
printf '/load talk.json\n/undo\n/undo\n' | chat >out 2>err
grep -q "1 turns, .* tokens; the next question" err && grep -q "no turn to take back" err
report $? "a conversation saved and loaded"
for change in 's/"name":"[^"]*"/"name":"other"/' 's/"vocabulary":"./"vocabulary":"x/' \
    's/"prompt_ids":/"prompt_ids":9/' 's/"ids":\[/"ids":[999,/' 's/"role":"user"/"role":"tool"/' \
    's/"format":"kvstate-chat"/"format":"x"/' 's/\]}$//' 's/"version":1/"version":2/'; do
    sed "$change" talk.json >changed.json
    expect "a conversation after $change" 3 "^kvstate: changed.json: " sh -c \
        "echo '/load changed.json' | '$kvstate' chat -m m.gguf"
done
# the ids of a conversation are those of its text, whatever changed in between
one_e() { # every answer is "eeee"
    printf '%s\n' "$@" | chat -q --json --temp 0 -l 101+100 $how >out 2>err
}
ids_of() {
    sed -n 's/^"ids":\[\(.*\)\]}$/\1/p' "$1"
}
how=
one_e one two three '/save plain.json'
one_e one '/system be brief' two '/system -' three '/save changed.json'
test -n "$(ids_of plain.json)" && test "$(ids_of plain.json)" = "$(ids_of changed.json)"
report $? "a system message that comes and goes"
one_e '/load changed.json' '/system be brief' four /undo '/system -' /undo three '/save changed.json'
test "$(ids_of plain.json)" = "$(ids_of changed.json)"
report $? "and again, from a file, with undo"
one_e one two '/system be kind' three '/save plain.json'
one_e one two '/system be kind' '/save changed.json' '/load changed.json' three '/save changed.json'
test "$(ids_of plain.json)" = "$(ids_of changed.json)"
report $? "a system message that no question has seen yet"
# shellcheck disable=SC2016 # a template
printf '%s' "{% for m in messages %}<|im_start|>{{ m.role }}: {{ m.content[:2] if m.role == 'assistant' else" \
    " m.content }}<|im_end|>{% endfor %}{% if add_generation_prompt %}<|im_start|>a{% endif %}" >short.jinja
how="--chat-template short.jinja"
one_e one two three '/save short.json' '/undo' '/load short.json' four '/save two.json'
one_e one two three four '/save short.json'
test "$(ids_of short.json)" = "$(ids_of two.json)" && test -n "$(ids_of two.json)"
report $? "a template that changes earlier answers"
how=
one_e one two three four '/save plain.json'
one_e '/load short.json' /undo '/save two.json' '/load two.json' four '/save two.json'
test "$(ids_of plain.json)" = "$(ids_of two.json)"
report $? "another template than that of the file"
expect "no such conversation" 3 "gone.json: No such file" sh -c \
    "echo '/load gone.json' | '$kvstate' chat -m m.gguf"
expect "a place that can't be written" 1 "nowhere/x: No such file" sh -c \
    "echo '/save nowhere/x' | '$kvstate' chat -m m.gguf"
printf '%s\n' 1234567890123456789012345678901234567890 /stats |
    chat -c 64 --json >out 2>err
test $? = 4 && grep -q '"turns":0' out && grep -q "ctx-size sets the context" err
report $? "a question beyond the context is not asked"

# -- inspect and bench
expect "inspect" 0 "^state bytes " "$kvstate" inspect m.gguf -c 128
expect "inspect tensors" 0 "blk.2.ffn_down.weight" "$kvstate" inspect m.gguf --tensors
expect "inspect an unknown architecture" 0 "mamba (not supported)" "$kvstate" inspect other.gguf
"$kvstate" inspect m.gguf --json --tensors >out 2>err && {
    ! command -v python3 >/dev/null || python3 -c 'import json, sys
d = json.load(sys.stdin)
assert d["n_layers"] == 3 and len(d["state"]["layer_bytes"]) == 3
assert sum(d["state"]["layer_bytes"]) <= d["state"]["bytes"]
assert len(d["tensors"]) == 29, len(d["tensors"])' <out
}
report $? "inspect as JSON"
expect "bench" 0 "^model,tiny tg4 @ d8 kv=bf16," \
    "$kvstate" bench -m m.gguf -p 16 -n 4 -d 0,8 -r 1 --kv f16,bf16 -o csv -q
grep -q "^bench,case,value,unit,limit,ratio$" out && test "$(grep -c ^model, out)" = 7
report $? "bench: all cases as CSV"
expect "bench of rows" 0 "^model,tiny tg4 @ d8 x3 kv=f16," \
    "$kvstate" bench -m m.gguf -p 0 -n 4 -d 0,8 -r 1 --rows 1,3 -o csv -q
test "$(grep -c ^model, out)" = 5
report $? "bench: rows and one"
expect "bench of shared prompts" 0 "^model,tiny warm12 kv=paged/4:f16," \
    "$kvstate" bench -m m.gguf -p 0 -n 0 --n-warm 12 -r 2 --kv paged/4:f16 -o csv -q
expect "bench of nothing to share" 2 "n-warm: sessions share blocks" \
    "$kvstate" bench -m m.gguf -p 0 -n 0 --n-warm 12 --kv f16
expect "bench of no rows" 2 "rows: 0" "$kvstate" bench -m m.gguf --rows 0
expect "bench of too many rows" 2 "rows: 65" "$kvstate" bench -m m.gguf --rows 65
expect "bench list" 2 "n-depth: \"1,x\"" "$kvstate" bench -m m.gguf -d 1,x

# -- completion
for shell in bash zsh fish; do
    expect "completion for $shell" 0 "chat-template" "$kvstate" --completion $shell
    if command -v $shell >/dev/null; then
        $shell -n out 2>err
        report $? "$shell reads it"
    fi
done
expect "completion for others" 2 "csh" "$kvstate" --completion csh

finish
