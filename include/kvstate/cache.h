/* SPDX-License-Identifier: MIT */
/* kvstate/cache.h: the attention state of one sequence over all layers of a model.
 *
 * A layer's state is a product of three choices: a codec for K and one for V (codec.h), a layout
 * (grow, ring or paged), and its geometry; any two layers may differ in everything. One kvs_cache
 * is one row (sequence); a batch is a list of caches, so rows are never padded.
 *
 * Positions count tokens from 0 and are absolute: a ring that dropped old tokens keeps counting.
 * Results of an attention read depend on the visible tokens and the codec alone (of centred keys:
 * on the tokens before them, too), never on the layout, the ring's phase, how tokens were grouped
 * into appends, the number of queries in a call, threads or CPU. Every failing call leaves the
 * cache as it was. */
#ifndef KVSTATE_CACHE_H
#define KVSTATE_CACHE_H

#include "kvstate/codec.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum kvs_layout {
    KVS_LAYOUT_GROW = 0, /* keeps every token; segments of geometric size, never moved */
    KVS_LAYOUT_RING = 1, /* keeps `sinks` first tokens and the newest `window`; fixed memory */
    KVS_LAYOUT_PAGED = 2 /* blocks of a pool (pages.h), shared by forks, views and stored prefixes;
                            with a window, blocks wholly behind it go back at once */
} kvs_layout;

/* What a layer keeps. A kind that a call can't serve is KVS_E_UNSUPPORTED, naming the layer. */
typedef enum kvs_layer_kind {
    KVS_LAYER_ATTENTION = 0, /* keys and values */
    /* MLA: one row a token, kept once: k_dim elements are the key, the first v_dim of them the
     * value. One KV head; codec `v` and the v of kvs_kv, kvs_planes and spans are not used. */
    KVS_LAYER_LATENT = 1,
    KVS_LAYER_BORROW = 2,   /* nothing: reads what layer `donor`, a lower one, keeps by then */
    KVS_LAYER_RECURRENT = 3 /* a convolution tail and a state of fixed size */
} kvs_layer_kind;

struct kvs_recurrent_spec; /* recurrent.h */

/* One layer. Head dims 16..1024, multiples of 8; K and V apart. A recurrent layer has none of the
 * fields that describe keys and values, a window or a donor: they must be 0 (codecs and dtypes are not
 * looked at). It is read and advanced by the calls of recurrent.h; those here that deal in keys and
 * values refuse it with KVS_E_UNSUPPORTED. */
typedef struct kvs_layer_spec {
    size_t struct_size;
    uint32_t n_kv_heads;
    uint32_t k_dim;
    uint32_t v_dim;
    kvs_codec k;
    kvs_codec v;
    kvs_layout layout;
    /* Newest tokens that a query sees, its own included; 0 (not of a ring): all. A query at position p
     * sees j <= p with j > p - window or j < sinks. mlx-lm's RotatingKVCache(max_size, keep) is
     * window = max_size - keep, sinks = keep. */
    uint32_t window;
    uint32_t sinks;
    /* Ring, and paged with a window: the largest block of one append, 1 if 0. A rewind of as many
     * tokens is exact too. */
    uint32_t max_block;
    /* Delayed conversion: a query at a position below `dense_until` reads all its keys and values
     * as `dense_dtype`; later ones read the codecs above. When the length passes it the layer is
     * converted and the dense copy dropped at the next append. 0: codecs from the first token. */
    uint32_t dense_until;
    kvs_dtype dense_dtype;
    kvs_layer_kind kind;
    /* Borrowing layers: the lower layer of keys and values whose state is read. It also tells the
     * geometry (which may be 0 here), codecs, layout and window. */
    uint32_t donor;
    uint32_t reserved; /* 0; leaves no padding for a later field to inherit */
    const struct kvs_recurrent_spec *recurrent; /* recurrent layers, else NULL */
} kvs_layer_spec;
#define KVS_LAYER_SPEC_INIT                                                                        \
    {                                                                                              \
        sizeof(kvs_layer_spec), 0, 0, 0, KVS_CODEC_DENSE(KVS_F16), KVS_CODEC_DENSE(KVS_F16),       \
            KVS_LAYOUT_GROW, 0, 0, 0, 0, KVS_F16, KVS_LAYER_ATTENTION, 0, 0, NULL                  \
    }

