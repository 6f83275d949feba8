/* SPDX-License-Identifier: MIT */
/* test_recurrent_ops.c: random programs on recurrent layers against the naive model, bit for bit.
 *
 *   test_recurrent_ops SEED COUNT [fail]
 *
 * A program holds up to three rows that fork from each other, of one random shape, undo policy, tier
 * and number of threads, and appends, rewinds, drafts in rounds, clears, exports and imports. After
 * each step the lengths, states and tails of all rows are compared, and every snapshot that a layer
 * says it has. With `fail`, allocations fail now and then: the step must then have changed nothing.
 * Prints the seed of a program that fails. */
#include <stdio.h>

#include "base/half.h"
#include "diff/rec_drive.h"
#include "state/layer.h"
#include "support/fail_alloc.h"

enum { ROWS = 3 };

typedef struct row {
    kvs_cache *c;
    rec_model *m;
    int round; /* open */
    int64_t base;
    uint64_t most;
} row;

typedef struct program {
    uint64_t rng;
    uint64_t seed;
    kvs_ctx *ctx;
    kvs_recurrent_spec spec;
    kvs_layer_spec layer;
    row rows[ROWS];
    fail_alloc mem;
    int may_fail;
    uint64_t next_id;
    size_t n_ops;
} program;

static size_t n_failed_allocs;
static size_t n_replays;
static size_t n_rounds;

static uint64_t rnd(program *p)
{
    return p->rng = rig_mix(p->rng + 1);
}

static uint32_t below(program *p, uint32_t n)
{
    return (uint32_t)((rnd(p) >> 32) % n);
}

static void die(const program *p, const char *what)
{
    printf("program %llu, op %zu: %s\n", (unsigned long long)p->seed, p->n_ops, what);
    exit(1);
}

static void check(const program *p, int ok, const char *what)
{
    if (!ok) {
        die(p, what);
    }
}

static void random_spec(program *p)
{
    kvs_recurrent_spec s = KVS_RECURRENT_SPEC_INIT;
    static const uint32_t dims[] = {1, 3, 8, 16, 17, 33};
    static const uint32_t cols[] = {4, 8, 12, 20};
    static const kvs_dtype types[] = {KVS_F32, KVS_F16, KVS_BF16};
    s.rule = below(p, 2) ? KVS_RECURRENT_SSD : KVS_RECURRENT_GATED_DELTA;
    s.n_groups = 1 + below(p, 2);
    s.n_heads = s.n_groups * (1 + below(p, 3));
    s.head_dim = dims[below(p, 6)];
    s.state_dim = cols[below(p, 4)];
    if (below(p, 5) > 0) {
        s.conv_dim = (uint32_t)rec_sizes_of(&s).conv;
        s.conv_taps = 2 + below(p, 4);
        s.conv_dtype = types[below(p, 3)];
    }
    s.undo_tokens = below(p, 5) ? below(p, 12) : 0;
    if (s.undo_tokens > 0) {
        s.undo_interval = below(p, 3) ? 1 + below(p, s.undo_tokens + 3) : 0;
        if (below(p, 3) == 0) { /* a budget that some interval meets */
            uint32_t i = s.undo_interval ? s.undo_interval : 1 + below(p, s.undo_tokens);
            size_t bytes = 0;
            (void)kvs__rec_undo_bytes(&s, i, &bytes);
            s.undo_bytes = bytes;
        }
    }
    p->spec = s;
}

static kvs_cache *new_cache(program *p)
{
    return rig_cache(p->ctx, &p->layer, 1, 0);
}

