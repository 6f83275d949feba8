/* SPDX-License-Identifier: MIT */
/* prefix_part.h: a prefix index whose entries hold the state of two models of the same tokens: the one
 * that is asked for text, and one that drafts for it.
 *
 * An entry is one: it is kept and evicted, waits and counts under the budget with both states. Each may
 * be missing, so that a lookup of one part finds what can be resumed from of that part, maybe less than of
 * the other; in a block that agrees in part alone maybe nothing of that block, where the texts that come
 * nearest lack the part. Nothing of the draft part counts as a use: the request that it belongs to has counted. */
#ifndef KVS_STORE_PREFIX_PART_H
#define KVS_STORE_PREFIX_PART_H

#include "kvstate/prefix.h"

enum { KVS__PART_MAIN = 0, KVS__PART_DRAFT = 1 };
#define KVS__PARTS 2

/* As kvs_prefix_new; `draft` (NULL: none) is an empty cache of the draft part, of the same pool. */
kvs_status kvs__prefix_new_pair(kvs_ctx *ctx, const kvs_cache *like, const kvs_cache *draft,
                                const kvs_prefix_opts *opts, kvs_prefix **out, kvs_err *err);
/* As kvs_prefix_publish and kvs_prefix_lookup, of a part; both have the same key. The draft part has no
 * session and no priority. */
kvs_status kvs__prefix_publish_part(kvs_prefix *ix, uint32_t part, const kvs_prefix_key *key,
                                    const kvs_cache *cache, const kvs_prefix_publish_opts *opts,
                                    size_t *n_stored, kvs_err *err);
kvs_status kvs__prefix_lookup_part(kvs_prefix *ix, uint32_t part, const kvs_prefix_key *key,
                                   size_t min_tokens, kvs_lease **out, kvs_prefix_hit *hit,
                                   kvs_err *err);

#endif
