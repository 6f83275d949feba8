/* SPDX-License-Identifier: MIT */
/* pcache.h: a prompt-cache file of mlx-lm as the engine sees it: one leaf for each cache, those in a
 * CacheList one by one, with its tensors and numbers checked against each other (pcache_read.c), and
 * the way from columns of its tensors to positions (pcache_runs.c). */
#ifndef KVS_ENGINE_PCACHE_H
#define KVS_ENGINE_PCACHE_H

#include "engine/safetensors.h"
#include "kvstate/interchange.h"

enum { KVS__PC_PATH = 96 };

typedef struct kvs__pc_leaf {
    kvs_prompt_class cls;
    char path[KVS__PC_PATH]; /* of its state in tensor names, "5.0" */
    uint32_t entry, member;
    bool quantized;                    /* planes are words, scales, biases */
    uint32_t n_planes;                 /* 0: nothing stored yet */
    const kvs__st_tensor *plane[2][3]; /* keys, values: [batch][heads][columns][units] */
    size_t batch, heads, columns;
    uint32_t dim[2];
    kvs_codec codec[2];
    int64_t offset, keep, max_size, index, chunk, start;
    bool rotated;
    const kvs__st_tensor *offsets, *padding; /* I32 [batch], of batches */
    uint32_t n_arrays;
} kvs__pc_leaf;

/* Columns [col, col + n) hold positions [pos, pos + n). */
typedef struct kvs__pc_run {
    int64_t pos;
    size_t col;
    size_t n;
} kvs__pc_run;

enum { KVS__PC_RUNS = 3 };

/* What a row of a leaf holds, in time order; *offset: the tokens it has seen. False: its numbers
 * contradict each other. */
bool kvs__pc_runs(const kvs__pc_leaf *leaf, size_t row, kvs__pc_run run[KVS__PC_RUNS], uint32_t *n,
                  int64_t *offset);

typedef struct kvs__pc_pair {
    kvs__str key, value; /* raw */
    kvs__jval jkey, jvalue;
} kvs__pc_pair;

struct kvs_prompt_cache {
    kvs_ctx *ctx;
    kvs__safetensors *st;
    kvs_prompt_layout layout;
    kvs__pc_pair *pairs; /* [n_pairs] of the metadata, by key */
    size_t n_pairs;
    kvs__pc_leaf *leaves; /* [cap], n_leaves filled */
    size_t cap;
    uint32_t n_leaves, n_entries;
    uint32_t n_meta; /* the user's: pairs from first_meta on */
    size_t first_meta;
    char *meta_text; /* decoded keys and values of those with escapes, one after another */
    size_t meta_bytes;
    struct kvs__pc_meta {
        kvs__str key, value;
    } * meta; /* [n_meta] */
    char what[128];
};

/* The same over bytes that stay the caller's until close. */
kvs_status kvs__prompt_cache_open_mem(kvs_ctx *ctx, const void *bytes, size_t n, const char *what,
                                      kvs_prompt_cache **out, kvs_err *err);

/* The file and layer i in front of a message. */
kvs_status kvs__pc_fail(const kvs_prompt_cache *f, uint32_t leaf, kvs_err *err, kvs_status status,
                        const char *fmt, ...) KVS_PRINTF(5, 6);

#endif
