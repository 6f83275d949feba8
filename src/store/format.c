/* SPDX-License-Identifier: MIT */
/* format.c: writes and checks the headers of entry and segment files (format.h).
 *
 * Every byte of a file is covered: the header by its own SHA-256, an entry's body and a segment's
 * table by a SHA-256 in the header, a block by the XXH3 and the SHA-256 in the table, and the length
 * by the header. There is no padding that could change unseen: spare bytes must be zero. */
#include "store/format.h"

#include <string.h>

static const char entry_magic[8] = {'K', 'V', 'S', 'E', 'N', 'T', 'R', 'Y'};
static const char seg_magic[8] = {'K', 'V', 'S', 'B', 'L', 'O', 'C', 'K'};

uint32_t kvs__le32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

uint64_t kvs__le64(const uint8_t *p)
{
    return (uint64_t)kvs__le32(p) | (uint64_t)kvs__le32(p + 4) << 32;
}

void kvs__put32(uint8_t *p, uint32_t x)
{
    for (unsigned i = 0; i < 4; i++) {
        p[i] = (uint8_t)(x >> (8 * i));
    }
}

void kvs__put64(uint8_t *p, uint64_t x)
{
    kvs__put32(p, (uint32_t)x);
    kvs__put32(p + 4, (uint32_t)(x >> 32));
}

static bool all_zero(const uint8_t *p, size_t n)
{
    uint8_t any = 0;
    for (size_t i = 0; i < n; i++) {
        any |= p[i];
    }
    return any == 0;
}

static void add_ids(kvs__sha256 *s, const int32_t *ids, size_t n)
{
    uint8_t buf[1024];
    for (size_t i = 0; i < n;) {
        size_t m = 0;
        for (; m < sizeof buf / 4 && i < n; m++, i++) {
            kvs__put32(buf + 4 * m, (uint32_t)ids[i]);
        }
        kvs__sha256_add(s, buf, 4 * m);
    }
}

static void key_start(kvs__sha256 *s, const uint8_t identity[32], const void *ns, size_t ns_bytes)
{
    static const char tag[] = "kvstate-key-1";
    kvs__sha256_init(s);
    kvs__sha256_field(s, tag, sizeof tag - 1);
    kvs__sha256_field(s, identity, 32);
    kvs__sha256_field(s, ns, ns_bytes);
}

void kvs__key_digest(const kvs_store_key *key, uint8_t out[32])
{
    kvs__sha256 s;
    uint8_t n[8];
    key_start(&s, key->identity, key->ns, key->ns_bytes);
    kvs__put64(n, key->n_ids);
    kvs__sha256_add(&s, n, sizeof n);
    add_ids(&s, key->ids, key->n_ids);
    kvs__sha256_end(&s, out);
}

kvs_status kvs_identity_digest(const kvs_identity_desc *desc, uint8_t out[KVS_DIGEST_BYTES],
                               kvs_err *err)
{
    static const char tag[] = "kvstate-identity-1";
    static const char *const names[] = {"model", "plan", "rope", "adapter", "media", "salt"};
    kvs_identity_desc d = KVS_IDENTITY_DESC_INIT;
    if (!desc || !out) {
        return kvs__fail(err, KVS_E_INVAL, "store", "%s is NULL", desc ? "out" : "desc");
    }
    kvs_status st = kvs__opts_read(&d, sizeof d, desc, "kvs_identity_desc", err);
    if (st != KVS_OK) {
        return st;
    }
    const kvs_bytes *const parts[] = {&d.model, &d.plan, &d.rope, &d.adapter, &d.media, &d.salt};
    kvs__sha256 s;
    kvs__sha256_init(&s);
    kvs__sha256_field(&s, tag, sizeof tag - 1);
    for (size_t i = 0; i < KVS_COUNT(parts); i++) {
        if (!parts[i]->data && parts[i]->bytes > 0) {
            return kvs__fail(err, KVS_E_INVAL, "store", "identity: %s is NULL with %zu bytes",
                             names[i], parts[i]->bytes);
        }
        kvs__sha256_field(&s, names[i], strlen(names[i]));
        kvs__sha256_field(&s, parts[i]->data, parts[i]->bytes);
    }
    kvs__sha256_end(&s, out);
    return KVS_OK;
}

uint32_t kvs__chunk_count(uint64_t bytes, uint32_t chunk_bytes)
{
    uint64_t n = bytes / chunk_bytes + (bytes % chunk_bytes != 0);
    return n > KVS__BLOCKS_MAX ? UINT32_MAX : (uint32_t)n;
}

