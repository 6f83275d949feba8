/* SPDX-License-Identifier: MIT */
/* kvstate/interchange.h: prompt-cache files of mlx-lm (safetensors), read into caches and written
 * from them. Dense elements and affine codes travel as they are, bit for bit; nothing is computed.
 * docs/prompt-cache.md has the layouts and what can't be exchanged. */
#ifndef KVSTATE_INTERCHANGE_H
#define KVSTATE_INTERCHANGE_H

#include "kvstate/cache.h"
#include "kvstate/session.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Neither release of mlx-lm reads the other's files; here both are read. */
typedef enum kvs_prompt_layout {
    KVS_PROMPT_MLX_LM_032 = 0, /* mlx-lm 0.32.0 and later */
    KVS_PROMPT_MLX_LM_031 = 1  /* before 0.32.0 */
} kvs_prompt_layout;

/* Classes of mlx_lm.models.cache, and one of mlx-optiq. */
typedef enum kvs_prompt_class {
    KVS_PROMPT_KV = 0,
    KVS_PROMPT_QUANTIZED = 1,
    KVS_PROMPT_ROTATING = 2,
    KVS_PROMPT_ROTATING_QUANTIZED = 3, /* mlx-optiq's; in the layout before 0.32.0 only */
    KVS_PROMPT_CHUNKED = 4,
    KVS_PROMPT_ARRAYS = 5, /* recurrent state: a tail and a state; MambaCache too */
    KVS_PROMPT_BATCH_KV = 6,
    KVS_PROMPT_BATCH_ROTATING = 7,
    KVS_PROMPT_CONCATENATE = 8
} kvs_prompt_class;

/* An open file, read-only: any number of threads may use it. Mapped until closed, and must not be
 * written to meanwhile; replacing it by a rename is fine. */
typedef struct kvs_prompt_cache kvs_prompt_cache;

/* Reads and checks everything that a load relies on. KVS_E_NOTFOUND, KVS_E_IO; KVS_E_FORMAT: no
 * safetensors file, no prompt cache, or a tensor or value that contradicts its class (named);
 * KVS_E_UNSUPPORTED: a class that is not in the list above. */
KVS_API kvs_status kvs_prompt_cache_open(kvs_ctx *ctx, const char *path, kvs_prompt_cache **out,
                                         kvs_err *err);
KVS_API void kvs_prompt_cache_close(kvs_prompt_cache *file); /* NULL is fine */

typedef struct kvs_prompt_info {
    size_t struct_size;
    kvs_prompt_layout layout;
    uint32_t n_entries; /* of mlx-lm's list of caches */
    uint32_t n_layers;  /* the same with the members of each CacheList counted apart */
    uint32_t n_rows;    /* sequences, of all layers alike */
    uint32_t n_meta;
    uint64_t file_bytes;
} kvs_prompt_info;
#define KVS_PROMPT_INFO_INIT                                                                       \
    {                                                                                              \
        sizeof(kvs_prompt_info), KVS_PROMPT_MLX_LM_032, 0, 0, 0, 0, 0                              \
    }
KVS_API kvs_status kvs_prompt_cache_get_info(const kvs_prompt_cache *file, kvs_prompt_info *out);

typedef struct kvs_prompt_layer {
    size_t struct_size;
    kvs_prompt_class cls;
    uint32_t entry;  /* of mlx-lm's list */
    uint32_t member; /* of a CacheList; UINT32_MAX: it is none */
    uint32_t n_rows;
    uint32_t n_kv_heads; /* 0 where nothing is stored yet, as all that follows but offset */
    uint32_t k_dim;
    uint32_t v_dim;
    kvs_codec k;
    kvs_codec v;
    int64_t offset;    /* tokens seen; of a batch: by its longest row */
    uint64_t n_stored; /* of the row with most */
    uint32_t window;   /* 0: keeps all; sinks come on top */
    uint32_t sinks;
    uint32_t chunk;    /* of KVS_PROMPT_CHUNKED */
    uint32_t n_arrays; /* of KVS_PROMPT_ARRAYS */
} kvs_prompt_layer;
#define KVS_PROMPT_LAYER_INIT                                                                      \
    {                                                                                              \
        sizeof(kvs_prompt_layer), KVS_PROMPT_KV, 0, UINT32_MAX, 0, 0, 0, 0, {0, 0, 0, KVS_F32},    \
            {0, 0, 0, KVS_F32}, 0, 0, 0, 0, 0, 0                                                   \
    }
