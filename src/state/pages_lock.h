/* SPDX-License-Identifier: MIT */
/* pages_lock.h: the lock of a pool, for an index that serves caches of several threads (pages_priv.h,
 * Threads). Recursive; nothing else is waited for under it. */
#ifndef KVS_STATE_PAGES_LOCK_H
#define KVS_STATE_PAGES_LOCK_H

#include "kvstate/pages.h"

void kvs__pages_lock(kvs_pages *p);
void kvs__pages_unlock(kvs_pages *p);

#endif
