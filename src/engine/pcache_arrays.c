/* SPDX-License-Identifier: MIT */
/* pcache_arrays.c: mlx-lm's ArraysCache of two arrays and a recurrent layer (recurrent.h): the
 * convolution tail [rows][taps - 1][channels] and the state [rows][heads][head_dim][state_dim] in
 * f32, which are this library's planes as they are. An ArraysCache does not count tokens: the other
 * layers of the file, or the tokens it names, say where it stands. */
#include "engine/pcache.h"

#include <string.h>

#include "kvstate/recurrent.h"

static bool has_shape(const kvs__st_tensor *t, uint32_t n, const size_t *dims)
{
    bool same = t->n_dims == n + 1;
    for (uint32_t i = 0; same && i < n; i++) {
        same = t->dims[i + 1] == dims[i];
    }
    return same;
}

kvs__st_dtype kvs__pc_dtype(kvs_dtype t)
{
    return t == KVS_F32 ? KVS__ST_F32 : t == KVS_F16 ? KVS__ST_F16 : KVS__ST_BF16;
}

kvs_status kvs__pc_check_arrays(const kvs_prompt_cache *f, uint32_t leaf,
                                const kvs_recurrent_spec *r, int64_t seen, kvs_err *err)
{
    const kvs__pc_leaf *l = &f->leaves[leaf];
    const kvs__st_tensor *conv = l->arrays[0];
    const kvs__st_tensor *state = l->arrays[1];
    const size_t conv_dims[2] = {r->conv_taps ? r->conv_taps - 1 : 0, r->conv_dim};
    const size_t state_dims[3] = {r->n_heads, r->head_dim, r->state_dim};
    if (l->n_arrays == 2 && !conv && !state) {
        return KVS_OK;
    }
    bool tail = r->conv_dim == 0 ? !conv
                                 : conv && has_shape(conv, 2, conv_dims) &&
                                       conv->dtype == kvs__pc_dtype(r->conv_dtype);
    if (l->n_arrays != 2 || !tail || !state || !has_shape(state, 3, state_dims) ||
        state->dtype != KVS__ST_F32) {
        return kvs__pc_fail(f, leaf, err, KVS_E_UNSUPPORTED,
                            "its arrays are not a tail of %zu x %u and a state of %u x %u x %u "
                            "in f32",
                            conv_dims[0], r->conv_dim, r->n_heads, r->head_dim, r->state_dim);
    }
    if (seen <= 0) {
        return kvs__pc_fail(f, leaf, err, KVS_E_UNSUPPORTED,
                            "the file does not tell after how many tokens this state is");
    }
    return KVS_OK;
}

kvs_status kvs__pc_load_arrays(const kvs_prompt_cache *f, uint32_t leaf, size_t row,
                               kvs_cache *cache, uint32_t layer, int64_t seen, kvs_err *err)
{
    const kvs__pc_leaf *l = &f->leaves[leaf];
    kvs_recurrent_planes p = KVS_RECURRENT_PLANES_INIT;
    size_t bytes[2] = {0, 0};
    unsigned char *copy[2] = {NULL, NULL};
    if (!l->arrays[1]) {
        return KVS_OK;
    }
    kvs_status st = KVS_OK;
    for (int i = 0; st == KVS_OK && i < 2; i++) {
        const kvs__st_tensor *t = l->arrays[i];
        bytes[i] = t ? t->bytes / l->batch : 0;
        copy[i] = kvs__alloc(f->ctx, bytes[i]);
        if (!copy[i]) {
            st = kvs__nomem(err, "engine", bytes[i]);
        } else if (t) {
            memcpy(copy[i], t->data + row * bytes[i], bytes[i]);
        }
    }
    p.conv = l->arrays[0] ? copy[0] : NULL;
    p.state = (float *)(void *)copy[1];
    st = st == KVS_OK ? kvs_recurrent_import(cache, layer, seen, &p, err) : st;
    kvs__free(f->ctx, copy[0], bytes[0]);
    kvs__free(f->ctx, copy[1], bytes[1]);
    return st;
}

kvs_status kvs__pc_tokens_seen(const kvs_prompt_cache *f, size_t row, int64_t *seen, kvs_err *err)
{
    size_t n = 0;
    *seen = -1;
    for (uint32_t i = 0; i < f->n_leaves; i++) {
        kvs__pc_run run[KVS__PC_RUNS];
        uint32_t runs = 0;
        int64_t offset = 0;
        if (f->leaves[i].cls == KVS_PROMPT_ARRAYS) {
            continue;
        }
        (void)kvs__pc_runs(&f->leaves[i], row, run, &runs, &offset);
        *seen = offset > *seen ? offset : *seen;
    }
    if (*seen < 0 && row == 0) {
        kvs_status st = kvs_prompt_cache_get_tokens(f, NULL, 0, &n, err);
        *seen = st == KVS_OK && n <= INT32_MAX ? (int64_t)n : -1;
        return st == KVS_NO ? KVS_OK : st;
    }
    return KVS_OK;
}
