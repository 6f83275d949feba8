/* SPDX-License-Identifier: MIT */
/* recurrent.c: slots, snapshots and rings of a recurrent layer: life, advance, rewind, fork, rounds
 * of drafts. What is computed is in rec_run.c. The invariants are in recurrent.h.
 *
 * No state is ever copied to make a snapshot: a scan reads one slot and may write another, so that
 * the slot it leaves behind is the snapshot. */
#include "state/recurrent.h"

#include <math.h>
#include <string.h>

#include "kern/math.h"

static bool uses_work(const kvs__rec *r)
{
    return r->plan.interval != 1;
}

static uint32_t index_of(const kvs__rec *r, uint32_t i)
{
    uint32_t n = r->plan.n_snaps;
    return n ? (uint32_t)(((uint64_t)r->head + i) % n) : 0;
}

static kvs__rec_slot *slot_new(kvs_ctx *ctx, const kvs__rec *r, kvs_err *err)
{
    kvs__rec_slot *s = kvs__alloc(ctx, r->plan.slot_bytes);
    if (!s) {
        (void)kvs__nomem(err, "state", r->plan.slot_bytes);
        return NULL;
    }
    s->bytes = r->plan.slot_bytes;
    s->refs = 1;
    return s;
}

static void slot_unref(kvs_ctx *ctx, kvs__rec_slot *s)
{
    if (s && --s->refs == 0) {
        kvs__free(ctx, s, s->bytes);
    }
}

static size_t state_bytes(const kvs__rec *r)
{
    return r->plan.slot_bytes - 64;
}

static kvs__rec *head_new(kvs_ctx *ctx, const kvs__rec_plan *p, kvs_err *err)
{
    kvs__rec *r = kvs__calloc(ctx, 1, p->head_bytes);
    if (!r) {
        (void)kvs__nomem(err, "state", p->head_bytes);
        return NULL;
    }
    r->plan = *p;
    r->pos = (int64_t *)(void *)(r + 1);
    r->snap = (kvs__rec_slot **)(void *)(r->pos + p->n_snaps);
    r->spare = r->snap + p->n_snaps;
    return r;
}

/* Gives up all memory but the object. */
static void drop_storage(kvs_ctx *ctx, kvs__rec *r)
{
    for (uint32_t i = 0; i < r->plan.n_snaps; i++) {
        slot_unref(ctx, r->snap[i]);
        r->snap[i] = NULL;
    }
    while (r->n_spare > 0) {
        slot_unref(ctx, r->spare[--r->n_spare]);
    }
    slot_unref(ctx, r->work);
    kvs__free(ctx, r->rows, r->plan.n_rows * r->plan.row_bytes);
    kvs__free(ctx, r->records, r->plan.n_records * r->plan.record * sizeof *r->records);
    r->work = NULL;
    r->rows = NULL;
    r->records = NULL;
    r->live = NULL;
    r->count = 0;
    r->head = 0;
}

void kvs__rec_free(kvs_ctx *ctx, kvs__rec *r)
{
    if (r) {
        drop_storage(ctx, r);
        kvs__free(ctx, r, r->plan.head_bytes);
    }
}

size_t kvs__rec_bytes(const kvs__rec *r)
{
    size_t slots = r->n_spare + (r->work ? 1u : 0u);
    for (uint32_t i = 0; i < r->plan.n_snaps; i++) {
        slots += r->snap[i] ? 1 : 0;
    }
    size_t rows = r->rows ? r->plan.n_rows * r->plan.row_bytes : 0;
    size_t records = r->records ? r->plan.n_records * r->plan.record * sizeof *r->records : 0;
    return r->plan.head_bytes + slots * r->plan.slot_bytes + rows + records;
}

/* -- memory: everything once, and slots for those that a fork shares */

