/* SPDX-License-Identifier: MIT */
/* machine.h: a model at work, for the commands that produce text: everything from the context to
 * the sampler, as the options say. */
#ifndef KVS_APP_MACHINE_H
#define KVS_APP_MACHINE_H

#include "util.h"

typedef struct id_list {
    int32_t *ids;
    size_t n;
    size_t cap;
} id_list;
/* Appends; EXIT_MEMORY. */
int ids_add(id_list *l, const int32_t *ids, size_t n);

typedef struct machine {
    settings *s;
    kvs_ctx *ctx;
    kvs_model *model;
    kvs_plan *plan;
    kvs_session *session;
    kvs_prefix_cache *prefixes; /* of a paged plan: earlier prompts in memory; NULL: none */
    kvs_sampler *sampler;
    kvs_detok *detok;
    kvs_model *draft_model;
    kvs_spec *spec;        /* NULL: no drafts */
    struct answer *answer; /* while spec is at work */
    uint64_t seed;
    bool progress_shown;
    /* saved.c */
    char request[1024]; /* n_request 0: answers under way are not kept */
    size_t n_request;
    double progress_at;
    bool progress_put;
    const id_list *progress_prompt; /* of the answer that is kept; NULL: none is */
} machine;

/* All but the sampler and the drafts, which machine_sampler makes. What is half made machine_close
 * takes too. */
int machine_open(machine *m, settings *s);
int machine_sampler(machine *m);
void machine_close(machine *m);

/* Makes the session hold these; *reason is set to "interrupted" where a signal stopped it. */
int machine_sync(machine *m, const id_list *ids, size_t *n_reused, const char **reason);

/* The same for tokens behind those that it holds. */
int machine_append(machine *m, const id_list *ids, const char **reason);

typedef int (*emit_fn)(void *user, const char *text, size_t n);
/* Produces until something ends the answer: *reason is "end", "length", "context" or "interrupted".
 * What was produced is appended to *made; the last of it may not be in the session yet. */
int machine_answer(machine *m, emit_fn emit, void *user, id_list *made, const char **reason);
/* As if it had just been produced: what a killed program left of the answer to these. It goes on
 * with the seed of then. */
int machine_resume(machine *m, const id_list *prompt, emit_fn emit, void *user, id_list *made,
                   const char **reason);

/* What became of drafts since the machine was opened: zeros without any. */
kvs_spec_stats machine_drafts(const machine *m);
/* Rewinds of recurrent layers, and the tokens that they computed again in each of them. */
void machine_undo(const machine *m, uint64_t *rewinds, uint64_t *recomputed);
/* Where a draft model's state came from: "none", "memory", "disk", or "disk and memory". */
const char *machine_draft_tier(const kvs_spec_stats *st);
/* A line or two on standard error, where there were drafts. */
void machine_note_drafts(const machine *m);

double rate(size_t n, double seconds);

#endif
