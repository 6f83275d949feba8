/* SPDX-License-Identifier: MIT */
/* kvstate/store.h: saved state in a directory: content-addressed, checksummed, crash-safe.
 *
 * An entry is what was computed for a list of token ids under an identity (model, plan, ...) in a
 * namespace: a list of parts, byte strings whose meaning is the caller's. It is stored whole or not
 * at all. Blocks of equal content are stored once for all entries. A hit is proven by comparing the
 * token ids; what is read is checked before the call returns. The files are the database: opening
 * rebuilds the index from them, and whatever does not verify is moved aside, not guessed at.
 * docs/format.md describes the files.
 *
 * A store may be used by any number of threads at once, each call by itself. It has threads of its
 * own, which call the context's allocation hooks and the callbacks given here. */
#ifndef KVSTATE_STORE_H
#define KVSTATE_STORE_H

#include "kvstate/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Format of the files: what is written, and the oldest that is read. */
#define KVS_FORMAT_CURRENT 1u
#define KVS_FORMAT_MIN     1u

#define KVS_DIGEST_BYTES    32
#define KVS_STORE_NAME_MAX  16         /* of a part, NUL included */
#define KVS_STORE_NS_MAX    4096       /* bytes of a namespace */
#define KVS_STORE_IDS_MAX   (1u << 26) /* tokens of an entry */
#define KVS_STORE_PARTS_MAX 65536
#define KVS_STORE_CHUNK     (1u << 20) /* default bytes of a block */
#define KVS_STORE_CHUNK_MAX (1u << 26)

/* What state depends on beside the tokens; each is any bytes, absent ones are empty. The digest
 * frames every part with its tag and length, so that no two descriptions share one. */
typedef struct kvs_bytes {
    const void *data;
    size_t bytes;
} kvs_bytes;
typedef struct kvs_identity_desc {
    size_t struct_size;
    kvs_bytes model;   /* digest of the weights and the tokenizer */
    kvs_bytes plan;    /* signature of the storage plan */
    kvs_bytes rope;    /* position settings that differ from the model's own */
    kvs_bytes adapter; /* digest of the adapter */
    kvs_bytes media;   /* digest of images or audio in the prompt */
    kvs_bytes salt;    /* of a tenant: equal prompts of others are never found */
} kvs_identity_desc;
#define KVS_IDENTITY_DESC_INIT                                                                     \
    {                                                                                              \
        sizeof(kvs_identity_desc), {NULL, 0}, {NULL, 0}, {NULL, 0}, {NULL, 0}, {NULL, 0},          \
        {                                                                                          \
            NULL, 0                                                                                \
        }                                                                                          \
    }
KVS_API kvs_status kvs_identity_digest(const kvs_identity_desc *desc, uint8_t out[KVS_DIGEST_BYTES],
                                       kvs_err *err);

typedef struct kvs_store kvs_store;
/* Names an entry while it is there; never reused for another one as long as the store is open. */
typedef uint64_t kvs_entry;

/* What a policy and a listing see of an entry. */
typedef struct kvs_entry_info {
    size_t struct_size;
    kvs_entry entry;
    uint64_t bytes;      /* of all parts */
    uint64_t file_bytes; /* of the entry's own file; its blocks may be shared */
    uint64_t cost;       /* what it would take to compute it again, in the caller's unit */
    uint64_t created_ms; /* since 1970 */
    uint64_t last_use;   /* larger is later; counts uses in this directory */
    uint32_t uses;
    uint32_t kind;    /* the caller's, 0 .. 31 */
    int32_t priority; /* the caller's */
    uint32_t flags;   /* the caller's */
    uint32_t n_ids;
    uint32_t n_parts;
    uint32_t pins;
    uint32_t foreign; /* 1: of another identity than the store was opened for */
    uint8_t identity[KVS_DIGEST_BYTES];
    uint8_t key[KVS_DIGEST_BYTES]; /* digest of identity, namespace and ids; the file's name */
} kvs_entry_info;
#define KVS_ENTRY_INFO_INIT                                                                        \
    {                                                                                              \
        sizeof(kvs_entry_info), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, {0},                     \
        {                                                                                          \
            0                                                                                      \
        }                                                                                          \
    }

/* Which entry goes when room is needed. Calls come one at a time, with the store locked: they must
 * be short and must not call the store. Without a policy the entry used longest ago goes. */
