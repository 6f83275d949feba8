#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""seed_token_json.py DIR: writes the seed inputs of fuzz_token_json (tests/fuzz/corpus/token_json)."""

import base64
import json
import os
import struct
import sys

TEXT = "He  said: it's 12345 théh,\n\n\t é e\u0301 中文 <s>Zq zq <unk> <0x41> \u2581x ".encode() + b"\xff\xe2"
MARK = "\u2581"
CHARS = "abcdehilnstx:',12345 éĠĊ中" + MARK
ADDED = [
    {"id": 1, "content": "<s>", "special": True, "normalized": False},
    {"id": 90, "content": "Zq", "single_word": True, "lstrip": True, "normalized": True},
    {"id": 91, "content": "zq", "rstrip": True, "normalized": False, "special": False},
]


def bpe(**options):
    texts = ["<unk>", "<s>", "<0x0A>", "<0xFF>", "<0xE2>"] + list(CHARS) + ["he", "th", "the", "12"]
    vocab = {t: i for i, t in enumerate(texts)}
    merges = [["h", "e"], "t h", ["t", "he"], ["1", "2"]]
    return {"type": "BPE", "vocab": vocab, "merges": merges, **options}


def unigram(**options):
    vocab = [["<unk>", 0], ["<s>", 0], ["<0x0A>", -9.5], ["<0xFF>", -9]]
    vocab += [[c, -5 - i / 7] for i, c in enumerate(CHARS)] + [["the", -2.5e0], ["he", -3e-1]]
    return {"type": "Unigram", "unk_id": 0, "vocab": vocab, **options}


def charsmap():
    """One entry: e + U+0301 -> é, by hand: a chain of units through the bytes of its key."""
    units = [0] * 1024
    key, at, base = "e\u0301".encode(), 0, 256
    for k, byte in enumerate(key):
        units[at] |= (at ^ base) << 10
        at = base ^ byte
        units[at] = byte | (0x100 if k == len(key) - 1 else 0)
        base += 256 if k < len(key) - 1 else 0
    leaf = 3
    units[at] |= (at ^ leaf) << 10
    units[leaf] = 1 << 31
    data = struct.pack("<I", 4 * len(units)) + struct.pack("<%dI" % len(units), *units) + "é\0".encode()
    return base64.b64encode(data).decode()


def seq(key, *parts):
    return {"type": "Sequence", key: list(parts)}


def split(pattern, behaviour, invert=False):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behaviour, "invert": invert}


META = {"type": "Metaspace", "replacement": MARK, "prepend_scheme": "first", "split": True}
BYTES = {"type": "ByteLevel", "add_prefix_space": True, "use_regex": True}
REPLACE = {"type": "Replace", "pattern": {"String": MARK}, "content": " "}
SEEDS = {
    "gpt2": dict(model=bpe(), pre_tokenizer=BYTES, decoder={"type": "ByteLevel"}),
    "llama": dict(
        model=bpe(byte_fallback=True, unk_token="<unk>", fuse_unk=True),
        normalizer=seq(
            "normalizers",
            {"type": "Prepend", "prepend": MARK},
            {"type": "Replace", "pattern": {"String": " "}, "content": MARK},
        ),
        decoder=seq(
            "decoders",
            REPLACE,
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ),
        post_processor={
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1]}},
        },
    ),
    "affixes": dict(
        model=bpe(continuing_subword_prefix="##", end_of_word_suffix="</w>", ignore_merges=True),
        pre_tokenizer={"type": "Whitespace"},
    ),
    "unigram": dict(
        model=unigram(byte_fallback=True),
        normalizer={"type": "Precompiled", "precompiled_charsmap": charsmap()},
        pre_tokenizer=META,
        decoder=META,
    ),
    "unigram-plain": dict(model=unigram()),
    "forms": dict(
        model=bpe(),
        normalizer=seq(
            "normalizers",
            *[{"type": t} for t in ("NFD", "StripAccents", "NFKC", "NFKD", "NFC", "Nmt")],
            {"type": "Lowercase"},
            {"type": "Strip", "strip_left": True, "strip_right": False},
            {"type": "Replace", "pattern": {"Regex": "\\s{2,}"}, "content": ""},
        ),
        pre_tokenizer=seq(
            "pretokenizers",
            *[split("\\d|(?=t)", b) for b in ("Removed", "Isolated", "Contiguous")],
            split("\\w+|[^\\s\\w]", "MergedWithNext", True),
            split("(?i:'s|T)|\\p{Han}+|\\s+(?!\\S)", "MergedWithPrevious"),
            {"type": "Digits", "individual_digits": True},
            {"type": "Punctuation", "behavior": "Contiguous"},
            {"type": "BertPreTokenizer"},
        ),
    ),
    "bytes": dict(model=bpe(), normalizer={"type": "ByteLevel"}),
    "backtrack": dict(model=bpe(), pre_tokenizer=split("(?:(?:x+x+)+)+y", "Isolated")),
    "growing": dict(
        model=bpe(),
        normalizer=seq(
            "normalizers",
            *[{"type": "Replace", "pattern": {"Regex": "."}, "content": "x" * 9}] * 9,
        ),
    ),
    "merge-unknown": dict(model={"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}),
    "merge-one": dict(model={"type": "BPE", "vocab": {"a": 0}, "merges": ["ab"]}),
    "id-twice": dict(model={"type": "BPE", "vocab": {"a": 0, "b": 0}, "merges": []}),
    "id-far": dict(model={"type": "BPE", "vocab": {"a": 2147483640}, "merges": []}),
    "id-below": dict(model={"type": "BPE", "vocab": {"a": -1}, "merges": []}),
    "wordpiece": dict(model={"type": "WordPiece", "vocab": {"a": 0}}),
    "types": dict(model={"type": "BPE", "vocab": {"a": 0}, "merges": [1, [], ["a"], None]}),
}


def main():
    os.makedirs(sys.argv[1], exist_ok=True)
    out = {}
    for name, parts in SEEDS.items():
        added = ADDED if name in ("gpt2", "llama", "unigram", "forms") else []
        text = TEXT if name != "backtrack" else b"x" * 300
        out[name] = json.dumps({"added_tokens": added, **parts}).encode() + b"\0" + text
    out["deep"] = b"[" * 100
    out["unfinished"] = b'{"model": {"vocab": {"a\\u12'
    out["surrogate"] = b'{"a": "\\ud800\\u0041"}'
    out["ill-formed"] = b'{"a": "\xff"}'
    out["empty"] = b""
    for name, data in out.items():
        with open(os.path.join(sys.argv[1], name), "wb") as f:
            f.write(data)


if __name__ == "__main__":
    main()