/* KVS_NO past the end. */
KVS_API kvs_status kvs_prompt_cache_get_layer(const kvs_prompt_cache *file, uint32_t i,
                                              kvs_prompt_layer *out);

/* The user's metadata i as key and value, borrowed until close and not terminated; JSON's escapes
 * are decoded. KVS_NO past the end. */
KVS_API kvs_status kvs_prompt_cache_get_meta(const kvs_prompt_cache *file, uint32_t i,
                                             const char **key, size_t *key_bytes,
                                             const char **value, size_t *value_bytes);
/* The tokens that kvs_prompt_cache_save was given, as metadata "kvstate_tokens": *n of them, as many
 * as fit are written to dst[cap]. KVS_NO: the file does not tell (mlx-lm never does); KVS_E_FORMAT. */
KVS_API kvs_status kvs_prompt_cache_get_tokens(const kvs_prompt_cache *file, int32_t *dst,
                                               size_t cap, size_t *n, kvs_err *err);

/* Fills an empty cache with row `row` of the file. Layers of the file go to those layers of the cache
 * that keep something, in order. KVS_E_UNSUPPORTED or KVS_E_RANGE names the layer and what does not
 * fit: geometry, codec (rotated ones, qN, can't be exchanged), a window, tokens that the cache
 * would need and the file has not. KVS_E_STATE: the cache is not empty. On failure it is empty. */
KVS_API kvs_status kvs_prompt_cache_load(const kvs_prompt_cache *file, uint32_t row,
                                         kvs_cache *cache, kvs_err *err);
/* The same for a session, whose state and tokens are given up first. Tokens come from the file; where
 * it does not tell, they stay unknown (-1 in kvs_session_tokens): kvs_session_append goes on after
 * them, kvs_session_sync can't reuse them. No logits until tokens are appended; a sync of exactly
 * the tokens held computes the last one again. What the file says is not proven: the session's store and
 * prefix cache take nothing of it. KVS_E_LIMIT: more than the context. */
KVS_API kvs_status kvs_session_load_prompt_cache(kvs_session *session, const kvs_prompt_cache *file,
                                                 uint32_t row, kvs_err *err);

typedef struct kvs_prompt_meta {
    const char *key;
    const char *value;
} kvs_prompt_meta;

/* How a layer is to be written, where its plan does not say it. */
typedef struct kvs_prompt_form {
    uint32_t list;  /* neighbours with the same number, not 0, go into one CacheList */
    uint32_t chunk; /* not 0: a ChunkedKVCache of this size; the layer has no window */
} kvs_prompt_form;

typedef struct kvs_prompt_save_opts {
    size_t struct_size;
    kvs_prompt_layout layout;
    uint32_t n_meta;
    const kvs_prompt_meta *meta; /* [n_meta], keys and values are UTF-8 */
    const int32_t *tokens;       /* what the cache holds, or NULL; row 0 of several */
    size_t n_tokens;
    const kvs_prompt_form *forms; /* [n_forms], one a layer, or NULL */
    uint32_t n_forms;
    uint32_t n_more;              /* further rows: */
    const kvs_cache *const *more; /* [n_more], of the same plan; all become one batch */
} kvs_prompt_save_opts;
#define KVS_PROMPT_SAVE_OPTS_INIT                                                                  \
    {                                                                                              \
        sizeof(kvs_prompt_save_opts), KVS_PROMPT_MLX_LM_032, 0, NULL, NULL, 0, NULL, 0, 0, NULL    \
    }
/* Writes PATH anew: durable or absent (written beside it, flushed, renamed; mode 0600). A layer that
 * keeps all becomes a KVCache or QuantizedKVCache, one with a window a RotatingKVCache with
 * everything it still holds. KVS_E_UNSUPPORTED names the layer and why: rotated codes, K and V in
 * other bits or groups, quantised windows (in the layout before 0.32.0 they become mlx-optiq's
 * class), empty layers in that layout, sinks or quantised layers of a batch. */
KVS_API kvs_status kvs_prompt_cache_save(const kvs_cache *cache, const kvs_prompt_save_opts *opts,
                                         const char *path, kvs_err *err);

#ifdef __cplusplus
}
#endif
#endif
