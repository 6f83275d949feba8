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

Of affine codes the library makes integers of q and of the weights (docs/numerics.md), at most 32512.
An element of q, scaled, is off by h at most, half a step of its group: h = max |q| |scale| / 65024.
So e_j has besides
    sum_g h_g sum_{d in g} |k_jd|.
A weight times its scale is off by half a step of its group and chunk c of 256 positions, so that the
output is off by
    sum_c h_c sum_{j in c} code_jd,  h_c = max_{j in c} w_j |scale_j| / 65024
more. Where the greatest of the numbers is below 2^-100 they count as 0, so they are lost whole. Sums of
integers are exact; what is rounded to f32 are the parts that codes and biases have in a value, so
|code scale| + |bias| takes the place of |k| and |v|. A score's path is n = 5 + 2 groups roundings long:
the factor to integers, its product, the step, D, D step, and two sums for each group. An output's is
that of the biases, 16 sums in a lane, 4 of lanes and the last one, or that of the sum of weights, and
those of the joins.

In squares: the error of an element d of q is one number for all tokens of a row, so it does to output e
    h_g sum_j w_j (v_je - o_e) k_jd
and these are added in squares over d, those of weights over j; but weights of less than one and a half
steps, which are the more the smaller they are, all tend to round the same way and are added as they are.
A read of few rows has few such errors, all outputs of a row the same ones, which need not average out.
They are even in [-h, h], so of variance h^2 / 3 and sub-Gaussian; the mean of k rows' squares passes
(1 + 2 sqrt(x / k) + 2 x / k) / 3 at most once in e^x reads (Laurent and Massart), if all outputs of a
row erred alike. `limit` is the root of that, or 1; over all reads together 1 must do.
"""

import dataclasses

import numpy as np

U = 2.0**-24
LOST = 2.8e-38  # e^-86.5
LEAST = 2.0**-150  # half of the least float
TINY = 2.0**-100 * (1 + 2**-10)  # below it integers may be 0
RARE = 21  # once in 10^9 reads
HALF = 1 / 65024  # half a step, of the greatest element
CHUNK = 256


@dataclasses.dataclass
class Codes:
    """K or V [Hkv, N, D] as codes in groups: scales and biases [Hkv, N, D / group] float64."""

    scales: np.ndarray
    biases: np.ndarray

    def spread(self, repeat, dim):
        """(scale, bias) of every element and query head."""
        group = dim // self.scales.shape[-1]
        return (np.repeat(np.repeat(x, group, -1), repeat, 0) for x in (self.scales, self.biases))


@dataclasses.dataclass
class Exact:
    """Outputs o [H, L, D'], weights w and scores' distances from the greatest [H, L, N], and the sizes
    that errors are measured by: a [H, L, N] of score sums, v and v_mag [H, N, D'] of values, off
    [H, L, N] of scores and slip [H, L, D'] of outputs by integers of 16 bits, shared [H, L, D'] the
    squares of what both do to outputs."""

    o: np.ndarray
    w: np.ndarray
    far: np.ndarray
    a: np.ndarray
    v: np.ndarray
    v_mag: np.ndarray
    off: np.ndarray
    slip: np.ndarray
    shared: np.ndarray
    n_score: int


def score_errors(q, k, scale, codes):
    """(magnitudes, errors by 16 bits, half a step of each element of q, roundings) of scores, k
    [H, N, D] repeated."""
    if codes is None:
        a = abs(scale) * np.einsum("hld,hnd->hln", np.abs(q), np.abs(k))
        return a, np.zeros_like(a), np.zeros_like(q), q.shape[-1]
    groups = codes.scales.shape[-1]
    _, bias = codes.spread(len(q) // len(codes.scales), q.shape[-1])
    a = abs(scale) * np.einsum("hld,hnd->hln", np.abs(q), np.abs(k - bias) + np.abs(bias))
    top = abs(scale) * np.abs(q).reshape(*q.shape[:2], groups, -1).max(-1)
    half = np.repeat(top * np.where(top < TINY, 1, HALF), q.shape[-1] // groups, -1)
    return a, np.einsum("hld,hnd->hln", half, np.abs(k)), half, 5 + 2 * groups


def value_errors(w, v, see, codes, positions):
    """(magnitudes of values, errors of outputs by 16 bits, their squares), v [H, N, D'] repeated."""
    slip = np.zeros((*w.shape[:2], v.shape[-1]))
    slip2 = np.zeros_like(slip)
    same = np.zeros_like(slip)
    if codes is None:
        return np.abs(v), slip, slip2
    scale, bias = codes.spread(len(w) // len(codes.scales), v.shape[-1])
    code = np.abs(np.divide(v - bias, scale, out=np.zeros_like(v), where=scale != 0))
    for chunk in np.unique(positions // CHUNK):
        at = positions // CHUNK == chunk
        part = w[:, :, at, None] * np.abs(scale)[:, None, at]  # [H, L, n, D']
        most = w[:, :, at].max(2)  # its numerator is 1
        tiny = part.max(2) < TINY * most[:, :, None]
        half = part.max(2) * np.where(tiny, 1, HALF * (1 + 2**-10))  # weights may be off, too
        slip += half * np.einsum("ln,hnd->hld", see[:, at], code[:, at])
        near = part < 3 * half[:, :, None]
        same += np.einsum("hlnd,hnd->hld", np.minimum(part, half[:, :, None]) * near, code[:, at])
        slip2 += half**2 * np.einsum("hlnd,ln,hnd->hld", ~near, see[:, at], code[:, at] ** 2)
    slip2 += same**2
    return np.abs(v - bias) + np.abs(bias), slip, slip2


def reference(q, k, v, scale, see, sinks=None, codes=(None, None), positions=None):
    """q [H, L, D], k and v [Hkv, N, D'] float64, see [L, N]: an Exact. codes: Codes of k and v where
    they are read as such; positions [N] of the keys, which need not be in order."""
    repeat = len(q) // len(k)
    k, v = np.repeat(k, repeat, 0), np.repeat(v, repeat, 0)
    s = scale * np.einsum("hld,hnd->hln", q, k)
    a, off, half, n_score = score_errors(q, k, scale, codes[0])
    s = np.where(see, s, -np.inf)
    top = s.max(-1, keepdims=True)
    w = np.exp(s - top)
    total = w.sum(-1, keepdims=True)
    if sinks is not None:
        total += np.exp(sinks[:, None, None] - top)
    w /= total
    far = np.where(see, np.abs(s - top), 0)
    mag, slip, slip2 = value_errors(w, v, see, codes[1], positions)
    o = np.einsum("hln,hnd->hld", w, v)
    shared = slip2
    for h, i in np.ndindex(*q.shape[:2]) if codes[0] else ():
        share = (w[h, i][:, None] * (v[h] - o[h, i])).T @ k[h]  # [D', D]: of d in e, by q's error
        shared[h, i] += (share * half[h, i]) ** 2 @ np.ones(q.shape[-1])
    return Exact(o, w, far, a, v, mag, off, slip, shared, n_score)


def judge(y, x, fixed_u, slope, n_sum):
    """(worst error / bound, rms error / expected rms) of y [H, L, D] against an Exact."""
    worst = squares = 0.0
    for h in range(len(x.o)):
        w, o, v = x.w[h], x.o[h], x.v[h]
        away = w[:, :, None] * np.abs(v[None] - o[:, None])  # [L, N, D]
        fixed = (3 * x.a[h] + fixed_u + slope * x.far[h]) * U
        e = x.n_score * U * x.a[h] + fixed + x.off[h]
        e2 = x.n_score * (U * x.a[h]) ** 2 + fixed**2
        mag = w @ x.v_mag[h]
        size = np.abs(o)
        lost = LOST * np.abs(v).sum(0)
        bound = np.einsum("lnd,ln->ld", away, e) + n_sum * U * (mag + size) + 2 * U * size + lost
        bound += (n_sum + 2) * LEAST + x.slip[h]
        square = np.einsum("lnd,ln->ld", away**2, e2)
        square += n_sum * U**2 * (mag**2 + size**2) + (2 * U * size) ** 2 + lost**2
        square += (n_sum + 2) * LEAST**2 + x.shared[h]
        error = np.abs(y[h].astype(np.float64) - o)
        ratio = float((error / np.maximum(bound, 1e-300)).max())
        worst = worst if ratio <= worst else ratio  # a NaN stays
        squares += float((error**2 / np.maximum(square, 1e-300)).sum())
    return worst, (squares / x.o.size) ** 0.5


def ours(tokens, codes=False):
    """(c, d, n) of the library: chunks of 256 tokens joined one after another."""
    joins = tokens / CHUNK + 2
    n = 21 if codes else min(tokens, CHUNK)
    return 2 + 16 * joins, 1, n + 2 * joins


def mlx(tokens, codes=False):
    """Sums in index order, of decoded values."""
    return 25, 2, tokens


def limit(rows, codes=False):
    """Of the rms error / expected of one read with so many rows, of all heads."""
    shared = (1 + 2 * (RARE / rows) ** 0.5 + 2 * RARE / rows) / 3
    return max(1.0, shared**0.5) if codes else 1.0
