/* SPDX-License-Identifier: MIT */
/* answer.c: answers under way (kvstate/persist.h): entries of their own kind and namespace, whose ids
 * are the prompt's and whose one part is a seed and the ids picked so far. */
#include <string.h>

#include "base/sha256.h"
#include "engine/persist.h"
#include "store/history.h"

#define NS       "answer-1:"
#define NS_BYTES (sizeof NS - 1 + 32)
#define HEAD     16u /* seed, number of ids */

static void put_u64(unsigned char *p, uint64_t x)
{
    for (int i = 0; i < 8; i++) {
        p[i] = (unsigned char)(x >> 8 * i);
    }
}

static uint64_t get_u64(const unsigned char *p)
{
    uint64_t x = 0;
    for (int i = 0; i < 8; i++) {
        x |= (uint64_t)p[i] << 8 * i;
    }
    return x;
}

static kvs_status open_answer(kvs_session *s, const kvs_answer *in, kvs_answer *a, uint8_t *ns,
                              kvs_store_key *key, kvs_store **store, kvs_err *err)
{
    if (!s || !in) {
        return kvs__fail(err, KVS_E_INVAL, "engine", "session or answer is NULL");
    }
    kvs_status st = kvs__opts_read(a, sizeof *a, in, "kvs_answer", err);
    if (st != KVS_OK) {
        return st;
    }
    if ((!a->prompt && a->n_prompt > 0) || (!a->ids && a->n_ids > 0)) {
        return kvs__fail(err, KVS_E_INVAL, "engine", "%s is NULL", a->prompt ? "ids" : "prompt");
    }
    const uint8_t *identity = NULL;
    *store = kvs__persist_store(kvs__session_persist(s), &identity);
    memcpy(ns, NS, sizeof NS - 1);
    kvs__sha256_of(a->request.data, a->request.bytes, ns + sizeof NS - 1);
    *key = (kvs_store_key){identity, ns, NS_BYTES, a->prompt, a->n_prompt};
    return *store ? KVS_OK : KVS_NO;
}

kvs_status kvs_session_put_answer(kvs_session *s, const kvs_answer *answer, kvs_err *err)
{
    kvs_answer a = KVS_ANSWER_INIT;
    uint8_t ns[NS_BYTES];
    kvs_store_key key;
    kvs_store *store = NULL;
    kvs_status st = open_answer(s, answer, &a, ns, &key, &store, err);
    if (st != KVS_OK) {
        return st;
    }
    unsigned char head[HEAD];
    put_u64(head, a.seed);
    put_u64(head + 8, a.n_ids);
    kvs_store_part parts[2] = {{"answer", 0, -1, HEAD, head, 0, 0, NULL, NULL},
                               {"ids", 0, -1, a.n_ids * sizeof *a.ids, a.ids, 0, 0, NULL, NULL}};
    kvs_store_put_opts o = KVS_STORE_PUT_OPTS_INIT;
    o.kind = KVS__PROGRESS_KIND;
    return kvs_store_put(store, &key, parts, 2, &o, err);
}

static kvs_status find(kvs_store *store, const kvs_store_key *key, kvs_entry *entry, kvs_err *err)
{
    kvs_store_query q = KVS_STORE_QUERY_INIT;
    kvs_store_hit hit = KVS_STORE_HIT_INIT;
    q.mode = KVS_FIND_EXACT;
    q.kinds = 1u << KVS__PROGRESS_KIND;
    kvs_status st = kvs_store_find(store, key, &q, &hit, err);
    *entry = hit.entry;
    return st;
}

static kvs_status read_answer(kvs_store *store, kvs_entry entry, kvs_answer *a, int32_t *ids,
                              size_t cap, size_t *n, kvs_err *err)
{
    unsigned char head[HEAD];
    kvs_store_part part[2];
    memset(part, 0, sizeof part);
    for (size_t i = 0; i < 2; i++) {
        if (kvs_store_entry_part(store, entry, i, &part[i]) != KVS_OK) {
            return KVS_NO;
        }
    }
    kvs_store_buf buf = {0, 0, HEAD, head};
    if (part[0].bytes != HEAD || part[1].bytes % sizeof *ids != 0) {
        return KVS_NO;
    }
    kvs_status st = kvs_store_get(store, entry, &buf, 1, err);
    size_t have = (size_t)(part[1].bytes / sizeof *ids);
    if (st != KVS_OK || get_u64(head + 8) != have) {
        return st != KVS_OK ? st : KVS_NO;
    }
    size_t take = have < cap ? have : cap;
    buf = (kvs_store_buf){1, 0, take * sizeof *ids, ids};
    st = take > 0 ? kvs_store_get(store, entry, &buf, 1, err) : KVS_OK;
    if (st == KVS_OK) {
        a->seed = get_u64(head);
        a->ids = ids;
        a->n_ids = take;
        *n = have;
    }
    return st;
}

kvs_status kvs_session_find_answer(kvs_session *s, kvs_answer *answer, int32_t *ids, size_t cap,
                                   size_t *n, kvs_err *err)
{
    kvs_answer a = KVS_ANSWER_INIT;
    uint8_t ns[NS_BYTES];
    kvs_store_key key;
    kvs_store *store = NULL;
    kvs_entry entry = 0;
    if (!n || (!ids && cap > 0)) {
        return kvs__fail(err, KVS_E_INVAL, "engine", "%s is NULL", n ? "ids" : "n");
    }
    *n = 0;
    kvs_status st = open_answer(s, answer, &a, ns, &key, &store, err);
    st = st == KVS_OK ? find(store, &key, &entry, err) : st;
    if (st != KVS_OK) {
        return st;
    }
    st = read_answer(store, entry, &a, ids, cap, n, err);
    (void)kvs_store_unpin(store, entry);
    if (st == KVS_OK) {
        answer->seed = a.seed;
        answer->ids = ids;
        answer->n_ids = a.n_ids;
    }
    return st;
}

kvs_status kvs_session_drop_answer(kvs_session *s, const kvs_answer *answer, kvs_err *err)
{
    kvs_answer a = KVS_ANSWER_INIT;
    uint8_t ns[NS_BYTES];
    kvs_store_key key;
    kvs_store *store = NULL;
    kvs_entry entry = 0;
    kvs_status st = open_answer(s, answer, &a, ns, &key, &store, err);
    if (st != KVS_OK) {
        return st;
    }
    (void)kvs_store_flush(store, NULL); /* none that is queued may come after */
    st = find(store, &key, &entry, err);
    if (st == KVS_OK) {
        (void)kvs_store_unpin(store, entry);
        st = kvs_store_remove(store, entry, err);
    }
    return st;
}
