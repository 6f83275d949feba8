#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Which room may include which, one name per file, a licence line in every source.

usage: check_arrows.py [ROOT]. Prints every violation; exit status 1 if there is one.
src/base/ctx.c reaches the kernel table by one extern declaration, not by an include, so base stays
below kern. Public headers are named after rooms and may share a name with an internal one.
"""
import pathlib
import re
import sys

# room: the rooms its files may include; everyone may include include/.
SEES = {
    "include": set(),
    "src/base": {"src/base"},
    "src/kern": {"src/base", "src/kern"},
    "src/dev": {"src/base", "src/kern", "src/dev"},
    "src/state": {"src/base", "src/kern", "src/dev", "src/state"},
    "src/store": {"src/base", "src/kern", "src/dev", "src/state", "src/store"},
    "src/engine": {"src/base", "src/kern", "src/dev", "src/state", "src/store", "src/engine"},
    "app": {"app"},
    "python": {"python"},
    "bench": {"bench", "tests", "src/base", "src/kern", "src/dev", "src/state", "src/store",
              "src/engine"},
    "tests": {"tests", "src/base", "src/kern", "src/dev", "src/state", "src/store", "src/engine"},
}
CODE = {".c", ".h", ".inc", ".cu", ".S"}
LICENSED = CODE | {".py", ".sh", ".cmake"}
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.M)


def room_of(path):
    return next((r for r in SEES if path == r or path.startswith(r + "/")), None)


def resolve(root, user, name):
    """The file that `name` means in `user`, in the order of the compiler's search path."""
    for base in (user.parent, root / "include", root / "src", root / "tests", root / "bench",
                 root / "app"):
        if (base / name).is_file():
            return (base / name).resolve().relative_to(root).as_posix()
    return None


def check(root):
    bad, names = [], {}
    tops = ("include", "src", "app", "python", "bench", "tests", "scripts", "cmake")
    for file in sorted(f for t in tops for f in (root / t).rglob("*") if f.suffix in LICENSED):
        path = file.relative_to(root).as_posix()
        text = file.read_text(encoding="utf-8")
        if "SPDX-License-Identifier:" not in "\n".join(text.split("\n")[:2]):
            bad.append(f"{path}: no SPDX line at the top")
        if file.suffix not in CODE:
            continue
        room = room_of(path)
        if room is None:
            bad.append(f"{path}: lies in no room")
            continue
        if room != "include":
            names.setdefault(file.name, []).append(path)
        for name in INCLUDE.findall(text):
            target = resolve(root, file, name)
            target_room = room_of(target) if target else None
            if target_room is None:
                bad.append(f'{path}: "{name}" is no file of a room')
            elif target_room != "include" and target_room not in SEES[room]:
                bad.append(f"{path}: {room} must not see {target_room} ({name})")
    bad += [f"one name, several files: {', '.join(p)}" for p in names.values() if len(p) > 1]
    return bad


if __name__ == "__main__":
    violations = check(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve())
    print("\n".join(violations) or "arrows: clean")
    sys.exit(1 if violations else 0)
