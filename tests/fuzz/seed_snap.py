# SPDX-License-Identifier: MIT
"""seed_snap.py FOLDER: the corpus of fuzz_snap: tables that fit each kind of layer, and some that do not."""
import os
import struct
import sys


def case(which, want, length, runs):
    return struct.pack("<BHH", which, want, length) + b"".join(struct.pack("<BBHHBb", *r) for r in runs)


def table(length, runs):
    head = b"KVSSTATE" + struct.pack("<IIQII", 1, 256, length, 2, len(runs))
    return head + b"".join(struct.pack("<IIqqII", *r, 0) for r in runs)


FULL = [(0, 0, 0, 600, 1, 0), (1, 0, 0, 600, 2, 0)]
CASES = {
    "grow": case(0, 600, 600, FULL),
    "grow_part": case(0, 300, 600, FULL),
    "ring": case(1, 600, 600, [(0, 0, 0, 600, 1, 0), (1, 0, 0, 4, 2, 0), (1, 0, 570, 600, 3, 0)]),
    "ring_back": case(1, 520, 600, [(0, 0, 0, 600, 1, 0), (1, 0, 0, 4, 2, 0), (1, 0, 256, 600, 3, 0)]),
    "ring_hole": case(1, 520, 600, [(0, 0, 0, 600, 1, 0), (1, 0, 256, 512, 2, 0), (1, 0, 512, 600, 3, 0)]),
    "paged": case(2, 600, 600, [(0, 0, 0, 600, 1, 0), (1, 0, 512, 600, 2, 0)]),
    "dense": case(3, 30, 40, [(0, 0, 0, 40, 1, 0), (1, 1, 0, 40, 2, 0)]),
    "converted": case(3, 90, 100, [(0, 0, 0, 100, 1, 0), (1, 0, 0, 100, 2, 0)]),
    "short": case(0, 600, 600, [(0, 0, 0, 600, 1, -1), (1, 0, 0, 600, 2, 0)]),
    "no_part": case(0, 600, 600, [(0, 0, 0, 600, 9, 0), (1, 0, 0, 600, 2, 0)]),
    "order": case(1, 600, 600, [(1, 0, 512, 600, 1, 0), (0, 0, 0, 600, 2, 0), (1, 0, 0, 4, 3, 0)]),
    "version_1": case(32, 600, 600, FULL),
    "centred": case(4, 600, 600, FULL),
    "centred_part": case(4, 291, 300, [(0, 0, 0, 300, 1, 0), (1, 0, 0, 300, 2, 0)]),
    "centred_ring": case(5, 600, 600, [(0, 0, 0, 600, 1, 0), (1, 0, 0, 4, 2, 0), (1, 0, 570, 600, 3, 0)]),
    "centred_paged": case(6, 600, 600, [(0, 0, 0, 600, 1, 0), (1, 0, 512, 600, 2, 0)]),
    "centred_start": case(7, 90, 100, [(0, 0, 0, 100, 1, 0), (1, 0, 0, 100, 2, 0)]),
    "two_centres": case(68, 40, 40, [(0, 0, 0, 40, 1, 0), (1, 0, 0, 20, 2, 0), (1, 0, 20, 40, 3, 0)]),
    "two_groups": case(68, 100, 100, [(0, 0, 0, 100, 1, 0), (1, 0, 0, 64, 2, 0), (1, 0, 64, 100, 3, 0)]),
    "recurrent": case(8, 600, 600, [(0, 0, 0, 600, 1, 0), (1, 2, 0, 256, 2, 0), (1, 2, 0, 600, 3, 0)]),
    "recurrent_back": case(8, 599, 600, [(0, 0, 0, 600, 1, 0), (1, 2, 0, 256, 2, 0), (1, 2, 0, 600, 3, 0)]),
    "recurrent_none": case(8, 255, 600, [(0, 0, 0, 600, 1, 0), (1, 2, 0, 256, 2, 0), (1, 2, 0, 600, 3, 0)]),
    "recurrent_both": case(24, 300, 300, [(0, 2, 0, 256, 1, 0), (0, 2, 0, 300, 2, 0), (1, 2, 0, 256, 3, 0), (1, 2, 0, 299, 4, 0)]),
    "recurrent_window": case(17, 300, 300, [(0, 2, 0, 290, 1, 0), (0, 2, 0, 300, 2, 0), (1, 0, 0, 4, 3, 0), (1, 0, 256, 300, 4, 0)]),
    "recurrent_short": case(8, 100, 100, [(0, 0, 0, 100, 1, 0), (1, 2, 0, 100, 2, -8)]),
    "recurrent_order": case(8, 100, 100, [(0, 0, 0, 100, 1, 0), (1, 2, 0, 100, 2, 0), (1, 2, 0, 50, 3, 0)]),
    "recurrent_from": case(8, 100, 100, [(0, 0, 0, 100, 1, 0), (1, 2, 9, 100, 2, 0)]),
    "recurrent_codecs": case(8, 100, 100, [(0, 0, 0, 100, 1, 0), (1, 0, 0, 100, 2, 0)]),
    "codecs_recurrent": case(0, 100, 100, [(0, 2, 0, 100, 1, 0), (1, 0, 0, 100, 2, 0)]),
    "recurrent_version_1": case(40, 100, 100, [(0, 0, 0, 100, 1, 0), (1, 2, 0, 100, 2, 0)]),
    "raw": struct.pack("<BH", 0x80, 4) + table(4, [(0, 0, 0, 4, 1), (1, 0, 0, 4, 2)]),
    "raw_far": struct.pack("<BH", 0x80, 4) + table(4, [(0, 0, -1, 4, 1), (1, 0, 0, 1 << 40, 2)]),
}

for name, data in CASES.items():
    with open(os.path.join(sys.argv[1], name), "wb") as f:
        f.write(data)
