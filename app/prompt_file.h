/* SPDX-License-Identifier: MIT */
/* prompt_file.h: `kvstate run --prompt-cache FILE`: state of a prompt in a file of mlx-lm's form. */
#ifndef KVS_APP_PROMPT_FILE_H
#define KVS_APP_PROMPT_FILE_H

#include "machine.h"

typedef struct prompt_file {
    bool found;    /* there was a file, and the session holds it */
    bool unknown;  /* it did not tell its tokens: the prompt goes on behind them */
    size_t n_held; /* tokens */
} prompt_file;

/* Loads the file of the options into the session, if there is one; without the option nothing. */
int prompt_file_load(machine *m, prompt_file *f);
/* Makes the session hold the prompt, as machine_sync; behind unknown tokens it is appended. */
int prompt_file_sync(machine *m, const prompt_file *f, id_list *ids, size_t *n_reused,
                     const char **reason);
/* Writes it: after the prompt where there was none, after the answer with --prompt-cache-all. */
int prompt_file_save(machine *m, const prompt_file *f, bool after_answer);

#endif