static void setup(program *p, uint64_t seed, int may_fail)
{
    memset(p, 0, sizeof *p);
    p->seed = seed;
    p->rng = rig_mix(seed);
    random_spec(p);
    fail_alloc mem = FAIL_ALLOC_INIT;
    p->mem = mem;
    p->may_fail = may_fail;
    kvs_layer_spec l = KVS_LAYER_SPEC_INIT;
    l.kind = KVS_LAYER_RECURRENT;
    l.recurrent = &p->spec;
    p->layer = l;
    kvs_ctx_opts o = KVS_CTX_OPTS_INIT;
    o.alloc = fail_alloc_take;
    o.free = fail_alloc_give;
    o.alloc_user = &p->mem;
    o.n_threads = 1 + below(p, 3);
    o.tiers_off = below(p, 2) ? 0 : KVS_TIER_AVX512 | (below(p, 2) ? KVS_TIER_AVX2 : 0);
    rig_must(kvs_ctx_new(&o, &p->ctx, NULL));
    p->rows[0].c = new_cache(p);
    p->rows[0].m = rec_model_new(&p->spec, 7);
}

static void drop_row(row *r)
{
    if (r->c) {
        kvs_cache_free(r->c);
        rec_model_free(r->m);
    }
    memset(r, 0, sizeof *r);
}

static kvs__rec *rec_of(const row *r)
{
    return r->c->layer[0].rec;
}

/* -- what must hold at any time */

static void check_planes(const program *p, const row *r, int64_t at)
{
    size_t n = 0;
    unsigned char *got = rec_export(r->c, 0, at, &n);
    rec_sizes z = rec_sizes_of(&p->spec);
    check(p, memcmp(got, rec_model_state(r->m, at), z.state * sizeof(float)) == 0, "state differs");
    const float *want = rec_model_tail(r->m, at);
    const unsigned char *tail = got + z.state * sizeof(float);
    size_t n_tail = p->spec.conv_dim ? (size_t)(p->spec.conv_taps - 1) * p->spec.conv_dim : 0;
    for (size_t i = 0; i < n_tail; i++) {
        float x = 0;
        uint16_t h = 0;
        if (p->spec.conv_dtype == KVS_F32) {
            memcpy(&x, tail + 4 * i, sizeof x);
        } else {
            memcpy(&h, tail + 2 * i, sizeof h);
            x = p->spec.conv_dtype == KVS_F16 ? kvs__f16_to_f32(h) : kvs__bf16_to_f32(h);
        }
        check(p, x == want[i], "tail differs");
    }
    free(got);
}

static void check_row(const program *p, const row *r)
{
    int64_t len = kvs_cache_length(r->c, 0);
    check(p, len == r->m->len, "length differs");
    int64_t limit = r->round ? r->base : len;
    if (!r->round || len == r->base) {
        check_planes(p, r, len);
    }
    for (int64_t at = kvs_recurrent_kept(r->c, 0, limit - 1); at >= 0;
         at = kvs_recurrent_kept(r->c, 0, at - 1)) {
        check(p, at >= r->m->oldest, "keeps what was replaced");
        check_planes(p, r, at);
    }
    int64_t reach = len > r->m->guard ? len - r->m->guard : 0;
    if (r->round && len - r->base < reach) {
        reach = len - r->base;
    }
    check(p, kvs_cache_can_rewind(r->c, 0, (uint64_t)reach) == KVS_OK, "cannot rewind undo_tokens");
    int64_t most = len - kvs_cache_oldest(r->c, 0);
    check(p, kvs_cache_can_rewind(r->c, 0, (uint64_t)most + 1) == KVS_NO, "rewinds too far");
}

/* -- operations */

static void fail_soon(program *p)
{
    long at = p->may_fail && below(p, 2) ? p->mem.calls + (long)below(p, 4) : -1;
    p->mem.fail_at = at;
}

/* True if the call failed for memory, as it may; any other failure ends the test. */
static int failed(program *p, kvs_status st)
{
    int hit = p->mem.fail_at >= 0 && p->mem.calls > p->mem.fail_at;
    p->mem.fail_at = -1;
    if (st == KVS_E_NOMEM) {
        check(p, hit, "KVS_E_NOMEM without a failing allocation");
        n_failed_allocs++;
        return 1;
    }
    check(p, st == KVS_OK, kvs_status_name(st));
    return 0;
}

