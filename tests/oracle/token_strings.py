# SPDX-License-Identifier: MIT
"""token_strings.py: strings on which tokenizers are known to differ, made from a seed.

Characters that are drawn at random are those of Unicode 3.2 (which the standard library knows), so
that libraries with different Unicode versions agree on their properties, plus a few blocks of emoji
that have not changed since. Every string is bytes, some of them ill-formed UTF-8."""

import random
import sys
import unicodedata

WORDS = (
    "the of and memory model token don't I'll we've she'd it's THEY'RE You'Re 'tis o'clock rock'n'roll "
    "Über naïve café façade coöperate Straße İstanbul ſhe'ſ K'M ŉ привет мир Ελληνικά Հայերեն "
    "שלום עולם مرحبا بالعالم ١٢٣ नमस्ते दुनिया क्षत्रिय ภาษาไทย မြန်မာ 中文字符 日本語テキスト カタカナ 한국어 "
    "繁體中文 e\u0301 A\u030a o\u0308\u0304 ½ ² ³ ¼ Ⅷ ① 𝟘 १२३ ٣ x² 3.14159 1,000,000 0x1F 1e-9 2024-01-01 "
    "http://example.org/a?b=c&d=%20#e user@example.com C++ C# .NET node.js __init__ self.x->y "
    "<|im_start|> <|im_end|> <s> </s> <eos> <bos> <unk> [INST] <0x41> <table> </td> <pre> ▁ ▁▁ Ġ Ċ ��"
).split()
CODE = [
    "for (int i = 0; i < n; i++) {\n    a[i] += b[i]; // sum\n}\n",
    'def f(x: int) -> str:\n\treturn f"{x!r}"  # ok\n\n\n',
    "\tif (!p)\r\n\t\treturn -1;\r\n",
    "SELECT * FROM t WHERE a='it''s' AND b>=10;",
    '{"k": [1, 2.5e10, null], "s": "\\u00e9"}\n',
    '#include <stdio.h>\n\nint main(void)\n{\n        puts("hi");\n}\n',
    "x=y+z;a&&b||c;!d?e:f",
    "$ make -j8 && ./run --flag=1 | tee log.txt 2>&1\n",
    "\\begin{equation} \\alpha_{i}^{2} \\end{equation}",
]
EMOJI = [
    "\U0001f600",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466",
    "\U0001f44d\U0001f3fd",
    "\U0001f1e9\U0001f1ea",
    "\u2764\ufe0f",
    "1\ufe0f\u20e3",
    "\U0001f3f3\ufe0f\u200d\U0001f308",
    "\u263a",
    "\U0001f9d1\U0001f3ff\u200d\U0001f52c",
    "\u2603",
    "\U0001f680",
]
SPACES = " \t\n\r\x0b\x0c\x85\xa0\u1680\u180e\u2000\u2003\u2009\u200b\u2028\u2029\u202f\u205f\u3000\ufeff"
BAD = [
    b"\xff",
    b"\xc0\x80",
    b"\xed\xa0\x80",
    b"\xf4\x90\x80\x80",
    b"\xe2\x96",
    b"\x80",
    b"\xf0\x9f\x98",
    b"\xe2",
    b"\xc3",
    b"\xfe\xff",
    b"\xed\xbf\xbf",
    b"\xf8\x88\x80\x80\x80",
    b"\xe0\x80\xaf",
]
OLD = unicodedata.ucd_3_2_0
POOL = [chr(c) for c in range(0x110000) if OLD.category(chr(c)) not in ("Cn", "Cs", "Co")]
POOL += [chr(c) for c in range(0x1F300, 0x1F650)]
BLOCKS = [
    (0x20, 0x7F),
    (0xA0, 0x250),
    (0x300, 0x370),
    (0x370, 0x530),
    (0x590, 0x700),
    (0x900, 0x980),
    (0xE00, 0xE80),
    (0x1100, 0x1200),
    (0x2000, 0x2070),
    (0x2070, 0x2190),
    (0x3000, 0x3100),
    (0x4E00, 0x9FA6),
    (0xAC00, 0xD7A4),
    (0xFF00, 0xFFF0),
    (0x1D400, 0x1D800),
    (0x1F300, 0x1F650),
]


