/* SPDX-License-Identifier: MIT */
/* rowops_rect.c: tokens of all rows of a set as one padded rectangle: in, with padding that would
 * show, and out again, the same values and clean padding. */
#include <string.h>

#include "diff/rowops_rig.h"

enum { WIDTH = 12 };

typedef struct box {
    kvs_rect rect;
    kvs_planes planes;
    kvs_rect_row at[MAX_ROWS];
    float k[MAX_ROWS * MAX_HEADS * WIDTH * MAX_DIM];
    float v[MAX_ROWS * MAX_HEADS * WIDTH * MAX_DIM];
} box;

static void open_box(box *x, uint32_t layer)
{
    kvs_rect rect = KVS_RECT_INIT;
    kvs_planes planes = KVS_PLANES_INIT;
    x->rect = rect;
    x->planes = planes;
    x->planes.k[0] = x->k;
    x->planes.v[0] = x->v;
    x->rect.layer = layer;
    x->rect.width = WIDTH;
    x->rect.rows = x->at;
    x->rect.planes = &x->planes;
}

/* Token rows [n][heads][dim] into columns of [rows][heads][WIDTH][dim]. */
static void place(float *plane, const float *src, uint32_t b, uint64_t start, uint32_t n,
                  uint32_t heads, uint32_t dim)
{
    for (uint32_t t = 0; t < n; t++) {
        for (uint32_t h = 0; h < heads; h++) {
            float *to = plane + (((size_t)b * heads + h) * WIDTH + start + t) * dim;
            memcpy(to, src + ((size_t)t * heads + h) * dim, dim * sizeof *to);
        }
    }
}

static int import(run *r, const set *s, uint32_t layer, const uint32_t *n)
{
    static box x;
    open_box(&x, layer);
    memset(x.k, 0x7f, sizeof x.k); /* 3e38: padding that is read shows */
    memset(x.v, 0x7f, sizeof x.v);
    for (uint32_t b = 0; b < s->n; b++) {
        const row *m = s->row[b];
        uint64_t start = (r->op + b) % 2 ? WIDTH - n[b] : (WIDTH - n[b]) / 2;
        x.at[b] = (kvs_rect_row){0, (int64_t)m->n, start, start + n[b]};
        (void)token_kv(r, source_of(r, layer), m->tok + m->n, n[b]);
        place(x.k, r->k, b, start, n[b], r->heads[layer], r->k_dim[layer]);
        place(x.v, r->v, b, start, n[b], r->heads[layer], r->v_dim[layer]);
    }
    kvs_status st = kvs_rect_import(s->rows, &x.rect, NULL);
    if (r->borrow[layer]) {
        CHECK(st == (s->n ? KVS_E_UNSUPPORTED : KVS_OK), "import to a layer that borrows");
        return 0;
    }
    if (r->heap.failed) {
        r->heap.failed = false;
        CHECK(st == KVS_E_NOMEM, "status of a refused allocation");
        for (uint32_t b = 0; b < s->n; b++) {
            int64_t len = kvs_cache_length(kvs_rows_cache(s->rows, b), layer);
            CHECK(len == (int64_t)s->row[b]->n, "all rows or none");
        }
        r->stats->failures++;
        st = kvs_rect_import(s->rows, &x.rect, NULL);
    }
    CHECK(st == KVS_OK, kvs_status_name(st));
    return 0;
}

/* Dense f32 rows give back what went in; padding is zero. */
static int export(run *r, const set *s, uint32_t layer, const uint32_t *n)
{
    static box x;
    static float want[MAX_HEADS * WIDTH * MAX_DIM];
    open_box(&x, layer);
    memset(x.k, 0x7f, sizeof x.k);
    for (uint32_t b = 0; b < s->n; b++) {
        x.at[b] = (kvs_rect_row){0, (int64_t)(s->row[b]->n - n[b]), WIDTH - n[b], WIDTH};
    }
    kvs_status st = kvs_rect_export(s->rows, &x.rect, NULL);
    if (r->heap.failed) {
        r->heap.failed = false;
        CHECK(st == KVS_E_NOMEM, "status of a refused allocation");
        return 0;
    }
    if (st == KVS_E_RANGE) { /* a ring holds fewer than were appended */
        return 0;
    }
    CHECK(st == KVS_OK, kvs_status_name(st));
    uint32_t heads = r->heads[layer];
    uint32_t dim = r->k_dim[layer];
    for (uint32_t b = 0; b < s->n; b++) {
        const row *m = s->row[b];
        const kvs_layer_spec *spec = &m->spec[source_of(r, layer)];
        bool f32 = spec->k.bits == 0 && spec->k.dtype == KVS_F32 && spec->dense_until == 0;
        (void)token_kv(r, source_of(r, layer), m->tok + m->n - n[b], n[b]);
        memset(want, 0, sizeof want);
        place(want, r->k, 0, WIDTH - n[b], n[b], heads, dim);
        for (uint32_t h = 0; h < heads; h++) {
            size_t pad = (size_t)(WIDTH - n[b]) * dim * sizeof(float);
            const float *got = x.k + ((size_t)b * heads + h) * WIDTH * dim;
            const float *of = want + (size_t)h * WIDTH * dim;
            CHECK(memcmp(got, of, f32 ? WIDTH * dim * sizeof(float) : pad) == 0, "values out");
        }
    }
    return 0;
}

/* A recurrent layer has no rectangle; its tokens come row by row. */
static int advance(run *r, const set *s, uint32_t layer, const uint32_t *n)
{
    for (uint32_t b = 0; b < s->n; b++) {
        kvs_cache *c = kvs_rows_cache(s->rows, b);
        int bad = 0;
        kvs_status st = n[b] ? append_rec(r, c, s->row[b], layer, n[b], &bad) : KVS_OK;
        if (r->heap.failed) {
            r->heap.failed = false;
            CHECK(st == KVS_E_NOMEM, "status of a refused allocation");
            st = append_rec(r, c, s->row[b], layer, n[b], &bad);
        }
        CHECK(st == KVS_OK && !bad, kvs_status_name(st));
    }
    return 0;
}

int op_rect(run *r, set *s)
{
    uint32_t n[MAX_ROWS] = {0};
    if (s->open) {
        return 0;
    }
    for (uint32_t b = 0; b < s->n; b++) {
        row *m = s->row[b];
        n[b] = byte(r) % (WIDTH + 1);
        if (m->n + n[b] >= MAX_TOKENS) {
            n[b] = 0;
        }
        for (uint32_t t = 0; t < n[b]; t++) {
            m->tok[m->n + t] = ++r->next_token;
        }
    }
    for (uint32_t i = 0; i < r->n_layers; i++) {
        if (r->rec[i] ? advance(r, s, i, n) : import(r, s, i, n)) {
            return 1;
        }
    }
    for (uint32_t b = 0; b < s->n; b++) {
        row *m = s->row[b];
        m->n += n[b];
        m->high = m->n > m->high ? m->n : m->high;
    }
    uint32_t layer = byte(r) % r->n_layers;
    return r->rec[layer] ? 0 : export(r, s, layer, n);
}
