/* SPDX-License-Identifier: MIT */
/* test_mask.c: kvs_mask_plan and kvs_mask_fill.
 *
 * Three judges that share no code with the library: masks recorded from mlx-lm, the predicates of
 * each kind evaluated element by element over all small sizes, and (rings) a simulation that keeps
 * the position of the token in every slot and asks which positions a query may see. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kvstate/mask.h"

#define MOST 4096

static uint32_t rng_state = 1;

static uint32_t rnd(uint32_t n)
{
    rng_state = rng_state * 1664525u + 1013904223u;
    return (rng_state >> 8) % n;
}

/* Fills in each type, checks that all agree, and leaves the bool form in `out`. */
static kvs_mask_shape fill(const kvs_mask_desc *desc, uint8_t *out)
{
    static float f32[MOST];
    static uint16_t half[MOST];
    kvs_mask_desc d = *desc;
    kvs_err err = {0};
    kvs_mask_shape s = KVS_MASK_SHAPE_INIT;
    d.type = KVS_MASK_BOOL;
    if (kvs_mask_plan(&d, &s, &err) != KVS_OK || s.bytes > MOST) {
        fail_msg("kind %d: %s, %zu bytes", (int)d.kind, err.msg, s.bytes);
    }
    uint64_t n = 1;
    for (uint32_t i = 0; i < s.n_dims; i++) {
        n *= s.dims[i];
    }
    assert_int_equal(n, s.bytes);
    memset(out, 7, s.bytes);
    assert_int_equal(kvs_mask_fill(&d, out, s.bytes, NULL), KVS_OK);
    for (size_t i = 0; i < s.bytes; i++) {
        assert_true(out[i] <= 1);
    }
    const struct {
        kvs_mask_type type;
        uint32_t flags;
        uint32_t floor;
    } forms[] = {
        {KVS_MASK_F32, 0, 0xff7fffffu}, {KVS_MASK_F32, KVS_MASK_INFINITE, 0xff800000u},
        {KVS_MASK_F16, 0, 0xfbffu},     {KVS_MASK_F16, KVS_MASK_INFINITE, 0xfc00u},
        {KVS_MASK_BF16, 0, 0xff7fu},    {KVS_MASK_BF16, KVS_MASK_INFINITE, 0xff80u},
    };
    size_t form = rnd(6); /* all of them over the many calls */
    d.type = forms[form].type;
    d.flags |= forms[form].flags;
    bool wide = d.type == KVS_MASK_F32;
    void *dst = wide ? (void *)f32 : (void *)half;
    assert_int_equal(kvs_mask_fill(&d, dst, s.bytes * (wide ? 4 : 2), NULL), KVS_OK);
    for (size_t i = 0; i < s.bytes; i++) {
        uint32_t bits = wide ? 0 : half[i];
        if (wide) {
            memcpy(&bits, &f32[i], sizeof bits);
        }
        assert_int_equal(bits, out[i] ? 0 : forms[form].floor);
    }
    return s;
}

/* Modes without an array must mean what the array says. */
static void check_mode(const kvs_mask_shape *s, const uint8_t *m)
{
    size_t n_keys = (size_t)s->dims[s->n_dims - 1];
    size_t n_queries = s->n_dims > 1 ? (size_t)s->dims[s->n_dims - 2] : 1;
    for (size_t e = 0; s->mode != KVS_MASK_MODE_ARRAY && e < s->bytes; e++) {
        size_t i = e / n_keys % n_queries;
        bool want = s->mode == KVS_MASK_MODE_NONE || e % n_keys <= n_keys - n_queries + i;
        assert_int_equal(m[e], want);
    }
}

/* ---- recorded masks */

static size_t read_numbers(char **at, int64_t *out, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char *end = NULL;
        out[i] = strtoll(*at, &end, 10);
        if (end == *at) {
            return i;
        }
        *at = end;
    }
    return n;
}

