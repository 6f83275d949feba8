/* SPDX-License-Identifier: MIT */
/* matmul.c: cuts matrices into items for the pool.
 *
 * With few rows of x an item is a run of rows of W of 4 .. 64 KiB: 1 .. 10 us of work, so that a
 * thread taken off its CPU holds up little and a dispatch of about 0.1 us an item is not felt. With
 * many rows it is a panel of W (what stays decoded in the second-level cache) times at most
 * ROWS_PER_ITEM rows of x, decoded again for each such block: 1 / 256 of the work of multiplying (at 128 a percent of a prompt).
 */
#include "engine/matmul.h"

#define FEW_ROWS         4u
#define ROWS_PER_ITEM    256u
#define ITEMS_PER_THREAD 12u
#define ITEM_BYTES_MIN   ((size_t)4 << 10)
#define ITEM_BYTES_MAX   ((size_t)64 << 10)

typedef struct plan {
    const kvs__matmul_args *args;
    size_t row_blocks;
    size_t rows_per_item;
    size_t block[KVS__MATMUL_MAX]; /* rows of W of an item */
    size_t n_items[KVS__MATMUL_MAX];
    size_t scratch_each;
} plan;

static void run_item(void *opaque, size_t item, uint32_t thread)
{
    const plan *p = opaque;
    const kvs__matmul_args *a = p->args;
    size_t m = 0;
    while (item >= p->n_items[m]) {
        item -= p->n_items[m];
        m++;
    }
    const kvs__mat_out *out = &a->outs[m];
    size_t j = item / p->row_blocks * p->block[m];
    size_t r = item % p->row_blocks * p->rows_per_item;
    size_t left = out->w.n - j;
    kvs__wrows w = kvs__wrows_part(&out->w, j, left < p->block[m] ? left : p->block[m]);
    size_t rows = a->rows - r < p->rows_per_item ? a->rows - r : p->rows_per_item;
    a->kern->matmul(out->y + r * out->ldy + j, out->ldy, a->x + r * a->ldx, a->ldx, rows, &w,
                    (uint8_t *)a->scratch + thread * p->scratch_each);
}

static size_t clamp(size_t x, size_t lo, size_t hi)
{
    return x < lo ? lo : x > hi ? hi : x;
}

/* Rows of W of an item: whole tiles. */
static size_t block_rows(const kvs__matmul_args *a, const kvs__wrows *w, size_t n_total,
                         size_t bytes_total, uint32_t n_threads)
{
    size_t items = (size_t)n_threads * ITEMS_PER_THREAD;
    size_t rows = 0;
    if (a->rows <= FEW_ROWS) {
        size_t bytes = clamp(bytes_total / items, ITEM_BYTES_MIN, ITEM_BYTES_MAX);
        rows = bytes / (w->row_bytes ? w->row_bytes : 1);
    } else {
        size_t row_blocks = (a->rows + ROWS_PER_ITEM - 1) / ROWS_PER_ITEM;
        rows = clamp(n_total * row_blocks / items, 1, kvs__wmat_panel_rows(w->k));
    }
    rows = rows / KVS__WTILE_ROWS * KVS__WTILE_ROWS;
    return rows ? rows : KVS__WTILE_ROWS;
}

void kvs__matmul(kvs__pool *pool, const kvs__matmul_args *args)
{
    KVS_ASSERT(args->n_outs <= KVS__MATMUL_MAX);
    uint32_t n_threads = kvs__pool_threads(pool);
    plan p = {.args = args};
    if (args->rows == 0) {
        return;
    }
    p.rows_per_item = args->rows <= ROWS_PER_ITEM ? args->rows : ROWS_PER_ITEM;
    p.row_blocks = (args->rows + p.rows_per_item - 1) / p.rows_per_item;
    p.scratch_each = args->scratch_bytes / n_threads / 64 * 64;
    size_t n_total = 0;
    size_t bytes_total = 0;
    for (size_t m = 0; m < args->n_outs; m++) {
        const kvs__wrows *w = &args->outs[m].w;
        KVS_ASSERT(kvs__wmat_scratch(w->k) <= p.scratch_each);
        n_total += w->n;
        bytes_total += w->n * w->row_bytes;
    }
    size_t n_items = 0;
    for (size_t m = 0; m < args->n_outs; m++) {
        const kvs__wrows *w = &args->outs[m].w;
        p.block[m] = block_rows(args, w, n_total, bytes_total, n_threads);
        p.n_items[m] = (w->n + p.block[m] - 1) / p.block[m] * p.row_blocks;
        n_items += p.n_items[m];
    }
    kvs__pool_run(pool, n_items, run_item, &p);
}

size_t kvs__matmul_scratch(uint32_t n_threads, size_t k)
{
    size_t total = 0;
    return kvs__mul_size(kvs__wmat_scratch(k), n_threads, &total) ? total : SIZE_MAX;
}

kvs__wrows kvs__wrows_of(kvs__wtype type, const void *data, size_t n, size_t k)
{
    const kvs__wtype_info *info = kvs__wtype_get((uint32_t)type);
    size_t row_bytes = k / info->block_elems * info->block_bytes;
    return (kvs__wrows){.data = data, .row_bytes = row_bytes, .n = n, .k = k, .type = type};
}
