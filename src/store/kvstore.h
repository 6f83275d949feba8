/* SPDX-License-Identifier: MIT */
/* kvstore.h: the inside of a store: entries, blocks, segments, and who may touch them when.
 *
 * Two locks. `lock` guards everything in memory and is never held over a flush or a block of data.
 * `role` is held by whoever changes files (one at a time: the writer thread, or a call that removes,
 * evicts, compacts, verifies); it is taken before `lock`. Reading blocks needs neither: a reader pins
 * its entry and counts itself into the segments it has open.
 *
 * I1  An entry's file is published only after every segment that holds one of its blocks is durable.
 * I2  A segment is unlinked only after the unlinking of every entry file that referred to its blocks
 *     is durable, or after its live blocks are durable elsewhere.
 * I3  block.refs = entries in memory (pinned ones that were dropped included) and saves under way
 *     that refer to the block, counted once a mention; segment.live_bytes = sum over blocks with
 *     refs > 0. A block with refs > 0 is not reclaimed.
 * I4  While `gc_blocked` no segment is unlinked: some entry file could not be understood, so that
 *     what refers to what is not known. (Compaction is off too.)
 * I5  disk_bytes = sizes of all entry and segment files known = sum over both tables.
 * I6  Nothing is moved to quarantine for an error of the system, only for content that was read and
 *     does not verify.
 * I7  A read-only store changes no file. */
#ifndef KVS_STORE_KVSTORE_H
#define KVS_STORE_KVSTORE_H

#include <pthread.h>

#include "base/pool.h"
#include "base/vfs.h"
#include "store/chain.h"
#include "store/format.h"
#include "store/known.h"
#include "store/store_vfs.h"

#define KVS__SEG_TARGET  (64u << 20) /* a segment is closed when it has reached this */
#define KVS__NO_SEG      UINT32_MAX
#define KVS__ENTRY_NAME  68 /* 64 hex digits and ".kve" */
#define KVS__TOUCH_LIMIT 256u

typedef struct kvs__block {
    uint8_t sha[32];
    uint64_t at;
    uint64_t xxh;
    uint32_t bytes;
    uint32_t seg;  /* KVS__NO_SEG: being written */
    uint32_t refs; /* I3 */
    uint32_t next; /* in the segment's list; of a free one in the free list */
    bool used;
    bool moves; /* is being given another segment */
    bool bad;   /* was read and did not verify; never shared again */
} kvs__block;

typedef struct kvs__segment {
    uint64_t id; /* 0: slot free */
    uint64_t file_bytes;
    uint64_t live_bytes;
    uint32_t head; /* first block */
    uint32_t readers;
    bool doomed; /* to be unlinked by the last reader */
    bool stuck;  /* holds a block that does not verify: not rewritten */
} kvs__segment;

typedef struct kvs__entry {
    kvs__entry_head head;
    kvs_entry id;
    uint64_t tick;
    uint64_t tail;
    uint8_t *ns;            /* [head.ns_bytes] */
    int32_t *ids;           /* [head.n_ids] */
    kvs__part *parts;       /* [head.n_parts] */
    uint32_t *chunks;       /* [head.n_chunks], numbers of blocks */
    kvs__chain_link *links; /* [n_levels] */
    size_t alloc_bytes;     /* of this and its arrays, one allocation */
    uint32_t n_levels;
    uint32_t uses;
    uint32_t pins;
    uint32_t older; /* list by last use, entry slots */
    uint32_t newer;
    bool listed; /* can be found; false: dropped, waits for its last unpin */
    bool foreign;
} kvs__entry;

typedef struct kvs__slot {
    kvs__entry *e;       /* NULL: free */
    uint32_t generation; /* upper half of the entry's id */
    uint32_t next;       /* of a free one the next free one */
} kvs__slot;

typedef struct kvs__item kvs__item;

struct kvs_store {
    kvs_ctx *ctx;
    kvs__vfs *v;
    kvs_store_opts opts;
    kvs_store_policy policy;
    uint8_t identity[32];
    bool any_identity;
    bool read_only;
    bool gc_blocked;
    bool
        entries_dirty; /* an entry file was unlinked or replaced and not flushed since; of `role` */
    char dir[KVS__PATH_MAX - 128];
    char entries_dir[KVS__PATH_MAX];
    char blocks_dir[KVS__PATH_MAX];
    char aside_dir[KVS__PATH_MAX];
    kvs__file *lock_file;

    pthread_mutex_t lock;
    pthread_mutex_t role;
    pthread_mutex_t pool_lock;
    kvs__pool *pool;
    pthread_cond_t changed; /* of the queues */
    pthread_t writer;
    pthread_t reader;
    bool has_writer;
    bool has_reader;
    bool stop;