/* f: N WINDOW RETURN_ARRAY OFFSET INDEX RING ROTATED B */
static kvs_mask_desc recorded_desc(const char *kind, const int64_t f[8], const int64_t *pads)
{
    kvs_mask_desc d = KVS_MASK_DESC_INIT;
    d.n_queries = (uint32_t)f[0];
    d.window = f[1];
    d.offset = f[3];
    d.flags = f[2] ? KVS_MASK_ARRAY : 0;
    if (strcmp(kind, "kv") == 0) {
        return d;
    }
    if (strcmp(kind, "batch") == 0) {
        d.kind = KVS_MASK_PADDED;
        d.n_keys = f[3] + f[0];
        d.offset = 0;
    } else {
        d.ring = f[5];
        d.kind = f[0] == 1 ? KVS_MASK_RING_DECODE : KVS_MASK_RING_WINDOW;
        d.ring_index = f[0] == 1 ? f[4] : 0;
        if (strcmp(kind, "batchring") == 0) {
            d.kind = KVS_MASK_RING_ROWS;
            d.ring_index = f[4];
            d.flags |= f[6] ? KVS_MASK_ROTATED : 0;
        }
    }
    if (f[7] > 0) {
        d.n_rows = (uint32_t)f[7];
        d.pads = pads;
    }
    return d;
}

static void check_recorded(char *line)
{
    static uint8_t mask[MOST];
    char *at = strchr(line, ' ');
    assert_non_null(at);
    *at++ = 0;
    int64_t f[8] = {0};
    int64_t pads[8] = {0};
    assert_int_equal(read_numbers(&at, f, 8), 8);
    assert_true(f[7] <= 8);
    assert_int_equal(read_numbers(&at, pads, (size_t)f[7]), (size_t)f[7]);
    kvs_mask_desc d = recorded_desc(line, f, pads);
    kvs_mask_shape s = fill(&d, mask);
    check_mode(&s, mask);
    at += strspn(at, " ");
    if (strncmp(at, "array ", 6) != 0) {
        bool none = strcmp(at, "none") == 0;
        assert_true(none || strcmp(at, "causal") == 0);
        assert_int_equal(s.mode, none ? KVS_MASK_MODE_NONE : KVS_MASK_MODE_CAUSAL);
        return;
    }
    at += 6;
    assert_int_equal(strlen(at), s.bytes);
    for (size_t i = 0; i < s.bytes; i++) {
        if (mask[i] != at[i] - '0') {
            fail_msg("%s: element %zu of %s", line, i, at);
        }
    }
}

static void test_recorded(void **state)
{
    (void)state;
    FILE *f = fopen(KVS_SOURCE_DIR "/tests/golden/masks.txt", "r");
    assert_non_null(f);
    char line[2 * MOST];
    size_t n = 0;
    while (fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = 0;
        if (line[0] != '#') {
            check_recorded(line);
            n++;
        }
    }
    (void)fclose(f);
    assert_true(n > 2000);
}

/* ---- predicates, element by element */

static bool reach(int64_t p, int64_t j, int64_t window, int64_t sinks)
{
    return j <= p && (window == 0 || p < j + window || j < sinks);
}

static void test_causal(void **state)
{
    (void)state;
    uint8_t m[MOST];
    for (int64_t n = 1; n <= 5; n++) {
        for (int64_t off = 0; off <= 7; off++) {
            for (int64_t w = 0; w <= 13; w++) {
                for (int64_t sinks = 0; sinks <= 4; sinks++) {
                    kvs_mask_desc d = KVS_MASK_DESC_INIT;
                    d.n_queries = (uint32_t)n;
                    d.offset = off;
                    d.window = w;
                    d.sinks = sinks;
                    kvs_mask_shape s = fill(&d, m);
                    assert_int_equal(s.n_dims, 2);
                    assert_int_equal(s.dims[0], n);
                    assert_int_equal(s.dims[1], off + n);
                    for (int64_t e = 0; e < n * (off + n); e++) {
                        int64_t p = off + e / (off + n);
                        assert_int_equal(m[e], reach(p, e % (off + n), w, sinks));
                    }
                    check_mode(&s, m);
                    bool plain = n > 1 && (w == 0 || (off == 0 && n <= w));
                    assert_int_equal(s.mode == KVS_MASK_MODE_CAUSAL, plain);
                    bool one = n == 1 && (w == 0 || w + sinks > off);
                    assert_int_equal(s.mode == KVS_MASK_MODE_NONE, one);
                }
            }
        }
    }
}

