#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""seed_token.py DIR: writes the seed inputs of fuzz_token to DIR (tests/fuzz/corpus/token)."""

import os
import sys

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)


def seed(options, tokens, merges, text):
    out = bytes([options, len(tokens)])
    for t, kind, score in tokens:
        out += bytes([len(t.encode()), kind, score & 255]) + t.encode()
    out += bytes([len(merges)])
    for m in merges:
        out += bytes([len(m.encode())]) + m.encode()
    return out + text


TEXT = "He said: it's 12345 tokens,\n\n\tyou'LL see   é 中文 😀 <|im_end|> ".encode()
BPE = [(t, NORMAL, 0) for t in ("he", "Ġt", "'s", "12", "ĠĠ", "in", "ing", "ĊĊ")] + [
    ("<|im_end|>", CONTROL, 0),
    ("<u>", USER, 0),
]
MERGES = ["h e", "Ġ t", "' s", "1 2", "Ġ Ġ", "i n", "in g", "Ċ Ċ"]
SPM = [
    (t, NORMAL, -i) for i, t in enumerate(("▁t", "he", "▁the", "▁", "e", "h", "t", "é", "中文"))
] + [
    ("  ", USER, -100),
    ("X", CONTROL, 0),
    ("▁▁▁", USER, -100),
    ("<0x0A>", BYTE, 0),
    ("u", UNUSED, -3),
]


def main():
    os.makedirs(sys.argv[1], exist_ok=True)
    seeds = {
        "scheme-%02d" % s: seed(4 | s << 4, BPE, MERGES, TEXT + b"<u>the <u") for s in range(16)
    }
    seeds["bpe-holes"] = seed(0x10, BPE, MERGES, TEXT)
    seeds["bpe-ill-formed"] = seed(
        0x34, BPE, MERGES, b"\xff\xe2\x96 he\xf0\x9f\x98\x80\xed\xa0\x80" + TEXT[:20]
    )
    seeds["bpe-long"] = seed(
        0x14, [("aa", NORMAL, 0), ("aaaa", NORMAL, 0)], ["a a", "aa aa"], b"a" * 200
    )
    for o in (1, 3, 5, 7):
        seeds["spm-%d" % o] = seed(
            o, SPM, [], "the the  théX X   中文 \u2581\n".encode() + b"\xff\xe2\x96he"
        )
    seeds["spm-long"] = seed(
        5, [("a", NORMAL, -9), ("aa", NORMAL, -1), ("aaa", NORMAL, -1)], [], b"a" * 200
    )
    seeds["bad-merge"] = seed(0x14, BPE, ["ab"], TEXT)
    seeds["empty"] = b""
    for name, data in seeds.items():
        with open(os.path.join(sys.argv[1], name), "wb") as f:
            f.write(data)


if __name__ == "__main__":
    main()
