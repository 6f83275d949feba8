/* SPDX-License-Identifier: MIT */
/* sha256.h: SHA-256 (FIPS 180-4), the content address of stored blocks, and XXH3, the quick check.
 *
 * Every implementation gives the same bits; the CPU's SHA instructions are used where they exist. */
#ifndef KVS_BASE_SHA256_H
#define KVS_BASE_SHA256_H

#include "base/base.h"

#define KVS__SHA_BYTES 32u

typedef struct kvs__sha256 {
    uint32_t h[8];
    uint64_t bytes; /* taken so far */
    uint8_t block[64];
} kvs__sha256;

void kvs__sha256_init(kvs__sha256 *s);
void kvs__sha256_add(kvs__sha256 *s, const void *data, size_t bytes);
void kvs__sha256_end(kvs__sha256 *s, uint8_t out[KVS__SHA_BYTES]);
void kvs__sha256_of(const void *data, size_t bytes, uint8_t out[KVS__SHA_BYTES]);
/* A u64 in front, little-endian, so that a list of fields has one reading only. */
void kvs__sha256_field(kvs__sha256 *s, const void *data, size_t bytes);

/* The two ways to take n blocks of 64 bytes; for tests. `fast` answers false where there is none. */
void kvs__sha256_blocks_plain(uint32_t h[8], const uint8_t *p, size_t n);
bool kvs__sha256_blocks_fast(uint32_t h[8], const uint8_t *p, size_t n);

/* XXH3 of 64 bits, seed 0, and of 128 bits as two words {low, high}. */
uint64_t kvs__xxh3(const void *data, size_t bytes);
void kvs__xxh3_128(const void *data, size_t bytes, uint64_t seed, uint64_t out[2]);

#endif