static kvs_status take_storage(kvs_ctx *ctx, kvs__rec *r, kvs_err *err)
{
    size_t row_bytes = r->plan.n_rows * r->plan.row_bytes;
    size_t record_bytes = r->plan.n_records * r->plan.record * sizeof *r->records;
    if (row_bytes && !r->rows) {
        r->rows = kvs__calloc(ctx, 1, row_bytes);
        if (!r->rows) {
            return kvs__nomem(err, "state", row_bytes);
        }
    }
    if (record_bytes && !r->records) {
        r->records = kvs__alloc(ctx, record_bytes);
        if (!r->records) {
            return kvs__nomem(err, "state", record_bytes);
        }
    }
    for (uint32_t i = 0; i < r->plan.n_snaps; i++) {
        r->snap[i] = r->snap[i] ? r->snap[i] : slot_new(ctx, r, err);
        if (!r->snap[i]) {
            return KVS_E_NOMEM;
        }
    }
    if (uses_work(r) && !r->work) {
        r->work = slot_new(ctx, r, err);
    }
    return !uses_work(r) || r->work ? KVS_OK : KVS_E_NOMEM;
}

static int64_t newest(const kvs__rec *r)
{
    return r->count ? r->pos[index_of(r, r->count - 1)] : r->len;
}

/* Snapshots due in (len, len + n]; *taken: those of them that will be kept. */
static uint64_t snaps_due(const kvs__rec *r, uint64_t n, uint32_t *taken)
{
    uint64_t due = 0;
    if (r->plan.interval > 0) {
        due = ((uint64_t)(r->len - newest(r)) + n) / r->plan.interval;
    }
    *taken = due < r->plan.n_snaps ? (uint32_t)due : r->plan.n_snaps;
    return due;
}

/* Entry that snapshot number i from now on goes to. */
static uint32_t next_index(const kvs__rec *r, uint32_t i)
{
    return index_of(r, r->count + i);
}

static kvs_status take_spares(kvs_ctx *ctx, kvs__rec *r, uint64_t n, kvs_err *err)
{
    uint32_t taken = 0;
    uint32_t shared = 0;
    (void)snaps_due(r, n, &taken);
    for (uint32_t i = 0; i < taken; i++) {
        shared += r->snap[next_index(r, i)]->refs > 1 ? 1 : 0;
    }
    while (r->n_spare < shared) {
        kvs__rec_slot *s = slot_new(ctx, r, err);
        if (!s) {
            return KVS_E_NOMEM;
        }
        r->spare[r->n_spare++] = s;
    }
    return KVS_OK;
}

/* A slot to write the next snapshot to, in place of what entry i held. Cannot fail: I5. */
static kvs__rec_slot *own_entry(kvs_ctx *ctx, kvs__rec *r, uint32_t i)
{
    if (r->snap[i]->refs > 1) {
        KVS_ASSERT(r->n_spare > 0);
        slot_unref(ctx, r->snap[i]);
        r->snap[i] = r->spare[--r->n_spare];
    }
    return r->snap[i];
}

/* The state of nothing, in a slot of its own: where the first token starts. */
static kvs_status take_base(kvs_ctx *ctx, kvs__rec *r, kvs_err *err)
{
    if (r->plan.interval > 0 && r->snap[0]->refs > 1) {
        kvs__rec_slot *s = slot_new(ctx, r, err);
        if (!s) {
            return KVS_E_NOMEM;
        }
        slot_unref(ctx, r->snap[0]);
        r->snap[0] = s;
    }
    return KVS_OK;
}

static void set_base(kvs__rec *r, int64_t at)
{
    r->live = r->plan.interval > 0 ? r->snap[0] : r->work;
    r->head = 0;
    r->count = r->plan.interval > 0 ? 1 : 0;
    if (r->count) {
        r->pos[0] = at;
    }
    r->len = at;
}

static kvs_status check_length(const kvs__rec *r, uint64_t n, kvs_err *err)
{
    if (n > (uint64_t)(INT64_MAX / 4) || r->len > INT64_MAX / 4) {
        return kvs__fail(err, KVS_E_RANGE, "state", "%llu tokens are too many",
                         (unsigned long long)n);
    }
    return KVS_OK;
}

kvs_status kvs__rec_reserve(kvs_ctx *ctx, kvs__rec *r, uint64_t n, kvs_err *err)
{
    kvs_status st = check_length(r, n, err);
    st = st == KVS_OK ? take_storage(ctx, r, err) : st;
    if (st == KVS_OK && !r->live) {
        st = take_base(ctx, r, err);
        if (st == KVS_OK) {
            set_base(r, 0);
            memset(kvs__rec_state(r->live), 0, state_bytes(r));
        }
    }
    return st == KVS_OK ? take_spares(ctx, r, n, err) : st;
}

