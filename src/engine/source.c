/* SPDX-License-Identifier: MIT */
/* source.c: tensors of either kind of model file as kvs__tensor (source.h). */
#include "engine/source.h"

#include <stdio.h>
#include <string.h>

#include "engine/hf.h"

static void from_gguf(const kvs__gguf_tensor *t, kvs__tensor *out)
{
    *out = (kvs__tensor){.name = t->name,
                         .type_name = kvs__wtype_get((uint32_t)t->type)->name,
                         .is_weight = true,
                         .type = t->type,
                         .n_dims = t->n_dims,
                         .n_rows = t->n_rows,
                         .row_bytes = t->row_bytes,
                         .bytes = t->bytes,
                         .data = t->data};
    memcpy(out->ne, t->ne, sizeof out->ne);
}

bool kvs__source_find(const kvs__source *s, const char *name, kvs__tensor *out)
{
    if (s->hf) {
        return kvs__hf_find(s->hf, name, out);
    }
    const kvs__gguf_tensor *t = kvs__gguf_tensor_find(s->meta, name);
    if (t) {
        from_gguf(t, out);
    }
    return t != NULL;
}

bool kvs__source_expert(const kvs__source *s, const char *name, uint32_t e, kvs__tensor *out)
{
    if (s->hf && kvs__hf_expert(s->hf, name, e, out)) {
        return true;
    }
    if (!kvs__source_find(s, name, out) || out->ne[3] != 1 || e >= out->ne[2]) {
        return false;
    }
    kvs__wrows rows = kvs__tensor_rows(out, e * out->ne[1], out->ne[1]);
    out->bytes /= out->ne[2];
    out->data = rows.data;
    out->affine = rows.affine;
    out->n_rows = out->ne[1];
    out->ne[2] = 1;
    return true;
}

bool kvs__source_at(const kvs__source *s, size_t i, kvs__tensor *out)
{
    if (s->hf) {
        return kvs__hf_at(s->hf, i, out);
    }
    const kvs__gguf_tensor *t = kvs__gguf_tensor_at(s->meta, i);
    if (t) {
        from_gguf(t, out);
    }
    return t != NULL;
}

kvs__wrows kvs__tensor_rows(const kvs__tensor *t, size_t first, size_t n)
{
    kvs__wrows all = {.data = t->data,
                      .row_bytes = t->row_bytes,
                      .n = t->n_rows,
                      .k = t->ne[0],
                      .type = t->type,
                      .affine = t->affine};
    return kvs__wrows_part(&all, first, n);
}

void kvs__tensor_vector(const kvs__tensor *t, float *dst)
{
    kvs__gguf_dequant(t->type, t->data, t->ne[0], dst);
    for (size_t i = 0; t->plus != 0.0f && i < t->ne[0]; i++) {
        dst[i] += t->plus;
    }
}

kvs__source_label kvs__source_name(const kvs__source *s, const char *name)
{
    if (s->hf) {
        return kvs__hf_name(s->hf, name);
    }
    kvs__source_label l = {""};
    (void)snprintf(l.text, sizeof l.text, "%s", name);
    return l;
}