static void test_bottom_right_and_pairs(void **state)
{
    (void)state;
    uint8_t m[MOST];
    for (int64_t n = 1; n <= 5; n++) {
        for (int64_t keys = n; keys <= 9; keys++) {
            kvs_mask_desc d = KVS_MASK_DESC_INIT;
            d.kind = KVS_MASK_BOTTOM_RIGHT;
            d.n_queries = (uint32_t)n;
            d.n_keys = keys;
            kvs_mask_shape s = fill(&d, m);
            check_mode(&s, m);
            for (int64_t e = 0; e < n * keys; e++) {
                assert_int_equal(m[e], e % keys <= keys - n + e / keys);
            }
            for (uint32_t bits = 0; bits < 1u << n; bits++) {
                uint8_t paired[5];
                for (int64_t i = 0; i < n; i++) {
                    paired[i] = (bits >> i & 1) ? (uint8_t)(1 + rnd(255)) : 0;
                }
                d = (kvs_mask_desc)KVS_MASK_DESC_INIT;
                d.kind = KVS_MASK_BIDIRECTIONAL;
                d.n_queries = (uint32_t)n;
                d.offset = keys - n;
                d.window = rnd(2) ? 1 + rnd(9) : 0;
                d.sinks = rnd(3);
                d.paired = paired;
                s = fill(&d, m);
                assert_int_equal(s.mode, KVS_MASK_MODE_ARRAY);
                for (int64_t e = 0; e < n * keys; e++) {
                    int64_t i = e / keys;
                    int64_t j = e % keys;
                    bool pair = j >= d.offset && paired[i] && paired[j - d.offset];
                    assert_int_equal(m[e], pair || reach(d.offset + i, j, d.window, d.sinks));
                }
            }
        }
    }
}

static void test_rows(void **state)
{
    (void)state;
    uint8_t m[MOST];
    for (int round = 0; round < 20000; round++) {
        int64_t pads[4];
        int64_t ends[4];
        int64_t offsets[4];
        kvs_mask_desc d = KVS_MASK_DESC_INIT;
        bool shared = rnd(2);
        int64_t n = 1 + rnd(4);
        int64_t stored = rnd(9);
        int64_t last = 0;
        d.kind = shared ? KVS_MASK_PADDED : KVS_MASK_ROWS;
        d.n_queries = (uint32_t)n;
        d.n_rows = 1 + rnd(4);
        d.window = rnd(2) ? 1 + rnd(10) : 0;
        bool aligned = true;
        for (uint32_t b = 0; b < d.n_rows; b++) {
            pads[b] = rnd(3) ? rnd(6) : 0;
            ends[b] = shared || rnd(2) ? stored : rnd(9);
            offsets[b] = ends[b] - pads[b]; /* below 0 while a row is padding only */
            last = ends[b] > last ? ends[b] : last;
            aligned = aligned && pads[b] == 0 && ends[b] == ends[0];
        }
        d.pads = pads;
        d.n_keys = shared ? stored + n : 0;
        d.row_offsets = shared ? NULL : offsets;
        kvs_mask_shape s = fill(&d, m);
        int64_t keys = last + n;
        assert_int_equal(s.n_dims, 4);
        assert_true(s.dims[0] == d.n_rows && s.dims[1] == 1);
        assert_true((int64_t)s.dims[2] == n && (int64_t)s.dims[3] == keys);
        for (int64_t e = 0; e < (int64_t)s.bytes; e++) {
            int64_t b = e / keys / n;
            int64_t j = e % keys;
            bool want = reach(ends[b] + e / keys % n, j, d.window, 0) && j >= pads[b];
            assert_int_equal(m[e], want);
        }
        check_mode(&s, m);
        bool windowed = d.window > 0 && d.window < keys;
        assert_int_equal(s.mode != KVS_MASK_MODE_ARRAY,
                         aligned && !windowed && (n == 1 || d.window == 0 || last == 0));
    }
}

/* ---- rings: what lies in which slot */

#define SLOTS 64
#define PAD   INT64_MIN

