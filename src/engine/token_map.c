/* SPDX-License-Identifier: MIT */
/* token_map.c: text -> token id, one open-addressing table over all texts of the vocabulary.
 *
 * I1  At most half of the slots are taken, and no text is more than PROBE_MAX slots from its home.
 * I2  Of several tokens with one text the lowest id is in the table.
 *
 * A slot keeps what bits of the hash fit, so a probe that passes other texts rarely looks at their
 * bytes (which lie in the mapped file). Building allocates once whatever the vocabulary's size. A
 * file made to collide is refused by I1 instead of taking quadratic time.
 */
#include <string.h>

#include "engine/token.h"

#define PROBE_MAX 1024u
#define HASH_MUL  0x9e3779b97f4a7c15u

static uint64_t mix(uint64_t h, uint64_t v)
{
    h = (h ^ v) * HASH_MUL;
    return h ^ (h >> 29);
}

static uint64_t load32(const char *p)
{
    uint32_t v = 0;
    memcpy(&v, p, sizeof v);
    return v;
}

static uint64_t load64(const char *p)
{
    uint64_t v = 0;
    memcpy(&v, p, sizeof v);
    return v;
}

/* The last chunk overlaps the one before where it can: no byte loop for the usual lengths. */
uint64_t kvs__token_hash(const char *text, size_t len)
{
    uint64_t h = (uint64_t)len * HASH_MUL;
    size_t i = 0;
    for (; i + 8 <= len; i += 8) {
        h = mix(h, load64(text + i));
    }
    size_t rest = len - i;
    if (rest >= 4) {
        h = mix(h, load32(text + i) | load32(text + len - 4) << 32);
    } else if (rest > 0) {
        const unsigned char *p = (const unsigned char *)text + i;
        h = mix(h, (uint64_t)p[0] | (uint64_t)p[rest / 2] << 8 | (uint64_t)p[rest - 1] << 16);
    }
    h *= HASH_MUL;
    return h ^ (h >> 32);
}

/* Slot of a text, or the free slot where it belongs; n_slots if it is too far from home. */
static size_t locate(const kvs_tokenizer *tok, const char *text, size_t len, uint64_t hash)
{
    const kvs__token_map *map = &tok->map;
    size_t at = (size_t)hash & (map->n_slots - 1);
    const uint32_t tag = (uint32_t)(hash >> 32) >> map->id_bits;
    const uint32_t id_mask = ((uint32_t)1 << map->id_bits) - 1;
    for (unsigned probe = 0; probe < PROBE_MAX; probe++) {
        const uint32_t slot = map->slots[at];
        if (slot == 0) {
            return at;
        }
        if (slot >> map->id_bits == tag) {
            const kvs__token_entry *e = &tok->entries[(slot & id_mask) - 1];
            if (e->len == len && memcmp(e->ptr, text, len) == 0) {
                return at;
            }
        }
        at = (at + 1) & (map->n_slots - 1);
    }
    return map->n_slots;
}

int32_t kvs__token_map_find(const kvs_tokenizer *tok, const char *text, size_t len)
{
    if (len > UINT32_MAX) {
        return -1;
    }
    size_t at = locate(tok, text, len, kvs__token_hash(text, len));
    if (at == tok->map.n_slots || tok->map.slots[at] == 0) {
        return -1;
    }
    const uint32_t id_mask = ((uint32_t)1 << tok->map.id_bits) - 1;
    return (int32_t)((tok->map.slots[at] & id_mask) - 1);
}

kvs_status kvs__token_map_build(kvs_tokenizer *tok, kvs_err *err)
{
    size_t n_slots = 16;
    while (n_slots < tok->n_tokens * 2) {
        n_slots *= 2;
    }
    tok->map.slots = kvs__calloc(tok->ctx, n_slots, sizeof *tok->map.slots);
    if (!tok->map.slots) {
        return kvs__nomem(err, "engine", n_slots * sizeof *tok->map.slots);
    }
    tok->map.n_slots = n_slots;
    while (tok->n_tokens >> tok->map.id_bits != 0) { /* ids + 1 are at most n_tokens < 2^31 */
        tok->map.id_bits++;
    }
    for (size_t i = 0; i < tok->n_tokens; i++) {
        const kvs__token_entry *e = &tok->entries[i];
        uint64_t hash = kvs__token_hash(e->ptr, e->len);
        size_t at = locate(tok, e->ptr, e->len, hash);
        if (at == n_slots) {
            return kvs__fail(err, KVS_E_FORMAT, "engine",
                             "vocabulary texts collide at token %zu; the file is not genuine", i);
        }
        if (tok->map.slots[at] == 0) {
            tok->map.slots[at] =
                (uint32_t)(hash >> 32) >> tok->map.id_bits << tok->map.id_bits | (uint32_t)(i + 1);
        }
    }
    return KVS_OK;
}
