/* SPDX-License-Identifier: MIT */
/* test_sessions.c: random programs over sessions of one model: syncs to what was said before and to
 * what was not, appends, rounds of drafts alone and in batches, saves, restarts on the same directory,
 * stops, failed allocations, with every kind of model and plan, a prefix cache or a store or neither.
 *
 * After each operation a session must hold the tokens that a plain list of them says, and where it has
 * logits they must be those of a session that never did anything else, bit for bit, computed by other
 * kernels on one thread. What it says to have reused is what it did not compute.
 * usage: test_sessions [--programs N] [--first SEED] [--ops N] [--verbose 1] */
#include <string.h>

#include "diff/sessions_world.h"

#define OPS 40

static void fail_soon(world *w)
{
    if (chance(8)) {
        w->heap.fail_at = w->heap.calls + (long)below(chance(2) ? 6 : 60);
    }
}

static void fail_no_more(world *w)
{
    w->heap.fail_at = -1;
}

/* After a failure: a prefix of what was wanted, at least the first `least` of it. */
static void take_prefix(world *w, seat *p, const text *want, size_t least, const char *what)
{
    size_t n = 0;
    const int32_t *t = kvs_session_tokens(p->s, &n);
    if (n < least || n > want->n || memcmp(t, want->t, n * sizeof *t) != 0) {
        DIE("%s: after a failure it holds %zu tokens that are no prefix of the %zu wanted", what, n,
            want->n);
    }
    memcpy(p->held.t, want->t, n * sizeof *t);
    p->held.n = n;
    check_seat(w, p, false, what);
}

static void check_failed(world *w, kvs_status st, const kvs_err *err, const char *what)
{
    TELL("  %s %s\n", kvs_status_name(st), err->msg);
    if (st == KVS_E_NOMEM) {
        w->n.failures++;
    } else if (st == KVS_E_CANCELLED) {
        w->n.stops++;
    } else {
        DIE("%s: %s: %s", what, kvs_status_name(st), err->msg);
    }
}

static void op_sync(world *w, seat *p, bool prepare)
{
    kvs_err err = KVS_ERR_INIT;
    text to;
    size_t reused = 0;
    choose_text(w, &to);
    kvs_session_stats before = KVS_SESSION_STATS_INIT;
    (void)kvs_session_get_stats(p->s, &before);
    TELL("seat %d: %s to %zu tokens, holding %zu\n", (int)(p - w->seats),
         prepare ? "prepare" : "sync", to.n, p->held.n);
    w->stop_in = chance(6) ? 1 + (int)below(4) : 0;
    fail_soon(w);
    kvs_status st = prepare ? kvs_session_prepare(p->s, to.t, to.n, &reused, &err)
                            : kvs_session_sync(p->s, to.t, to.n, &reused, &err);
    fail_no_more(w);
    w->stop_in = 0;
    if (to.n > w->n_ctx) {
        if (st != KVS_E_LIMIT) {
            DIE("sync: %s for %zu tokens in %u", kvs_status_name(st), to.n, w->n_ctx);
        }
        w->n.refused++;
        check_seat(w, p, false, "a sync that was refused");
        return;
    }
    remember(w, &p->held);
    if (st != KVS_OK) {
        check_failed(w, st, &err, "sync");
        take_prefix(w, p, &to, 0, "sync");
        return;
    }
    kvs_session_stats after = KVS_SESSION_STATS_INIT;
    (void)kvs_session_get_stats(p->s, &after);
    w->n.syncs++;
    w->n.reused += reused;
    kvs_reuse r = KVS_REUSE_INIT;
    (void)kvs_session_get_reuse(p->s, &r);
    w->n.disk += r.n_disk;
    w->n.lent += r.n_shared;
    TELL("  reused %zu: memory %" PRIu64 " disk %" PRIu64 " lent %" PRIu64 " %s\n", reused,
         r.n_memory, r.n_disk, r.n_shared, r.reason);
    if (prepare) {
        take_prefix(w, p, &to, 0, "prepare");
        if (p->held.n != reused) {
            DIE("prepare: holds %zu tokens, says %zu", p->held.n, reused);
        }
        return;
    }
    if (after.n_computed - before.n_computed != to.n - reused) {
        DIE("sync: %" PRIu64 " tokens computed, %zu of %zu reused",
            after.n_computed - before.n_computed, reused, to.n);
    }
    p->held = to;
    check_seat(w, p, to.n > 0, "sync");
}

