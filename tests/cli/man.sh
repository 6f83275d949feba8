#!/bin/sh
# SPDX-License-Identifier: MIT
# man.sh KVSTATE PAGE: every option of every command is in the manual page, under each of its names,
# and the page names none that the program lacks.
set -u
kvstate=$1
page=$(cd "$(dirname "$2")" && pwd)/$(basename "$2")
. "$(dirname "$0")/expect.sh"

"$kvstate" --help >main || exit 1
# names without dashes: a long one may be written with one or two of them
# "  -m, --model, --other ARG   help": what comes before the argument or two spaces
for command in $(sed -n 's/^  \([a-z]*\) .*/\1/p' main); do
    "$kvstate" "$command" --help | sed -n 's/^  \(-[^A-Z]*[a-z]\).*/\1/p' | sed 's/  .*//' |
        tr ',' '\n' | tr -d ' '
done | sed 's/^--*//' | sort -u >program
sed -n 's/^\.It \(Fl .*\)/\1/p' "$page" | tr ' ' '\n' |
    awk 'flag { print; flag = 0 } $0 == "Fl" { flag = 1 }' | sed 's/^-//' | sort -u >manual
test "$(wc -l <program)" -gt 80
report $? "there are options"
: >err
grep -vxF -e help -e h program | grep -vxF -f manual >out
test ! -s out
report $? "the manual has every option"
grep -vxF -f program manual >out
test ! -s out
report $? "the program has every option of the manual"
finish