size_t kvs__chunk_size(const kvs__part *part, uint32_t i)
{
    uint64_t at = (uint64_t)i * part->chunk_bytes;
    uint64_t left = part->bytes - at;
    return left < part->chunk_bytes ? (size_t)left : part->chunk_bytes;
}

/* ---- entries */

bool kvs__entry_bytes(const kvs__entry_head *head, size_t *bytes)
{
    if (head->ns_bytes > KVS_STORE_NS_MAX || head->n_ids > KVS_STORE_IDS_MAX ||
        head->n_parts > KVS_STORE_PARTS_MAX || head->n_chunks > KVS__BLOCKS_MAX) {
        return false;
    }
    uint64_t n = KVS__ENTRY_HEAD + (head->ns_bytes + 3u) / 4 * 4 + 4ull * head->n_ids +
                 (uint64_t)KVS__PART_REC * head->n_parts + 32ull * head->n_chunks;
    *bytes = (size_t)n; /* at most 2^32: fits where a size_t has 32 bits only just not */
    return n == *bytes;
}

void kvs__entry_write(uint8_t *dst, const kvs__entry_head *head, const void *ns, const int32_t *ids,
                      const kvs__part *parts, const uint8_t *chunk_sha)
{
    uint8_t *p = dst + KVS__ENTRY_HEAD;
    memset(dst, 0, KVS__ENTRY_HEAD);
    if (head->ns_bytes > 0) {
        memcpy(p, ns, head->ns_bytes);
        memset(p + head->ns_bytes, 0, (4 - head->ns_bytes % 4) % 4);
    }
    p += (head->ns_bytes + 3u) / 4 * 4;
    for (uint32_t i = 0; i < head->n_ids; i++, p += 4) {
        kvs__put32(p, (uint32_t)ids[i]);
    }
    for (uint32_t i = 0; i < head->n_parts; i++, p += KVS__PART_REC) {
        memset(p, 0, KVS__PART_REC);
        memcpy(p, parts[i].name, KVS_STORE_NAME_MAX);
        kvs__put32(p + 16, parts[i].kind);
        kvs__put32(p + 20, (uint32_t)parts[i].layer);
        kvs__put64(p + 24, parts[i].bytes);
        kvs__put32(p + 32, parts[i].chunk_bytes);
        kvs__put32(p + 36, parts[i].n_chunks);
    }
    if (chunk_sha && head->n_chunks > 0) {
        memcpy(p, chunk_sha, (size_t)32 * head->n_chunks);
    }
    memcpy(dst, entry_magic, 8);
    kvs__put32(dst + 8, KVS_FORMAT_CURRENT);
    kvs__put32(dst + 12, KVS__ENTRY_HEAD);
    kvs__put64(dst + 16, head->file_bytes);
    memcpy(dst + 24, head->identity, 32);
    kvs__put32(dst + 56, head->ns_bytes);
    kvs__put32(dst + 60, head->n_ids);
    kvs__put32(dst + 64, head->n_parts);
    kvs__put32(dst + 68, head->n_chunks);
    kvs__put64(dst + 72, head->data_bytes);
    kvs__put64(dst + 80, head->created_ms);
    kvs__put64(dst + 88, head->cost);
    kvs__put32(dst + 96, head->kind);
    kvs__put32(dst + 100, head->flags);
    kvs__put32(dst + 104, (uint32_t)head->priority);
    memcpy(dst + 112, head->key, 32);
    kvs__sha256_of(dst + KVS__ENTRY_HEAD, (size_t)head->file_bytes - KVS__ENTRY_HEAD, dst + 144);
    kvs__sha256_of(dst, 224, dst + 224);
}

static void read_head(const uint8_t *p, kvs__entry_head *h)
{
    h->file_bytes = kvs__le64(p + 16);
    memcpy(h->identity, p + 24, 32);
    h->ns_bytes = kvs__le32(p + 56);
    h->n_ids = kvs__le32(p + 60);
    h->n_parts = kvs__le32(p + 64);
    h->n_chunks = kvs__le32(p + 68);
    h->data_bytes = kvs__le64(p + 72);
    h->created_ms = kvs__le64(p + 80);
    h->cost = kvs__le64(p + 88);
    h->kind = kvs__le32(p + 96);
    h->flags = kvs__le32(p + 100);
    h->priority = (int32_t)kvs__le32(p + 104);
    memcpy(h->key, p + 112, 32);
}