typedef struct rows {
    world *w;
    const int32_t *t;
    size_t next; /* position that is due */
    size_t stop; /* told so many: stop; 0: never */
    size_t told;
} rows;

static int on_logits(void *user, int64_t pos, const float *logits, size_t n_vocab)
{
    rows *r = user;
    if ((size_t)pos != r->next++ || n_vocab != N_VOCAB) {
        DIE("logits of position %" PRId64 ", %zu was due", pos, r->next - 1);
    }
    check_logits(r->w, logits, r->t, (size_t)pos + 1, "a row of logits");
    return ++r->told == r->stop;
}

static void op_append(world *w, seat *p)
{
    kvs_err err = KVS_ERR_INIT;
    text to = p->held;
    add_random(&to, chance(2) ? 1 : 1 + below(50));
    if (to.n == p->held.n) {
        return;
    }
    rows r = {w, to.t, 0, chance(6) ? 1 + below(5) : 0, 0};
    kvs_eval e = KVS_EVAL_INIT;
    e.tokens = to.t + p->held.n;
    e.n_tokens = to.n - p->held.n;
    if (chance(4)) {
        e.logits_from = below((uint32_t)e.n_tokens + 1);
        e.on_logits = on_logits;
        e.user = &r;
        r.next = p->held.n + e.logits_from;
    }
    TELL("seat %d: append %zu to %zu\n", (int)(p - w->seats), e.n_tokens, p->held.n);
    fail_soon(w);
    kvs_status st = kvs_session_eval(p->s, &e, &err);
    fail_no_more(w);
    if (to.n > w->n_ctx) {
        if (st != KVS_E_LIMIT) {
            DIE("append: %s for %zu tokens in %u", kvs_status_name(st), to.n, w->n_ctx);
        }
        w->n.refused++;
        check_seat(w, p, false, "an append that was refused");
        return;
    }
    if (st != KVS_OK) {
        check_failed(w, st, &err, "append");
        take_prefix(w, p, &to, p->held.n, "append");
        return;
    }
    if (e.on_logits && r.next != to.n) {
        DIE("append: the last row of logits was of position %zu", r.next - 1);
    }
    p->held = to;
    check_seat(w, p, !e.on_logits || e.logits_from < e.n_tokens, "append");
}

/* What a round told must be what plain decoding picks; what it keeps is what it told. */
static void settle(world *w, seat *p, kvs_status st, const kvs_err *err, const char *what)
{
    text all = p->held;
    TELL("  seat %d: %s, %zu told at %zu, ends at %u by %d\n", (int)(p - w->seats),
         kvs_status_name(st), p->told.n, p->held.n, p->end_at, p->end_how);
    bool dropped = p->end_at > 0 && p->told.n >= p->end_at && p->end_how == KVS_SPEC_DROP;
    for (size_t i = 0; i < p->told.n; i++) {
        int32_t want = plain_pick(w, all.t, all.n);
        if (p->told.t[i] != want) {
            DIE("%s: told token %d after %zu, plain decoding picks %d", what, p->told.t[i], all.n,
                want);
        }
        if (all.n == w->n_ctx && st == KVS_E_LIMIT && i + 1 == p->told.n) {
            break; /* the one that found no room */
        }
        if (!(dropped && i + 1 == p->told.n)) {
            all.t[all.n++] = want;
        }
    }
    if (st == KVS_OK || st == KVS_NO || st == KVS_E_LIMIT) {
        p->held = all;
        check_seat(w, p, true, what);
    } else {
        check_failed(w, st, err, what);
        check_seat(w, p, false, what);
    }
}

static bool can_draw(const seat *p)
{
    return p->spec && p->held.n > 0 && kvs_session_logits(p->s);
}

