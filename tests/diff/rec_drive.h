/* SPDX-License-Identifier: MIT */
/* rec_drive.h: drives a recurrent layer of a cache with tokens of rec_naive.h, in calls of any
 * number of tokens, as an engine would: convolution, glue, advance. */
#ifndef KVS_TESTS_REC_DRIVE_H
#define KVS_TESTS_REC_DRIVE_H

#include <stdlib.h>
#include <string.h>

#include "diff/rec_naive.h"
#include "support/cache_rig.h"

/* y [n][value]; conv [n][conv_dim] before the glue, or NULL. Strides: the tokens' raw inputs lie in
 * one array with a and b behind x. */
static inline kvs_status rec_drive(kvs_cache *c, uint32_t layer, const rec_weights *w,
                                   const uint64_t *ids, uint32_t n, float *conv, float *y,
                                   kvs_err *err)
{
    const kvs_recurrent_spec *s = kvs_cache_spec(c, layer)->recurrent;
    rec_sizes z = rec_sizes_of(s);
    size_t ld = z.conv + 2 * (size_t)s->n_heads;
    float *raw = (float *)rig_alloc(n * ld * sizeof *raw);
    float *in = (float *)rig_alloc(n * z.conv * sizeof *in);
    for (uint32_t i = 0; i < n; i++) {
        rec_token t = rec_token_new(s, ids[i]);
        memcpy(raw + i * ld, t.x, ld * sizeof *raw);
        memcpy(in + i * z.conv, t.x, z.conv * sizeof *in);
        free(t.x);
    }
    kvs_status st = KVS_OK;
    if (s->conv_dim) {
        kvs_recurrent_conv_desc d = KVS_RECURRENT_CONV_DESC_INIT;
        d.n_tokens = n;
        d.x = raw;
        d.x_stride = ld;
        d.weight = w->conv;
        d.bias = w->bias;
        d.out = in;
        st = kvs_recurrent_conv(c, layer, &d, err);
        if (st == KVS_OK && conv) {
            memcpy(conv, in, n * z.conv * sizeof *conv);
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        rec_glue(s, in + i * z.conv);
    }
    if (st == KVS_OK) {
        kvs_recurrent_step p = KVS_RECURRENT_STEP_INIT;
        int ssd = s->rule == KVS_RECURRENT_SSD;
        p.n_tokens = n;
        p.conv_x = s->conv_dim ? raw : NULL;
        p.conv_x_stride = s->conv_dim ? ld : 0;
        p.q = in;
        p.k = in + z.key;
        p.v = in + 2 * z.key;
        p.q_stride = p.k_stride = p.v_stride = z.conv;
        p.a = raw + z.conv;
        p.a_stride = ld;
        p.b = ssd ? NULL : p.a + s->n_heads;
        p.b_stride = ssd ? 0 : ld;
        p.decay = w->decay;
        p.dt_bias = w->dt_bias;
        p.d = ssd ? w->d : NULL;
        p.dt_min = ssd ? w->dt_min : 0;
        p.dt_max = ssd ? w->dt_max : 0;
        p.y = y;
        st = kvs_recurrent_advance(c, layer, &p, err);
    }
    free(raw);
    free(in);
    return st;
}

/* The planes after `at` tokens in one piece: state, then tail. */
static inline void *rec_export(const kvs_cache *c, uint32_t layer, int64_t at, size_t *bytes)
{
    const kvs_recurrent_spec *s = kvs_cache_spec(c, layer)->recurrent;
    size_t state = rec_sizes_of(s).state * sizeof(float);
    size_t elem = s->conv_dtype == KVS_F32 ? 4 : 2;
    size_t tail = s->conv_dim ? (size_t)(s->conv_taps - 1) * s->conv_dim * elem : 0;
    unsigned char *base = (unsigned char *)rig_alloc(state + tail);
    kvs_recurrent_planes p = KVS_RECURRENT_PLANES_INIT;
    p.state = (float *)(void *)base;
    p.conv = base + state;
    rig_must(kvs_recurrent_export(c, layer, at, &p, NULL));
    *bytes = state + tail;
    return base;
}

#endif
