#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""record_gguf.py FILE: writes tests/golden/gguf_blocks.bin, weight blocks and what the `gguf`
package (versions: requirements-gguf.txt) decodes them to.

    python3 -m venv v && v/bin/pip install -r tests/golden/requirements-gguf.txt
    v/bin/python tests/golden/record_gguf.py tests/golden/gguf_blocks.bin

File: "KVSW", u32 number of records; per record u32 type, u32 blocks, the blocks' bytes, the decoded
f32 values; all little-endian. NaN is written as 0x7fc00000: which NaN comes out of an operation
with a broken scale is the processor's business. Running it again gives the same file."""
import struct
import sys

import gguf
import numpy as np

PINS = {"gguf": "0.19.0", "numpy": "2.4.6"}

TYPES = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K",
         "Q5_K", "Q6_K"]
# byte offsets of the f16 scales in a block
SCALES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82],
          "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}
# zero, smallest and largest subnormal, smallest normal, largest, infinity, quiet and signalling NaN
F16 = [0x0000, 0x8000, 0x0001, 0x83ff, 0x0400, 0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x7e00, 0xfd01]
F32 = [0, 0x80000000, 1, 0x807fffff, 0x00800000, 0x7f7fffff, 0x7f800000, 0xff800000, 0x7fc00000]


def sizes(name):
    return gguf.constants.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]


def random_blocks(name, rng, n):
    """[n][block bytes] u8: random codes; scales finite and of any size that f16 has."""
    blocks = rng.integers(0, 256, (n, sizes(name)[1]), np.uint8)
    for at in SCALES.get(name, []):
        bits = rng.integers(0, 0x7c00, n) | rng.integers(0, 2, n) << 15
        blocks[:, at:at + 2] = bits.astype("<u2").view(np.uint8).reshape(n, 2)
    return blocks


def adversarial_blocks(name, rng):
    """Every special value as a scale, over codes that are all 0, all 1 and random."""
    size = sizes(name)[1]
    if name not in SCALES:
        bits = F32 if name == "F32" else F16 if name == "F16" else [x >> 16 for x in F32] + F16
        return np.array(bits, "<u4" if size == 4 else "<u2").view(np.uint8).reshape(-1, size)
    out = random_blocks(name, rng, len(F16))
    for i, special in enumerate(F16):
        if i % 3 < 2:
            keep = {at: out[i, at:at + 2].copy() for at in SCALES[name]}
            out[i] = 255 * (i % 3)
            for at, b in keep.items():
                out[i, at:at + 2] = b
        at = rng.choice(SCALES[name])
        out[i, at:at + 2] = np.array([special], "<u2").view(np.uint8)
    return out


def decode(name, blocks):
    """f32 bits of all elements, NaN as one value."""
    with np.errstate(all="ignore"):
        flat = np.ascontiguousarray(blocks).reshape(-1)
        y = gguf.quants.dequantize(flat, gguf.GGMLQuantizationType[name])
    y = np.ascontiguousarray(y, np.float32).reshape(-1)
    return np.where(np.isnan(y), np.uint32(0x7fc00000), y.view(np.uint32)).astype("<u4")


def check_pins():
    from importlib.metadata import version
    for package, want in PINS.items():
        if version(package) != want:
            sys.exit("%s is %s, the pin is %s" % (package, version(package), want))


def main():
    check_pins()
    rng = np.random.default_rng(20)
    out = [b"KVSW", struct.pack("<I", len(TYPES))]
    for name in TYPES:
        few = 12 if sizes(name)[0] < 256 else 3
        blocks = np.concatenate([random_blocks(name, rng, few), adversarial_blocks(name, rng)])
        number = gguf.GGMLQuantizationType[name].value
        out += [struct.pack("<II", number, len(blocks)), blocks.tobytes(),
                decode(name, blocks).tobytes()]
    with open(sys.argv[1], "wb") as f:
        f.write(b"".join(out))


if __name__ == "__main__":
    main()
