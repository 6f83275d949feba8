/* SPDX-License-Identifier: MIT */
/* kvstate/plan.h: how each layer of a model keeps its keys and values.
 *
 * A plan is resolved to concrete codecs and layouts, and checked against the model's geometry, when
 * it is made: what it accepts, a session can run. docs/plan.md lists the names. */
#ifndef KVSTATE_PLAN_H
#define KVSTATE_PLAN_H

#include "kvstate/cache.h"
#include "kvstate/model.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    /* Layers with a window keep every token (and still see the window alone): any rewind works. */
    KVS_PLAN_FULL_WINDOW = 1u << 0
};

#define KVS_UNDO_NONE UINT32_MAX

typedef struct kvs_plan_opts {
    size_t struct_size;
    /* A codec for K and V ("f16", "q8", "affine4:32"), one each ("k8v4", "q8+q4"), or
     * "layers:FILE" with lines "LAYERS CODEC [window=N] [sinks=N] [start=N]", or "layers=" and
     * such lines with semicolons between them, or "config:FILE", mlx-optiq's kv_config.json.
     * NULL: "f16".
     * "paged", "paged:PLAN", "paged/N", "paged/N:PLAN" stand for kv_block and the plan. */
    const char *kv;
    const char *k; /* replaces the K side; llama.cpp's type names are taken here and in kv */
    const char *v;
    uint32_t group;  /* of affine codecs that don't name theirs; 0: 64 */
    uint32_t start;  /* the first tokens are read dense, in the type of the scales, see
                        kvs_layer_spec.dense_until */
    uint32_t window; /* newest tokens that full layers keep; 0: all */
    uint32_t sinks;  /* first tokens kept besides the window; needs a window */
    uint32_t n_ctx;  /* most tokens; a window that reaches further is not made a ring. 0: model's */
    uint32_t max_block; /* largest block that a session computes at once; 0: 512 */
    uint32_t flags;     /* KVS_PLAN_* */
    uint32_t kv_block;  /* not 0: layers are paged, in blocks of so many tokens, at most 256 */
    /* Newest tokens that recurrent layers can take back (kvs_recurrent_spec.undo_tokens), at most
     * 65536; 0: 16, KVS_UNDO_NONE: none. A rewind beyond empties a session. A round of txn.h needs
     * its drafts + 1. */
    uint32_t undo_tokens;
    uint32_t reserved; /* 0 */
    /* Memory for that, all recurrent layers together: the shortest distance of snapshots that fits is
     * taken, and the fewest tokens are computed again. 0: what takes the least. kvs_plan_get_undo
     * tells both costs. */
    uint64_t undo_bytes;
} kvs_plan_opts;
#define KVS_PLAN_OPTS_INIT                                                                         \
    {                                                                                              \
        sizeof(kvs_plan_opts), NULL, NULL, NULL, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0                   \
    }

typedef struct kvs_plan kvs_plan; /* immutable, for any number of threads; may outlive the model */

/* KVS_E_INVAL: a name or line that can't be read; KVS_E_UNSUPPORTED: the geometry can't hold it
 * (the message names the layer and why); KVS_E_IO: FILE can't be read; KVS_E_LIMIT: undo_tokens
 * don't fit undo_bytes (the message says what does). */
KVS_API kvs_status kvs_plan_new(kvs_ctx *ctx, const kvs_model *model, const kvs_plan_opts *opts,
                                kvs_plan **out, kvs_err *err);
KVS_API void kvs_plan_free(kvs_plan *plan); /* NULL is fine */

KVS_API uint32_t kvs_plan_n_layers(const kvs_plan *plan);
KVS_API const kvs_layer_spec *kvs_plan_layer(const kvs_plan *plan, uint32_t layer);
KVS_API uint32_t kvs_plan_n_ctx(const kvs_plan *plan);
KVS_API uint32_t kvs_plan_max_block(const kvs_plan *plan);
/* Tokens of a block of the paged layers, 0 where there are none. */
KVS_API uint32_t kvs_plan_kv_block(const kvs_plan *plan);
/* State bytes when n_tokens are held, as kvs_cache_plan; layer_bytes: [n_layers] or NULL. */
KVS_API kvs_status kvs_plan_bytes(const kvs_plan *plan, uint64_t n_tokens, size_t *state_bytes,
                                  size_t *layer_bytes, kvs_err *err);