typedef int (*kvs_evictable_fn)(const void *arg, kvs_entry entry);
typedef struct kvs_store_policy {
    size_t struct_size;
    void *user;
    /* Any may be NULL but choose. An entry found at open is `add`ed with its stored facts. */
    void (*add)(void *user, const kvs_entry_info *info);
    void (*use)(void *user, const kvs_entry_info *info);
    void (*drop)(void *user, kvs_entry entry); /* evicted, removed or replaced */
    /* The entry to evict next; evictable(arg, e) is 0 for one that is pinned. 0: none. */
    kvs_entry (*choose)(void *user, uint64_t bytes, kvs_evictable_fn evictable, const void *arg);
} kvs_store_policy;
#define KVS_STORE_POLICY_INIT                                                                      \
    {                                                                                              \
        sizeof(kvs_store_policy), NULL, NULL, NULL, NULL, NULL                                     \
    }

enum {
    KVS_STORE_READONLY = 1u << 0,      /* take no lock, change nothing */
    KVS_STORE_READONLY_BUSY = 1u << 1, /* read-only where another process holds the directory */
    KVS_STORE_NO_CREATE = 1u << 2,     /* KVS_E_NOTFOUND where there is no store */
    KVS_STORE_NO_THREADS = 1u << 3     /* every call does its own work and waits for it */
};

typedef struct kvs_store_opts {
    size_t struct_size;
    uint32_t flags;
    uint32_t n_threads;       /* that hash and read one entry together; 0: 2 */
    uint64_t max_bytes;       /* of all files in the directory but those set aside; 0: no limit */
    uint64_t max_queue_bytes; /* waiting to be written, copied or borrowed; 0: 256 MiB. One entry is
                                 taken whatever its size */
    uint32_t max_queue_items; /* 0: 64 */
    uint32_t retries;         /* of a write that failed with an error that may pass; 0: 3 */
    uint32_t retry_ms;        /* before the first retry, doubled each time; 0: 50 */
    uint32_t reserved;
    const uint8_t *identity; /* [32]; entries of others are left alone; NULL: all are served */
    const kvs_store_policy *policy; /* copied */
} kvs_store_opts;
#define KVS_STORE_OPTS_INIT                                                                        \
    {                                                                                              \
        sizeof(kvs_store_opts), 0, 0, 0, 0, 0, 0, 0, 0, NULL, NULL                                 \
    }

/* Opens DIR (made with mode 0700), reads the headers of its files, removes temporaries, sets what
 * is damaged aside, and evicts down to max_bytes. KVS_E_STATE: another process has it open.
 * A directory that can't be read fails with KVS_E_IO; single files that can't are skipped. KVS_E_IO also
 * where DIR holds other things and others may write to it, or one is named as a file of a store: it is
 * left as it was. */
KVS_API kvs_status kvs_store_open(kvs_ctx *ctx, const char *dir, const kvs_store_opts *opts,
                                  kvs_store **out, kvs_err *err);
/* Writes what is queued, then frees; NULL is fine. Entries still pinned are released. */
KVS_API void kvs_store_close(kvs_store *s);

typedef struct kvs_store_key {
    const uint8_t *identity; /* [32] */
    const void *ns;
    size_t ns_bytes;
    const int32_t *ids;
    size_t n_ids; /* 0 is fine: an object that is named by its namespace */
} kvs_store_key;

/* Writes one chunk, the `bytes` bytes of a part from `offset` on, to dst. From any threads of the store
 * (of the call, if durable), several at once; must not call the store. */
typedef void (*kvs_part_fn)(void *user, uint64_t offset, size_t bytes, void *dst);

typedef struct kvs_store_part {
    char name[KVS_STORE_NAME_MAX]; /* "k", "v.scale" ...; NUL-terminated */
    uint32_t kind;                 /* the caller's */
    int32_t layer;
    uint64_t bytes; /* 0 is fine */
    const void *data;
    uint32_t
        chunk_bytes;   /* where blocks end: a part that grows keeps its earlier blocks. 0: 1 MiB */
    uint32_t reserved; /* 0 */
    /* With data NULL: makes the bytes, chunk by chunk as they are written, the same whenever it is
     * asked, so that what is large need not be laid out as a whole first. Else NULL. */
    kvs_part_fn fill;
    void *fill_user;
} kvs_store_part;

enum {
    KVS_PUT_DURABLE = 1u << 0, /* return when it is durable; nothing is copied */
    KVS_PUT_WAIT = 1u << 1,    /* wait for room in the queue instead of KVS_NO */
    KVS_PUT_BORROW = 1u << 2   /* nothing is copied: what parts point to stays, and `fill` may be
                                  called, until `done`, which is called if the put was KVS_OK */
};
/* From a thread of the store (or of the call, if durable): KVS_OK with the entry, or why not. */
typedef void (*kvs_put_fn)(void *user, kvs_status status, kvs_entry entry, const kvs_err *err);