void kvs__entry_part(const kvs__entry_view *v, uint32_t i, kvs__part *out)
{
    const uint8_t *p = v->parts + (size_t)KVS__PART_REC * i;
    memcpy(out->name, p, KVS_STORE_NAME_MAX);
    out->kind = kvs__le32(p + 16);
    out->layer = (int32_t)kvs__le32(p + 20);
    out->bytes = kvs__le64(p + 24);
    out->chunk_bytes = kvs__le32(p + 32);
    out->n_chunks = kvs__le32(p + 36);
    out->first_chunk = 0;
}

static const char *check_parts(const kvs__entry_view *v)
{
    uint64_t bytes = 0;
    uint64_t chunks = 0;
    for (uint32_t i = 0; i < v->head.n_parts; i++) {
        kvs__part part;
        kvs__entry_part(v, i, &part);
        if (part.chunk_bytes == 0 || part.chunk_bytes > KVS_STORE_CHUNK_MAX ||
            part.n_chunks != kvs__chunk_count(part.bytes, part.chunk_bytes) ||
            part.name[KVS_STORE_NAME_MAX - 1] != '\0' ||
            !all_zero(v->parts + (size_t)KVS__PART_REC * i + 40, 8)) {
            return "a part makes no sense";
        }
        if (__builtin_add_overflow(bytes, part.bytes, &bytes)) {
            return "the parts are too large";
        }
        chunks += part.n_chunks;
    }
    if (chunks != v->head.n_chunks || bytes != v->head.data_bytes) {
        return "the parts do not add up";
    }
    return NULL;
}

static const char *check_key(const kvs__entry_view *v)
{
    kvs__sha256 s;
    uint8_t n[8];
    uint8_t key[32];
    key_start(&s, v->head.identity, v->ns, v->head.ns_bytes);
    kvs__put64(n, v->head.n_ids);
    kvs__sha256_add(&s, n, sizeof n);
    kvs__sha256_add(&s, v->ids, (size_t)4 * v->head.n_ids);
    kvs__sha256_end(&s, key);
    return memcmp(key, v->head.key, 32) == 0 ? NULL : "the key is not that of the tokens";
}

static const char *check_head(const uint8_t *file, size_t bytes, kvs__entry_view *v)
{
    uint8_t sha[32];
    size_t want = 0;
    read_head(file, &v->head);
    if (kvs__le32(file + 12) != KVS__ENTRY_HEAD || !all_zero(file + 108, 4) ||
        !all_zero(file + 176, 48) || !kvs__entry_bytes(&v->head, &want) ||
        want != v->head.file_bytes || v->head.kind > 31) {
        return "the header makes no sense";
    }
    if (v->head.file_bytes != bytes) {
        return "the file has another length than its header says";
    }
    kvs__sha256_of(file + KVS__ENTRY_HEAD, bytes - KVS__ENTRY_HEAD, sha);
    return memcmp(sha, file + 144, 32) == 0 ? NULL : "the body does not verify";
}

kvs__verdict kvs__entry_parse(const uint8_t *file, size_t bytes, kvs__entry_view *out)
{
    uint8_t sha[32];
    memset(out, 0, sizeof *out);
    if (bytes < KVS__ENTRY_HEAD || memcmp(file, entry_magic, 8) != 0) {
        out->why = bytes < KVS__ENTRY_HEAD ? "shorter than a header" : "no entry file";
        return KVS__DAMAGED;
    }
    kvs__sha256_of(file, 224, sha);
    if (memcmp(sha, file + 224, 32) != 0) {
        out->why = "the header does not verify";
        return KVS__DAMAGED;
    }
    uint32_t format = kvs__le32(file + 8);
    if (format < KVS_FORMAT_MIN || format > KVS_FORMAT_CURRENT) {
        out->why = "of another format";
        return KVS__OTHER_FORMAT;
    }
    out->why = check_head(file, bytes, out);
    if (!out->why) {
        out->ns = file + KVS__ENTRY_HEAD;
        out->ids = out->ns + (out->head.ns_bytes + 3u) / 4 * 4;
        out->parts = out->ids + (size_t)4 * out->head.n_ids;
        out->chunks = out->parts + (size_t)KVS__PART_REC * out->head.n_parts;
        out->why = check_key(out);
    }
    if (!out->why) {
        out->why = check_parts(out);
    }
    return out->why ? KVS__DAMAGED : KVS__GOOD;
}

/* ---- segments */

