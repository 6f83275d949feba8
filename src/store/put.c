/* SPDX-License-Identifier: MIT */
/* put.c: the front of a save: checks, copies into the queue, back-pressure, flush.
 *
 * The queue is bounded in bytes and items. What is copied or lent is counted until it is durable or
 * given up, not until its write begins; a durable put waits in the same queue, so that the order of
 * puts of one key is the order of the calls. */
#include <stdio.h>
#include <string.h>

#include "store/kvstore.h"

static kvs_status check_part(const kvs_store_part *p, size_t i, kvs_err *err)
{
    if (!memchr(p->name, '\0', sizeof p->name)) {
        return kvs__fail(err, KVS_E_INVAL, "store", "the name of part %zu does not end", i);
    }
    if (!p->data && !p->fill && p->bytes > 0) {
        return kvs__fail(err, KVS_E_INVAL, "store", "part %zu (%s) has no data", i, p->name);
    }
    if (p->data && p->fill) {
        return kvs__fail(err, KVS_E_INVAL, "store", "part %zu (%s) has data and fill", i, p->name);
    }
    if (p->reserved != 0 || p->chunk_bytes > KVS_STORE_CHUNK_MAX) {
        return kvs__fail(err, KVS_E_RANGE, "store", "part %zu (%s): chunk_bytes %u is above %u", i,
                         p->name, p->chunk_bytes, KVS_STORE_CHUNK_MAX);
    }
    return KVS_OK;
}

static kvs_status check_key(const kvs_store_key *key, kvs_err *err)
{
    if (!key || !key->identity || (!key->ids && key->n_ids > 0) ||
        (!key->ns && key->ns_bytes > 0)) {
        return kvs__fail(err, KVS_E_INVAL, "store", "the key lacks identity, namespace or ids");
    }
    if (key->ns_bytes > KVS_STORE_NS_MAX || key->n_ids > KVS_STORE_IDS_MAX) {
        return kvs__fail(err, KVS_E_RANGE, "store", "a key of %zu bytes and %zu ids is too long",
                         key->ns_bytes, key->n_ids);
    }
    return KVS_OK;
}

/* Sizes of the entry; the head but for its time. */
static kvs_status measure(const kvs_store_key *key, const kvs_store_part *parts, size_t n,
                          const kvs_store_put_opts *o, kvs__entry_head *h, kvs_err *err)
{
    if (n > KVS_STORE_PARTS_MAX || o->kind > 31) {
        return kvs__fail(err, KVS_E_RANGE, "store", "%zu parts, kind %u: at most %u and 31", n,
                         o->kind, KVS_STORE_PARTS_MAX);
    }
    uint64_t chunks = 0;
    for (size_t i = 0; i < n; i++) {
        kvs_status st = check_part(&parts[i], i, err);
        if (st != KVS_OK) {
            return st;
        }
        uint32_t each = parts[i].chunk_bytes ? parts[i].chunk_bytes : KVS_STORE_CHUNK;
        chunks += kvs__chunk_count(parts[i].bytes, each);
        if (__builtin_add_overflow(h->data_bytes, parts[i].bytes, &h->data_bytes) ||
            chunks > KVS__BLOCKS_MAX || h->data_bytes > SIZE_MAX / 2) {
            return kvs__fail(err, KVS_E_LIMIT, "store", "the parts are too large or too many");
        }
    }
    h->ns_bytes = (uint32_t)key->ns_bytes;
    h->n_ids = (uint32_t)key->n_ids;
    h->n_parts = (uint32_t)n;
    h->n_chunks = (uint32_t)chunks;
    h->cost = o->cost;
    h->kind = o->kind;
    h->flags = o->entry_flags;
    h->priority = o->priority;
    memcpy(h->identity, key->identity, 32);
    kvs__key_digest(key, h->key);
    size_t file = 0;
    if (!kvs__entry_bytes(h, &file)) {
        return kvs__fail(err, KVS_E_LIMIT, "store", "the entry's file would be too large");
    }
    h->file_bytes = file;
    return KVS_OK;
}

/* Lays a part out at `to`. */
static void copy_part(const kvs_store_part *from, const kvs__part *p, char *to)
{
    for (uint32_t k = 0; k < p->n_chunks; k++) {
        size_t at = (size_t)k * p->chunk_bytes;
        size_t bytes = (size_t)kvs__chunk_size(p, k);
        if (from->data) {
            memcpy(to + at, (const char *)from->data + at, bytes);
        } else {
            from->fill(from->fill_user, at, bytes, to + at);
        }
    }
}

