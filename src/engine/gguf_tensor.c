/* SPDX-License-Identifier: MIT */
/* gguf_tensor.c: the tensor entries of a GGUF file.
 *
 *     u64 length, bytes   name
 *     u32                 dimensions, 1..4
 *     u64 each            elements, fastest dimension first
 *     u32                 type (kern/wtype.h)
 *     u64                 offset from the start of the tensor data, a multiple of the alignment
 *
 * Gaps between tensors are allowed, overlaps are not. The data's own content is not looked at: any
 * bytes are valid weights. */
#include <inttypes.h>

#include "engine/gguf_priv.h"

/* Types that other programs write and this one does not read, so that the message can name them. */
static const char *foreign_type(uint32_t number)
{
    static const char *const names[] = {
        [4] = "Q4_2",    [5] = "Q4_3",     [9] = "Q8_1",   [15] = "Q8_K",   [16] = "IQ2_XXS",
        [17] = "IQ2_XS", [18] = "IQ3_XXS", [19] = "IQ1_S", [20] = "IQ4_NL", [21] = "IQ3_S",
        [22] = "IQ2_S",  [23] = "IQ4_XS",  [24] = "I8",    [25] = "I16",    [26] = "I32",
        [27] = "I64",    [28] = "F64",     [29] = "IQ1_M", [34] = "TQ1_0",  [35] = "TQ2_0",
        [39] = "MXFP4",  [40] = "NVFP4",   [41] = "Q1_0",
    };
    return number < KVS_COUNT(names) ? names[number] : NULL;
}

static kvs_status bad_type(kvs__str name, uint32_t type, kvs_err *err)
{
    const char *known = foreign_type(type);
    if (known) {
        return kvs__fail(
            err, KVS_E_UNSUPPORTED, "engine",
            "tensor '%s' is of type %s (%" PRIu32
            "), which is not read; quantise the model to one of F32 F16 BF16 Q4_0 Q4_1 "
            "Q5_0 Q5_1 Q8_0 Q2_K..Q6_K",
            kvs__gguf_quote(name).text, known, type);
    }
    return kvs__fail(err, KVS_E_FORMAT, "engine", "tensor '%s' is of unknown type %" PRIu32,
                     kvs__gguf_quote(name).text, type);
}

static kvs_status read_dims(kvs__gguf_cursor *c, kvs__gguf_tensor *t, kvs_err *err)
{
    if (!kvs__gguf_take_u32(c, &t->n_dims)) {
        return kvs__gguf_ends(c, "tensor", t->name, "dimensions", err);
    }
    if (t->n_dims < 1 || t->n_dims > 4) {
        return kvs__fail(err, KVS_E_FORMAT, "engine",
                         "tensor '%s' has %" PRIu32 " dimensions, not 1 to 4",
                         kvs__gguf_quote(t->name).text, t->n_dims);
    }
    for (uint32_t d = 0; d < 4; d++) {
        uint64_t ne = 1;
        if (d < t->n_dims && !kvs__gguf_take_u64(c, &ne)) {
            return kvs__gguf_ends(c, "tensor", t->name, "dimensions", err);
        }
        if (ne == 0) {
            return kvs__fail(err, KVS_E_FORMAT, "engine", "tensor '%s': dimension %" PRIu32 " is 0",
                             kvs__gguf_quote(t->name).text, d);
        }
        if (ne > SIZE_MAX) {
            return kvs__fail(err, KVS_E_FORMAT, "engine",
                             "tensor '%s': dimension %" PRIu32 " is %" PRIu64 ", too large",
                             kvs__gguf_quote(t->name).text, d, ne);
        }
        t->ne[d] = (size_t)ne;
    }
    return KVS_OK;
}

/* Row and tensor bytes; the product of the dimensions is bounded too, for callers that count
 * elements. */