typedef struct ring {
    int64_t w;
    int64_t keep;
    int64_t index;
    int64_t seen;
    int64_t held;
    bool rotated;
    uint32_t rows;
    int64_t first[4];      /* position of column 0 of the row's history: -padding */
    int64_t pos[4][SLOTS]; /* position in each slot; padding is negative */
} ring;

static void drop(ring *r, int64_t at, int64_t n)
{
    for (uint32_t b = 0; b < r->rows; b++) {
        memmove(&r->pos[b][at], &r->pos[b][at + n], (size_t)(r->held - at - n) * sizeof(int64_t));
    }
    r->held -= n;
}

static void put_last(ring *r, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        for (uint32_t b = 0; b < r->rows; b++) {
            r->pos[b][r->held] = r->first[b] + r->seen;
        }
        r->held++;
        r->seen++;
    }
}

static void write_one(ring *r)
{
    if (r->held > r->w) {
        drop(r, r->keep, r->held - r->w);
        r->index = r->w;
    }
    if (r->held < r->w) {
        put_last(r, 1);
        r->index = r->held;
        return;
    }
    if (r->index >= r->w) {
        r->index = r->keep;
        r->rotated = true;
    }
    for (uint32_t b = 0; b < r->rows; b++) {
        r->pos[b][r->index] = r->first[b] + r->seen;
    }
    r->seen++;
    r->index++;
}