static void fill_item(kvs__item *it, const kvs_store_key *key, const kvs_store_part *parts)
{
    uint32_t chunk = 0;
    char *to = it->copy;
    if (key->n_ids > 0) {
        memcpy(it->ids, key->ids, key->n_ids * sizeof *it->ids);
    }
    if (key->ns_bytes > 0) {
        memcpy(it->ns, key->ns, key->ns_bytes);
    }
    for (uint32_t i = 0; i < it->head.n_parts; i++) {
        kvs__part *p = &it->parts[i];
        memset(p, 0, sizeof *p);
        (void)snprintf(p->name, sizeof p->name, "%s", parts[i].name);
        p->kind = parts[i].kind;
        p->layer = parts[i].layer;
        p->bytes = parts[i].bytes;
        p->chunk_bytes = parts[i].chunk_bytes ? parts[i].chunk_bytes : KVS_STORE_CHUNK;
        p->n_chunks = kvs__chunk_count(p->bytes, p->chunk_bytes);
        p->first_chunk = chunk;
        chunk += p->n_chunks;
        it->data[i] = parts[i].data;
        it->source[i] = (kvs__source){parts[i].fill, parts[i].fill_user};
        if (to && p->bytes > 0) {
            copy_part(&parts[i], p, to);
            it->data[i] = to;
            to += p->bytes;
        }
    }
}

static kvs__item *new_item(kvs_store *s, const kvs__entry_head *head, bool copies, kvs_err *err)
{
    size_t at_data = (sizeof(kvs__item) + 15) / 16 * 16;
    size_t at_source = at_data + head->n_parts * sizeof(void *);
    size_t at_parts = at_source + head->n_parts * sizeof(kvs__source);
    size_t at_ids = at_parts + head->n_parts * sizeof(kvs__part);
    size_t at_ns = at_ids + (size_t)head->n_ids * sizeof(int32_t);
    size_t bytes = at_ns + head->ns_bytes;
    char *p = kvs__alloc(s->ctx, bytes);
    if (!p) {
        (void)kvs__nomem(err, "store", bytes);
        return NULL;
    }
    kvs__item *it = (kvs__item *)(void *)p;
    memset(it, 0, sizeof *it);
    it->head = *head;
    it->alloc_bytes = bytes;
    it->data = (const void **)(void *)(p + at_data);
    it->source = (kvs__source *)(void *)(p + at_source);
    it->parts = (kvs__part *)(void *)(p + at_parts);
    it->ids = (int32_t *)(void *)(p + at_ids);
    it->ns = (uint8_t *)p + at_ns;
    if (copies) {
        it->copy_bytes = (size_t)head->data_bytes;
        it->copy = kvs__alloc(s->ctx, it->copy_bytes);
        if (!it->copy) {
            (void)kvs__nomem(err, "store", it->copy_bytes);
            it->copy_bytes = 0;
            kvs__item_free(s, it);
            return NULL;
        }
    }
    return it;
}

/* `lock` held. */
static bool has_room(const kvs_store *s, size_t bytes)
{
    return s->stats.queued_items == 0 || (s->stats.queued_items < s->opts.max_queue_items &&
                                          s->stats.queued_bytes + bytes <= s->opts.max_queue_bytes);
}

/* Takes a place in the queue; KVS_NO: there is none. */
static kvs_status take_place(kvs_store *s, size_t bytes, bool waits)
{
    kvs_status st = KVS_OK;
    (void)pthread_mutex_lock(&s->lock);
    while (!has_room(s, bytes) && waits) {
        (void)pthread_cond_wait(&s->changed, &s->lock);
    }
    if (has_room(s, bytes)) {
        s->stats.queued_items++;
        s->stats.queued_bytes += bytes;
    } else {
        s->stats.refused++;
        st = KVS_NO;
    }
    (void)pthread_mutex_unlock(&s->lock);
    return st;
}

static void leave_place(kvs_store *s, size_t bytes)
{
    (void)pthread_mutex_lock(&s->lock);
    s->stats.queued_items--;
    s->stats.queued_bytes -= bytes;
    (void)pthread_cond_broadcast(&s->changed);
    (void)pthread_mutex_unlock(&s->lock);
}

static void enqueue(kvs_store *s, kvs__item *it)
{
    (void)pthread_mutex_lock(&s->lock);
    if (s->put_tail) {
        s->put_tail->next = it;
    } else {
        s->put_head = it;
    }
    s->put_tail = it;
    (void)pthread_cond_broadcast(&s->changed);
    while (it->waits && !it->finished) {
        (void)pthread_cond_wait(&s->changed, &s->lock);
    }
    (void)pthread_mutex_unlock(&s->lock);
}