    kvs__item *put_head;
    kvs__item *put_tail;
    struct kvs__get *get_head;
    struct kvs__get *get_tail;
    uint32_t n_gets;
    bool writing;
    bool reading;
    uint64_t
        unsaved; /* queued puts that failed since the last flush, with what became of the last */
    kvs_status unsaved_status;
    char unsaved_reason[160];

    kvs__slot *slots;
    size_t slots_cap;
    size_t slots_used;
    size_t slots_free; /* in the free list */
    uint32_t free_slot;
    kvs__idmap keys; /* first 8 bytes of the key -> entry */
    kvs__chain chain;
    uint32_t oldest;
    uint32_t newest;
    uint64_t tick;
    uint32_t touches; /* since the uses file was written */

    kvs__block *blocks;
    size_t blocks_cap;
    size_t blocks_used;
    size_t blocks_free;
    uint32_t free_block;
    kvs__idmap shas; /* first 8 bytes of the SHA-256 -> block */

    kvs__segment *segs;
    size_t segs_cap;
    size_t segs_used;
    uint64_t next_seg;

    uint8_t (*damaged)[32]; /* keys whose files wait to be set aside */
    size_t damaged_cap;
    size_t n_damaged;

    kvs_store_stats stats;
};

static inline uint64_t kvs__head64(const uint8_t *p)
{
    return kvs__le64(p);
}

/* ---- table.c; all with `lock` held */

kvs_status kvs__blocks_reserve(kvs_store *s, size_t more, kvs_err *err);
kvs_status kvs__segs_reserve(kvs_store *s, size_t more, kvs_err *err);
kvs_status kvs__entries_reserve(kvs_store *s, uint32_t n_levels, kvs_err *err);
/* A usable block of this content, KVS__NONE. */
uint32_t kvs__block_find(const kvs_store *s, const uint8_t sha[32], uint64_t bytes);
uint32_t kvs__block_new(kvs_store *s, const uint8_t sha[32], uint32_t bytes, uint64_t xxh);
void kvs__block_ref(kvs_store *s, uint32_t block);
void kvs__block_unref(kvs_store *s, uint32_t block);
void kvs__block_drop(kvs_store *s, uint32_t block); /* of no segment and without refs */
void kvs__block_place(kvs_store *s, uint32_t block, uint32_t seg, uint64_t at);
uint32_t kvs__seg_new(kvs_store *s, uint64_t id, uint64_t file_bytes);
/* Frees slot and blocks; the file is the caller's affair. */
void kvs__seg_drop(kvs_store *s, uint32_t seg);
void kvs__seg_path(const kvs_store *s, uint64_t id, char out[KVS__PATH_MAX]);
void kvs__entry_name(const uint8_t key[32], char out[KVS__ENTRY_NAME + 1]);

/* One allocation with arrays of the sizes in head, not yet listed. */
kvs__entry *kvs__entry_new(kvs_store *s, const kvs__entry_head *head, kvs_err *err);
void kvs__entry_free(kvs_store *s, kvs__entry *e);
/* Lists it; room must be reserved, and no entry of its key be listed. Its refs are the caller's. */
void kvs__entry_list(kvs_store *s, kvs__entry *e);
/* Can't be found any more; freed with its references now, or with its last pin. */
void kvs__entry_drop(kvs_store *s, uint32_t slot);
uint32_t kvs__entry_by_key(const kvs_store *s, const uint8_t key[32]);
kvs__entry *kvs__entry_of(const kvs_store *s, kvs_entry id); /* NULL: gone */
static inline uint32_t kvs__slot_of(kvs_entry id)
{
    return (uint32_t)id - 1;
}
void kvs__entry_use(kvs_store *s, kvs__entry *e);
void kvs__entry_unpin(kvs_store *s, kvs__entry *e);
/* Facts of use of an earlier run. */
void kvs__entry_recall(kvs_store *s, uint32_t slot, uint64_t tick, uint32_t uses);
void kvs__entry_info_of(const kvs__entry *e, kvs_entry_info *out);
void kvs__reason(kvs_store *s, const char *fmt, ...) KVS_PRINTF(2, 3);

/* ---- evict.c; with `role` held, `lock` not */

