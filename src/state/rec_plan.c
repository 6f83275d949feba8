/* SPDX-License-Identifier: MIT */
/* rec_plan.c: checks of a recurrent layer's spec, and what its undo storage comes to.
 *
 * For a depth of d tokens and snapshots every S tokens there are ceil(d / S) + 1 snapshots, so that
 * the oldest is d or more tokens back just after one was taken. With S > 1 the running state has a
 * slot of its own and the inputs since the oldest snapshot are kept; with S = 1 the newest snapshot
 * is the running state, and a rewind computes nothing. The S that takes the least lies between: the
 * snapshots shrink with S, the records grow. */
#include <stdio.h>
#include <string.h>

#include "state/recurrent.h"

#define MAX_HEADS 65536u
#define MAX_DIM   1024u
#define MAX_CONV  (1u << 24)
#define MAX_TAPS  16u
#define MAX_UNDO  65536u

static kvs_status check_conv(const kvs_recurrent_spec *s, uint32_t layer, kvs_err *err)
{
    if ((s->conv_dim == 0) != (s->conv_taps == 0) || s->conv_dim > MAX_CONV || s->conv_taps == 1 ||
        s->conv_taps > MAX_TAPS) {
        return kvs__fail(err, KVS_E_INVAL, "state",
                         "layer %u: a convolution of %u channels (up to %u) and %u taps (2..%u)",
                         layer, s->conv_dim, MAX_CONV, s->conv_taps, MAX_TAPS);
    }
    if ((unsigned)s->conv_dtype > KVS_BF16) {
        return kvs__fail(err, KVS_E_INVAL, "state", "layer %u: conv_dtype %d is no kvs_dtype",
                         layer, (int)s->conv_dtype);
    }
    return KVS_OK;
}

static kvs_status check_spec(const kvs_recurrent_spec *s, uint32_t layer, kvs_err *err)
{
    if ((unsigned)s->rule > KVS_RECURRENT_SSD) {
        return kvs__fail(err, KVS_E_INVAL, "state", "layer %u: rule %d is no kvs_recurrent_rule",
                         layer, (int)s->rule);
    }
    if (s->n_heads == 0 || s->n_heads > MAX_HEADS || s->n_groups == 0 ||
        s->n_heads % s->n_groups != 0) {
        return kvs__fail(err, KVS_E_INVAL, "state",
                         "layer %u: %u heads (1..%u) in %u groups, which must divide them", layer,
                         s->n_heads, MAX_HEADS, s->n_groups);
    }
    if (s->head_dim == 0 || s->head_dim > MAX_DIM) {
        return kvs__fail(err, KVS_E_INVAL, "state", "layer %u: head_dim %u is not in 1..%u", layer,
                         s->head_dim, MAX_DIM);
    }
    if (s->state_dim == 0 || s->state_dim > MAX_DIM || s->state_dim % 4 != 0) {
        return kvs__fail(err, KVS_E_INVAL, "state",
                         "layer %u: state_dim %u is not a multiple of 4 in 4..%u", layer,
                         s->state_dim, MAX_DIM);
    }
    if (s->undo_tokens > MAX_UNDO || s->undo_interval > MAX_UNDO) {
        return kvs__fail(err, KVS_E_RANGE, "state",
                         "layer %u: undo_tokens %u or undo_interval %u is above %u", layer,
                         s->undo_tokens, s->undo_interval, MAX_UNDO);
    }
    if (s->undo_tokens == 0 && (s->undo_interval > 0 || s->undo_bytes > 0)) {
        return kvs__fail(err, KVS_E_INVAL, "state",
                         "layer %u: undo_interval %u and undo_bytes %llu without undo_tokens",
                         layer, s->undo_interval, (unsigned long long)s->undo_bytes);
    }
    return check_conv(s, layer, err);
}

kvs_status kvs__rec_read_spec(const kvs_recurrent_spec *in, uint32_t layer, kvs_recurrent_spec *out,
                              kvs_err *err)
{
    kvs_recurrent_spec s = KVS_RECURRENT_SPEC_INIT;
    if (!in) {
        return kvs__fail(err, KVS_E_INVAL, "state", "layer %u: recurrent is NULL", layer);
    }
    kvs_status st = kvs__opts_read(&s, sizeof s, in, "kvs_recurrent_spec", err);
    st = st == KVS_OK ? check_spec(&s, layer, err) : st;
    if (st == KVS_OK) {
        *out = s;
    }
    return st;
}

/* a * b + *sum into *sum. */
static bool add_product(size_t a, size_t b, size_t *sum)
{
    size_t p = 0;
    return kvs__mul_size(a, b, &p) && kvs__add_size(*sum, p, sum);
}

