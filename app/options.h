/* SPDX-License-Identifier: MIT */
/* options.h: every option of the program in one table; parsing, help, completion come from it. */
#ifndef KVS_APP_OPTIONS_H
#define KVS_APP_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Commands as bits, so that an option can say where it belongs. */
enum {
    CMD_RUN = 1u << 0,
    CMD_BENCH = 1u << 1,
    CMD_INSPECT = 1u << 2,
    CMD_CHAT = 1u << 3,
    CMD_CACHE = 1u << 4, /* no model: outside CMD_ALL */
    CMD_PERPLEXITY = 1u << 5,
    CMD_TUNE = 1u << 6,
    CMD_TEXT = CMD_RUN | CMD_CHAT, /* those that produce text */
    CMD_QUALITY = CMD_PERPLEXITY | CMD_TUNE,
    CMD_ALL = CMD_TEXT | CMD_BENCH | CMD_INSPECT | CMD_QUALITY
};

#define MAX_BIAS 64
#define MAX_ARGS 4

typedef struct settings {
    /* model and text */
    const char *model;
    const char *prompt;
    const char *file; /* of the prompt; "-": standard input */
    const char *system;
    const char *template;
    bool raw;
    bool no_history;
    bool ignore_eos;
    const char *prompt_cache;
    bool prompt_cache_all;
    bool special;
    uint32_t n_predict; /* 0: until the model ends */
    /* machine */
    uint32_t threads;
    uint32_t ctx_size;
    uint32_t block;
    uint32_t max_memory; /* MiB */
    const char *isa;
    /* state */
    const char *kv;
    const char *cache_k;
    const char *cache_v;
    uint32_t kv_bits;
    uint32_t kv_group;
    uint32_t kv_start;
    uint32_t kv_block;
    uint32_t window;
    uint32_t sinks;
    uint32_t max_kv_size;
    uint32_t undo;
    uint64_t undo_bytes; /* 0: the least */
    bool swa_full;
    /* sampling */
    float temperature;
    uint32_t top_k;
    float top_p;
    float min_p;
    float repeat_penalty;
    float presence_penalty;
    float frequency_penalty;
    uint32_t repeat_last_n;
    const char *bias[MAX_BIAS];
    uint32_t n_bias;
    uint64_t seed;
    bool seed_given;
    /* drafts */
    const char *draft; /* "ngram", "ngram:N" or a model; NULL: none */
    const char *draft_model;
    uint32_t draft_max; /* 0: the library's */
    /* bench */
    const char *rows;
    const char *prompts;
    const char *warm;
    const char *predicts;
    const char *depths;
    uint32_t repetitions;
    const char *output;
    /* perplexity and tune */
    uint32_t chunks; /* 0: all */
    bool kl;
    const char *kl_base;
    uint32_t check_chunks; /* 0: half */
    float budget;          /* bits a value; 0: 4.5 */
    float budget_bytes;    /* 0: by budget */
    const char *max_kl;    /* a number or a plan; NULL: by budget */
    const char *sensitivity;
    bool no_center;
    uint32_t depth;
    const char *out;
    const char *svg;
    /* inspect */
    bool tensors;
    /* cache */
    const char *cache_dir;
    uint32_t cache_disk; /* MiB, 0: as saved.c says */
    uint32_t cache_ram;  /* MiB */
    bool no_cache;
    const char *blocks; /* simulate: capacities */
    const char *args[MAX_ARGS];
    uint32_t n_args;
    uint32_t max_args; /* 0: one positional argument, the model */
    /* everywhere */
    bool json;
    bool quiet;
    bool verbose;
    bool help;
} settings;

typedef enum option_kind {
    OPT_FLAG,
    OPT_TEXT,
    OPT_U32,
    OPT_F32,
    OPT_COUNT, /* as U32, and -1 means 0: no limit */
    OPT_SEED,
    OPT_BYTES, /* uint64_t, with K, M or G */
    OPT_LIST   /* text, may be given several times */
} option_kind;

typedef struct option_def {
    const char *names; /* "m|model": one letter with one dash, longer ones with one or two */
    const char *arg;   /* name of the argument in the help; NULL for flags */
    const char *help;
    uint32_t commands; /* CMD_* */
    option_kind kind;
    size_t offset; /* in settings */
    double min, max;
} option_def;

extern const option_def option_table[];
extern const size_t n_options;

/* Name i of an option ("m", "model"); its length, 0 past the last. */
size_t option_name(const option_def *o, size_t i, char *dst, size_t n);

/* Defaults, then environment (KVSTATE_LONG_NAME), then argv[1 ..]. Returns 0, or 2 with a message on
 * stderr. One positional argument is the model. */
int options_parse(settings *s, uint32_t command, const char *command_name, int argc, char **argv);
void options_help(FILE *out, uint32_t command);

#endif