typedef struct kvs_store_put_opts {
    size_t struct_size;
    uint32_t flags;
    uint32_t kind; /* < 32 */
    uint32_t entry_flags;
    int32_t priority;
    uint64_t cost;
    kvs_put_fn done; /* may be NULL; must not call the store */
    void *done_user;
} kvs_store_put_opts;
#define KVS_STORE_PUT_OPTS_INIT                                                                    \
    {                                                                                              \
        sizeof(kvs_store_put_opts), 0, 0, 0, 0, 0, NULL, NULL                                      \
    }

/* Saves an entry, replacing one of the same key. KVS_OK: queued (copied), or durable if asked for.
 * KVS_NO: the queue is full, nothing was taken. KVS_E_LIMIT: larger than the store may be.
 * KVS_E_STATE: read-only. With KVS_PUT_DURABLE also KVS_E_IO and KVS_E_NOMEM; the entry of that
 * key, if there was one, is then still there. */
KVS_API kvs_status kvs_store_put(kvs_store *s, const kvs_store_key *key,
                                 const kvs_store_part *parts, size_t n_parts,
                                 const kvs_store_put_opts *opts, kvs_err *err);
/* Waits until everything put before is durable or has failed. KVS_OK if every queued put since the
 * last flush was saved, else the last one's status (KVS_E_IO, KVS_E_NOMEM, KVS_E_LIMIT: no room, what
 * is there is pinned) with its reason. A failure is told to one flush: of several callers, one that
 * must know of its own puts asks by `done` or KVS_PUT_DURABLE. */
KVS_API kvs_status kvs_store_flush(kvs_store *s, kvs_err *err);

enum {
    KVS_FIND_EXACT = 0,  /* an entry of exactly these ids */
    KVS_FIND_PREFIX = 1, /* the longest entry whose ids are all at the front of these */
    KVS_FIND_OVERLAP =
        2 /* an entry with the longest common prefix, though it may go on otherwise */
};
typedef struct kvs_store_query {
    size_t struct_size;
    uint32_t mode;
    uint32_t kinds;    /* bit i: kind i is wanted; 0: all */
    size_t min_tokens; /* less in common is no hit */
    size_t max_tokens; /* PREFIX, OVERLAP: of the ids, only so many count; 0: all */
} kvs_store_query;
#define KVS_STORE_QUERY_INIT                                                                       \
    {                                                                                              \
        sizeof(kvs_store_query), 0, 0, 0, 0                                                        \
    }
typedef struct kvs_store_hit {
    size_t struct_size;
    kvs_entry entry;
    size_t n_common; /* tokens of the key that the entry shares, compared one by one */
    kvs_entry_info info;
} kvs_store_hit;
#define KVS_STORE_HIT_INIT                                                                         \
    {                                                                                              \
        sizeof(kvs_store_hit), 0, 0, KVS_ENTRY_INFO_INIT                                           \
    }
/* KVS_OK: a hit, pinned: it and its blocks stay until kvs_store_unpin. KVS_NO: a miss. Takes time
 * O(ids), whatever the number of entries. OVERLAP is exact to 64 tokens; beyond that the newest 64
 * of the entries that agree so far are compared. */
KVS_API kvs_status kvs_store_find(kvs_store *s, const kvs_store_key *key,
                                  const kvs_store_query *query, kvs_store_hit *hit, kvs_err *err);
/* KVS_E_NOTFOUND: the entry is gone. Pins count. */
KVS_API kvs_status kvs_store_pin(kvs_store *s, kvs_entry entry);
KVS_API kvs_status kvs_store_unpin(kvs_store *s, kvs_entry entry);
/* Counts as a use without a read. */
KVS_API kvs_status kvs_store_touch(kvs_store *s, kvs_entry entry);

KVS_API kvs_status kvs_store_entry_info(kvs_store *s, kvs_entry entry, kvs_entry_info *out);
/* Part i without data. KVS_NO past the last. */
KVS_API kvs_status kvs_store_entry_part(kvs_store *s, kvs_entry entry, size_t i,
                                        kvs_store_part *out);
/* The first n token ids, and the namespace (not terminated); either pointer may be NULL. */
KVS_API kvs_status kvs_store_entry_ids(kvs_store *s, kvs_entry entry, int32_t *ids, size_t n);
KVS_API kvs_status kvs_store_entry_ns(kvs_store *s, kvs_entry entry, void *ns, size_t cap,
                                      size_t *ns_bytes);

