/* SPDX-License-Identifier: MIT */
/* saved.h: saved state on behalf of the commands: where it lies, how large it may be, what is told
 * about it. Nothing here ever makes a command fail. */
#ifndef KVS_APP_SAVED_H
#define KVS_APP_SAVED_H

#include "machine.h"

/* The directory of the options, else below XDG_CACHE_HOME or ~/.cache; false: there is none, or its
 * name is too long. */
bool saved_dir(const settings *s, char *dst, size_t n);
/* What a session of a paged plan keeps of earlier prompts in memory; NULL: nothing. */
kvs_prefix_cache *saved_prefixes(machine *m);
/* Gives the session its store, as the options say. */
void saved_open(machine *m);
/* What the last sync took from where, for people. */
void saved_report(const machine *m);
/* How many tokens that was. */
uint64_t saved_reused(const machine *m);
/* Where they came from: members of a JSON object, each with a comma in front. */
void saved_json(FILE *out, const machine *m);

/* An answer under way. Its request is all that decides it beside the prompt. */
void saved_request(machine *m, const char *what);
/* Answers that a killed program left: ids and seed, true if there is one. */
bool saved_find(machine *m, const id_list *prompt, id_list *ids, uint64_t *seed);
/* From time to time; at the end `done` says that it is complete. */
void saved_progress(machine *m, const id_list *prompt, const id_list *ids);
void saved_done(machine *m, const id_list *prompt);

#endif