kvs_status kvs__rec_new(kvs_ctx *ctx, const kvs_recurrent_spec *spec, bool keep, kvs__rec **out,
                        kvs_err *err)
{
    kvs__rec_plan plan;
    *out = NULL;
    kvs_status st = kvs__rec_plan_of(spec, 0, &plan, err);
    if (st != KVS_OK) {
        return st;
    }
    kvs__rec *r = head_new(ctx, &plan, err);
    if (!r) {
        return KVS_E_NOMEM;
    }
    r->spec = *spec;
    r->keep = keep;
    st = keep ? kvs__rec_reserve(ctx, r, 0, err) : KVS_OK;
    if (st != KVS_OK) {
        kvs__rec_free(ctx, r);
        return st;
    }
    *out = r;
    return KVS_OK;
}

void kvs__rec_clear(kvs_ctx *ctx, kvs__rec *r)
{
    r->armed = false;
    if (!r->keep) {
        drop_storage(ctx, r);
    }
    r->live = NULL;
    r->head = 0;
    r->count = 0;
    r->len = 0;
    if (r->rows) { /* what comes before the first token */
        memset(r->rows, 0, r->plan.n_rows * r->plan.row_bytes);
    }
}

/* -- advance */

int64_t kvs__rec_oldest(const kvs__rec *r)
{
    return r->count ? r->pos[r->head] : r->len;
}

/* The running state goes on to position `to` in slot dst. */
static void run_to(kvs_ctx *ctx, kvs__rec *r, const kvs_recurrent_step *step, kvs__rec_slot *dst,
                   int64_t *at, int64_t to)
{
    if (to > *at) {
        kvs__rec_run(ctx, r, dst, r->live, step, (uint32_t)(*at - r->len), (uint32_t)(to - *at));
        r->live = dst;
        *at = to;
    }
}

kvs_status kvs__rec_advance(kvs_ctx *ctx, kvs__rec *r, const kvs_recurrent_step *step, kvs_err *err)
{
    uint64_t n = step->n_tokens;
    kvs_status st = kvs__rec_reserve(ctx, r, n, err);
    if (st != KVS_OK) {
        return st;
    }
    uint32_t taken = 0;
    int64_t at = r->len;
    int64_t end = r->len + (int64_t)n;
    int64_t last = newest(r);
    uint64_t due = snaps_due(r, n, &taken);
    for (uint32_t i = 0; i < taken; i++) {
        int64_t to = last + (int64_t)r->plan.interval * (int64_t)(due - taken + i + 1);
        uint32_t entry = next_index(r, 0);
        kvs__rec_slot *from = r->live; /* own_entry may give up the entry that it lies in */
        from->refs++;
        run_to(ctx, r, step, own_entry(ctx, r, entry), &at, to);
        slot_unref(ctx, from);
        r->pos[entry] = to;
        if (r->count < r->plan.n_snaps) {
            r->count++;
        } else {
            r->head = index_of(r, 1);
        }
    }
    run_to(ctx, r, step, r->work, &at, end);
    kvs__rec_keep_rows(ctx, r, step, r->len);
    r->len = end;
    return KVS_OK;
}

/* -- rewind */

bool kvs__rec_can_rewind(const kvs__rec *r, uint64_t n)
{
    int64_t oldest = kvs__rec_oldest(r);
    if (r->armed && r->base > oldest) {
        oldest = r->base;
    }
    return n <= (uint64_t)(r->len - oldest);
}

void kvs__rec_rewind(kvs_ctx *ctx, kvs__rec *r, uint64_t n)
{
    if (n == 0) {
        return;
    }
    int64_t to = r->len - (int64_t)n;
    KVS_ASSERT(r->count > 0 && r->pos[r->head] <= to);
    while (newest(r) > to) {
        r->count--;
    }
    int64_t from = newest(r);
    kvs__rec_slot *snap = r->snap[index_of(r, r->count - 1)];
    r->live = snap;
    if (from < to) {
        kvs__rec_replay(ctx, r, r->work, snap, from, to);
        r->live = r->work;
    }
    r->len = to;
    r->n_rewinds++;
    r->n_recomputed += (uint64_t)(to - from);
}