static int compare(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a;
    int64_t y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static void write_block(ring *r, int64_t n)
{
    for (uint32_t b = 0; b < r->rows; b++) {
        qsort(r->pos[b], (size_t)r->held, sizeof(int64_t), compare);
    }
    if (r->held > r->w - 1) {
        drop(r, r->keep, r->held - r->w + 1);
    }
    put_last(r, n);
    r->index = r->held;
    r->rotated = false;
}

/* The mask of the coming append is taken first, the append done, then every element is judged by
 * the position that lies in its slot. */
static void ring_step(ring *r, bool batch)
{
    uint8_t m[MOST];
    int64_t pads[4];
    int64_t n = rnd(3) ? 1 : 1 + rnd(6);
    bool block = n > 1 || rnd(5) == 0;
    kvs_mask_desc d = KVS_MASK_DESC_INIT;
    d.kind = batch ? KVS_MASK_RING_ROWS : block ? KVS_MASK_RING_WINDOW : KVS_MASK_RING_DECODE;
    d.n_queries = (uint32_t)n;
    d.offset = r->seen;
    d.ring = r->w;
    d.window = rnd(2) ? 1 + rnd((uint32_t)(r->w - r->keep)) : 0;
    int64_t window = d.window ? d.window : r->w - r->keep;
    if (batch) {
        d.n_rows = r->rows;
        d.ring_index = r->index;
        d.flags = (r->rotated ? KVS_MASK_ROTATED : 0) | (block ? KVS_MASK_ORDERED : 0);
        for (uint32_t b = 0; b < r->rows; b++) { /* columns before position 0, as dropped so far */
            pads[b] = -r->first[b] - (r->seen - r->held);
        }
        d.pads = pads;
    } else {
        d.sinks = r->keep;
        d.ring_index = block ? 0 : r->index;
    }
    kvs_mask_shape s = fill(&d, m);
    int64_t before = r->seen;
    if (block) {
        write_block(r, n);
    } else {
        write_one(r);
    }
    assert_int_equal(s.dims[s.n_dims - 1], r->held);
    for (int64_t e = 0; e < (int64_t)s.bytes; e++) {
        int64_t b = e / r->held / n;
        int64_t at = r->pos[b][e % r->held];
        int64_t p = r->first[b] + before + e / r->held % n;
        if (m[e] != (at >= 0 && reach(p, at, window, r->keep))) {
            fail_msg("kind %d W %lld keep %lld window %lld N %lld seen %lld: position %lld, "
                     "query %lld: %d",
                     (int)d.kind, (long long)r->w, (long long)r->keep, (long long)d.window,
                     (long long)n, (long long)before, (long long)at, (long long)p, m[e]);
        }
    }
    check_mode(&s, m);
}

static void test_ring(void **state)
{
    (void)state;
    for (int run = 0; run < 2000; run++) {
        ring r = {0};
        bool batch = run % 2;
        r.w = 1 + rnd(9);
        r.keep = batch ? 0 : rnd((uint32_t)r.w);
        r.rows = batch ? 1 + rnd(4) : 1;
        for (uint32_t b = 0; b < r.rows && batch; b++) {
            r.first[b] = -(int64_t)rnd(5);
        }
        for (int i = 0; i < 25; i++) {
            ring_step(&r, batch);
        }
    }
}

static void test_ring_block(void **state)
{
    (void)state;
    uint8_t m[MOST];
    for (int64_t w = 1; w <= 6; w++) {
        for (int64_t stored = 0; stored <= 8; stored++) {
            for (int64_t off = 0; off <= 9; off++) {
                for (int64_t n = 1; n <= 3; n++) {
                    kvs_mask_desc d = KVS_MASK_DESC_INIT;
                    d.kind = KVS_MASK_RING_BLOCK;
                    d.n_queries = (uint32_t)n;
                    d.n_keys = stored;
                    d.offset = off;
                    d.ring = w;
                    kvs_mask_shape s = fill(&d, m);
                    int64_t reachable = w - 1;
                    bool masked = stored > reachable;
                    bool cut = masked && off >= stored;
                    int64_t cols = cut ? reachable : stored;
                    assert_int_equal(s.mode, masked ? KVS_MASK_MODE_ARRAY : KVS_MASK_MODE_NONE);
                    assert_true(s.n_dims == 4 && s.dims[0] == 1 && s.dims[1] == 1);
                    assert_true(s.dims[2] == 1 && (int64_t)s.dims[3] == cols + n);
                    int64_t valid = off < stored ? off : stored;
                    for (int64_t j = 0; j < cols + n; j++) {
                        int64_t slot = cut ? stored - reachable + j : j;
                        bool want =
                            !masked || j >= cols || (slot < valid && slot >= valid - reachable);
                        assert_int_equal(m[j], want);
                    }
                    check_mode(&s, m);
                }
            }
        }
    }
}

/* ---- refusals */

static void refused(const kvs_mask_desc *d, kvs_status want, const char *word)
{
    kvs_err err = {0};
    kvs_mask_shape s = KVS_MASK_SHAPE_INIT;
    s.bytes = 12345;
    assert_int_equal(kvs_mask_plan(d, &s, &err), want);
    assert_int_equal(s.bytes, 12345);
    assert_int_equal(err.status, want);
    if (!strstr(err.msg, word)) {
        fail_msg("\"%s\" does not name %s", err.msg, word);
    }
    uint8_t dst[64];
    memset(dst, 0x5a, sizeof dst);
    assert_int_equal(kvs_mask_fill(d, dst, sizeof dst, NULL), want);
    for (size_t i = 0; i < sizeof dst; i++) {
        assert_int_equal(dst[i], 0x5a);
    }
}

static kvs_mask_desc good(kvs_mask_kind kind)
{
    static const int64_t pads[2] = {0, 1};
    kvs_mask_desc d = KVS_MASK_DESC_INIT;
    d.kind = kind;
    d.n_queries = 2;
    if (kind == KVS_MASK_PADDED) {
        d.n_rows = 2;
        d.pads = pads;
        d.n_keys = 4;
    } else if (kind == KVS_MASK_RING_DECODE) {
        d.n_queries = 1;
        d.ring = 4;
        d.offset = 9;
        d.ring_index = 1;
    } else if (kind == KVS_MASK_CAUSAL) {
        d.offset = 3;
    }
    kvs_mask_shape s = KVS_MASK_SHAPE_INIT;
    assert_int_equal(kvs_mask_plan(&d, &s, NULL), KVS_OK);
    return d;
}

static void test_refusals(void **state)
{
    (void)state;
    kvs_mask_desc d = good(KVS_MASK_CAUSAL);
    d.kind = (kvs_mask_kind)9;
    refused(&d, KVS_E_INVAL, "kind 9");
    d = good(KVS_MASK_CAUSAL);
    d.type = (kvs_mask_type)4;
    refused(&d, KVS_E_INVAL, "type 4");
    d = good(KVS_MASK_CAUSAL);
    d.n_queries = 0;
    refused(&d, KVS_E_INVAL, "n_queries");
    d = good(KVS_MASK_CAUSAL);
    d.offset = -3;
    refused(&d, KVS_E_RANGE, "offset -3");
    d = good(KVS_MASK_CAUSAL);
    d.window = (INT64_C(1) << 40) + 1;
    refused(&d, KVS_E_RANGE, "window 1099511627777");
    d = good(KVS_MASK_CAUSAL);
    d.ring = 5;
    refused(&d, KVS_E_INVAL, "ring is 5");
    d = good(KVS_MASK_CAUSAL);
    d.flags = KVS_MASK_ROTATED;
    refused(&d, KVS_E_INVAL, "0x4");
    d = good(KVS_MASK_CAUSAL);
    d.n_queries = UINT32_MAX;
    d.offset = INT64_C(1) << 40;
    d.type = KVS_MASK_F32;
    refused(&d, KVS_E_LIMIT, "too large");
    d = good(KVS_MASK_PADDED);
    d.pads = NULL;
    refused(&d, KVS_E_INVAL, "pads is NULL");
    d = good(KVS_MASK_PADDED);
    d.n_keys = 1;
    refused(&d, KVS_E_RANGE, "n_keys 1");
    d = good(KVS_MASK_PADDED);
    int64_t negative[2] = {0, -1};
    d.pads = negative;
    refused(&d, KVS_E_RANGE, "pads[1] -1");
    d = good(KVS_MASK_PADDED);
    d.kind = KVS_MASK_ROWS;
    d.n_keys = 0;
    refused(&d, KVS_E_INVAL, "row_offsets is NULL");
    d.row_offsets = negative;
    d.pads = (const int64_t[2]){0, 0};
    refused(&d, KVS_E_RANGE, "row_offsets[1] -1");
    d = good(KVS_MASK_RING_DECODE);
    d.n_queries = 2;
    refused(&d, KVS_E_INVAL, "n_queries is 2");
    d = good(KVS_MASK_RING_DECODE);
    d.sinks = 4;
    refused(&d, KVS_E_RANGE, "sinks 4");
    d = good(KVS_MASK_RING_DECODE);
    d.sinks = 2;
    refused(&d, KVS_E_RANGE, "ring_index 1");
    d = good(KVS_MASK_RING_DECODE);
    d.offset = 2;
    refused(&d, KVS_E_RANGE, "ring_index 1");
    d = good(KVS_MASK_RING_DECODE);
    d.ring = 0;
    refused(&d, KVS_E_INVAL, "ring is 0");
}

static void test_destination(void **state)
{
    (void)state;
    kvs_mask_desc d = good(KVS_MASK_CAUSAL);
    d.type = KVS_MASK_F32;
    _Alignas(8) uint8_t dst[64];
    memset(dst, 0x5a, sizeof dst);
    kvs_err err = {0};
    assert_int_equal(kvs_mask_fill(&d, dst, 41, &err), KVS_E_RANGE);
    assert_non_null(strstr(err.msg, "41"));
    assert_non_null(strstr(err.msg, "40"));
    assert_int_equal(kvs_mask_fill(&d, dst + 1, 40, &err), KVS_E_INVAL);
    assert_int_equal(kvs_mask_fill(&d, NULL, 40, &err), KVS_E_INVAL);
    for (size_t i = 0; i < sizeof dst; i++) {
        assert_int_equal(dst[i], 0x5a);
    }
    assert_int_equal(kvs_mask_fill(&d, dst, 40, &err), KVS_OK);
    assert_int_equal(dst[40], 0x5a); /* and not one byte more */
    assert_int_equal(kvs_mask_plan(NULL, &(kvs_mask_shape)KVS_MASK_SHAPE_INIT, &err), KVS_E_INVAL);
    assert_int_equal(kvs_mask_plan(&d, NULL, &err), KVS_E_INVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_recorded), cmocka_unit_test(test_causal),
        cmocka_unit_test(test_rows),     cmocka_unit_test(test_bottom_right_and_pairs),
        cmocka_unit_test(test_ring),     cmocka_unit_test(test_ring_block),
        cmocka_unit_test(test_refusals), cmocka_unit_test(test_destination),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
