/* SPDX-License-Identifier: MIT */
/* fuzz_mask.c: the input is a mask descriptor. A plan either fails with a text, or its bytes are
 * exactly what fill writes; every element is visible or hidden; a mode without an array agrees with
 * the array; the memo leases the same bytes.
 *
 * Input: kind, type, flags, n_queries, n_rows, width (0: the six counts are signed bytes, else 8
 * bytes each), the counts in the order of the struct, then pads, row offsets and pairs as bytes. */
#include <stdlib.h>
#include <string.h>

#include "fuzz/fuzz.h"
#include "kvstate/mask.h"

#define MOST_BYTES   ((size_t)1 << 16)
#define MOST_ROWS    255
#define MOST_QUERIES 255

typedef struct input {
    const uint8_t *at;
    size_t left;
} input;

static uint8_t byte(input *in)
{
    if (in->left == 0) {
        return 0;
    }
    in->left--;
    return *in->at++;
}

static int64_t number(input *in, uint8_t width)
{
    if (width == 0) {
        return (int8_t)byte(in);
    }
    uint64_t x = 0;
    for (int i = 0; i < 8; i++) {
        x |= (uint64_t)byte(in) << (8 * i);
    }
    int64_t out = 0;
    memcpy(&out, &x, sizeof out);
    return out;
}

static void check_elements(const kvs_mask_shape *s, const uint8_t *m)
{
    uint64_t n_keys = s->dims[s->n_dims - 1];
    uint64_t n_queries = s->n_dims > 1 ? s->dims[s->n_dims - 2] : 1;
    for (uint64_t e = 0; e < s->bytes; e++) {
        CHECK(m[e] <= 1);
        uint64_t i = e / n_keys % n_queries;
        if (s->mode == KVS_MASK_MODE_NONE) {
            CHECK(m[e] == 1);
        } else if (s->mode == KVS_MASK_MODE_CAUSAL) {
            CHECK(m[e] == (e % n_keys <= n_keys - n_queries + i));
        }
    }
}

static void check_lease(const kvs_mask_desc *d, const kvs_mask_shape *s, const void *want)
{
    kvs_ctx_opts opts = KVS_CTX_OPTS_INIT;
    opts.n_threads = 1;
    kvs_ctx *ctx = NULL;
    kvs_masks *masks = NULL;
    kvs_mask *m = NULL;
    CHECK(kvs_ctx_new(&opts, &ctx, NULL) == KVS_OK);
    CHECK(kvs_masks_new(ctx, &masks, NULL) == KVS_OK);
    CHECK(kvs_masks_acquire(masks, d, &m, NULL) == KVS_OK);
    if (s->mode == KVS_MASK_MODE_ARRAY) {
        CHECK(memcmp(kvs_mask_data(m), want, s->bytes) == 0);
    } else {
        CHECK(kvs_mask_data(m) == NULL);
    }
    kvs_masks_free(masks);
    kvs_mask_release(m);
    kvs_ctx_free(ctx);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    input in = {data, size};
    int64_t pads[MOST_ROWS];
    int64_t offsets[MOST_ROWS];
    uint8_t paired[MOST_QUERIES];
    kvs_mask_desc d = KVS_MASK_DESC_INIT;
    d.kind = (kvs_mask_kind)byte(&in);
    d.type = (kvs_mask_type)byte(&in);
    d.flags = byte(&in);
    d.n_queries = byte(&in);
    d.n_rows = byte(&in);
    uint8_t width = byte(&in);
    int64_t *counts[] = {&d.offset, &d.n_keys, &d.window, &d.sinks, &d.ring, &d.ring_index};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        *counts[i] = number(&in, width);
    }
    for (uint32_t b = 0; b < d.n_rows; b++) {
        pads[b] = number(&in, width);
        offsets[b] = number(&in, width);
    }
    for (uint32_t i = 0; i < d.n_queries; i++) {
        paired[i] = byte(&in) & 1;
    }
    d.pads = d.n_rows ? pads : NULL;
    d.row_offsets = d.kind == KVS_MASK_ROWS ? offsets : NULL;
    d.paired = d.kind == KVS_MASK_BIDIRECTIONAL ? paired : NULL;

    kvs_err err = {0};
    kvs_mask_shape s = KVS_MASK_SHAPE_INIT;
    if (kvs_mask_plan(&d, &s, &err) != KVS_OK) {
        CHECK(err.status < 0 && err.msg[0] != 0);
        return 0;
    }
    if (s.bytes > MOST_BYTES) {
        return 0;
    }
    void *dst = malloc(s.bytes); /* exactly as large as planned */
    CHECK(dst != NULL);
    memset(dst, 0x77, s.bytes);
    CHECK(kvs_mask_fill(&d, dst, s.bytes, NULL) == KVS_OK);
    if (d.type == KVS_MASK_BOOL) {
        check_elements(&s, dst);
    }
    check_lease(&d, &s, dst);
    free(dst);
    return 0;
}
