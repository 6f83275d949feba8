/* SPDX-License-Identifier: MIT */
/* ops_planes.h: encoded planes of n tokens of a layer, as an import or export takes them. */
#ifndef KVS_TESTS_DIFF_OPS_PLANES_H
#define KVS_TESTS_DIFF_OPS_PLANES_H

#include <stdbool.h>
#include <stdlib.h>

#include "kvstate/kvstate.h"

typedef struct planes_buf {
    kvs_planes p;
    size_t bytes[6];
} planes_buf;

static inline void planes_alloc(planes_buf *b, const kvs_layer_spec *s, bool dense, uint64_t n)
{
    kvs_planes init = KVS_PLANES_INIT;
    b->p = init;
    for (int side = 0; side < 2; side++) {
        kvs_codec c = side ? s->v : s->k;
        if (dense) {
            c = (kvs_codec){0, 0, 0, s->dense_dtype};
        }
        size_t dim = side ? s->v_dim : s->k_dim;
        size_t eb = c.dtype == KVS_F32 ? 4 : 2;
        void **p = side ? b->p.v : b->p.k;
        bool none = side && s->kind == KVS_LAYER_LATENT;
        size_t rows = none ? 0 : (size_t)n * s->n_kv_heads;
        b->bytes[side * 3] = rows * (c.bits ? dim * c.bits / 8 : dim * eb);
        b->bytes[side * 3 + 1] = c.bits ? rows * (dim / c.group) * eb : 0;
        b->bytes[side * 3 + 2] = b->bytes[side * 3 + 1];
        for (int i = 0; i < 3; i++) {
            p[i] = b->bytes[side * 3 + i] ? malloc(b->bytes[side * 3 + i]) : NULL;
        }
    }
}

static inline void planes_free(planes_buf *b)
{
    for (int i = 0; i < 3; i++) {
        free(b->p.k[i]);
        free(b->p.v[i]);
    }
}

#endif