typedef struct kvs_pages kvs_pages;

typedef struct kvs_cache_opts {
    size_t struct_size;
    uint32_t n_layers;
    const kvs_layer_spec *layers; /* [n_layers], read during the call only */
    /* Tokens that grow layers hold without another allocation; 0: start small. */
    uint64_t reserve_tokens;
    /* Pool of the paged layers, of the same context; NULL: the cache makes one of its own, without
     * a limit. The cache keeps it alive. */
    kvs_pages *pages;
    uint32_t block_tokens;   /* of a pool of its own, 0: 64; with `pages` 0 or the pool's */
    uint32_t reserved_pages; /* 0 */
} kvs_cache_opts;
#define KVS_CACHE_OPTS_INIT                                                                        \
    {                                                                                              \
        sizeof(kvs_cache_opts), 0, NULL, 0, NULL, 0, 0                                             \
    }

/* Used by one thread at a time, as its context is. Calls on a layer answer KVS_E_RANGE for one out of
 * range, KVS_E_UNSUPPORTED for one of a kind that they do not serve, and KVS_E_BROKEN after a failed
 * round (txn.h). */
typedef struct kvs_cache kvs_cache;

/* What a cache of these options takes from the allocator when each layer holds n_tokens (appended
 * in blocks within each layer's max_block): exactly what kvs_cache_bytes will say. A layer with
 * dense_until is counted dense up to there and converted beyond; between the append that converts
 * it and the next one it holds both. A paged layer is counted by the blocks it refers to and its
 * table; what the pool takes for them is kvs_pages_plan's. layer_bytes: [n_layers] or NULL. */
KVS_API kvs_status kvs_cache_plan(const kvs_cache_opts *opts, uint64_t n_tokens,
                                  size_t *state_bytes, size_t *layer_bytes, kvs_err *err);

/* KVS_E_INVAL / KVS_E_UNSUPPORTED / KVS_E_RANGE name the layer and the value. Also reserves the
 * context's attention scratch, so that later reads, block reads apart, take no memory. */
KVS_API kvs_status kvs_cache_new(kvs_ctx *ctx, const kvs_cache_opts *opts, kvs_cache **out,
                                 kvs_err *err);
KVS_API void kvs_cache_free(kvs_cache *cache); /* NULL is fine; views and forks stay valid */
/* A cache of its own that begins with the first n_tokens of src (KVS_ALL_TOKENS: with all of every
 * layer). It shares storage and copies no prefix: O(segments). Later writes of either side take
 * memory for what they add (grow) or a copy of the window (ring); 15 tokens are copied at most
 * otherwise. kvs_cache_bytes counts what is shared on every side in full: it says what a cache would
 * hold alone, kvs_ctx_stats.live_bytes counts it once. KVS_E_RANGE: more tokens than a layer has;
 * KVS_E_STATE: fewer than it can be rewound to, or drafts of an open round (txn.h). */
#define KVS_ALL_TOKENS UINT64_MAX
KVS_API kvs_status kvs_cache_fork(kvs_cache *src, uint64_t n_tokens, kvs_cache **out, kvs_err *err);
/* Empties all layers and gives their memory back, except what reserve_tokens asked for; where a
 * view pins that, or a layer gave it up when it was converted, the next append takes it anew. */
KVS_API kvs_status kvs_cache_clear(kvs_cache *cache, kvs_err *err);

KVS_API uint32_t kvs_cache_n_layers(const kvs_cache *cache);
/* NULL for a layer out of range. Valid as long as the cache. */
KVS_API const kvs_layer_spec *kvs_cache_spec(const kvs_cache *cache, uint32_t layer);
/* Tokens seen, i.e. the position of the next one; -1 for a layer out of range. Of a layer that
 * borrows: its donor's, whom all reads of it mean; writing to it is KVS_E_UNSUPPORTED, calls on
 * KVS_ALL_LAYERS pass it over, and it takes no bytes. */