/* Evicts until `need` more bytes fit. KVS_E_LIMIT: they can't be made to. */
kvs_status kvs__make_room(kvs_store *s, uint64_t need, kvs_err *err);
/* Unlinks the entry's file and drops it. The directory is not flushed. */
kvs_status kvs__forget(kvs_store *s, kvs_entry id, kvs_err *err);
uint64_t kvs__live_bytes(const kvs_store *s); /* `lock` held */
/* Flushes what was forgotten. */
kvs_status kvs__flush_entries(kvs_store *s, kvs_err *err);
/* Unlinks segments without live blocks (I2, I4); returns their bytes. */
uint64_t kvs__reclaim(kvs_store *s);
/* Rewrites the live blocks of a segment of which at least 1/part is dead, the deadest first. KVS_NO:
 * there is none. KVS_E_LIMIT: no room for the copy. */
kvs_status kvs__compact_one(kvs_store *s, uint32_t part, kvs_err *err);
/* Moves a file to the quarantine. */
void kvs__set_aside(kvs_store *s, const char *dir, const char *name, const char *why);
/* Moves the files of entries found damaged by readers. */
void kvs__settle_damage(kvs_store *s);
kvs_status kvs__uses_write(kvs_store *s);
void kvs__uses_read(kvs_store *s);

/* ---- save.c */

/* A segment being written. */
typedef struct kvs__seg_out {
    kvs__pub pub;
    uint64_t id;
    uint64_t at;
    uint64_t sent; /* handed to early write-back */
    uint64_t start_ms;
    uint8_t *table;
    size_t table_cap; /* records */
    uint32_t n_blocks;
    uint32_t *members; /* blocks, [n_blocks] */
    bool open;
    bool published;
} kvs__seg_out;
kvs_status kvs__seg_begin(kvs_store *s, kvs__seg_out *o, kvs_err *err);
kvs_status kvs__seg_add(kvs_store *s, kvs__seg_out *o, uint32_t block, const kvs__block_rec *rec,
                        const void *data, kvs_err *err);
/* Table, header, flush, rename; the directory is not flushed. */
kvs_status kvs__seg_publish(kvs_store *s, kvs__seg_out *o, kvs_err *err);
void kvs__seg_out_free(kvs_store *s, kvs__seg_out *o); /* aborts one that is open */
kvs_status kvs__io(kvs_err *err, int e, const char *what, const char *path);

typedef struct kvs__source {
    kvs_part_fn fill;
    void *user;
} kvs__source;

struct kvs__item {
    kvs__item *next;
    kvs__entry_head head;
    uint8_t *ns;
    int32_t *ids;
    kvs__part *parts;
    const void **data;        /* [n_parts] */
    kvs__source *source;      /* [n_parts], asked where data is NULL */
    kvs__known *const *known; /* [head.n_chunks], borrowed; NULL: none */
    void *copy;               /* of the data, or NULL where it is borrowed */
    size_t copy_bytes;
    size_t queue_bytes; /* that wait for it, copied or borrowed */
    size_t alloc_bytes;
    kvs_put_fn done;
    void *done_user;
    bool waits; /* the caller does, and frees the item */
    bool finished;
    kvs_status status;
    kvs_entry entry;
    kvs_err err;
};
void *kvs__writer_main(void *store);
void kvs__item_run(kvs_store *s, kvs__item *it); /* takes the role */
void kvs__item_free(kvs_store *s, kvs__item *it);

/* ---- load.c */

typedef struct kvs__get kvs__get;
void *kvs__reader_main(void *store);
/* Reads block `b` whole and compares XXH3 (and SHA-256). KVS_E_FORMAT: it does not verify. */
kvs_status kvs__block_read(kvs_store *s, const kvs__block *b, kvs__file *f, void *dst, bool sha,
                           kvs_err *err);
/* Opens a segment that was counted into (`readers`). */
kvs_status kvs__seg_open(kvs_store *s, uint64_t id, kvs__file **out, kvs_err *err);
void kvs__seg_leave(kvs_store *s, uint32_t seg);
/* Runs fn over 0 .. n-1 on the store's threads. */
void kvs__parallel(kvs_store *s, size_t n, kvs__item_fn fn, void *arg);
/* Marks entry and block; the files follow when the role is free. */
void kvs__found_damage(kvs_store *s, kvs_entry entry, uint32_t block, const char *why);
/* Of find.c, for the prefix index. */
kvs__chain_link *kvs__entry_links(void *store, uint32_t entry);
kvs_status kvs__get_locked_out(kvs_store *s, kvs_entry entry, const kvs_store_buf *bufs,
                               size_t n_bufs, bool sha, kvs_err *err);

/* ---- scan.c */

kvs_status kvs__scan(kvs_store *s, kvs_err *err);
/* A whole small file into memory of the context. */
kvs_status kvs__slurp(kvs_store *s, const char *path, uint64_t limit, uint8_t **data, size_t *bytes,
                      kvs_err *err);

#endif