/* Runs or queues an item that has a place; the item is gone afterwards. */
static kvs_status hand_over(kvs_store *s, kvs__item *it, kvs_err *err)
{
    if (s->has_writer && !it->waits) {
        enqueue(s, it);
        return KVS_OK;
    }
    if (s->has_writer) {
        enqueue(s, it);
    } else {
        kvs__item_run(s, it);
        leave_place(s, it->queue_bytes);
    }
    kvs_status st = it->status;
    if (st != KVS_OK && err) {
        *err = it->err;
    }
    kvs__item_free(s, it);
    return st;
}

kvs_status kvs_store_put(kvs_store *s, const kvs_store_key *key, const kvs_store_part *parts,
                         size_t n_parts, const kvs_store_put_opts *opts, kvs_err *err)
{
    return kvs__store_put_known(s, key, parts, n_parts, opts, NULL, err);
}

kvs_status kvs__store_put_known(kvs_store *s, const kvs_store_key *key, const kvs_store_part *parts,
                                size_t n_parts, const kvs_store_put_opts *opts,
                                kvs__known *const *known, kvs_err *err)
{
    kvs_store_put_opts o = KVS_STORE_PUT_OPTS_INIT;
    kvs__entry_head head;
    memset(&head, 0, sizeof head);
    if (!s || (!parts && n_parts > 0)) {
        return kvs__fail(err, KVS_E_INVAL, "store", "store or parts is NULL");
    }
    kvs_status st = check_key(key, err);
    if (st == KVS_OK && opts) {
        st = kvs__opts_read(&o, sizeof o, opts, "kvs_store_put_opts", err);
    }
    if (st == KVS_OK) {
        st = measure(key, parts, n_parts, &o, &head, err);
    }
    if (st != KVS_OK) {
        return st;
    }
    if (s->read_only) {
        return kvs__fail(err, KVS_E_STATE, "store", "'%.120s' is open read-only", s->dir);
    }
    uint64_t whole = head.data_bytes + head.file_bytes;
    (void)pthread_mutex_lock(&s->lock);
    uint64_t max = s->opts.max_bytes;
    s->stats.refused += max > 0 && whole > max;
    (void)pthread_mutex_unlock(&s->lock);
    if (max > 0 && whole > max) {
        return kvs__fail(err, KVS_E_LIMIT, "store",
                         "an entry of %llu bytes is larger than the limit of %llu",
                         (unsigned long long)whole, (unsigned long long)max);
    }
    bool durable = (o.flags & KVS_PUT_DURABLE) != 0 || !s->has_writer;
    bool copies = !durable && !(o.flags & KVS_PUT_BORROW);
    size_t queue_bytes = durable ? 0 : (size_t)head.data_bytes;
    st = take_place(s, queue_bytes, durable || (o.flags & KVS_PUT_WAIT));
    if (st != KVS_OK) {
        return st;
    }
    kvs__item *it = new_item(s, &head, copies, err);
    if (!it) {
        leave_place(s, queue_bytes);
        return KVS_E_NOMEM;
    }
    it->queue_bytes = queue_bytes;
    fill_item(it, key, parts);
    it->waits = durable;
    it->known = copies ? NULL : known;
    it->done = o.done;
    it->done_user = o.done_user;
    return hand_over(s, it, err);
}

kvs_status kvs_store_flush(kvs_store *s, kvs_err *err)
{
    if (!s) {
        return kvs__fail(err, KVS_E_INVAL, "store", "store is NULL");
    }
    (void)pthread_mutex_lock(&s->lock);
    while (s->stats.queued_items > 0) {
        (void)pthread_cond_wait(&s->changed, &s->lock);
    }
    uint64_t unsaved = s->unsaved;
    kvs_status st = s->unsaved_status;
    char why[sizeof s->unsaved_reason];
    memcpy(why, s->unsaved_reason, sizeof why);
    s->unsaved = 0;
    s->unsaved_status = KVS_OK;
    (void)pthread_mutex_unlock(&s->lock);
    if (!s->read_only) {
        (void)pthread_mutex_lock(&s->role);
        (void)kvs__uses_write(s); /* hints: their loss is no failure */
        (void)pthread_mutex_unlock(&s->role);
    }
    return unsaved == 0 ? KVS_OK
                        : kvs__fail(err, st, "store", "%llu entries were not saved: %.150s",
                                    (unsigned long long)unsaved, why);
}