static bool measure(const kvs_recurrent_spec *s, uint32_t interval, kvs__rec_plan *p)
{
    memset(p, 0, sizeof *p);
    size_t depth = 0; /* tokens from the oldest snapshot to the length, at most */
    p->interval = interval;
    if (interval > 0) {
        p->n_snaps = (s->undo_tokens + interval - 1) / interval + 1;
        depth = (size_t)p->n_snaps * interval - 1;
    }
    p->tiles_per_head = (s->head_dim + KVS__TILE - 1) / KVS__TILE;
    size_t state = 0;
    size_t header = 64;
    if (!kvs__mul_size(p->tiles_per_head * KVS__TILE * sizeof(float) * s->state_dim, s->n_heads,
                       &state) ||
        !kvs__add_size(header, state, &p->slot_bytes)) {
        return false;
    }
    p->row_bytes = (size_t)s->conv_dim * (s->conv_dtype == KVS_F32 ? 4 : 2);
    p->n_rows = s->conv_dim ? depth + s->conv_taps - 1 : 0;
    if (interval > 1) {
        p->record = (size_t)s->n_groups * s->state_dim + (size_t)s->n_heads * (s->head_dim + 2);
        p->n_records = (size_t)p->n_snaps * interval;
    }
    p->head_bytes = sizeof(kvs__rec) + p->n_snaps * (2 * sizeof(kvs__rec_slot *) + sizeof(int64_t));
    size_t slots = p->n_snaps + (interval != 1 ? 1u : 0u);
    p->bytes = p->head_bytes;
    return add_product(slots, p->slot_bytes, &p->bytes) &&
           add_product(p->n_rows, p->row_bytes, &p->bytes) &&
           add_product(p->n_records, p->record * sizeof(float), &p->bytes);
}

bool kvs__rec_undo_bytes(const kvs_recurrent_spec *s, uint32_t interval, size_t *bytes)
{
    kvs__rec_plan with;
    kvs__rec_plan without;
    if (!measure(s, interval, &with) || !measure(s, 0, &without)) {
        return false;
    }
    *bytes = with.bytes - without.bytes;
    return true;
}

uint32_t kvs__rec_least(const kvs_recurrent_spec *s)
{
    uint32_t best = 0;
    size_t least = SIZE_MAX;
    for (uint32_t i = 1; i <= s->undo_tokens; i++) {
        size_t bytes = 0;
        if (kvs__rec_undo_bytes(s, i, &bytes) && bytes < least) {
            least = bytes;
            best = i;
        }
    }
    return best;
}

/* The smallest interval whose undo storage fits, 0: none. */
static uint32_t smallest(const kvs_recurrent_spec *s)
{
    uint32_t from = s->undo_interval ? s->undo_interval : 1;
    uint32_t to = s->undo_interval ? s->undo_interval : s->undo_tokens;
    for (uint32_t i = from; i <= to; i++) {
        size_t bytes = 0;
        if (kvs__rec_undo_bytes(s, i, &bytes) && bytes <= s->undo_bytes) {
            return i;
        }
    }
    return 0;
}

kvs_status kvs__rec_plan_of(const kvs_recurrent_spec *s, uint32_t layer, kvs__rec_plan *out,
                            kvs_err *err)
{
    uint32_t interval = s->undo_interval;
    if (s->undo_bytes > 0) {
        interval = smallest(s);
        if (interval == 0) {
            size_t least = 0;
            (void)kvs__rec_undo_bytes(s, kvs__rec_least(s), &least);
            return kvs__fail(
                err, KVS_E_LIMIT, "state",
                "layer %u: undo of %u tokens does not fit undo_bytes %llu; interval %u "
                "takes least, %zu",
                layer, s->undo_tokens, (unsigned long long)s->undo_bytes, kvs__rec_least(s), least);
        }
    } else if (s->undo_tokens > 0 && interval == 0) {
        interval = kvs__rec_least(s);
    }
    if (!measure(s, interval, out) || (s->undo_tokens > 0 && interval == 0)) {
        return kvs__fail(err, KVS_E_RANGE, "state",
                         "layer %u: its state overflows the address space", layer);
    }
    return KVS_OK;
}

size_t kvs__rec_signature(const kvs__rec *r, char *dst, size_t n)
{
    static const char *const types[] = {"f32", "f16", "bf16"};
    const kvs_recurrent_spec *s = &r->spec;
    int len = snprintf(dst, n, "recurrent %s heads=%u/%u dims=%u/%u conv=%ux%u:%s undo=%u/%u",
                       s->rule == KVS_RECURRENT_SSD ? "ssd" : "delta", s->n_heads, s->n_groups,
                       s->head_dim, s->state_dim, s->conv_taps, s->conv_dim, types[s->conv_dtype],
                       s->undo_tokens, r->plan.interval);
    return len < 0 ? 0 : (size_t)len;
}
