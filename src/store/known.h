/* SPDX-License-Identifier: MIT */
/* known.h: what a save has learned of bytes that don't change, so that the next one need neither lay
 * them out nor hash them.
 *
 * A kvs__known is the digests of one chunk. It lives with the bytes: whoever holds them drops it when
 * they change (history_priv.h). It says nothing about any directory: the store looks its block up,
 * and where there is none, or it is bad, asks for the bytes as if nothing were known.
 *
 * I1  A known that is set has the digests of the bytes it was made for, or of a stored block from
 *     which they were read.
 * I2  While a save that was given it is queued or under way, a known is touched by the store alone (by
 *     the thread that has the role, and those that hash for it); else by its owner. */
#ifndef KVS_STORE_KNOWN_H
#define KVS_STORE_KNOWN_H

#include <stdatomic.h>

#include "base/sha256.h"
#include "kvstate/store.h"

typedef struct kvs__known {
    uint64_t xxh;
    uint8_t sha[KVS__SHA_BYTES];
    bool set;
} kvs__known;

/* Bytes with what is known of their chunks. Notes and saves under way share them; they are written
 * to by their owner, and not while anybody else has them. May have no bytes. */
typedef struct kvs__lent {
    size_t bytes;
    uint32_t n_known;
    atomic_uint refs;
    unsigned char *data;
    kvs__known known[];
} kvs__lent;

size_t kvs__lent_bytes(size_t bytes, uint32_t n_known); /* that one takes */
/* Zeros, nothing known, one reference; NULL without memory. */
kvs__lent *kvs__lent_new(kvs_ctx *ctx, size_t bytes, uint32_t n_known);
void kvs__lent_ref(kvs__lent *l);
void kvs__lent_unref(kvs_ctx *ctx, kvs__lent *l); /* from any thread */
/* Makes it fit to be written to: *l is a copy where others have it, too, and knows nothing. False
 * without memory, *l as it was. */
bool kvs__lent_own(kvs_ctx *ctx, kvs__lent **l);

/* kvs_store_put with a kvs__known (or NULL) for each chunk of all parts; they stay until `done`, as
 * what is lent with KVS_PUT_BORROW, which flags must have. known NULL: none. */
kvs_status kvs__store_put_known(kvs_store *s, const kvs_store_key *key, const kvs_store_part *parts,
                                size_t n_parts, const kvs_store_put_opts *opts,
                                kvs__known *const *known, kvs_err *err);
/* What the entry says of the chunk of `bytes` bytes at `at` of a part; false: there is no such one. */
bool kvs__store_known(kvs_store *s, kvs_entry entry, size_t part, uint64_t at, uint64_t bytes,
                      kvs__known *out);

#endif
