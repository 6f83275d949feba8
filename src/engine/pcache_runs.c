/* SPDX-License-Identifier: MIT */
/* pcache_runs.c: where the positions of a cache of mlx-lm lie in its buffers (pcache.h).
 *
 *   plain, quantised   columns [0, offset), spare ones behind
 *   chunked            columns [0, offset - start) hold positions from start on
 *   ring, not turned   offset <= columns, index == offset: columns [0, offset)
 *   ring, turned       the first `keep` columns are sinks; [index, columns) then [keep, index) the
 *                      newest. A prefill longer than the ring is kept whole until the next update:
 *                      then index == columns and there are more than max_size
 *   batch              right-justified: columns [padding, index), the newest last
 *   batch ring         rotated: [index, columns) then [0, index), else [0, index); a row's padding
 *                      comes first, and turns out of the ring like a token
 * The class alone decides; nothing is guessed where the numbers do not fit. */
#include <string.h>

#include "engine/pcache.h"

static int32_t number_at(const kvs__st_tensor *t, size_t i)
{
    int32_t v = 0;
    memcpy(&v, t->data + i * sizeof v, sizeof v);
    return v;
}

static void add(kvs__pc_run *run, uint32_t *n, int64_t pos, size_t col, size_t count)
{
    if (count > 0) {
        run[(*n)++] = (kvs__pc_run){pos, col, count};
    }
}

static bool ring_runs(const kvs__pc_leaf *l, kvs__pc_run *run, uint32_t *n)
{
    int64_t columns = (int64_t)l->columns;
    if (l->offset <= columns) {
        add(run, n, 0, 0, (size_t)l->offset);
        return l->index == l->offset;
    }
    if (columns < l->max_size || l->index < l->keep || l->index > columns ||
        (columns > l->max_size && l->index != columns)) {
        return false;
    }
    add(run, n, 0, 0, (size_t)l->keep);
    add(run, n, l->offset - (columns - l->keep), (size_t)l->index, (size_t)(columns - l->index));
    add(run, n, l->offset - (l->index - l->keep), (size_t)l->keep, (size_t)(l->index - l->keep));
    return true;
}

static bool batch_runs(const kvs__pc_leaf *l, size_t row, kvs__pc_run *run, uint32_t *n,
                       int64_t *offset)
{
    int64_t seen = number_at(l->offsets, row);
    int64_t padding = number_at(l->padding, row);
    if (l->index > (int64_t)l->columns || padding < 0 || seen != l->index - padding) {
        return false;
    }
    *offset = seen > 0 ? seen : 0; /* a row shorter than what was trimmed */
    add(run, n, 0, (size_t)padding, (size_t)*offset);
    return true;
}

static bool batch_ring_runs(const kvs__pc_leaf *l, size_t row, kvs__pc_run *run, uint32_t *n,
                            int64_t *offset)
{
    int64_t seen = number_at(l->offsets, row);
    int64_t padding = number_at(l->padding, row);
    int64_t columns = (int64_t)l->columns;
    int64_t width = l->rotated ? columns : l->index;
    if (l->index > columns || (l->rotated && columns > l->max_size)) {
        return false;
    }
    *offset = seen > 0 ? seen : 0;
    int64_t held = *offset < width ? *offset : width;
    int64_t pads = width - held;
    if (padding > 0 && padding != pads) {
        return false;
    }
    /* in time: columns from `first` on to the end, then from 0 on */
    int64_t first = l->rotated && l->index < columns ? l->index : 0;
    int64_t tail = width - first;
    int64_t skip = pads < tail ? pads : tail;
    int64_t left = first > pads - skip ? first - (pads - skip) : 0;
    add(run, n, *offset - held, (size_t)(first + skip), (size_t)(tail - skip));
    add(run, n, *offset - left, (size_t)(first - left), (size_t)left);
    return true;
}

bool kvs__pc_runs(const kvs__pc_leaf *l, size_t row, kvs__pc_run run[KVS__PC_RUNS], uint32_t *n,
                  int64_t *offset)
{
    *n = 0;
    *offset = l->offset;
    if (l->n_planes == 0) {
        return true;
    }
    switch (l->cls) {
    case KVS_PROMPT_ROTATING:
    case KVS_PROMPT_ROTATING_QUANTIZED:
        return ring_runs(l, run, n);
    case KVS_PROMPT_BATCH_KV:
        return batch_runs(l, row, run, n, offset);
    case KVS_PROMPT_BATCH_ROTATING:
        return batch_ring_runs(l, row, run, n, offset);
    case KVS_PROMPT_ARRAYS:
        return true;
    case KVS_PROMPT_KV:
    case KVS_PROMPT_QUANTIZED:
    case KVS_PROMPT_CHUNKED:
    case KVS_PROMPT_CONCATENATE:
        break;
    }
    int64_t held = l->offset - l->start;
    if (held < 0 || held > (int64_t)l->columns) {
        return false;
    }
    add(run, n, l->start, 0, (size_t)held);
    return true;
}