class Maker:
    def __init__(self, seed):
        self.r = random.Random(seed)

    def words(self):
        r = self.r
        out = []
        for _ in range(r.randint(1, 14)):
            out.append(r.choice(WORDS))
            out.append(
                r.choice(
                    [" ", " ", " ", " ", "  ", "", "\n", ", ", ". ", "-", "\t", "...", "!?", " \n "]
                )
            )
        return "".join(out)

    def block(self):
        lo, hi = self.r.choice(BLOCKS)
        chars = [
            c for c in map(chr, range(lo, hi)) if OLD.category(c) not in ("Cn", "Cs", "Co")
        ] or EMOJI
        return "".join(
            self.r.choice(chars) if self.r.random() < 0.85 else " "
            for _ in range(self.r.randint(1, 40))
        )

    def spaces(self):
        r = self.r
        out = []
        for _ in range(r.randint(1, 6)):
            kind = r.random()
            if kind < 0.4:
                out.append(
                    r.choice(" \n\t\r") * r.choice([1, 2, 3, 4, 7, 8, 15, 16, 31, 32, 33, 70])
                )
            elif kind < 0.7:
                out.append("".join(r.choice(SPACES) for _ in range(r.randint(1, 8))))
            else:
                out.append(r.choice(WORDS))
        return "".join(out)

    def digits(self):
        r = self.r
        return "".join(
            r.choice(["", " ", "$", "-", ",", "a", "٣", "²", "Ⅷ"])
            + "".join(r.choice("0123456789") for _ in range(r.randint(1, 11)))
            for _ in range(r.randint(1, 5))
        )

    def contractions(self):
        r = self.r
        return "".join(
            r.choice(["I", "he", " We", "THEY", "", "1", "é", " "])
            + r.choice("'\u2019`'")
            + r.choice(
                [
                    "s",
                    "S",
                    "t",
                    "re",
                    "RE",
                    "Re",
                    "ve",
                    "m",
                    "M",
                    "ll",
                    "LL",
                    "lL",
                    "d",
                    "x",
                    "\u017f",
                    "ss",
                    "",
                    " s",
                ]
            )
            for _ in range(r.randint(1, 6))
        )

    def long_word(self):
        r = self.r
        unit = r.choice(
            [
                "a",
                "ab",
                "A",
                "Aa",
                "é",
                "中",
                "の",
                "Ω",
                "!",
                "=-",
                "aA1",
                ".",
                "-",
                "ha",
                "\u0301",
                "नि",
            ]
        )
        return unit * r.randint(20, 400)

    def invalid(self):
        r = self.r
        out = b""
        for _ in range(r.randint(1, 6)):
            part = r.choice([self.words, self.emoji, self.any])().encode()
            out += part[: r.randint(0, len(part))] + r.choice(BAD) * r.choice([1, 1, 2, 3])
        return out if r.random() < 0.7 else bytes(r.getrandbits(8) for _ in range(r.randint(1, 60)))

    def emoji(self):
        return "".join(self.r.choice(EMOJI + [" ", "a", "!"]) for _ in range(self.r.randint(1, 12)))

    def code(self):
        return "".join(self.r.choice(CODE) for _ in range(self.r.randint(1, 3)))

    def any(self):
        return "".join(self.r.choice(POOL) for _ in range(self.r.randint(1, 30)))

    def control(self):
        return "".join(
            (
                chr(self.r.randint(0, 0x20))
                if self.r.random() < 0.5
                else self.r.choice("aZ0 \x7f\x80\x85\x9f\xad\u200d\u2060")
            )
            for _ in range(self.r.randint(1, 24))
        )

    def make(self, n):
        kinds = (
            [self.words] * 6
            + [self.block] * 4
            + [self.spaces] * 3
            + [self.any] * 2
            + [self.invalid] * 2
            + [self.digits, self.contractions, self.long_word, self.emoji, self.code, self.control]
        )
        out = [b"", b" ", b"\n", b"a", b"\x00", "\ufffd".encode(), "▁".encode(), b"\xff"]
        while len(out) < n:
            s = self.r.choice(kinds)()
            if isinstance(s, str):
                s = s.encode()
            if self.r.random() < 0.2:
                t = self.r.choice(kinds)()
                s += t.encode() if isinstance(t, str) else t
            out.append(s)
        return out


if __name__ == "__main__":
    for s in Maker(int(sys.argv[1])).make(40):
        print(s)
