/* SPDX-License-Identifier: MIT */
/* net_find.c: looks tensors up by the engine's names and checks their shapes (net_find.h). */
#include "engine/net_find.h"

#include <stdio.h>
#include <string.h>

#include "engine/arch.h"

static kvs_status no_tensor(const kvs_model *m, const char *name, kvs_err *err)
{
    return kvs__fail(err, KVS_E_FORMAT, "engine", "the model has no tensor %s",
                     kvs__source_name(&m->source, name).text);
}

static kvs_status check_type(const kvs_model *m, const char *name, const kvs__tensor *t,
                             kvs_err *err)
{
    if (t->is_weight) {
        return KVS_OK;
    }
    return kvs__fail(err, KVS_E_UNSUPPORTED, "engine",
                     "tensor %s is of type %s; F32, F16, BF16 and quantised ones are read",
                     kvs__source_name(&m->source, name).text, t->type_name);
}

/* A tensor that is read as weights. */
static kvs_status find(const kvs_model *m, const char *name, kvs__tensor *t, kvs_err *err)
{
    return kvs__source_find(&m->source, name, t) ? check_type(m, name, t, err)
                                                 : no_tensor(m, name, err);
}

/* Takes the n elements of t over as f32. */
static kvs_status take(kvs_model *m, const char *name, const kvs__tensor *t, size_t n,
                       const float **out, kvs_err *err)
{
    float *dst = m->vectors + m->vectors_used;
    if (KVS_NEVER(n > m->vectors_bytes / sizeof(float) - m->vectors_used)) {
        return kvs__fail(err, KVS_E_INTERNAL, "engine", "tensor %s was not counted", name);
    }
    kvs__tensor_vector(t, dst);
    m->vectors_used += n;
    m->info.step_bytes += t->bytes;
    *out = dst;
    return KVS_OK;
}

static kvs_status bad_list(const kvs_model *m, const char *name, const kvs__tensor *t, size_t n,
                           kvs_err *err)
{
    return kvs__fail(err, KVS_E_FORMAT, "engine",
                     "tensor %s has %zu x %zu elements of %s, the metadata says %zu",
                     kvs__source_name(&m->source, name).text, t->ne[0], t->n_rows, t->type_name, n);
}

bool kvs__has_tensor(const kvs_model *m, const char *name)
{
    kvs__tensor t;
    return kvs__source_find(&m->source, name, &t);
}

/* Matrix `name` of n rows of k; n == 0: as many as there are. Rows may be cut into a third
 * dimension. */
kvs_status kvs__find_matrix(kvs_model *m, const char *name, size_t k, size_t n, kvs__wrows *out,
                            kvs_err *err)
{
    kvs__tensor t;
    kvs_status st = find(m, name, &t, err);
    if (st != KVS_OK) {
        return st;
    }
    if (t.ne[0] != k || (n != 0 ? t.n_rows != n : t.ne[2] != 1) || t.ne[3] != 1) {
        return kvs__fail(err, KVS_E_FORMAT, "engine",
                         "tensor %s is %zu x %zu x %zu, the metadata says %zu x %zu",
                         kvs__source_name(&m->source, name).text, t.ne[0], t.ne[1], t.ne[2], k,
                         n ? n : t.n_rows);
    }
    *out = kvs__tensor_rows(&t, 0, t.n_rows);
    m->info.step_bytes += t.bytes;
    return KVS_OK;
}

/* Expert x of the matrices `name`: n rows of k. */
kvs_status kvs__find_expert(kvs_model *m, const char *name, uint32_t x, size_t k, size_t n,
                            kvs__wrows *out, kvs_err *err)
{
    kvs__tensor t;
    if (!kvs__source_expert(&m->source, name, x, &t)) {
        return no_tensor(m, name, err);
    }
    kvs_status st = check_type(m, name, &t, err);
    if (st != KVS_OK) {
        return st;
    }
    if (t.ne[0] != k || t.n_rows != n) {
        return kvs__fail(err, KVS_E_FORMAT, "engine",
                         "expert %u of tensor %s is %zu x %zu, the metadata says %zu x %zu", x,
                         kvs__source_name(&m->source, name).text, t.ne[0], t.n_rows, k, n);
    }
    *out = kvs__tensor_rows(&t, 0, n);
    m->info.step_bytes += t.bytes;
    return KVS_OK;
}

/* Vector `name` of n elements as f32. */
kvs_status kvs__find_vector(kvs_model *m, const char *name, size_t n, const float **out,
                            kvs_err *err)
{
    kvs__tensor t;
    kvs_status st = find(m, name, &t, err);
    if (st != KVS_OK) {
        return st;
    }
    if (t.ne[0] != n || t.n_rows != 1 || t.affine.scales) {
        return bad_list(m, name, &t, n, err);
    }
    return take(m, name, &t, n, out, err);
}

