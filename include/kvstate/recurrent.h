/* SPDX-License-Identifier: MIT */
/* kvstate/recurrent.h: layers whose state has a fixed size: a convolution tail and a matrix a head.
 *
 * Two rules, for each head h with its group h / (n_heads / n_groups), token after token:
 *   gated delta   s = g s;  m = s k;  s = s + (v - m) beta k^T;  y = s q
 *                 g = exp(A softplus(a + dt_bias)), beta = sigmoid(b)
 *   SSD (Mamba-2) s = g s + (dt x) B^T;  y = s C + D x
 *                 dt = clamp(softplus(a + dt_bias)), g = exp(A dt)
 * with the state s [head_dim][state_dim] in f32. The tokens' raw convolution inputs x pass through
 * kvs_recurrent_conv, which changes nothing; what the model does in between (norms, scales) is the
 * caller's; kvs_recurrent_advance takes the results and the raw inputs and moves the tail and the
 * state together, so that no call leaves one without the other. Results are those of one token at a
 * time, bit for bit, however tokens are grouped into calls, on any tier, with any threads: there is
 * no chunked form, which would round differently (docs/numerics.md).
 *
 * All arrays are f32; strides count elements from one token to the next, 0: dense. */
#ifndef KVSTATE_RECURRENT_H
#define KVSTATE_RECURRENT_H

#include "kvstate/cache.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum kvs_recurrent_rule {
    KVS_RECURRENT_GATED_DELTA = 0, /* Qwen3-Next, Qwen3.5 */
    KVS_RECURRENT_SSD = 1          /* Mamba-2 and its hybrids */
} kvs_recurrent_rule;

/* What kvs_layer_spec.recurrent points to. */
typedef struct kvs_recurrent_spec {
    size_t struct_size;
    kvs_recurrent_rule rule;
    uint32_t n_heads;     /* delta: value heads; SSD: heads */
    uint32_t n_groups;    /* delta: key heads; SSD: groups; divides n_heads */
    uint32_t head_dim;    /* 1..1024; delta: Dv; SSD: P */
    uint32_t state_dim;   /* 4..1024, a multiple of 4; delta: Dk; SSD: N */
    uint32_t conv_dim;    /* channels of the convolution, 0: none */
    uint32_t conv_taps;   /* 2..16; the tail keeps the newest conv_taps - 1 inputs. 0: none */
    kvs_dtype conv_dtype; /* inputs are rounded to it before anything else sees them */
    /* Tokens behind the greatest length so far that a rewind reaches exactly, drafts or not; 0: none.
     * A round of txn.h takes them all: drafts + 1, since an abort takes back the pending token too.
     * Kept are snapshots of the state every undo_interval tokens and the inputs after them, from
     * which a rewind recomputes at most undo_interval - 1 tokens; with 1, the state after each token,
     * and none. 0: the least that undo_bytes allows, and without undo_bytes the interval that takes
     * the least memory. */
    uint32_t undo_tokens;   /* at most 65536 */
    uint32_t undo_interval; /* at most 65536 */
    uint64_t undo_bytes;    /* memory for this beyond the state itself; 0: no limit */
} kvs_recurrent_spec;
#define KVS_RECURRENT_SPEC_INIT                                                                    \
    {                                                                                              \
        sizeof(kvs_recurrent_spec), KVS_RECURRENT_GATED_DELTA, 0, 0, 0, 0, 0, 0, KVS_F32, 0, 0, 0  \
    }

/* ---- tokens */

enum { KVS_RECURRENT_SILU = 1u }; /* kvs_recurrent_conv_desc.flags */

typedef struct kvs_recurrent_conv_desc {
    size_t struct_size;
    uint32_t n_tokens;
    uint32_t flags;
    const float *x; /* [n][conv_dim] */
    size_t x_stride;
    const float *weight; /* [conv_taps][conv_dim], the tap of the newest token last */
    const float *bias;   /* [conv_dim] or NULL */
    float *out;          /* [n][conv_dim]; overlaps nothing */
    size_t out_stride;
} kvs_recurrent_conv_desc;
#define KVS_RECURRENT_CONV_DESC_INIT                                                               \
    {                                                                                              \
        sizeof(kvs_recurrent_conv_desc), 0, KVS_RECURRENT_SILU, NULL, 0, NULL, NULL, NULL, 0       \
    }
/* Depthwise causal convolution of the next n tokens after the layer's tail. Changes nothing and
 * takes no memory; kvs_recurrent_advance with the same x makes it so. */
KVS_API kvs_status kvs_recurrent_conv(kvs_cache *cache, uint32_t layer,
                                      const kvs_recurrent_conv_desc *desc, kvs_err *err);

typedef struct kvs_recurrent_step {
    size_t struct_size;
    uint32_t n_tokens;
    uint32_t reserved;   /* 0 */
    const float *conv_x; /* what kvs_recurrent_conv was given; NULL where there is no convolution */
    size_t conv_x_stride;
    const float *q; /* [n][n_groups][state_dim]; SSD: C. May be NULL with y */
    size_t q_stride;
    const float *k; /* [n][n_groups][state_dim]; SSD: B */
    size_t k_stride;
    const float *v; /* [n][n_heads][head_dim]; SSD: x */
    size_t v_stride;
    const float *a; /* [n][n_heads]; SSD: dt before its bias */
    size_t a_stride;
    const float *b; /* [n][n_heads]; SSD: NULL */
    size_t b_stride;
    const float *decay;   /* [n_heads]: A, negative: see kvs_recurrent_decay */
    const float *dt_bias; /* [n_heads] or NULL */
    const float *d;       /* SSD: [n_heads] or NULL */
    float dt_min;         /* SSD: limits of dt; 0, 0: none */
    float dt_max;
    float *y; /* [n][n_heads][head_dim]; overlaps nothing; NULL: only the state is wanted */
    size_t y_stride;
} kvs_recurrent_step;
#define KVS_RECURRENT_STEP_INIT                                                                    \
    {                                                                                              \
        sizeof(kvs_recurrent_step), 0, 0, NULL, 0, NULL, 0, NULL, 0, NULL, 0, NULL, 0, NULL, 0,    \
            NULL, NULL, NULL, 0.0f, 0.0f, NULL, 0                                                  \
    }