/* -- forks */

static void share(kvs__rec *to, const kvs__rec *from)
{
    for (uint32_t i = 0; i < from->count; i++) {
        uint32_t entry = index_of(from, i);
        to->snap[entry] = from->snap[entry];
        to->snap[entry]->refs++;
        to->pos[entry] = from->pos[entry];
    }
    to->head = from->head;
    to->count = from->count;
    to->len = from->len;
}

kvs_status kvs__rec_fork(kvs_ctx *ctx, const kvs__rec *r, int64_t n_tokens, kvs__rec **out,
                         kvs_err *err)
{
    *out = NULL;
    if (n_tokens < 0 || n_tokens > r->len) {
        return kvs__fail(err, KVS_E_RANGE, "state", "a fork of %lld tokens of %lld",
                         (long long)n_tokens, (long long)r->len);
    }
    kvs_status st = kvs__rec_check_open(r, n_tokens, err);
    if (st != KVS_OK) {
        return st;
    }
    if (n_tokens < kvs__rec_oldest(r)) {
        return kvs__fail(err, KVS_E_STATE, "state",
                         "a fork at %lld: %lld is the oldest position a rewind reaches",
                         (long long)n_tokens, (long long)kvs__rec_oldest(r));
    }
    kvs__rec *f = head_new(ctx, &r->plan, err);
    if (!f) {
        return KVS_E_NOMEM;
    }
    f->spec = r->spec;
    f->keep = r->keep;
    share(f, r);
    st = r->live || f->keep ? take_storage(ctx, f, err) : KVS_OK;
    if (st != KVS_OK) {
        kvs__rec_free(ctx, f);
        return st;
    }
    if (r->live) {
        f->live = r->live == r->work ? f->work : r->live;
        if (r->live == r->work) {
            memcpy(kvs__rec_state(f->work), kvs__rec_state(r->work), state_bytes(r));
        }
        if (r->rows) {
            memcpy(f->rows, r->rows, r->plan.n_rows * r->plan.row_bytes);
        }
        for (int64_t p = kvs__rec_oldest(r); r->records && p < r->len; p++) {
            size_t at = (size_t)p % r->plan.n_records * r->plan.record;
            memcpy(f->records + at, r->records + at, r->plan.record * sizeof *r->records);
        }
    }
    kvs__rec_rewind(ctx, f, (uint64_t)(r->len - n_tokens));
    f->n_rewinds = 0;
    f->n_recomputed = 0;
    *out = f;
    return KVS_OK;
}

/* -- rounds of drafts */

kvs_status kvs__rec_begin(kvs__rec *r, uint64_t most_undo, kvs_err *err)
{
    if (r->armed) {
        return kvs__fail(err, KVS_E_STATE, "state", "a round is open since position %lld",
                         (long long)r->base);
    }
    if (most_undo > r->spec.undo_tokens) {
        return kvs__fail(err, KVS_E_STATE, "state",
                         "a round that takes back %llu tokens exceeds undo_tokens %u",
                         (unsigned long long)most_undo, r->spec.undo_tokens);
    }
    r->armed = true;
    r->base = r->len;
    r->most_undo = most_undo;
    return KVS_OK;
}

kvs_status kvs__rec_check_open(const kvs__rec *r, int64_t at, kvs_err *err)
{
    if (r->armed && at > r->base) {
        return kvs__fail(err, KVS_E_STATE, "state",
                         "position %lld lies in a round that is open since %lld", (long long)at,
                         (long long)r->base);
    }
    return KVS_OK;
}

static kvs_status check_armed(const kvs__rec *r, kvs_err *err)
{
    return r->armed ? KVS_OK : kvs__fail(err, KVS_E_STATE, "state", "no round is open");
}

