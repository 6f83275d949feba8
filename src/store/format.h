/* SPDX-License-Identifier: MIT */
/* format.h: entry files and segment files as bytes (docs/format.md is the specification).
 *
 * Pure functions over memory: they allocate nothing, trust nothing that they parse, and know no
 * file. Numbers are little-endian. */
#ifndef KVS_STORE_FORMAT_H
#define KVS_STORE_FORMAT_H

#include "base/base.h"
#include "base/sha256.h"
#include "kvstate/store.h"

#define KVS__ENTRY_HEAD 256u
#define KVS__PART_REC   48u
#define KVS__SEG_HEAD   128u
#define KVS__BLOCK_REC  56u
#define KVS__BLOCKS_MAX (1u << 26) /* of an entry or a segment */

/* What parsing found. */
typedef enum kvs__verdict {
    KVS__GOOD,
    KVS__DAMAGED,     /* does not verify */
    KVS__OTHER_FORMAT /* verifies as far as it can be told, but is of a format not read here */
} kvs__verdict;

typedef struct kvs__entry_head {
    uint64_t file_bytes;
    uint8_t identity[32];
    uint32_t ns_bytes;
    uint32_t n_ids;
    uint32_t n_parts;
    uint32_t n_chunks;
    uint64_t data_bytes;
    uint64_t created_ms;
    uint64_t cost;
    uint32_t kind;
    uint32_t flags;
    int32_t priority;
    uint8_t key[32];
} kvs__entry_head;

typedef struct kvs__part {
    char name[KVS_STORE_NAME_MAX];
    uint32_t kind;
    int32_t layer;
    uint64_t bytes;
    uint32_t chunk_bytes;
    uint32_t n_chunks;
    uint32_t first_chunk; /* in the entry's list */
} kvs__part;

/* Borrowed pointers into the file's bytes. */
typedef struct kvs__entry_view {
    kvs__entry_head head;
    const uint8_t *ns;
    const uint8_t *ids;    /* [n_ids] i32 */
    const uint8_t *parts;  /* [n_parts][48] */
    const uint8_t *chunks; /* [n_chunks][32] */
    const char *why;       /* DAMAGED, OTHER_FORMAT */
} kvs__entry_view;

typedef struct kvs__seg_head {
    uint64_t file_bytes;
    uint64_t id;
    uint64_t table_at;
    uint64_t created_ms;
    uint32_t n_blocks;
    uint8_t table_sha[32];
} kvs__seg_head;

typedef struct kvs__block_rec {
    uint8_t sha[32];
    uint64_t at;
    uint64_t bytes;
    uint64_t xxh;
} kvs__block_rec;

uint32_t kvs__le32(const uint8_t *p);
uint64_t kvs__le64(const uint8_t *p);
void kvs__put32(uint8_t *p, uint32_t x);
void kvs__put64(uint8_t *p, uint64_t x);

/* Digest of identity, namespace and ids. */
void kvs__key_digest(const kvs_store_key *key, uint8_t out[32]);

uint32_t kvs__chunk_count(uint64_t bytes, uint32_t chunk_bytes);
/* Bytes of chunk i of a part. */
size_t kvs__chunk_size(const kvs__part *part, uint32_t i);

/* The whole file. false: a limit is passed. */
bool kvs__entry_bytes(const kvs__entry_head *head, size_t *bytes);
/* Fills dst of head->file_bytes; ids, parts and chunks as in memory. chunk_sha NULL: the digests are in
 * dst already, at its end. */
void kvs__entry_write(uint8_t *dst, const kvs__entry_head *head, const void *ns, const int32_t *ids,
                      const kvs__part *parts, const uint8_t *chunk_sha);
kvs__verdict kvs__entry_parse(const uint8_t *file, size_t bytes, kvs__entry_view *out);
void kvs__entry_part(const kvs__entry_view *v, uint32_t i, kvs__part *out); /* first_chunk unset */

void kvs__seg_head_write(uint8_t dst[KVS__SEG_HEAD], const kvs__seg_head *head);
/* Needs the first 128 bytes and the size of the file. */
kvs__verdict kvs__seg_head_parse(const uint8_t *head, size_t have, uint64_t file_bytes,
                                 kvs__seg_head *out, const char **why);
void kvs__block_rec_write(uint8_t dst[KVS__BLOCK_REC], const kvs__block_rec *rec);
void kvs__block_rec_read(const uint8_t src[KVS__BLOCK_REC], kvs__block_rec *out);
/* The table as read from head->table_at to the end of the file. */
bool kvs__seg_table_check(const kvs__seg_head *head, const uint8_t *table, const char **why);

#endif