typedef struct kvs_store_buf {
    size_t part;    /* index */
    uint64_t at;    /* first byte of the part */
    uint64_t bytes; /* to be read */
    void *dst;
} kvs_store_buf;
/* Reads ranges of a pinned entry into the caller's buffers; every block touched is checked.
 * KVS_E_FORMAT: damaged; the entry has been set aside and is a miss from now on. KVS_E_IO: could
 * not be read now. On failure the buffers hold nothing of use. */
KVS_API kvs_status kvs_store_get(kvs_store *s, kvs_entry entry, const kvs_store_buf *bufs,
                                 size_t n_bufs, kvs_err *err);
/* The same on a thread of the store; `bufs` is copied, the memory it names must stay until done is
 * called. KVS_NO: too many wait (max_queue_items), nothing was taken. */
typedef void (*kvs_get_fn)(void *user, kvs_status status, const kvs_err *err);
KVS_API kvs_status kvs_store_get_async(kvs_store *s, kvs_entry entry, const kvs_store_buf *bufs,
                                       size_t n_bufs, kvs_get_fn done, void *user, kvs_err *err);

/* Forgets an entry, durably; its blocks go when nothing refers to them. */
KVS_API kvs_status kvs_store_remove(kvs_store *s, kvs_entry entry, kvs_err *err);
/* Sets max_bytes and evicts down to it. */
KVS_API kvs_status kvs_store_limit(kvs_store *s, uint64_t max_bytes, kvs_err *err);
/* Reclaims dead bytes: unlinks and rewrites segments. *freed (may be NULL) counts bytes. */
KVS_API kvs_status kvs_store_gc(kvs_store *s, uint64_t *freed, kvs_err *err);
/* Next entry after *cursor (start with 0); KVS_NO at the end. */
KVS_API kvs_status kvs_store_list(kvs_store *s, kvs_entry *cursor, kvs_entry_info *out);

typedef struct kvs_verify_result {
    size_t struct_size;
    uint64_t entries;
    uint64_t blocks;
    uint64_t bytes;
    uint64_t bad_entries; /* set aside */
    uint64_t bad_blocks;
    uint64_t unreadable; /* could not be read now: nothing was decided about them */
} kvs_verify_result;
#define KVS_VERIFY_RESULT_INIT                                                                     \
    {                                                                                              \
        sizeof(kvs_verify_result), 0, 0, 0, 0, 0, 0                                                \
    }
/* Reads every block of every entry and compares its SHA-256. KVS_NO: something was damaged. */
KVS_API kvs_status kvs_store_verify(kvs_store *s, kvs_verify_result *out, kvs_err *err);

/* One entry to one file and back; import checks everything before it stores. */
KVS_API kvs_status kvs_store_export(kvs_store *s, kvs_entry entry, const char *path, kvs_err *err);
KVS_API kvs_status kvs_store_import(kvs_store *s, const char *path, kvs_entry *out, kvs_err *err);

typedef struct kvs_store_stats {
    size_t struct_size;
    uint64_t entries;
    uint64_t disk_bytes; /* of all files; each shared block once */
    uint64_t live_bytes; /* of these, what entries refer to */
    uint64_t max_bytes;
    uint64_t segments;
    uint64_t blocks;
    uint64_t foreign; /* entries of another identity */
    uint64_t foreign_bytes;
    uint64_t other_format; /* files of a format that is not read: left alone */
    uint64_t unreadable;   /* files that could not be read at open: left alone */
    uint64_t quarantined;  /* files set aside since open */
    uint64_t temporaries;  /* removed at open */
    uint64_t queued_items;
    uint64_t queued_bytes;
    uint64_t written; /* entries made durable since open */
    uint64_t written_bytes;
    uint64_t deduplicated_bytes; /* that were there already */
    uint64_t refused;            /* put while the queue was full, or above the limit */
    uint64_t failed;             /* given up after retries */
    uint64_t retried;
    uint64_t evicted;
    uint64_t hits;
    uint64_t misses;
    uint64_t read_bytes;
    uint64_t read_failed;
    uint32_t read_only;
    uint32_t gc_blocked;   /* 1: a file could not be understood, so no block is reclaimed */
    char reason[160];      /* of the newest failure, skip or quarantine; empty: none */
    uint64_t hashed_bytes; /* of what was put; the rest of it was known to be there */
} kvs_store_stats;
#define KVS_STORE_STATS_INIT                                                                       \
    {                                                                                              \
        sizeof(kvs_store_stats), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, \
            0, 0, 0, 0, 0, {0}, 0                                                                  \
    }
KVS_API kvs_status kvs_store_get_stats(kvs_store *s, kvs_store_stats *out);

#ifdef __cplusplus
}
#endif
#endif
