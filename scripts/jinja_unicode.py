#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes src/engine/jinja_unicode.inc from the Unicode tables of the Python that runs it: case
mappings, what has case, what repr() prints as it is. Run it by hand: jinja_unicode.py > FILE."""
import sys
import unicodedata

ALL = [c for c in range(0x80, 0x110000) if not 0xd800 <= c < 0xe000]


def case_ranges(fn):
    simple, special = [], []
    for c in ALL:
        to = fn(chr(c))
        if to == chr(c):
            continue
        if len(to) > 1:
            special.append((c, [ord(x) for x in to]))
        else:
            simple.append((c, ord(to) - c))
    out = []
    for c, delta in simple:
        if out and out[-1][3] == delta:
            lo, hi, step, d = out[-1]
            if c - hi in (1, 2) and (lo == hi or c - hi == step):
                out[-1] = (lo, c, c - hi, d)
                continue
        out.append((c, c, 1, delta))
    return out, special


def spans(test):
    out = []
    for c in ALL:
        if test(chr(c)):
            if out and out[-1][1] == c - 1:
                out[-1] = (out[-1][0], c)
            else:
                out.append((c, c))
    return out


def rows(items, per_line):
    for i in range(0, len(items), per_line):
        print("    " + ", ".join(items[i:i + per_line]) + ",")


def main():
    print("/* SPDX-License-Identifier: MIT */")
    print("/* jinja_unicode.inc: written by scripts/jinja_unicode.py, Unicode %s. */"
          % unicodedata.unidata_version)
    print("/* clang-format off */")
    for name, fn in (("upper", str.upper), ("lower", str.lower), ("title", str.title)):
        simple, special = case_ranges(fn)
        print("static const case_range %s_ranges[] = {" % name)
        rows(["{0x%x, 0x%x, %d, %d}" % r for r in simple], 4)
        print("};\nstatic const case_special %s_special[] = {" % name)
        rows(["{0x%x, {%s}}" % (c, ", ".join("0x%x" % x for x in (to + [0, 0])[:3]))
              for c, to in special], 3)
        print("};")
    for name, test in (("cased", lambda c: c.isupper() or c.islower() or c.istitle()),
                       ("unprintable", lambda c: not c.isprintable())):
        print("static const span %s_spans[] = {" % name)
        rows(["{0x%x, 0x%x}" % s for s in spans(test)], 6)
        print("};")


sys.exit(main())