/* Of n_rows sequences that hold n_tokens each and share nothing: state_bytes is the sum of their
 * kvs_cache_bytes. A paged plan takes its tables from that and its blocks from one pool, which
 * takes pool_bytes (kvs_pages_plan); 0 for other plans. Either may be NULL. */
KVS_API kvs_status kvs_plan_rows_bytes(const kvs_plan *plan, uint32_t n_rows, uint64_t n_tokens,
                                       size_t *state_bytes, size_t *pool_bytes, kvs_err *err);

/* What it costs that recurrent layers can take tokens back: memory, part of kvs_plan_bytes once a
 * token is held, and computing, at most interval - 1 tokens of these layers in a rewind. */
typedef struct kvs_plan_undo {
    size_t struct_size;
    uint32_t n_tokens; /* that can be taken back; 0: none, or no layer is recurrent */
    uint32_t interval; /* tokens from one snapshot to the next, the most of any layer; 0: none */
    uint32_t interval_least; /* ... and where memory is least */
    uint32_t reserved;
    size_t bytes;       /* of all recurrent layers */
    size_t bytes_least; /* with interval_least */
    size_t bytes_every; /* with the state after every token: nothing is computed again */
} kvs_plan_undo;
#define KVS_PLAN_UNDO_INIT                                                                         \
    {                                                                                              \
        sizeof(kvs_plan_undo), 0, 0, 0, 0, 0, 0, 0                                                 \
    }
/* KVS_E_INVAL: plan or out is NULL, or out's struct_size below the size_t itself. */
KVS_API kvs_status kvs_plan_get_undo(const kvs_plan *plan, kvs_plan_undo *out);

/* One string for machines, length as snprintf: geometry, codecs with rotation, layout, block, window,
 * sinks and start of every layer, each framed by its length. Equal strings: the same tokens give
 * the same stored bytes, and the same ones are kept. Limits (n_ctx, max_block) are not part of it. */
KVS_API size_t kvs_plan_signature(const kvs_plan *plan, char *dst, size_t n);
/* Its SHA-256. */
#define KVS_PLAN_DIGEST_BYTES 32
KVS_API void kvs_plan_digest(const kvs_plan *plan, uint8_t out[KVS_PLAN_DIGEST_BYTES]);

/* Names that other programs have for a plan. */
typedef enum kvs_scheme_form {
    KVS_SCHEME_KEY = 0,       /* mlx-bun: "bf16", "kv4", "kv8-g32-start5000", "config-start0" */
    KVS_SCHEME_NAMESPACE = 1, /* of a paged plan: ["paged-v1",256,4,64,false,"base"] */
    KVS_SCHEME_KV_CONFIG = 2  /* mlx-optiq: the text of kv_config.json; without a start */
} kvs_scheme_form;
enum {
    KVS_SCHEME_GROUP = 1u << 0, /* the group is written where it is the usual 64 too */
    KVS_SCHEME_START = 1u << 1, /* the start is written where it is 0 too */
    KVS_SCHEME_DIRECT = 1u << 2 /* namespace: `direct` is true */
};
typedef struct kvs_scheme_opts {
    size_t struct_size;
    kvs_scheme_form form;
    uint32_t flags;   /* KVS_SCHEME_* */
    const char *base; /* namespace: the one it is put in front of; NULL: "" */
} kvs_scheme_opts;
#define KVS_SCHEME_OPTS_INIT                                                                       \
    {                                                                                              \
        sizeof(kvs_scheme_opts), KVS_SCHEME_KEY, 0, NULL                                           \
    }
/* Writes the name with a NUL to dst[n]. KVS_E_UNSUPPORTED: they can't express the plan (the message
 * names the layer and why: rotation, K and V apart, other types than bf16, a window that is not the
 * model's); KVS_E_RANGE: dst is too short, and holds a part. */
KVS_API kvs_status kvs_plan_scheme(const kvs_plan *plan, const kvs_scheme_opts *opts, char *dst,
                                   size_t n, kvs_err *err);

/* Line i of the effective plan for people: first the groups of equal layers, "layers 0-4,6-10: ring
 * window 512, k q8, v q8, 1 head of 256", then notes on names that were replaced. Length as
 * snprintf; 0 past the end. */
KVS_API size_t kvs_plan_line(const kvs_plan *plan, uint32_t i, char *dst, size_t n);

#ifdef __cplusplus
}
#endif
#endif