kvs_status kvs__find_optional(kvs_model *m, const char *name, size_t n, const float **out,
                              kvs_err *err)
{
    *out = NULL;
    return kvs__has_tensor(m, name) ? kvs__find_vector(m, name, n, out, err) : KVS_OK;
}

/* n numbers however they are shaped, as f32. */
kvs_status kvs__find_list(kvs_model *m, const char *name, size_t n, const float **out, kvs_err *err)
{
    kvs__tensor t;
    if (!kvs__source_find(&m->source, name, &t)) {
        return no_tensor(m, name, err);
    }
    bool dense =
        t.is_weight && (t.type == KVS__W_F32 || t.type == KVS__W_F16 || t.type == KVS__W_BF16);
    if (!dense || t.n_rows == 0 || n % t.n_rows != 0 || t.ne[0] != n / t.n_rows) {
        return bad_list(m, name, &t, n, err);
    }
    t.ne[0] = n;
    return take(m, name, &t, n, out, err);
}

static bool ends_with(kvs__str s, const char *tail)
{
    size_t n = strlen(tail);
    return s.len >= n && memcmp(s.ptr + s.len - n, tail, n) == 0;
}

/* Elements of a tensor that find_vector or find_list may ask for; 0: of none. */
static size_t list_elements(const kvs__tensor *t)
{
    bool list = t->n_rows == 1 || t->ne[0] == 1 || ends_with(t->name, "conv1d.weight") ||
                ends_with(t->name, "ssm_norm.weight");
    return list ? t->ne[0] * t->n_rows : 0;
}

/* Room for all that is copied. */
kvs_status kvs__reserve_vectors(kvs_model *m, kvs_err *err)
{
    size_t n = m->net.n_ones;
    kvs__tensor t;
    for (size_t i = 0; kvs__source_at(&m->source, i, &t); i++) {
        if (!kvs__add_size(n, list_elements(&t), &n)) {
            return kvs__nomem(err, "engine", SIZE_MAX);
        }
    }
    size_t bytes = 0;
    if (!kvs__mul_size(n, sizeof(float), &bytes)) {
        return kvs__nomem(err, "engine", SIZE_MAX);
    }
    m->vectors = kvs__alloc(m->ctx, bytes);
    if (!m->vectors) {
        return kvs__nomem(err, "engine", bytes);
    }
    m->vectors_bytes = bytes;
    m->net.ones = m->vectors;
    for (uint32_t i = 0; i < m->net.n_ones; i++) {
        m->vectors[i] = 1.0f;
    }
    m->vectors_used = m->net.n_ones;
    return KVS_OK;
}

void kvs__layer_name(char name[64], uint32_t layer, const char *suffix)
{
    (void)snprintf(name, 64, "blk.%u.%s", layer, suffix);
}

static kvs_status find_part(kvs_model *m, uint32_t layer, const kvs__part *p, kvs_err *err)
{
    char name[64];
    kvs__layer_name(name, layer, p->name);
    if (p->matrix) {
        return kvs__find_matrix(m, name, p->k, p->n, p->matrix, err);
    }
    if (KVS_NEVER(!p->vector)) {
        return KVS_E_INTERNAL;
    }
    return p->optional ? kvs__find_optional(m, name, p->n, p->vector, err)
                       : kvs__find_vector(m, name, p->n, p->vector, err);
}

kvs_status kvs__find_parts(kvs_model *m, uint32_t layer, const kvs__part *parts, size_t n,
                           kvs_err *err)
{
    kvs_status st = KVS_OK;
    for (size_t i = 0; st == KVS_OK && i < n; i++) {
        st = find_part(m, layer, &parts[i], err);
    }
    return st;
}

bool kvs__has_part(const kvs_model *m, uint32_t layer, const char *suffix)
{
    char name[64];
    kvs__layer_name(name, layer, suffix);
    return kvs__has_tensor(m, name);
}

kvs_status kvs__find_slices(kvs_model *m, uint32_t layer, const char *name, size_t k,
                            const kvs__slice *slices, size_t n_slices, kvs_err *err)
{
    size_t n = 0;
    for (size_t i = 0; i < n_slices; i++) {
        n += slices[i].n_rows;
    }
    kvs__wrows all;
    const kvs__part whole = {name, k, n, &all, NULL, false};
    kvs_status st = find_part(m, layer, &whole, err);
    size_t first = 0;
    for (size_t i = 0; st == KVS_OK && i < n_slices; i++) {
        *slices[i].matrix = kvs__wrows_part(&all, first, slices[i].n_rows);
        first += slices[i].n_rows;
    }
    return st;
}