KVS_API int64_t kvs_cache_length(const kvs_cache *cache, uint32_t layer);
/* Bytes held from the allocator by one layer, by all with KVS_ALL_LAYERS. A paged layer: of its
 * table and the blocks it refers to, shared ones in full. */
#define KVS_ALL_LAYERS UINT32_MAX
KVS_API size_t kvs_cache_bytes(const kvs_cache *cache, uint32_t layer);
/* "grow k=q4 v=q8 heads=8 dims=128/128", "grow latent=q8 dims=576/512", "recurrent delta heads=32/16
 * ..."; length as snprintf. Layers with one signature hold the
 * same bytes for the same input. */
KVS_API size_t kvs_cache_signature(const kvs_cache *cache, uint32_t layer, char *dst, size_t n);

/* ---- writing */

/* Keys and values of n_tokens new tokens (latent layers: keys alone), position-encoded, element
 * (token t, head h, d) at t * token_stride + h * head_stride + d; strides in elements, 0: dense
 * [n_tokens][heads][dim]. */
typedef struct kvs_kv {
    size_t struct_size;
    uint32_t n_tokens;
    kvs_dtype dtype;
    const void *k;
    const void *v;
    size_t k_token_stride;
    size_t k_head_stride;
    size_t v_token_stride;
    size_t v_head_stride;
} kvs_kv;
#define KVS_KV_INIT                                                                                \
    {                                                                                              \
        sizeof(kvs_kv), 0, KVS_F32, NULL, NULL, 0, 0, 0, 0                                         \
    }

/* Plan: does all allocation that an append of n_tokens needs, so that the append cannot fail for
 * memory unless a view is taken, or a paged layer rewound, in between. Optional; append does it
 * where it was not done. KVS_ALL_LAYERS: nothing visible changes on failure. KVS_E_LIMIT: more than
 * the max_block of a ring or of a paged window, or the pool is at its limit. */
KVS_API kvs_status kvs_cache_reserve(kvs_cache *cache, uint32_t layer, uint32_t n_tokens,
                                     kvs_err *err);
/* Apply: encodes each new row once and stores it. Cost O(n_tokens). Statuses as kvs_cache_reserve;
 * KVS_E_LIMIT also for more than an open round takes. */
KVS_API kvs_status kvs_cache_append(kvs_cache *cache, uint32_t layer, const kvs_kv *kv,
                                    kvs_err *err);

/* KVS_OK if the newest n tokens of a layer (of all layers) can be taken back exactly: every token
 * that a later query may see is still stored. KVS_NO if not, and while a round is open; never an
 * approximation. */
KVS_API kvs_status kvs_cache_can_rewind(const kvs_cache *cache, uint32_t layer, uint64_t n_tokens);
/* Takes the newest n tokens back: no bytes move, but in a recurrent layer, which may recompute up to
 * undo_interval - 1 tokens; paged layers give whole unused blocks back. KVS_E_RANGE: more than the
 * length; KVS_E_STATE:
 * can_rewind says no, the message tells the most that can. With KVS_ALL_LAYERS: all or none. */
KVS_API kvs_status kvs_cache_rewind(kvs_cache *cache, uint32_t layer, uint64_t n_tokens,
                                    kvs_err *err);

/* ---- reading: softmax(scale * Q K^T [soft-capped] [+ sink logit in the denominator]) V */

typedef enum kvs_read {
    KVS_READ_CAUSAL = 0, /* query i of n at position q_pos + i sees what its window allows */
    KVS_READ_BLOCK = 1,  /* `block` is attended with the stored tokens but not stored; every query
                            sees all of it and the newest window - 1 stored tokens (and sinks).
                            Takes memory for the block until the call returns */
    KVS_READ_BIDIRECTIONAL = 2 /* causal, or query i and key j both flagged (image tokens) */
} kvs_read;

