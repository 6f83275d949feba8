#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""check_arrows.py passes a clean tree and catches each kind of violation, one at a time."""
import pathlib
import subprocess
import sys
import tempfile

CHECKER = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "check_arrows.py"
LINE = "/* SPDX-License-Identifier: MIT */\n"
CLEAN = {
    "include/kvstate/base.h": "",
    "include/kvstate/cache.h": '#include "kvstate/base.h"\n',
    "src/base/base.h": '#include "kvstate/base.h"\n',
    "src/base/ctx.c": '#include "base/base.h"\nextern int kvs__kern_for(int tiers);\n',
    "src/kern/kern.h": '#include "base/base.h"\n',
    "src/state/cache.c": '#include "kern/kern.h"\n#include "kvstate/cache.h"\n',
    "src/engine/model.c": '#include "kvstate/cache.h"\n#include "kern/kern.h"\n',
    "app/main.c": '#include "kvstate/cache.h"\n#include "json.h"\n',
    "app/json.h": "",
    "tests/unit/test_x.c": '#include "kern/kern.h"\n',
}
# what is added or replaced, and what the checker must say
BROKEN = [
    ("src/base/ctx.c", LINE + '#include "kern/kern.h"\n', "src/base must not see src/kern"),
    ("src/kern/kern.h", LINE + '#include "../state/grow.h"\n', "src/kern must not see src/state"),
    ("src/state/cache.c", LINE + ' # include "engine/gguf.h"\n', "src/state must not see"),
    ("app/main.c", LINE + '#include "base/base.h"\n', "app must not see src/base"),
    ("include/kvstate/cache.h", LINE + '#include "base/base.h"\n', "include must not see src/base"),
    ("src/engine/model.c", LINE + '#include "unit/test.h"\n', "src/engine must not see tests"),
    ("src/engine/kern.h", LINE, "one name, several files"),
    ("src/state/cache.c", '#include "kern/kern.h"\n', "no SPDX line"),
    ("src/other/x.c", LINE, "lies in no room"),
    ("src/state/cache.c", LINE + '#include "nowhere.h"\n', "is no file of a room"),
]
EXTRA = {"src/state/grow.h": "", "src/engine/gguf.h": "", "tests/unit/test.h": ""}


def run(root):
    r = subprocess.run([sys.executable, CHECKER, root], capture_output=True, text=True)
    return r.returncode, r.stdout


def write(root, path, text):
    file = pathlib.Path(root) / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def main():
    failures = 0
    for broken in [None] + BROKEN:
        with tempfile.TemporaryDirectory() as root:
            for path, text in {**CLEAN, **EXTRA}.items():
                write(root, path, LINE + text)
            if broken:
                write(root, broken[0], broken[1])
            code, said = run(root)
            want = broken[2] if broken else "clean"
            lines = said.strip().split("\n")
            if code != (1 if broken else 0) or want not in said or len(lines) != 1:
                print(f"{broken}: exit {code}, said {said!r}, wanted one line with {want!r}")
                failures += 1
    print(f"{len(BROKEN) + 1 - failures} of {len(BROKEN) + 1} trees judged rightly")
    return 1 if failures else 0


sys.exit(main())