static void op_append(program *p, row *r, uint32_t n)
{
    rec_sizes z = rec_sizes_of(&p->spec);
    uint64_t ids[100];
    if (r->m->len + n > NAIVE_MAX_TOKENS) {
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        ids[i] = p->next_id++;
    }
    float *y = rig_alloc(n * z.value * sizeof *y);
    float *conv = rig_alloc(n * z.conv * sizeof *conv);
    float *want_y = rig_alloc(z.value * sizeof *y);
    float *want_conv = rig_alloc(z.conv * sizeof *y);
    fail_soon(p);
    if (!failed(p, rec_drive(r->c, 0, &r->m->w, ids, n, conv, y, NULL))) {
        for (uint32_t i = 0; i < n; i++) {
            rec_model_token(r->m, ids[i], want_conv, want_y, NULL);
            check(p, memcmp(y + i * z.value, want_y, z.value * sizeof *y) == 0, "y differs");
            check(p, !p->spec.conv_dim || memcmp(conv + i * z.conv, want_conv, z.conv * 4) == 0,
                  "convolution differs");
        }
    }
    free(y);
    free(conv);
    free(want_y);
    free(want_conv);
}

static void op_rewind(program *p, row *r)
{
    int64_t most = r->m->len - kvs_cache_oldest(r->c, 0);
    if (r->round && r->m->len - r->base < most) {
        most = r->m->len - r->base;
    }
    uint64_t n = below(p, (uint32_t)most + 2);
    kvs_status st = kvs_cache_rewind(r->c, 0, n, NULL);
    if (n > (uint64_t)most) {
        check(p, st == KVS_E_STATE || st == KVS_E_RANGE, "a rewind too far is not refused");
        return;
    }
    check(p, st == KVS_OK, "rewind");
    r->m->len -= (int64_t)n;
}

static void op_round(program *p, row *r)
{
    if (!r->round) {
        r->most = below(p, p->spec.undo_tokens + 1);
        check(p, kvs__rec_rollback(p->ctx, rec_of(r), 0, NULL) == KVS_E_STATE, "unarmed rollback");
        check(p, kvs__rec_begin(rec_of(r), r->most, NULL) == KVS_OK, "begin");
        check(p, kvs__rec_begin(rec_of(r), 0, NULL) == KVS_E_STATE, "begin twice");
        r->round = 1;
        r->base = r->m->len;
        n_rounds++;
        return;
    }
    uint64_t n = (uint64_t)(r->m->len - r->base);
    uint64_t reach = (uint64_t)(r->m->len - kvs_cache_oldest(r->c, 0));
    uint64_t back = n < r->most ? n : r->most;
    back = back < reach ? back : reach;
    if (n == 0) {
        check(p, kvs__rec_rollback(p->ctx, rec_of(r), 0, NULL) == KVS_E_STATE, "before recorded");
    } else {
        check(p, kvs__rec_rollback(p->ctx, rec_of(r), n + 1, NULL) == KVS_E_RANGE,
              "keep too large");
    }
    if (n == 0 || below(p, 2)) {
        check(p, kvs__rec_commit(rec_of(r), NULL) == KVS_OK, "commit");
    } else {
        uint64_t gone = below(p, (uint32_t)back + 1);
        check(p, kvs__rec_rollback(p->ctx, rec_of(r), n - gone, NULL) == KVS_OK, "rollback");
        r->m->len -= (int64_t)gone;
    }
    r->round = 0;
}

static void op_fork(program *p, row *r)
{
    row *to = &p->rows[below(p, ROWS)];
    int64_t oldest = kvs_cache_oldest(r->c, 0);
    int64_t limit = r->round ? r->base : r->m->len;
    if (to == r || limit < oldest) {
        return;
    }
    if (r->round) {
        kvs__rec *none = NULL;
        check(p,
              r->m->len == limit ||
                  kvs__rec_fork(p->ctx, rec_of(r), r->m->len, &none, NULL) == KVS_E_STATE,
              "fork of an open round");
    }
    int64_t at = oldest + (int64_t)below(p, (uint32_t)(limit - oldest) + 1);
    kvs__rec *f = NULL;
    fail_soon(p);
    if (failed(p, kvs__rec_fork(p->ctx, rec_of(r), at, &f, NULL))) {
        return;
    }
    drop_row(to);
    to->c = new_cache(p);
    kvs__rec_free(p->ctx, to->c->layer[0].rec);
    to->c->layer[0].rec = f;
    to->c->layer[0].spec.recurrent = &f->spec;
    to->m = rec_model_new(&p->spec, 7);
    rec_model_copy(to->m, r->m);
    to->m->len = at;
}