static kvs_status find_sizes(kvs__gguf_tensor *t, const kvs__wtype_info *w, kvs_err *err)
{
    if (t->ne[0] % w->block_elems != 0) {
        return kvs__fail(err, KVS_E_FORMAT, "engine",
                         "tensor '%s': rows of %zu elements are no multiple of the %" PRIu32
                         " of a %s block",
                         kvs__gguf_quote(t->name).text, t->ne[0], w->block_elems, w->name);
    }
    size_t elems = 0;
    bool fits = kvs__mul_size(t->ne[0] / w->block_elems, w->block_bytes, &t->row_bytes) &&
                kvs__mul_size(t->ne[1], t->ne[2], &t->n_rows) &&
                kvs__mul_size(t->n_rows, t->ne[3], &t->n_rows) &&
                kvs__mul_size(t->n_rows, t->row_bytes, &t->bytes) &&
                kvs__mul_size(t->n_rows, t->ne[0], &elems);
    if (!fits) {
        return kvs__fail(
            err, KVS_E_FORMAT, "engine", "tensor '%s': size of %zu x %zu x %zu x %zu %s overflows",
            kvs__gguf_quote(t->name).text, t->ne[0], t->ne[1], t->ne[2], t->ne[3], w->name);
    }
    return KVS_OK;
}

static kvs_status beyond_end(const kvs__gguf *g, const kvs__gguf_tensor *t, uint64_t offset,
                             kvs_err *err)
{
    return kvs__fail(err, KVS_E_FORMAT, "engine",
                     "tensor '%s': %zu bytes at offset %" PRIu64
                     " reach beyond the file's end (%zu bytes)",
                     kvs__gguf_quote(t->name).text, t->bytes, offset, g->size);
}

static kvs_status read_entry(kvs__gguf *g, kvs__gguf_cursor *c, uint64_t i, kvs__gguf_tensor *t,
                             kvs_err *err)
{
    kvs_status st = kvs__gguf_read_name(c, "tensor", i, &t->name, err);
    if (st == KVS_OK) {
        st = read_dims(c, t, err);
    }
    if (st != KVS_OK) {
        return st;
    }
    uint32_t type = 0;
    if (!kvs__gguf_take_u32(c, &type)) {
        return kvs__gguf_ends(c, "tensor", t->name, "type", err);
    }
    const kvs__wtype_info *w = kvs__wtype_get(type);
    if (!w) {
        return bad_type(t->name, type, err);
    }
    t->type = w->type;
    uint64_t offset = 0;
    if (!kvs__gguf_take_u64(c, &offset)) {
        return kvs__gguf_ends(c, "tensor", t->name, "offset", err);
    }
    if (offset % g->info.alignment != 0) {
        return kvs__fail(err, KVS_E_FORMAT, "engine",
                         "tensor '%s': offset %" PRIu64
                         " is not a multiple of the alignment %" PRIu32,
                         kvs__gguf_quote(t->name).text, offset, g->info.alignment);
    }
    if (offset > SIZE_MAX) {
        return beyond_end(g, t, offset, err);
    }
    t->offset = (size_t)offset;
    return find_sizes(t, w, err);
}

static kvs_status place(const kvs__gguf *g, kvs__gguf_tensor *t, kvs_err *err)
{
    size_t room = g->size - g->info.data_offset;
    if (t->offset > room || t->bytes > room - t->offset) {
        return beyond_end(g, t, t->offset, err);
    }
    t->data = g->data + g->info.data_offset + t->offset;
    return KVS_OK;
}

/* Heap sort of tensor numbers by offset: no worst case that a file could aim at. */
static void sift(uint32_t *heap, size_t at, size_t n, const kvs__gguf_tensor *t)
{
    for (size_t child = 2 * at + 1; child < n; child = 2 * at + 1) {
        if (child + 1 < n && t[heap[child + 1]].offset > t[heap[child]].offset) {
            child++;
        }
        if (t[heap[child]].offset <= t[heap[at]].offset) {
            return;
        }
        uint32_t swap = heap[at];
        heap[at] = heap[child];
        heap[child] = swap;
        at = child;
    }
}

