/* SPDX-License-Identifier: MIT */
/* seed_store.c: writes the corpus of fuzz_store: files of a small store, each behind its byte of
 * choice. usage: seed_store FOLDER */
#include "support/memfs.h"
#include "support/store_rig.h"

static void seed(const char *dir, const char *name, int choice, const memfs *m, int inode)
{
    char path[512];
    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    if (!f || fputc(choice, f) == EOF ||
        fwrite(m->inodes[inode].data, 1, m->inodes[inode].n, f) != m->inodes[inode].n ||
        fclose(f) != 0) {
        perror(path);
        exit(1);
    }
}

int main(int argc, char **argv)
{
    memfs *m = memfs_new();
    kvs_ctx *ctx = NULL;
    kvs_store *s = NULL;
    kvs_store_opts o = KVS_STORE_OPTS_INIT;
    o.flags = KVS_STORE_NO_THREADS;
    memfs_link(m, ".", memfs_new_inode(m, true, 0700));
    if (argc != 2 || kvs_ctx_new(NULL, &ctx, NULL) != KVS_OK ||
        kvs__store_open_vfs(ctx, &m->v, "d", &o, &s, NULL) != KVS_OK) {
        return 1;
    }
    for (uint32_t k = 0; k < 3; k++) {
        kvs_entry cursor = 0;
        kvs_entry_info info = KVS_ENTRY_INFO_INIT;
        if (rig_put(s, k * 6, 1, KVS_PUT_DURABLE, NULL) != KVS_OK) {
            return 1;
        }
        while (kvs_store_list(s, &cursor, &info) == KVS_OK) {
        }
        if (kvs_store_export(s, cursor, "out", NULL) != KVS_OK) {
            return 1;
        }
    }
    for (int i = 0, n = 0; i < m->n_names; i++) {
        char name[32];
        const char *path = m->names[i].path;
        int choice = strstr(path, ".kve")    ? 0x80 + 1
                     : strstr(path, ".kvb")  ? 0x80 + 2
                     : strcmp(path, "./out") ? -1
                                             : 0x80;
        if (choice >= 0) { /* 0x80 % 3 is 2 */
            (void)snprintf(name, sizeof name, "seed%02d", n++);
            seed(argv[1], name, choice, m, m->names[i].inode);
            (void)snprintf(name, sizeof name, "seed%02d", n++);
            seed(argv[1], name, choice == 0x80 ? 2 : choice == 0x81 ? 0 : 1, m, m->names[i].inode);
        }
    }
    kvs_store_close(s);
    kvs_ctx_free(ctx);
    memfs_free(m);
    return 0;
}
