/* SPDX-License-Identifier: MIT */
/* pcache_save.h: what each layer of a cache becomes in a prompt-cache file of mlx-lm. pcache_form.c
 * decides, pcache_save.c writes. */
#ifndef KVS_ENGINE_PCACHE_SAVE_H
#define KVS_ENGINE_PCACHE_SAVE_H

#include "engine/pcache.h"

/* The rows, their plan and how they are to be written. */
typedef struct kvs__pc_source {
    const kvs_cache *first;
    const kvs_prompt_save_opts *o;
} kvs__pc_source;

static inline uint32_t kvs__pc_n_rows(const kvs__pc_source *s)
{
    return 1 + s->o->n_more;
}

static inline const kvs_cache *kvs__pc_row(const kvs__pc_source *s, uint32_t row)
{
    return row == 0 ? s->first : s->o->more[row - 1];
}

/* One cache of mlx-lm to be. */
typedef struct kvs__pc_out {
    uint32_t layer;
    uint32_t list;   /* 0: an entry of its own */
    uint32_t entry;  /* of mlx-lm's list */
    uint32_t member; /* of the CacheList */
    kvs_prompt_class cls;
    kvs_codec codec[2];
    uint32_t heads;
    uint32_t dim[2];
    int64_t offset; /* of a batch: 0 */
    size_t columns; /* 0: nothing stored */
    int64_t keep, max_size, index, chunk;
} kvs__pc_out;

/* What row `row` writes: the first n_sinks positions, then [begin, offset), right-justified. */
typedef struct kvs__pc_held {
    int64_t offset;
    int64_t n_sinks;
    int64_t begin;
} kvs__pc_held;

kvs__pc_held kvs__pc_held_by(const kvs__pc_source *s, const kvs__pc_out *out, uint32_t row);

/* Fills out[0 .. *n) for the layers that keep something; out has room for all. */
kvs_status kvs__pc_forms(const kvs__pc_source *s, kvs__pc_out *out, uint32_t *n, kvs_err *err);

#endif
