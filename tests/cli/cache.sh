#!/bin/sh
# SPDX-License-Identifier: MIT
# cache.sh KVSTATE CORPUS: kvstate cache from outside, on entries that the fuzz corpus holds as export
# files (each behind one byte).
set -u
kvstate=$1
corpus=$2
. "$(dirname "$0")/expect.sh"

cache() {
    "$kvstate" cache "$@" --cache-dir state
}

i=0
for f in "$corpus"/*; do
    tail -c +2 "$f" >x
    if [ "$(head -c 8 x)" = KVSEXPRT ]; then
        mv x "in$i"
        i=$((i + 1))
        if [ $i = 1 ]; then
            first=in0
        fi
    fi
done

expect "no action" 2 "what is to be done" "$kvstate" cache
expect "unknown action" 2 '"frob" is none of ls' cache frob
expect "too many arguments" 2 "takes 0 arguments" cache ls x
expect "help" 0 "cache-dir" "$kvstate" cache --help
expect "no directory" 3 "cannot open the directory 'state'" cache ls
test ! -e state
report $? "looking makes no directory"
expect "import" 0 "^[0-9a-f]\{64\}$" cache import $first
key=$(cat out)
expect "import again, as JSON" 0 "{\"key\":\"$key\"}" cache import $first --json
echo nothing >nothing
expect "import of what is none" 3 "does not hold an entry" cache import nothing
expect "import of a device" 3 "cannot open" cache import /dev/null
expect "import of a missing file" 3 "No such file" cache import nowhere
expect "ls" 0 "$(echo "$key" | cut -c1-12)" cache ls
expect "ls counts" 0 "^1 entry," cache ls
cache ls --json >out 2>err && { ! command -v python3 >/dev/null || python3 -c '
import json, sys
d = json.load(sys.stdin)
assert d["entries"] == 1 and d["list"][0]["key"] == sys.argv[1] and d["quarantined"] == 0
' "$key" <out; }
report $? "ls as JSON"
expect "the directory from the environment" 0 "^1 entry," env KVSTATE_CACHE_DIR=state "$kvstate" cache ls
expect "the default directory" 3 "xdg/kvstate/state" env XDG_CACHE_HOME="$dir/xdg" "$kvstate" cache ls
expect "verify" 0 "0 entries damaged" cache verify
expect "dump agrees" 0 "entry $key" cache dump
expect "dump of an export" 0 "entry $key" cache dump $first
cache export "$(echo "$key" | cut -c1-8)" copy >out 2>err && test ! -s out && test -s copy
report $? "export"
expect "export of no entry" 3 "begins the key of no entry" cache export 00000000 copy2
expect "export of no key" 2 "is no key" cache export xyzxyz copy2
expect "import of the export elsewhere" 0 "$key" "$kvstate" cache import copy --cache-dir state2
expect "gc" 0 "entries forgotten: 0" cache gc
test "$(stat -c %a state)" = 700 && test "$(stat -c %a state/entries/"$key".kve)" = 600
report $? "modes"

# damage: one bit of a block
segment=$(ls state/blocks/*.kvb)
cp "$segment" saved
printf '\377' | dd of="$segment" bs=1 seek=200 conv=notrunc 2>/dev/null
expect "dump finds damage" 3 "DAMAGED: XXH3 of the block" cache dump
expect "ls does not care" 0 "^1 entry," cache ls
expect "verify finds damage" 3 "damage was found and set aside" cache verify --json
expect "the entry is a miss" 0 "^0 entries" cache ls
test "$(find state/quarantine -type f | wc -l)" = 1
report $? "and it was not deleted"
expect "it can be saved again" 0 "$key" cache import $first
expect "verify again" 0 "0 entries damaged" cache verify
expect "a limit forgets" 0 "entries forgotten: [01]$" cache gc --cache-disk 1

# traces: 16 uses of 9 blocks
trace=$3
expect "simulate" 0 "^ *9 *43.75 *43.75 *43.75 *43.75" "$kvstate" cache simulate "$trace" --blocks 9,4
expect "simulate from standard input, as JSON" 0 '"requests":4,"uses":16,"blocks":9,"ideal":0.437500,"capacity":.9.,"lru":.0.437500.' \
    sh -c "'$kvstate' cache simulate - --json --blocks 9 <'$trace'"
expect "a plot" 0 "" "$kvstate" cache simulate "$trace" --blocks 1,2,3,4,6,9 --svg plot.svg
grep -q '<svg' plot.svg && grep -q 'density' plot.svg
report $? "which is one"
expect "no trace" 3 "nowhere" "$kvstate" cache simulate nowhere
expect "no argument" 2 "takes a trace" "$kvstate" cache simulate
expect "bad capacities" 2 "blocks" "$kvstate" cache simulate "$trace" --blocks 5,x
for bad_line in '{"hash_ids": [1, 2' '{"hash_ids": [1,]}' '{"hash_ids": 3}' '{"hash_ids": [1 2]}' '{"other": [1]}' '{"hash_ids": [99999999999999999999]}' \
    '{"hash_ids": ["a"]}'; do
    echo "$bad_line" >bad.jsonl
    expect "malformed: $bad_line" 3 "line 1 has no list" "$kvstate" cache simulate bad.jsonl
done
printf '\037\213\000x' >packed
expect "compressed" 3 "zcat" "$kvstate" cache simulate packed
: >empty
expect "empty" 3 "no requests" "$kvstate" cache simulate empty

finish
