/* SPDX-License-Identifier: MIT */
/* fuzz_store.c: entry files, segment files and export files of any content. Byte 0 chooses; bit 7 of it
 * makes the checksums right first, so that the checks behind them are reached. What parses as an entry
 * must be written back as the same bytes. */
#include <stdlib.h>
#include <string.h>

#include "fuzz/fuzz.h"
#include "support/memfs.h"
#include "support/store_rig.h"

static void fix_entry(uint8_t *p, size_t n)
{
    if (n >= KVS__ENTRY_HEAD) {
        kvs__sha256_of(p + KVS__ENTRY_HEAD, n - KVS__ENTRY_HEAD, p + 144);
        kvs__sha256_of(p, 224, p + 224);
    }
}

static void fix_segment(uint8_t *p, size_t n)
{
    if (n >= KVS__SEG_HEAD) {
        uint64_t at = kvs__le64(p + 40);
        uint64_t table = (uint64_t)KVS__BLOCK_REC * kvs__le32(p + 32);
        if (at <= n && table <= n - at) {
            kvs__sha256_of(p + at, (size_t)table, p + 56);
        }
        kvs__sha256_of(p, 96, p + 96);
    }
}

static void try_entry(const uint8_t *p, size_t n)
{
    kvs__entry_view v;
    if (kvs__entry_parse(p, n, &v) != KVS__GOOD) {
        if (!v.why) {
            abort();
        }
        return;
    }
    uint8_t *back = malloc(n);
    int32_t *ids = calloc((size_t)v.head.n_ids + 1, sizeof *ids);
    kvs__part *parts = calloc((size_t)v.head.n_parts + 1, sizeof *parts);
    for (uint32_t i = 0; i < v.head.n_ids; i++) {
        ids[i] = (int32_t)kvs__le32(v.ids + (size_t)4 * i);
    }
    for (uint32_t i = 0; i < v.head.n_parts; i++) {
        kvs__entry_part(&v, i, &parts[i]);
    }
    kvs__entry_write(back, &v.head, v.ns, ids, parts, v.chunks);
    if (v.head.ns_bytes % 4 == 0 && kvs__le32(p + 8) == KVS_FORMAT_CURRENT &&
        memcmp(back, p, n) != 0) {
        abort();
    }
    free(back);
    free(ids);
    free(parts);
}

/* As files of a store that is opened, read and verified. */
static void try_store(const uint8_t *p, size_t n, const char *path)
{
    memfs *m = memfs_new();
    kvs_ctx *ctx = NULL;
    kvs_store *s = NULL;
    kvs_ctx_opts co = KVS_CTX_OPTS_INIT;
    kvs_store_opts o = KVS_STORE_OPTS_INIT;
    static const char *const dirs[] = {".", "d", "d/entries", "d/blocks", "d/quarantine"};
    co.n_threads = 1;
    co.max_bytes = 64u << 20;
    o.flags = KVS_STORE_NO_THREADS;
    for (size_t i = 0; i < 5; i++) {
        memfs_link(m, dirs[i], memfs_new_inode(m, true, 0700));
    }
    int inode = memfs_new_inode(m, false, 0600);
    memfs_put(&m->inodes[inode], p, n, 0);
    memfs_link(m, path, inode);
    if (kvs_ctx_new(&co, &ctx, NULL) != KVS_OK) {
        abort();
    }
    if (kvs__store_open_vfs(ctx, &m->v, "d", &o, &s, NULL) == KVS_OK) {
        kvs_verify_result r = KVS_VERIFY_RESULT_INIT;
        kvs_entry e = 0;
        (void)kvs_store_import(s, path, &e, NULL);
        (void)kvs_store_verify(s, &r, NULL);
        if (rig_audit(s)) {
            abort();
        }
        kvs_store_close(s);
    }
    kvs_ctx_free(ctx);
    memfs_free(m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1) {
        return 0;
    }
    size_t n = size - 1;
    uint8_t *p = malloc(n ? n : 1);
    if (n > 0) {
        memcpy(p, data + 1, n);
    }
    bool fix = (data[0] & 0x80) != 0;
    switch (data[0] % 3) {
    case 0: {
        char path[100] = "d/entries/";
        if (fix) {
            fix_entry(p, n);
        }
        if (n >= KVS__ENTRY_HEAD) {
            kvs__entry_name(p + 112, path + 10);
        }
        try_entry(p, n);
        try_store(p, n, path);
        break;
    }
    case 1:
        if (fix) {
            fix_segment(p, n);
        }
        try_store(p, n, "d/blocks/0000000000000001.kvb");
        break;
    default:
        if (fix && n >= 96) {
            uint64_t entry = kvs__le64(p + 24);
            kvs__sha256_of(p, 64, p + 64);
            if (entry <= n - 96) {
                fix_entry(p + 96, (size_t)entry);
                fix_segment(p + 96 + entry, n - 96 - (size_t)entry);
            }
        }
        try_store(p, n, "import");
        break;
    }
    free(p);
    return 0;
}
