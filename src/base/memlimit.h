/* SPDX-License-Identifier: MIT */
/* memlimit.h: kvs_memory_limit with another root of the file system, for tests. */
#ifndef KVS_BASE_MEMLIMIT_H
#define KVS_BASE_MEMLIMIT_H

#include <stdint.h>

uint64_t kvs__memory_limit(const char *root);

#endif
