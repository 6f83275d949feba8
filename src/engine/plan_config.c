/* SPDX-License-Identifier: MIT */
/* plan_config.c: mlx-optiq's kv_config.json as a plan: a list of {"layer_idx", "bits",
 * "group_size"} (64 where it is left out); "layer" and "group", the names of mlx-bun, are read too.
 *
 * Storage is what those programs have for a bf16 model: listed layers affine and never rotated,
 * with scales in bf16, the others dense bf16. Members of any other name are refused: what they ask
 * for would be lost silently. */
#include <stdio.h>
#include <string.h>

#include "engine/json.h"
#include "engine/plan_parse.h"

#define FILE_LIMIT ((size_t)1 << 20)

typedef struct reader {
    kvs__plan_parser *ps;
    const char *path;
    bool *named; /* [n_layers] */
} reader;

typedef struct entry {
    int64_t layer, bits, group; /* -1: not given */
} entry;

static kvs_status bad(const reader *r, size_t i, kvs_err *err, const char *what)
{
    return kvs__fail(err, KVS_E_INVAL, "engine", "%.100s: entry %zu: %s", r->path, i, what);
}

static kvs_status read_entry(const reader *r, size_t i, kvs__jval v, entry *e, kvs_err *err)
{
    const struct {
        const char *name;
        int64_t *at;
    } fields[] = {{"layer_idx", &e->layer},
                  {"layer", &e->layer},
                  {"bits", &e->bits},
                  {"group_size", &e->group},
                  {"group", &e->group}};
    if (kvs__json_kind(v) != KVS__JSON_OBJECT) {
        return bad(r, i, err, "no object");
    }
    kvs__jval key = {NULL, 0};
    kvs__jval value = {NULL, 0};
    while (kvs__json_member(v, &key, &value)) {
        size_t f = 0;
        while (f < KVS_COUNT(fields) && !kvs__json_is(key, fields[f].name)) {
            f++;
        }
        if (f == KVS_COUNT(fields)) {
            kvs__str raw = kvs__json_raw(key);
            return kvs__fail(err, KVS_E_INVAL, "engine",
                             "%.100s: entry %zu: \"%.*s\" is none of layer_idx, bits, group_size",
                             r->path, i, (int)(raw.len < 40 ? raw.len : 40), raw.ptr);
        }
        if (*fields[f].at >= 0 || !kvs__json_int(value, fields[f].at) || *fields[f].at < 0) {
            char what[64];
            (void)snprintf(what, sizeof what, "%s is no whole number, or is given twice",
                           fields[f].name);
            return bad(r, i, err, what);
        }
    }
    return KVS_OK;
}

static kvs_status apply_entry(const reader *r, size_t i, const entry *e, kvs_err *err)
{
    char what[80];
    int64_t group = e->group < 0 ? 64 : e->group;
    if (e->layer < 0 || e->bits < 0) {
        return bad(r, i, err, e->layer < 0 ? "no layer_idx" : "no bits");
    }
    if (e->layer >= r->ps->n_layers || r->named[e->layer]) {
        (void)snprintf(what, sizeof what, "layer %lld of %u layers%s", (long long)e->layer,
                       r->ps->n_layers, e->layer < r->ps->n_layers ? ", a second time" : "");
        return bad(r, i, err, what);
    }
    bool bits = e->bits >= 2 && e->bits <= 8 && e->bits != 7;
    if (!bits || (group != 32 && group != 64 && group != 128)) {
        (void)snprintf(what, sizeof what, "%s %lld is none of %s", bits ? "group_size" : "bits",
                       (long long)(bits ? group : e->bits),
                       bits ? "32, 64, 128" : "2, 3, 4, 5, 6, 8");
        return bad(r, i, err, what);
    }
    kvs_codec c = KVS_CODEC_AFFINE((uint8_t)e->bits, (uint16_t)group, KVS_BF16);
    kvs_layer_spec *s = &r->ps->layers[e->layer];
    s->k = c;
    s->v = c;
    r->named[e->layer] = true;
    return KVS_OK;
}

static kvs_status read_list(const reader *r, const kvs__json *doc, kvs_err *err)
{
    kvs__jval root = kvs__json_root(doc);
    if (kvs__json_kind(root) != KVS__JSON_ARRAY) {
        return kvs__fail(err, KVS_E_INVAL, "engine", "%.100s: %s, not a list of layers", r->path,
                         kvs__json_kind_name(root));
    }
    const kvs_codec dense = KVS_CODEC_DENSE(KVS_BF16);
    for (uint32_t i = 0; i < r->ps->n_layers; i++) {
        r->ps->layers[i].k = dense;
        r->ps->layers[i].v = dense;
    }
    kvs__jval v = {NULL, 0};
    kvs_status st = KVS_OK;
    for (size_t i = 0; st == KVS_OK && kvs__json_next(root, &v); i++) {
        entry e = {-1, -1, -1};
        st = read_entry(r, i, v, &e, err);
        st = st == KVS_OK ? apply_entry(r, i, &e, err) : st;
    }
    return st;
}

kvs_status kvs__plan_parse_config(kvs__plan_parser *ps, const char *path, kvs_err *err)
{
    reader r = {ps, path, kvs__calloc(ps->ctx, ps->n_layers, sizeof *r.named)};
    kvs__json *doc = NULL;
    kvs_err e = {KVS_OK, 0, "", ""};
    if (!r.named) {
        return kvs__nomem(err, "engine", ps->n_layers);
    }
    kvs_status st = kvs__json_load(ps->ctx, path, FILE_LIMIT, &doc, &e);
    if (st != KVS_OK) {
        st = st == KVS_E_NOTFOUND ? KVS_E_IO : st == KVS_E_FORMAT ? KVS_E_INVAL : st;
        (void)kvs__fail(err, st, "engine", "%s", e.msg);
    } else {
        st = read_list(&r, doc, err);
    }
    kvs__json_free(doc);
    kvs__free(ps->ctx, r.named, ps->n_layers * sizeof *r.named);
    return st;
}