kvs_status kvs__rec_rollback(kvs_ctx *ctx, kvs__rec *r, uint64_t keep, kvs_err *err)
{
    kvs_status st = check_armed(r, err);
    if (st != KVS_OK) {
        return st;
    }
    if (r->len <= r->base) {
        return kvs__fail(err, KVS_E_STATE, "state", "nothing was advanced since position %lld",
                         (long long)r->base);
    }
    uint64_t n = (uint64_t)(r->len - r->base);
    if (keep > n || n - keep > r->most_undo) {
        return kvs__fail(
            err, KVS_E_RANGE, "state", "rollback keeps %llu of %llu tokens, of which %llu may go",
            (unsigned long long)keep, (unsigned long long)n, (unsigned long long)r->most_undo);
    }
    if (!kvs__rec_can_rewind(r, n - keep)) {
        return kvs__fail(err, KVS_E_STATE, "state",
                         "rollback to %lld: a rewind in the round used up what reached below %lld",
                         (long long)(r->base + (int64_t)keep), (long long)kvs__rec_oldest(r));
    }
    kvs__rec_rewind(ctx, r, n - keep);
    r->armed = false;
    return KVS_OK;
}

kvs_status kvs__rec_commit(kvs__rec *r, kvs_err *err)
{
    kvs_status st = check_armed(r, err);
    r->armed = false;
    return st;
}

/* -- planes */

int64_t kvs__rec_kept(const kvs__rec *r, int64_t at)
{
    if (at >= r->len) {
        return r->len;
    }
    int64_t best = -1;
    for (uint32_t i = 0; i < r->count && r->pos[index_of(r, i)] <= at; i++) {
        best = r->pos[index_of(r, i)];
    }
    return best;
}

static kvs__rec_slot *slot_at(const kvs__rec *r, int64_t at)
{
    for (uint32_t i = 0; at < r->len && i < r->count; i++) {
        if (r->pos[index_of(r, i)] == at) {
            return r->snap[index_of(r, i)];
        }
    }
    return r->live;
}

/* Element (head, row, column) of a slot's state. */
static size_t element(const kvs__rec *r, size_t head, size_t row, size_t col)
{
    size_t tile = head * r->plan.tiles_per_head + row / KVS__TILE;
    return (tile * r->spec.state_dim + col) * KVS__TILE + row % KVS__TILE;
}

void kvs__rec_export(const kvs__rec *r, int64_t at, void *conv, float *state)
{
    const kvs_recurrent_spec *s = &r->spec;
    size_t tail = s->conv_dim ? s->conv_taps - 1 : 0;
    for (size_t i = 0; conv && i < tail; i++) {
        unsigned char *dst = (unsigned char *)conv + i * r->plan.row_bytes;
        if (r->rows) {
            memcpy(dst, kvs__rec_row(r, at - (int64_t)(tail - i)), r->plan.row_bytes);
        } else {
            memset(dst, 0, r->plan.row_bytes);
        }
    }
    kvs__rec_slot *slot = slot_at(r, at);
    for (size_t h = 0; state && h < s->n_heads; h++) {
        for (size_t row = 0; row < s->head_dim; row++) {
            for (size_t col = 0; col < s->state_dim; col++) {
                float x = slot ? kvs__rec_state(slot)[element(r, h, row, col)] : 0.0f;
                *state++ = x != x ? kvs__f32_bits(KVS__NAN_BITS) : x;
            }
        }
    }
}

kvs_status kvs__rec_import(kvs_ctx *ctx, kvs__rec *r, int64_t at, const void *conv,
                           const float *state, kvs_err *err)
{
    const kvs_recurrent_spec *s = &r->spec;
    if (r->armed) {
        return kvs__fail(err, KVS_E_STATE, "state", "a round is open since position %lld",
                         (long long)r->base);
    }
    kvs_status st = kvs__rec_reserve(ctx, r, 0, err);
    st = st == KVS_OK ? take_base(ctx, r, err) : st;
    if (st != KVS_OK) {
        return st;
    }
    set_base(r, at);
    size_t tail = s->conv_dim ? s->conv_taps - 1 : 0;
    for (size_t i = 0; i < tail; i++) {
        memcpy(kvs__rec_row(r, at - (int64_t)(tail - i)),
               (const unsigned char *)conv + i * r->plan.row_bytes, r->plan.row_bytes);
    }
    float *dst = kvs__rec_state(r->live);
    memset(dst, 0, state_bytes(r)); /* rows that fill up the last tile */
    for (size_t h = 0; h < s->n_heads; h++) {
        for (size_t row = 0; row < s->head_dim; row++) {
            for (size_t col = 0; col < s->state_dim; col++) {
                dst[element(r, h, row, col)] = *state++;
            }
        }
    }
    return KVS_OK;
}
