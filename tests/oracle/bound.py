# SPDX-License-Identifier: MIT
"""A float64 reference of attention and how far a float32 one may be from it.

With u = 2^-24, weights w_j and output o, to first order an output element may be off by
    sum_j w_j e_j |v_j - o| + n u (sum_j w_j |v_j| + |o|),
    e_j = (dim + 3) u |scale| sum_d |q_d k_jd| + (c + d |s_j - max s|) u,
c and d of the exp and of what else a weight goes through, n the longest path of additions. Weights
below e^-86.5, the least that the library's exp tells from 0 (MLX's: e^-88), may be lost. Worst
cases grow with n; errors that do not conspire grow with its root, so root-mean-square errors are
held against the same form with roots and squares. Below 2^-126 floats are 2^-149 apart whatever
their size: each addition, and the division, may be off by half of that besides.
"""

import numpy as np

U = 2.0**-24
LOST = 2.8e-38  # e^-86.5
LEAST = 2.0**-150  # half of the least float


def reference(q, k, v, scale, see, sinks=None):
    """q [H, L, D], k and v [Hkv, N, D'] float64, see [L, N]: (output, weights, scores, sums)."""
    repeat = len(q) // len(k)
    k, v = np.repeat(k, repeat, 0), np.repeat(v, repeat, 0)
    s = scale * np.einsum("hld,hnd->hln", q, k)
    a = abs(scale) * np.einsum("hld,hnd->hln", np.abs(q), np.abs(k))
    s = np.where(see, s, -np.inf)
    top = s.max(-1, keepdims=True)
    w = np.exp(s - top)
    total = w.sum(-1, keepdims=True)
    if sinks is not None:
        total += np.exp(sinks[:, None, None] - top)
    w /= total
    far = np.where(see, np.abs(s - top), 0)
    return np.einsum("hln,hnd->hld", w, v), w, far, a, v


def judge(y, parts, fixed_u, slope, n_sum, dim):
    """(worst error / bound, rms error / expected rms) of y [H, L, D]."""
    o, w, far, a, v = parts
    worst = squares = 0.0
    for h in range(len(o)):
        away = w[h][:, :, None] * np.abs(v[h][None] - o[h][:, None])  # [L, N, D]
        fixed = (3 * a[h] + fixed_u + slope * far[h]) * U
        e = dim * U * a[h] + fixed
        e2 = dim * (U * a[h]) ** 2 + fixed**2
        mag = w[h] @ np.abs(v[h])
        size = np.abs(o[h])
        lost = LOST * np.abs(v[h]).sum(0)
        bound = np.einsum("lnd,ln->ld", away, e) + n_sum * U * (mag + size) + 2 * U * size + lost
        bound += (n_sum + 2) * LEAST
        square = np.einsum("lnd,ln->ld", away**2, e2)
        square += n_sum * U**2 * (mag**2 + size**2) + (2 * U * size) ** 2 + lost**2
        square += (n_sum + 2) * LEAST**2
        error = np.abs(y[h].astype(np.float64) - o[h])
        ratio = float((error / np.maximum(bound, 1e-300)).max())
        worst = worst if ratio <= worst else ratio  # a NaN stays
        squares += float((error**2 / np.maximum(square, 1e-300)).sum())
    return worst, (squares / o.size) ** 0.5


def ours(tokens):
    """(c, d, n) of the library: chunks of 256 tokens joined one after another."""
    joins = tokens / 256 + 2
    return 2 + 16 * joins, 1, min(tokens, 256) + 2 * joins


def mlx(tokens):
    """Sums in index order."""
    return 25, 2, tokens
