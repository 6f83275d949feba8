/* SPDX-License-Identifier: MIT */
/* known.c: shared bytes and the digests of their chunks (known.h), in one allocation each. */
#include "store/known.h"

#include <string.h>

#include "base/base.h"

static size_t data_at(uint32_t n_known)
{
    return (sizeof(kvs__lent) + n_known * sizeof(kvs__known) + 63) / 64 * 64;
}

size_t kvs__lent_bytes(size_t bytes, uint32_t n_known)
{
    return data_at(n_known) + bytes;
}

kvs__lent *kvs__lent_new(kvs_ctx *ctx, size_t bytes, uint32_t n_known)
{
    size_t all = 0;
    if (!kvs__add_size(data_at(n_known), bytes, &all)) {
        return NULL;
    }
    kvs__lent *l = kvs__calloc(ctx, 1, all);
    if (l) {
        l->bytes = bytes;
        l->n_known = n_known;
        atomic_init(&l->refs, 1);
        l->data = (unsigned char *)l + data_at(n_known);
    }
    return l;
}

void kvs__lent_ref(kvs__lent *l)
{
    (void)atomic_fetch_add_explicit(&l->refs, 1, memory_order_relaxed);
}

void kvs__lent_unref(kvs_ctx *ctx, kvs__lent *l)
{
    if (l && atomic_fetch_sub_explicit(&l->refs, 1, memory_order_acq_rel) == 1) {
        kvs__free(ctx, l, kvs__lent_bytes(l->bytes, l->n_known));
    }
}

bool kvs__lent_own(kvs_ctx *ctx, kvs__lent **l)
{
    /* only the owner gives references, so a count of one stays one */
    if (atomic_load_explicit(&(*l)->refs, memory_order_acquire) == 1) {
        for (uint32_t i = 0; i < (*l)->n_known; i++) {
            (*l)->known[i].set = false;
        }
        return true;
    }
    kvs__lent *own = kvs__lent_new(ctx, (*l)->bytes, (*l)->n_known);
    if (!own) {
        return false;
    }
    if (own->bytes > 0) {
        memcpy(own->data, (*l)->data, own->bytes);
    }
    kvs__lent_unref(ctx, *l);
    *l = own;
    return true;
}
