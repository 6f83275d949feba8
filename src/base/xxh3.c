/* SPDX-License-Identifier: MIT */
/* xxh3.c: the one file that takes xxHash in, inline, so that nothing is linked and no symbol of it
 * is exported. What it computes is fixed by the XXH3 specification, not by the version. */
#define XXH_INLINE_ALL
#define XXH_NO_STREAM
#include <xxhash.h>

#include "base/sha256.h"

uint64_t kvs__xxh3(const void *data, size_t bytes)
{
    return XXH3_64bits(data, bytes);
}

void kvs__xxh3_128(const void *data, size_t bytes, uint64_t seed, uint64_t out[2])
{
    XXH128_hash_t h = XXH3_128bits_withSeed(data, bytes, seed);
    out[0] = h.low64;
    out[1] = h.high64;
}
