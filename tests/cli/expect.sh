# SPDX-License-Identifier: MIT
# expect.sh: read in by the tests of the program (sh): a folder to work in that goes at the end, and
# the TAP lines of checks. A script ends with `finish`.
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
cd "$dir" || exit 1
bad=0
n=0

# report STATUS NAME: where it failed, with the beginnings of out and err.
report() {
    n=$((n + 1))
    if [ "$1" = 0 ]; then
        echo "ok $n - $2"
    else
        echo "not ok $n - $2"
        bad=1
        sed 's/^/# out: /' out | head -5
        sed 's/^/# err: /' err | head -5
    fi
}

# check NAME STATUS PATTERN: the last command's `got`, and the pattern in out or err.
check() {
    cat out err >both
    if [ "$got" = "$2" ] && grep -q -- "$3" both; then
        report 0 "$1"
    else
        echo "# status $got, expected $2 and \"$3\""
        report 1 "$1"
    fi
}

# expect NAME STATUS PATTERN COMMAND...
expect() {
    name=$1
    want=$2
    pattern=$3
    shift 3
    "$@" >out 2>err </dev/null
    got=$?
    check "$name" "$want" "$pattern"
}

# same NAME FILE FILE
same() {
    cmp -s "$2" "$3"
    report $? "$1"
}

finish() {
    echo "1..$n"
    exit $bad
}