void kvs__seg_head_write(uint8_t dst[KVS__SEG_HEAD], const kvs__seg_head *head)
{
    memset(dst, 0, KVS__SEG_HEAD);
    memcpy(dst, seg_magic, 8);
    kvs__put32(dst + 8, KVS_FORMAT_CURRENT);
    kvs__put32(dst + 12, KVS__SEG_HEAD);
    kvs__put64(dst + 16, head->file_bytes);
    kvs__put64(dst + 24, head->id);
    kvs__put32(dst + 32, head->n_blocks);
    kvs__put64(dst + 40, head->table_at);
    kvs__put64(dst + 48, head->created_ms);
    memcpy(dst + 56, head->table_sha, 32);
    kvs__sha256_of(dst, 96, dst + 96);
}

static const char *check_seg(const uint8_t *head, uint64_t file_bytes, kvs__seg_head *out)
{
    out->file_bytes = kvs__le64(head + 16);
    out->id = kvs__le64(head + 24);
    out->n_blocks = kvs__le32(head + 32);
    out->table_at = kvs__le64(head + 40);
    out->created_ms = kvs__le64(head + 48);
    memcpy(out->table_sha, head + 56, 32);
    if (kvs__le32(head + 12) != KVS__SEG_HEAD || !all_zero(head + 36, 4) ||
        !all_zero(head + 88, 8) || out->n_blocks == 0 || out->n_blocks > KVS__BLOCKS_MAX ||
        out->id == 0) {
        return "the header makes no sense";
    }
    if (out->file_bytes != file_bytes) {
        return "the file has another length than its header says";
    }
    uint64_t table = (uint64_t)KVS__BLOCK_REC * out->n_blocks;
    if (out->table_at < KVS__SEG_HEAD || file_bytes < table ||
        out->table_at != file_bytes - table) {
        return "the table is not at the end";
    }
    return NULL;
}

kvs__verdict kvs__seg_head_parse(const uint8_t *head, size_t have, uint64_t file_bytes,
                                 kvs__seg_head *out, const char **why)
{
    uint8_t sha[32];
    memset(out, 0, sizeof *out);
    if (have < KVS__SEG_HEAD || memcmp(head, seg_magic, 8) != 0) {
        *why = have < KVS__SEG_HEAD ? "shorter than a header" : "no segment file";
        return KVS__DAMAGED;
    }
    kvs__sha256_of(head, 96, sha);
    if (memcmp(sha, head + 96, 32) != 0) {
        *why = "the header does not verify";
        return KVS__DAMAGED;
    }
    uint32_t format = kvs__le32(head + 8);
    if (format < KVS_FORMAT_MIN || format > KVS_FORMAT_CURRENT) {
        *why = "of another format";
        return KVS__OTHER_FORMAT;
    }
    *why = check_seg(head, file_bytes, out);
    return *why ? KVS__DAMAGED : KVS__GOOD;
}

void kvs__block_rec_write(uint8_t dst[KVS__BLOCK_REC], const kvs__block_rec *rec)
{
    memcpy(dst, rec->sha, 32);
    kvs__put64(dst + 32, rec->at);
    kvs__put64(dst + 40, rec->bytes);
    kvs__put64(dst + 48, rec->xxh);
}

void kvs__block_rec_read(const uint8_t src[KVS__BLOCK_REC], kvs__block_rec *out)
{
    memcpy(out->sha, src, 32);
    out->at = kvs__le64(src + 32);
    out->bytes = kvs__le64(src + 40);
    out->xxh = kvs__le64(src + 48);
}

bool kvs__seg_table_check(const kvs__seg_head *head, const uint8_t *table, const char **why)
{
    uint8_t sha[32];
    kvs__sha256_of(table, (size_t)KVS__BLOCK_REC * head->n_blocks, sha);
    if (memcmp(sha, head->table_sha, 32) != 0) {
        *why = "the table does not verify";
        return false;
    }
    uint64_t at = KVS__SEG_HEAD;
    for (uint32_t i = 0; i < head->n_blocks; i++) {
        kvs__block_rec r;
        kvs__block_rec_read(table + (size_t)KVS__BLOCK_REC * i, &r);
        if (r.at != at || r.bytes == 0 || r.bytes > KVS_STORE_CHUNK_MAX ||
            r.bytes > head->table_at - at) {
            *why = "the blocks do not follow one another";
            return false;
        }
        at += r.bytes;
    }
    *why = at == head->table_at ? NULL : "the blocks do not reach the table";
    return at == head->table_at;
}