/* Out of one row's stored point and into another row, or itself. */
static void op_import(program *p, row *r)
{
    row *to = &p->rows[below(p, ROWS)];
    int64_t at = kvs_recurrent_kept(r->c, 0, (int64_t)below(p, (uint32_t)r->m->len + 1));
    if (!to->c || to->round || r->round || at < 0) {
        return;
    }
    size_t n = 0;
    unsigned char *got = rec_export(r->c, 0, at, &n);
    kvs_recurrent_planes planes = KVS_RECURRENT_PLANES_INIT;
    planes.state = (float *)(void *)got;
    planes.conv = got + rec_sizes_of(&p->spec).state * sizeof(float);
    fail_soon(p);
    if (!failed(p, kvs_recurrent_import(to->c, 0, at, &planes, NULL))) {
        if (to != r) {
            rec_model_copy(to->m, r->m);
        }
        to->m->len = at;
        to->m->oldest = at;
        to->m->guard = at;
    }
    free(got);
}

static void step(program *p)
{
    row *r = &p->rows[below(p, ROWS)];
    while (!r->c) {
        r = &p->rows[below(p, ROWS)];
    }
    uint32_t op = below(p, 20);
    if (op < 8) {
        op_append(p, r, 1 + below(p, below(p, 8) ? 7 : 90));
    } else if (op < 12) {
        op_rewind(p, r);
    } else if (op < 15) {
        op_round(p, r);
    } else if (op < 17) {
        op_fork(p, r);
    } else if (op < 19) {
        op_import(p, r);
    } else if (below(p, 3) == 0) {
        check(p, kvs_cache_clear(r->c, NULL) == KVS_OK, "clear");
        r->round = 0;
        r->m->len = 0;
        r->m->oldest = 0;
        r->m->guard = 0;
    }
}

static void run(uint64_t seed, int may_fail)
{
    static program p;
    setup(&p, seed, may_fail);
    uint32_t n = 20 + below(&p, 40);
    for (p.n_ops = 0; p.n_ops < n; p.n_ops++) {
        step(&p);
        for (size_t i = 0; i < ROWS; i++) {
            if (p.rows[i].c) {
                check_row(&p, &p.rows[i]);
            }
        }
    }
    for (size_t i = 0; i < ROWS; i++) {
        if (p.rows[i].c) {
            kvs_recurrent_stats s = KVS_RECURRENT_STATS_INIT;
            rig_must(kvs_recurrent_get_stats(p.rows[i].c, 0, &s));
            n_replays += s.n_recomputed;
        }
        drop_row(&p.rows[i]);
    }
    kvs_ctx_free(p.ctx);
    check(&p, p.mem.live == 0 && p.mem.wrong == 0, "memory is left");
}

int main(int argc, char **argv)
{
    uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 0) : 1;
    uint64_t count = argc > 2 ? strtoull(argv[2], NULL, 0) : 200;
    int may_fail = argc > 3 && strcmp(argv[3], "fail") == 0;
    for (uint64_t i = 0; i < count; i++) {
        run(seed + i, may_fail);
    }
    printf("%llu programs, %zu rounds, %zu tokens recomputed, %zu failed allocations\n",
           (unsigned long long)count, n_rounds, n_replays, n_failed_allocs);
    if (count >= 100 && (n_replays == 0 || n_rounds == 0 || (may_fail && n_failed_allocs == 0))) {
        printf("something was never tried\n");
        return 1;
    }
    return 0;
}
