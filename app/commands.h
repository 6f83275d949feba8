/* SPDX-License-Identifier: MIT */
/* commands.h: the commands; each returns the exit code. */
#ifndef KVS_APP_COMMANDS_H
#define KVS_APP_COMMANDS_H

#include "options.h"

int cmd_run(settings *s);
int cmd_chat(settings *s);
int cmd_bench(settings *s);
int cmd_inspect(settings *s);
int cmd_cache(settings *s);
/* Reads the files of a saved-state directory, or one of them, by docs/format.md alone. */
int cmd_cache_dump(const settings *s, const char *path);
/* Replays a trace of requests ("-": standard input) against the retention policies. */
int cmd_cache_simulate(settings *s, const char *path);
int cmd_perplexity(settings *s);
int cmd_tune(settings *s);

typedef struct command_def {
    const char *name;
    uint32_t bit; /* CMD_* */
    const char *help;
    int (*fn)(settings *s);
} command_def;
extern const command_def command_table[];
extern const size_t n_commands;

/* Completion script for "bash", "zsh" or "fish" on stdout. */
int print_completion(const char *shell);

#endif
