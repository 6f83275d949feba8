/* SPDX-License-Identifier: MIT */
/* pairs.h: what all tiers share of the exact products of codes and 16-bit numbers (numerics.md).
 *
 * The products of two elements are added at a time, so both factors come in pairs: u32 words of two
 * 16-bit numbers, low one first. Sums are exact, so which elements make a pair is the affair of who
 * unpacks codes: of keys, elements whose codes one mask cuts out of a word; of values, tokens that
 * follow one another. */
#ifndef KVS_KERN_PAIRS_H
#define KVS_KERN_PAIRS_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>

#define KVS__TOP16  32512.0f  /* the greatest 16-bit number in use */
#define KVS__TINY16 0x1p-100f /* below it all is 0 */

typedef struct kvs__pair_at {
    uint32_t lo;
    uint32_t hi;
} kvs__pair_at;

/* True where the codes of a word's pairs lie 16 bits apart. */
static inline int kvs__pair_in_word(uint32_t bits)
{
    return bits == 2 || bits == 4 || bits == 8;
}

/* The elements of pair number i of a row of keys. */
static inline kvs__pair_at kvs__pair_of(uint32_t bits, uint32_t i)
{
    if (kvs__pair_in_word(bits)) {
        uint32_t half = 16 / bits;
        uint32_t lo = i / half * 2 * half + i % half;
        return (kvs__pair_at){lo, lo + half};
    }
    return (kvs__pair_at){2 * i, 2 * i + 1};
}

static inline uint32_t kvs__pair(int32_t lo, int32_t hi)
{
    return ((uint32_t)lo & 0xffffu) | (uint32_t)hi << 16;
}

/* Of the greatest magnitude, given by its bits: factor to 16-bit numbers and back. */
typedef struct kvs__scale16 {
    float to;
    float step;
} kvs__scale16;

static inline kvs__scale16 kvs__scale16_of(uint32_t top_bits)
{
    float top = 0.0f;
    if (top_bits >= 0x7f800000u) {
        return (kvs__scale16){0.0f, NAN};
    }
    memcpy(&top, &top_bits, sizeof top);
    if (top < KVS__TINY16) {
        return (kvs__scale16){0.0f, 0.0f};
    }
    return (kvs__scale16){KVS__TOP16 / top, top / KVS__TOP16};
}

#endif