typedef struct kvs_attend {
    size_t struct_size;
    kvs_read mode;
    uint32_t n_queries;
    uint32_t n_q_heads; /* a multiple of n_kv_heads; query head h reads KV head h / (their ratio) */
    kvs_dtype q_dtype;
    kvs_dtype out_dtype;
    const void *q; /* strides as in kvs_kv, 0: dense [n_queries][n_q_heads][k_dim] */
    size_t q_token_stride;
    size_t q_head_stride;
    void *out; /* 0: dense [n_queries][n_q_heads][v_dim]; must not overlap q */
    size_t out_token_stride;
    size_t out_head_stride;
    float scale;              /* of the scores, usually 1 / sqrt(k_dim) */
    float softcap;            /* 0: none; c: scores become c * tanh(score / c) */
    const float *sink_logits; /* [n_q_heads] or NULL: one more term in each denominator */
    /* Position of the first query; -1: the newest n_queries tokens are the queries. */
    int64_t q_pos;
    const uint8_t *flags; /* bidirectional: [n_queries], of the tokens q_pos .. q_pos+n_queries-1 */
    const kvs_kv *block;  /* block read: n_tokens == n_queries */
} kvs_attend;
#define KVS_ATTEND_INIT                                                                            \
    {                                                                                              \
        sizeof(kvs_attend), KVS_READ_CAUSAL, 0, 0, KVS_F32, KVS_F32, NULL, 0, 0, NULL, 0, 0, 0.0f, \
            0.0f, NULL, -1, NULL, NULL                                                             \
    }

/* A query that sees no token gives zeros. Reading an empty layer is KVS_E_STATE, a window of which
 * a token is no longer stored KVS_E_RANGE, a bidirectional read across dense_until
 * KVS_E_UNSUPPORTED. NaN and infinities in what a query sees go through to
 * its output (as the one NaN 0x7fc00000); what it does not see never changes a bit. */
KVS_API kvs_status kvs_cache_attend(kvs_cache *cache, uint32_t layer, const kvs_attend *desc,
                                    kvs_err *err);

/* ---- views: reads that outlive later appends (donor layers, drafters) */

/* A view pins the tokens that a layer holds now (the live window of a ring); later appends,
 * rewinds, conversions, moves of the row and the end of the cache don't change it. Who writes over
 * pinned tokens takes other memory first (as after a fork). KVS_E_STATE: an empty layer, or drafts
 * of an open round. A drafter captures its donors so, once per chain.
 * Freed by kvs_view_free, before the context. */
typedef struct kvs_view kvs_view;
typedef struct kvs_view_info {
    size_t struct_size;
    int64_t offset; /* tokens seen when the view was taken */
    int64_t start;  /* oldest position of the window held; sinks below it come on top */
    int64_t end;    /* == offset */
    uint32_t n_sinks;
    kvs_dtype dtype; /* of dense elements, or of scales */
    uint64_t width;  /* tokens held: n_sinks + end - start */
} kvs_view_info;
#define KVS_VIEW_INFO_INIT                                                                         \
    {                                                                                              \
        sizeof(kvs_view_info), 0, 0, 0, 0, KVS_F32, 0                                              \
    }
KVS_API kvs_status kvs_view_new(kvs_cache *cache, uint32_t layer, kvs_view **out, kvs_err *err);
KVS_API void kvs_view_free(kvs_view *view);
KVS_API kvs_status kvs_view_get_info(const kvs_view *view, kvs_view_info *out);
/* As kvs_cache_attend, over the pinned tokens; mode causal only. */
KVS_API kvs_status kvs_view_attend(kvs_view *view, const kvs_attend *desc, kvs_err *err);

/* ---- bytes: spans, export, import, conversion */

/* A run of tokens that lie one after another, borrowed until the next call that changes the layer.
 * K is stored in tiles of 16 tokens, unit by unit: unit u (dense: element; affine: u32 word of
 * codes; scales and biases: element) of token slot s of head h is at
 *     base + h * head_bytes + ((s / 16 * n_units + u) * 16 + s % 16) * unit_bytes
 * (a strided [heads][slots/16][16][units] array). V rows lie one after another:
 *     base + h * head_bytes + (s * n_units + u) * unit_bytes. */
