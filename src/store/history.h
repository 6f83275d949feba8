/* SPDX-License-Identifier: MIT */
/* history.h: the state of a cache as bytes that outlive it: saved to a store, read back, and, for
 * layers that drop old tokens, noted in memory while they are still there.
 *
 * State is cut into blocks of 256 positions on the grid of absolute positions. A block holds the
 * stored planes of its positions as kvs_cache_export writes them, each plane from a multiple of 8
 * bytes on. So the form depends on codecs and geometry alone, not on the layout, and equal prefixes
 * have equal blocks, which the store keeps once.
 *
 * Which blocks of a window layer are kept (those of full layers all are): with n tokens seen, the
 * newest window + max_block, and what a query after position c needs, for each checkpoint c: a
 * multiple of S(c), S(c) = 256 up to 4095, then doubled each time c doubles, so that S(c) <= max(256,
 * c / 8). Going back to any token t thus computes at most max(256, t / 8) tokens again. The cost for
 * a window of W tokens of b bytes: all blocks up to 8 W tokens (at least 2048), then at most 8 (W +
 * 512) b for each doubling of n. Where max_bytes don't suffice, S doubles until they do.
 *
 * Recurrent layers have snapshots instead, all of them at the same positions: at the same
 * checkpoints, and at marks, which the caller sets where the next turn will need one. They are
 * given up last of all that is noted of them. An entry holds them beside the state at its end. */
#ifndef KVS_STORE_HISTORY_H
#define KVS_STORE_HISTORY_H

#include "base/base.h"
#include "kvstate/cache.h"
#include "kvstate/store.h"

#define KVS__HISTORY_BLOCK 256
#define KVS__STATE_KIND    0u /* of entries with state */
#define KVS__PROGRESS_KIND 1u /* of entries with an answer under way */

typedef struct kvs__history kvs__history;

/* For one cache, which must outlive it. max_bytes: of notes. */
kvs_status kvs__history_new(kvs_ctx *ctx, kvs_cache *cache, size_t max_bytes, kvs__history **out,
                            kvs_err *err);
void kvs__history_free(kvs__history *h); /* NULL is fine */

/* To be called before an append of n tokens, after it with n = 0: notes what layers may drop. Where
 * memory is short notes are given up; nothing else suffers. */
void kvs__history_note(kvs__history *h, uint32_t n);
/* A snapshot of recurrent layers after n tokens is worth having, now or once they are there. The newest
 * four count. */
void kvs__history_mark(kvs__history *h, uint64_t n);
/* How many of the next n tokens behind the first `at` may be appended at once so that no snapshot is
 * missed: n where layers can go back to it afterwards. */
uint32_t kvs__history_step(const kvs__history *h, uint64_t at, uint32_t n);
/* The most tokens, at most n, that the cache can be taken back to, by itself or with the notes. */
uint64_t kvs__history_reach(const kvs__history *h, uint64_t n);
/* Takes it there. After a failure the cache must be cleared. */
kvs_status kvs__history_back(kvs__history *h, uint64_t n, kvs_err *err);
size_t kvs__history_bytes(const kvs__history *h);

/* Everything that an entry needs. `len`: tokens; `bytes`: of all parts. Layers that keep all tokens
 * are pinned, which takes no memory but where the cache goes back and on otherwise, and their parts
 * are made as they are asked for. Whole blocks of the notes and snapshots are lent. The rest is copied:
 * where blocks of windows begin and end, recurrent state at the end. What the last saves learned of
 * chunks that did not change since is in `known` (known.h), so that they are neither made nor hashed. */
typedef struct kvs__saved {
    kvs_ctx *ctx;
    uint64_t len;
    size_t bytes;
    uint32_t n_parts;
    kvs_store_part *parts;
    unsigned char *data; /* the table, and what is copied */
    size_t data_bytes;
    struct kvs__known **known; /* [n_chunks], of all parts; NULL: of none */
    uint32_t n_chunks;
    const unsigned char **blocks; /* of parts whose blocks lie apart */
    struct kvs__saved_apart *apart;
    struct kvs__lent **held;
    size_t cap_blocks, n_held, cap_held;
    uint32_t n_apart, cap_apart;
    struct kvs__saved_pin *pins;
    uint32_t n_pins, cap_pins;
} kvs__saved;
/* KVS_E_LIMIT: more than max_bytes. */
kvs_status kvs__history_copy(kvs__history *h, uint64_t max_bytes, kvs__saved *out, kvs_err *err);
/* Gives back what is copied or lent, from any thread, when the parts are no longer needed. */
void kvs__saved_done(kvs__saved *s);
/* And the pins: on the thread of the cache. */
void kvs__saved_free(kvs__saved *s);

/* Fills the cache, which is empty and whose notes were cleared, with the first *n tokens or fewer
 * of a pinned entry: with as many as every layer can prove; *n says how many. KVS_NO: none, err
 * (never NULL here) says why. After another status the cache must be cleared. On success the pin is
 * taken over: later copies complete their notes from the entry. */
kvs_status kvs__history_restore(kvs__history *h, kvs_store *store, kvs_entry entry, uint64_t *n,
                                kvs_err *err);
/* The most tokens, at most *n, that it could restore; changes nothing. KVS_NO: none. */
kvs_status kvs__history_probe(kvs__history *h, kvs_store *store, kvs_entry entry, uint64_t *n,
                              kvs_err *err);
/* The cache was cleared. */
void kvs__history_clear(kvs__history *h);
/* Lets go of the entry. */
void kvs__history_forget(kvs__history *h);

#endif