/* Advances the layer by n tokens. Takes memory at the first token, and where a fork shares what is
 * to be written; kvs_cache_reserve does that in advance. NaN in y is 0x7fc00000. */
KVS_API kvs_status kvs_recurrent_advance(kvs_cache *cache, uint32_t layer,
                                         const kvs_recurrent_step *step, kvs_err *err);

/* decay[i] = -exp(a_log[i]), for checkpoints that store A_log. Arrays may be the same. */
KVS_API void kvs_recurrent_decay(float *decay, const float *a_log, size_t n);

/* ---- padded rectangles, for callers whose rows came in one: pure arithmetic */

/* One row of a rectangle. `length` columns before its trailing padding, `left` of them padding in
 * front; both shrink as columns are consumed and may become negative. */
typedef struct kvs_recurrent_pad {
    int64_t length;
    int64_t left;
} kvs_recurrent_pad;
/* Of the next n columns, *count from column *first on are real and to be advanced by; the others
 * leave the state as it is and their y is 0 by convention. */
KVS_API void kvs_recurrent_pad_next(kvs_recurrent_pad *pad, uint32_t n, uint32_t *first,
                                    uint32_t *count);

/* ---- planes */

/* Row-major and, after kvs_recurrent_export, without a NaN but 0x7fc00000 in the state. */
typedef struct kvs_recurrent_planes {
    size_t struct_size;
    void
        *conv; /* [conv_taps - 1][conv_dim] of conv_dtype, oldest first, 0 before the first token */
    float *state; /* [n_heads][head_dim][state_dim] */
} kvs_recurrent_planes;
#define KVS_RECURRENT_PLANES_INIT                                                                  \
    {                                                                                              \
        sizeof(kvs_recurrent_planes), NULL, NULL                                                   \
    }
/* The greatest position <= at whose planes are stored (the length, or a snapshot); -1: none. */
KVS_API int64_t kvs_recurrent_kept(const kvs_cache *cache, uint32_t layer, int64_t at);
/* Copies the planes after the first `at` tokens; NULL planes are left out. KVS_E_RANGE where
 * kvs_recurrent_kept(at) is not `at`. */
KVS_API kvs_status kvs_recurrent_export(const kvs_cache *cache, uint32_t layer, int64_t at,
                                        const kvs_recurrent_planes *dst, kvs_err *err);
/* Replaces all the layer holds: it continues after `at` tokens with these planes, and cannot be
 * rewound beyond. */
KVS_API kvs_status kvs_recurrent_import(kvs_cache *cache, uint32_t layer, int64_t at,
                                        const kvs_recurrent_planes *src, kvs_err *err);

/* ---- all layers in one piece: what a prefix index keeps as snapshot (prefix.h)
 *
 * By layer, each as docs/format.md has it; a cache of the same recurrent layers reads it. A text can be
 * resumed where there is one alone: publish some tokens before the end of a prompt, too, and at its
 * end. */

/* 0: no layer is recurrent. */
KVS_API size_t kvs_recurrent_snapshot_bytes(const kvs_cache *cache);
/* The planes after the first `at` tokens of every recurrent layer, to dst [bytes], aligned to 8.
 * Changes nothing; takes memory where a layer has to be rewound for it, in a copy. KVS_E_RANGE: a
 * layer does not go back to `at`. KVS_E_STATE: it lies in an open round. KVS_E_INVAL: other bytes
 * than those above. */
KVS_API kvs_status kvs_recurrent_snapshot(const kvs_cache *cache, int64_t at, void *dst,
                                          size_t bytes, kvs_err *err);
/* kvs_recurrent_import of every recurrent layer. KVS_E_NOMEM: they are all empty. */
KVS_API kvs_status kvs_recurrent_resume(kvs_cache *cache, int64_t at, const void *src, size_t bytes,
                                        kvs_err *err);

/* ---- what undo costs */

typedef struct kvs_recurrent_stats {
    size_t struct_size;
    size_t state_bytes;      /* the state and the tail alone */
    size_t undo_bytes;       /* what undo takes on top, once a token is held */
    size_t undo_bytes_1;     /* what it would take with interval 1 ... */
    size_t undo_bytes_least; /* ... and with the interval that takes least */
    uint32_t interval;       /* in use; 0: no undo */
    uint32_t interval_least;
    uint64_t n_rewinds;
    uint64_t n_recomputed; /* tokens recomputed by them */
} kvs_recurrent_stats;
#define KVS_RECURRENT_STATS_INIT                                                                   \
    {                                                                                              \
        sizeof(kvs_recurrent_stats), 0, 0, 0, 0, 0, 0, 0, 0                                        \
    }
KVS_API kvs_status kvs_recurrent_get_stats(const kvs_cache *cache, uint32_t layer,
                                           kvs_recurrent_stats *out);

#ifdef __cplusplus
}
#endif
#endif