typedef struct kvs_plane {
    const void *base;
    size_t head_bytes;
    uint32_t n_units;
    uint32_t unit_bytes;
} kvs_plane;
typedef struct kvs_span {
    int64_t first_pos;
    uint64_t slot; /* of first_pos */
    uint64_t n_tokens;
    kvs_plane k[3]; /* codes or elements, scales, biases; base NULL where there is none */
    kvs_plane v[3];
    /* Centred keys: element u of the centre of position first_pos + i, head h, is at
     *     base + h * head_bytes + (r * n_units + u) * unit_bytes
     * with r = (first_pos + i) / KVS_CENTER_GROUP - first_group, mod n_centers. */
    kvs_plane k_center;
    int64_t first_group;
    uint64_t n_centers;
} kvs_span;
/* Spans of positions [begin, end) in time order, positions no longer stored left out. *n_spans is
 * the number there is; min(cap, that) are written. KVS_E_RANGE: begin > end or end > length. */
KVS_API kvs_status kvs_cache_spans(const kvs_cache *cache, uint32_t layer, int64_t begin,
                                   int64_t end, kvs_span *out, uint32_t cap, uint32_t *n_spans,
                                   kvs_err *err);

/* Planes of n tokens as MLX lays them: [heads][n][units], row-major; pointers may be NULL to leave
 * a plane out (export) and must be where the codec has the plane (import). */
typedef struct kvs_planes {
    size_t struct_size;
    void *k[3]; /* codes or elements, scales, biases */
    void *v[3];
    /* Centres of centred keys, [heads][groups][k_dim] elements of the codec's dtype: of the groups
     * that the positions belong to, kvs_center_groups of them. In a rectangle (rows.h) as many as
     * its width can touch, (width + 2 * KVS_CENTER_GROUP - 2) / KVS_CENTER_GROUP, a row's first
     * first. An import that goes on in a group must bring the centre that the group has. */
    void *k_center;
} kvs_planes;
#define KVS_PLANES_INIT                                                                            \
    {                                                                                              \
        sizeof(kvs_planes), {NULL, NULL, NULL}, {NULL, NULL, NULL}, NULL                           \
    }
/* Groups of KVS_CENTER_GROUP positions that [begin, begin + n) belong to. */
static inline uint64_t kvs_center_groups(int64_t begin, uint64_t n)
{
    const uint64_t at = (uint64_t)begin % KVS_CENTER_GROUP;
    return n ? (at + n - 1) / KVS_CENTER_GROUP + 1 : 0;
}
/* Copies the stored bytes of positions [begin, begin + n) out; codes never change. KVS_E_RANGE
 * where one is not stored. */
KVS_API kvs_status kvs_cache_export(const kvs_cache *cache, uint32_t layer, int64_t begin,
                                    uint64_t n, const kvs_planes *dst, kvs_err *err);
/* Appends n tokens of already encoded planes at position `at`: the length, or (ring or paged with a
 * window, and only past the sinks) a later one: tokens in between count as seen and dropped.
 * KVS_E_LIMIT: more than the ring holds (paged: more than it would keep of them).
 * KVS_E_UNSUPPORTED: across dense_until; below it the planes are dense. */
KVS_API kvs_status kvs_cache_import(kvs_cache *cache, uint32_t layer, int64_t at, uint64_t n,
                                    const kvs_planes *src, kvs_err *err);
/* First position from which all up to the length are stored (sinks below it come on top), for
 * export of a ring; of a recurrent layer the oldest that a rewind reaches; == length when empty, -1
 * for a layer out of range. */
KVS_API int64_t kvs_cache_oldest(const kvs_cache *cache, uint32_t layer);

/* Re-encodes the live tokens of one layer in other codecs (decoded values, one rounding); the old
 * storage is freed before the call returns, so at most one layer is held twice. Latent layers: v is
 * not read. KVS_E_INVAL and KVS_E_UNSUPPORTED as kvs_codec_check. */
KVS_API kvs_status kvs_cache_convert(kvs_cache *cache, uint32_t layer, const kvs_codec *k,
                                     const kvs_codec *v, kvs_err *err);

#ifdef __cplusplus
}
#endif
#endif