static void begin_round(seat *p)
{
    p->told.n = 0;
    p->end_at = chance(3) ? 1 + below(5) : 0;
    p->end_how = chance(2) ? KVS_SPEC_LAST : KVS_SPEC_DROP;
}

static void op_round(world *w, seat *p)
{
    for (uint32_t k = 1 + below(4); k > 0 && can_draw(p); k--) {
        kvs_err err = KVS_ERR_INIT;
        kvs_spec_stats a = KVS_SPEC_STATS_INIT;
        kvs_spec_stats b = KVS_SPEC_STATS_INIT;
        begin_round(p);
        (void)kvs_spec_get_stats(p->spec, &a);
        TELL("seat %d: round at %zu\n", (int)(p - w->seats), p->held.n);
        fail_soon(w);
        kvs_status st = kvs_spec_next(p->spec, &err);
        fail_no_more(w);
        (void)kvs_spec_get_stats(p->spec, &b);
        w->n.rounds++;
        w->n.accepted += b.n_accepted - a.n_accepted;
        settle(w, p, st, &err, "round");
        if (st != KVS_OK) {
            break;
        }
    }
}

static void op_rounds(world *w)
{
    kvs_err err = KVS_ERR_INIT;
    kvs_spec *specs[N_SEATS];
    seat *who[N_SEATS];
    uint32_t n = 0;
    for (size_t i = 0; i < N_SEATS; i++) {
        if (can_draw(&w->seats[i])) {
            who[n] = &w->seats[i];
            specs[n++] = w->seats[i].spec;
            begin_round(&w->seats[i]);
        }
    }
    TELL("rounds of %u\n", n);
    fail_soon(w);
    kvs_status st = kvs_spec_next_rows(w->batch, specs, n, &err);
    fail_no_more(w);
    TELL("  %s %s\n", kvs_status_name(st), err.msg);
    for (uint32_t i = 0; i < n; i++) {
        /* of one row's end the others know nothing */
        bool full = st == KVS_E_LIMIT && who[i]->held.n == w->n_ctx;
        bool fine = st == KVS_OK || st == KVS_NO || st == KVS_E_LIMIT;
        w->n.rounds++;
        settle(w, who[i], full ? KVS_E_LIMIT : fine ? KVS_OK : st, &err, "rounds");
    }
}

static void op_batch(world *w)
{
    kvs_err err = KVS_ERR_INIT;
    text to[N_SEATS];
    kvs_session *s[N_SEATS];
    const int32_t *t[N_SEATS];
    uint32_t n_t[N_SEATS];
    uint32_t n_l[N_SEATS];
    seat *who[N_SEATS];
    uint32_t n = 0;
    for (size_t i = 0; i < N_SEATS; i++) {
        seat *p = &w->seats[i];
        kvs_session_stats st = KVS_SESSION_STATS_INIT;
        (void)kvs_session_get_stats(p->s, &st);
        if (chance(4)) {
            continue;
        }
        to[n] = p->held;
        add_random(&to[n], 1 + below(st.block < 12 ? st.block : 12));
        if (to[n].n > w->n_ctx || to[n].n == p->held.n) {
            continue;
        }
        who[n] = p;
        s[n] = p->s;
        n_t[n] = (uint32_t)(to[n].n - p->held.n);
        n_l[n] = below((n_t[n] < 8 ? n_t[n] : 8) + 1);
        t[n] = to[n].t + p->held.n;
        n++;
    }
    kvs_batch_step step = KVS_BATCH_STEP_INIT;
    step.n_rows = n;
    step.sessions = s;
    step.tokens = t;
    step.n_tokens = n_t;
    step.n_logits = n_l;
    TELL("batch of %u\n", n);
    fail_soon(w);
    kvs_status st = kvs_batch_eval(w->batch, &step, &err);
    fail_no_more(w);
    TELL("  %s %s\n", kvs_status_name(st), err.msg);
    for (uint32_t i = 0; i < n; i++) {
        if (st != KVS_OK) {
            check_failed(w, st, &err, "batch");
            check_seat(w, who[i], false, "a batch that failed");
            continue;
        }
        who[i]->held = to[i];
        for (uint32_t j = 0; j < n_l[i]; j++) {
            check_logits(w, kvs_batch_logits(w->batch, i, j), to[i].t, to[i].n - n_l[i] + j + 1,
                         "a row of a batch");
        }
        check_seat(w, who[i], n_l[i] > 0, "batch");
    }
}

