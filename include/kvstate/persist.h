/* SPDX-License-Identifier: MIT */
/* kvstate/persist.h: a session's state on disk: found again after a restart, and after an edit.
 *
 * A session with a store looks there for a longer prefix than it holds, and saves what it has
 * computed, on the store's threads. What comes back is proven: the identity (weights, codecs and
 * windows of all layers, position settings, adapter, media, salt), every token id, every byte.
 * The logits that follow are those of a computation from the first token on, bit for bit.
 *
 * Recurrent layers come back where a snapshot was: at the end of what was saved, 8 tokens before the end
 * of a prompt, where a turn began, and every 256 tokens (a doubling, from 4096 on), as far as note_bytes go.
 *
 * The store is a help, never a need: where it fails the session computes, and kvs_reuse says why. */
#ifndef KVSTATE_PERSIST_H
#define KVSTATE_PERSIST_H

#include "kvstate/session.h"
#include "kvstate/store.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kvs_persist_opts {
    size_t struct_size;
    const char *dir;    /* made with mode 0700; NULL: notes in memory alone */
    uint64_t max_bytes; /* of the directory, 0: no limit */
    /* Of memory for what windows drop, and for snapshots of recurrent layers, so that an edit can go
     * back; 0: 64 MiB. Less than a snapshot: recurrent state is saved at the end of a text alone. */
    uint64_t note_bytes;
    uint32_t min_tokens; /* fewer are not saved, nor looked for; 0: 64 */
    uint32_t reserved;   /* 0 */
    /* Parts of the identity that the model file does not have; see kvs_identity_desc. */
    kvs_bytes rope;
    kvs_bytes adapter;
    kvs_bytes media;
    kvs_bytes salt;
} kvs_persist_opts;
#define KVS_PERSIST_OPTS_INIT                                                                      \
    {                                                                                              \
        sizeof(kvs_persist_opts), NULL, 0, 0, 0, 0, {NULL, 0}, {NULL, 0}, {NULL, 0},               \
        {                                                                                          \
            NULL, 0                                                                                \
        }                                                                                          \
    }

/* To be called before the first token. A directory that another process writes to, or that is
 * read-only, is read. After a failure the session is as it was. KVS_E_STATE: it holds tokens, or has
 * a store. The model's digest is computed if DIR doesn't remember it (SHA-256 of the file). */
KVS_API kvs_status kvs_session_persist(kvs_session *session, const kvs_persist_opts *opts,
                                       kvs_err *err);
/* Queues what is not saved yet. sync does so by itself, appends do from time to time: to be called at
 * the end of an answer. KVS_NO: nothing to do, no store, or its queue is full now (save_reason): to
 * be called again. A failure is no reason to stop. */
KVS_API kvs_status kvs_session_save(kvs_session *session, kvs_err *err);
/* Waits until all that was queued is durable; KVS_E_IO if something was not saved. */
KVS_API kvs_status kvs_session_flush(kvs_session *session, kvs_err *err);

/* Of the last sync; totals since kvs_session_persist. */
typedef struct kvs_reuse {
    size_t struct_size;
    uint64_t n_memory; /* tokens that the session held, or went back to with its notes */
    uint64_t n_disk;   /* tokens read from the store, then n_memory is 0 */
    uint64_t disk_bytes;
    double disk_s;
    uint64_t notes_bytes; /* now */
    uint64_t saved;       /* entries durable */
    uint64_t saved_bytes;
    uint64_t not_saved; /* failed for good, or found the queue full at the end of its text */
    uint32_t has_store;
    uint32_t read_only;
    char reason[160];      /* why the last sync took nothing from the store; empty: it did */
    char save_reason[160]; /* why the last save failed, or none is made; empty: it did not */
    uint64_t n_shared;     /* tokens lent by the prefix cache, then n_memory and n_disk are 0 */
} kvs_reuse;
#define KVS_REUSE_INIT                                                                             \
    {                                                                                              \
        sizeof(kvs_reuse), 0, 0, 0, 0.0, 0, 0, 0, 0, 0, 0, {0}, {0}, 0                             \
    }
KVS_API kvs_status kvs_session_get_reuse(const kvs_session *session, kvs_reuse *out);

/* ---- an answer under way, so that a killed program can go on with it
 *
 * `request` is all that decides the answer beside the prompt: limits, sampling options, a seed that
 * was asked for. Ids alone are kept: the state of a prefix of them is saved anyway, and computing
 * the rest again gives the same bits. Not kept in a directory that is only read. */
typedef struct kvs_answer {
    size_t struct_size;
    kvs_bytes request;
    const int32_t *prompt;
    size_t n_prompt;
    uint64_t seed;
    const int32_t *ids; /* put: picked so far, the last one perhaps not yet in the session */
    size_t n_ids;
} kvs_answer;
#define KVS_ANSWER_INIT                                                                            \
    {                                                                                              \
        sizeof(kvs_answer), {NULL, 0}, NULL, 0, 0, NULL, 0                                         \
    }
/* Queues it; replaces the last one of the same request and prompt when it is durable. */
KVS_API kvs_status kvs_session_put_answer(kvs_session *session, const kvs_answer *answer,
                                          kvs_err *err);
/* Looks for an answer to answer->request and ->prompt; fills seed and ids (at most cap in `ids`,
 * where *n says how many there are). KVS_NO: none. */
KVS_API kvs_status kvs_session_find_answer(kvs_session *session, kvs_answer *answer, int32_t *ids,
                                           size_t cap, size_t *n, kvs_err *err);
/* It is complete: never to be found again. */
KVS_API kvs_status kvs_session_drop_answer(kvs_session *session, const kvs_answer *answer,
                                           kvs_err *err);

#ifdef __cplusplus
}
#endif
#endif