static void sort_by_offset(uint32_t *order, size_t n, const kvs__gguf_tensor *t)
{
    for (size_t i = n / 2; i-- > 0;) {
        sift(order, i, n, t);
    }
    for (size_t end = n; end-- > 1;) {
        uint32_t top = order[0];
        order[0] = order[end];
        order[end] = top;
        sift(order, 0, end, t);
    }
}

static kvs_status overlap(const kvs__gguf_tensor *a, const kvs__gguf_tensor *b, kvs_err *err)
{
    return kvs__fail(err, KVS_E_FORMAT, "engine",
                     "tensors '%s' (%zu bytes at offset %zu) and '%s' (at %zu) overlap",
                     kvs__gguf_quote(a->name).text, a->bytes, a->offset,
                     kvs__gguf_quote(b->name).text, b->offset);
}

static bool in_order(const kvs__gguf *g)
{
    for (size_t i = 1; i < g->info.n_tensors; i++) {
        const kvs__gguf_tensor *t = &g->tensors[i - 1];
        if (t[1].offset < t->offset + t->bytes) {
            return false;
        }
    }
    return true;
}

/* Ends fit in size_t since every tensor lies inside the file. */
static kvs_status check_overlaps(kvs__gguf *g, kvs_err *err)
{
    if (in_order(g)) { /* as every writer does it */
        return KVS_OK;
    }
    size_t n = g->info.n_tensors;
    uint32_t *order = kvs__calloc(g->ctx, n, sizeof *order);
    if (!order) {
        return kvs__nomem(err, "engine", n * sizeof *order);
    }
    for (size_t i = 0; i < n; i++) {
        order[i] = (uint32_t)i; /* the table by name has bounded n */
    }
    sort_by_offset(order, n, g->tensors);
    kvs_status st = KVS_OK;
    for (size_t i = 1; st == KVS_OK && i < n; i++) {
        const kvs__gguf_tensor *a = &g->tensors[order[i - 1]];
        const kvs__gguf_tensor *b = &g->tensors[order[i]];
        if (b->offset < a->offset + a->bytes) {
            st = overlap(a, b, err);
        }
    }
    kvs__free(g->ctx, order, n * sizeof *order);
    return st;
}

/* The data starts at the next multiple of the alignment, or where the file ends if nothing
 * follows the entries. */
static kvs_status place_all(kvs__gguf *g, size_t entries_end, kvs_err *err)
{
    size_t start = 0;
    if (!kvs__align_size(entries_end, g->info.alignment, &start) || start > g->size) {
        start = g->size;
    }
    g->info.data_offset = start;
    for (size_t i = 0; i < g->info.n_tensors; i++) {
        kvs_status st = place(g, &g->tensors[i], err);
        if (st != KVS_OK) {
            return st;
        }
    }
    return check_overlaps(g, err);
}

kvs_status kvs__gguf_read_tensors(kvs__gguf *g, kvs__gguf_cursor *c, uint64_t n, kvs_err *err)
{
    for (uint64_t i = 0; i < n; i++) {
        const size_t used = g->info.n_tensors;
        kvs__gguf_tensor *p =
            kvs__grow(g->ctx, g->tensors, &g->cap_tensors, used, used + 1, sizeof *p);
        if (!p) {
            return kvs__nomem(err, "engine", sizeof *p);
        }
        g->tensors = p;
        kvs__gguf_tensor t = {0};
        kvs_status st = read_entry(g, c, i, &t, err);
        if (st != KVS_OK) {
            return st;
        }
        g->tensors[g->info.n_tensors++] = t;
    }
    g->tensor_names.items = (const unsigned char *)g->tensors;
    g->tensor_names.stride = sizeof *g->tensors;
    g->tensor_names.n = g->info.n_tensors;
    kvs_status st = kvs__gguf_names_build(g->ctx, &g->tensor_names, "tensor", err);
    return st == KVS_OK ? place_all(g, c->at, err) : st;
}