static void op_save(world *w, seat *p)
{
    fail_soon(w);
    (void)kvs_session_save(p->s, NULL);
    if (chance(2)) {
        (void)kvs_session_flush(p->s, NULL);
    }
    fail_no_more(w);
    check_seat(w, p, false, "save");
}

static void op_renew(world *w, seat *p)
{
    kvs_err err = KVS_ERR_INIT;
    TELL("seat %d: anew\n", (int)(p - w->seats));
    remember(w, &p->held);
    fail_soon(w);
    free_seat(p);
    kvs_status st = make_seat(w, p, &err);
    fail_no_more(w);
    if (st != KVS_OK) {
        check_failed(w, st, &err, "a new session");
        free_seat(p);
        must(make_seat(w, p, &err), &err, "a new session");
    }
}

static void op_restart(world *w)
{
    TELL("restart\n");
    for (size_t i = 0; i < N_SEATS; i++) {
        remember(w, &w->seats[i].held);
    }
    close_world(w);
    w->n.restarts++;
    if (!open_world(w)) {
        DIE("what was opened once is not opened again");
    }
}

static void step(world *w)
{
    seat *p = &w->seats[below(N_SEATS)];
    w->n.ops++;
    switch (below(16)) {
    case 0:
    case 1:
    case 2:
    case 3:
        op_sync(w, p, false);
        break;
    case 4:
        op_sync(w, p, true);
        break;
    case 5:
    case 6:
        op_append(w, p);
        break;
    case 7:
    case 8:
        op_round(w, p);
        break;
    case 9:
    case 10:
        if (w->batch) {
            op_rounds(w);
        }
        break;
    case 11:
    case 12:
        if (w->batch) {
            op_batch(w);
        }
        break;
    case 13:
        op_save(w, p);
        break;
    case 14:
        op_renew(w, p);
        break;
    default:
        if (chance(3)) {
            op_restart(w);
        }
    }
}

int main(int argc, char **argv)
{
    static world w;
    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    uint64_t first = 1;
    uint64_t count = 16;
    uint64_t ops = OPS;
    for (int i = 1; i + 1 < argc; i += 2) {
        uint64_t x = strtoull(argv[i + 1], NULL, 10);
        if (strcmp(argv[i], "--verbose") == 0) {
            verbose = x != 0;
        } else {
            *(strcmp(argv[i], "--first") == 0 ? &first
              : strcmp(argv[i], "--ops") == 0 ? &ops
                                              : &count) = x;
        }
    }
    for (uint64_t s = first; s < first + count; s++) {
        seed(s);
        begin_world(&w);
        for (uint64_t i = 0; i < ops; i++) {
            step(&w);
        }
        end_world(&w);
    }
    (void)printf("%" PRIu64 " programs, %" PRIu64 " ops, %" PRIu64 " logits equal, %" PRIu64
                 " syncs, %" PRIu64 " tokens reused, %" PRIu64 " from disk, %" PRIu64
                 " lent, %" PRIu64 " rounds, %" PRIu64 " drafts accepted, %" PRIu64
                 " failed allocations, %" PRIu64 " refusals, %" PRIu64 " stops, %" PRIu64
                 " restarts\n",
                 w.n.programs, w.n.ops, w.n.checks, w.n.syncs, w.n.reused, w.n.disk, w.n.lent,
                 w.n.rounds, w.n.accepted, w.n.failures, w.n.refused, w.n.stops, w.n.restarts);
    bool all = w.n.disk > 0 && w.n.lent > 0 && w.n.accepted > 0 && w.n.failures > 0;
    return w.n.checks == 0 || (count >= 16 && !all); /* of few programs some do without */
}
