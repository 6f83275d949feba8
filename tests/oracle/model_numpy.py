# SPDX-License-Identifier: MIT
"""model_numpy.py LIBRARY GOLDEN MODEL: all logits of a real model against a numpy forward.

The weights are dequantised by the `gguf` package; the forward below is written from the published
descriptions of the two architectures and shares nothing with the engine. Both compute in float32
with an f32 cache; every logit must lie within 0.002 (it is 0.0001 off at most)."""
import json
import sys

import gguf
import numpy as np

import engine_lib

NEAR = 0.002
F32 = np.float32


class Net:
    def __init__(self, path):
        reader = gguf.GGUFReader(path)
        self.raw = {t.name: t for t in reader.tensors}
        self.fields = reader.fields
        self.arch = bytes(self.fields["general.architecture"].parts[-1]).decode()
        self.layers = int(self.get("block_count"))
        self.heads = int(self.get("attention.head_count"))
        self.kv_heads = int(self.get("attention.head_count_kv", self.heads))
        self.width = int(self.get("embedding_length"))
        self.dim = int(self.get("attention.key_length", self.width // self.heads))
        self.eps = F32(self.get("attention.layer_norm_rms_epsilon"))
        self.base = float(self.get("rope.freq_base", 10000.0))
        self.gemma = self.arch == "gemma3"
        self.window = int(self.get("attention.sliding_window", 0))
        self.embed = self.tensor("token_embd.weight")
        self.output = (self.tensor("output.weight") if "output.weight" in self.raw
                       else self.embed)

    def get(self, key, default=None):
        field = self.fields.get("%s.%s" % (self.arch, key))
        return default if field is None else field.parts[-1][0]

    def tensor(self, name):
        t = self.raw[name]
        return gguf.quants.dequantize(t.data, t.tensor_type).astype(F32)

    def norm(self, x, name):
        scale = F32(1) / np.sqrt(np.mean(x * x, axis=-1, keepdims=True, dtype=F32) + self.eps)
        return (x * scale * self.tensor(name)).astype(F32)

    def rope(self, x, base):
        """x: [tokens][heads][dim]. Llama files pair neighbours, Gemma the two halves."""
        n, half = x.shape[0], self.dim // 2
        angle = np.arange(n)[:, None] * base ** (-2.0 * np.arange(half) / self.dim)
        cos = np.cos(angle).astype(F32)[:, None, :]
        sin = np.sin(angle).astype(F32)[:, None, :]
        y = np.empty_like(x)
        if self.gemma:
            a, b = x[..., :half], x[..., half:]
            y[..., :half], y[..., half:] = a * cos - b * sin, a * sin + b * cos
        else:
            a, b = x[..., 0::2], x[..., 1::2]
            y[..., 0::2], y[..., 1::2] = a * cos - b * sin, a * sin + b * cos
        return y

    def attention(self, q, k, v, window):
        n = q.shape[0]
        i, j = np.arange(n)[:, None], np.arange(n)[None, :]
        hidden = j > i
        if window:
            hidden |= j <= i - window
        out = np.empty((n, self.heads, self.dim), F32)
        for h in range(self.heads):
            g = h // (self.heads // self.kv_heads)
            s = (q[:, h] @ k[:, g].T) * F32(1.0 / np.sqrt(self.dim))
            s[hidden] = -np.inf
            p = np.exp(s - s.max(axis=1, keepdims=True))
            out[:, h] = (p / p.sum(axis=1, keepdims=True)) @ v[:, g]
        return out.reshape(n, -1)

    def act(self, x):
        if self.gemma:
            return F32(0.5) * x * (F32(1) + np.tanh(F32(np.sqrt(2 / np.pi)) *
                                                    (x + F32(0.044715) * x * x * x)))
        return x / (F32(1) + np.exp(-x))

    def layer(self, i, x):
        p = "blk.%d." % i
        n = x.shape[0]
        local = self.gemma and (i + 1) % 6 != 0
        h = self.norm(x, p + "attn_norm.weight")
        q = (h @ self.tensor(p + "attn_q.weight").T).reshape(n, self.heads, self.dim)
        k = (h @ self.tensor(p + "attn_k.weight").T).reshape(n, self.kv_heads, self.dim)
        v = (h @ self.tensor(p + "attn_v.weight").T).reshape(n, self.kv_heads, self.dim)
        if self.gemma:
            q = self.norm(q, p + "attn_q_norm.weight")
            k = self.norm(k, p + "attn_k_norm.weight")
        base = 10000.0 if local else self.base
        a = self.attention(self.rope(q, base), self.rope(k, base), v, self.window if local else 0)
        a = a @ self.tensor(p + "attn_output.weight").T
        if self.gemma:
            a = self.norm(a, p + "post_attention_norm.weight")
        x = x + a
        h = self.norm(x, p + "ffn_norm.weight")
        f = self.act(h @ self.tensor(p + "ffn_gate.weight").T)
        f = (f * (h @ self.tensor(p + "ffn_up.weight").T)) @ self.tensor(p + "ffn_down.weight").T
        if self.gemma:
            f = self.norm(f, p + "post_ffw_norm.weight")
        return x + f

    def logits(self, tokens, first):
        x = self.embed[tokens]
        if self.gemma:
            x = x * F32(np.sqrt(self.width))
        for i in range(self.layers):
            x = self.layer(i, x)
        return self.norm(x[first:], "output_norm.weight") @ self.output.T


def main():
    library, golden, model = sys.argv[1:]
    with open(golden) as f:
        cases, path = engine_lib.cases(json.load(f), model)
    net = Net(path)
    engine = engine_lib.Engine(library, path)
    # all positions of a short text, and the end of one that is longer than Gemma's window
    short = cases[2]["prompt"] + cases[2]["ids"][:16]
    texts = [(short, 0), (cases[5]["prompt"], len(cases[5]["prompt"]) - 8)]
    print("1..%d" % len(texts))
    good = 0
    for i, (tokens, first) in enumerate(texts):
        want = net.logits(tokens, first)
        got = engine.logits(tokens, first)
        worst = float(np.abs(got - want).max())
        ok = got.shape == want.shape and worst <= NEAR and np.isfinite(got).all()
        good += ok
        print("%s %d - %d tokens, %d rows of %d logits, greatest difference %.6f"
              % ("ok" if ok else "not ok", i + 1, len(tokens), want.shape[0], want.shape[1], worst))
    engine.close()
    return 0 if good == len(texts) else 1


if __name__ == "__main__":
    sys.exit(main())
