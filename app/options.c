/* SPDX-License-Identifier: MIT */
/* options.c: the option table and what reads it. An option is one line here; its value goes to a
 * field of settings. Names are those that llama.cpp and mlx-lm users know, where the meaning is the
 * same. */
#include "options.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "util.h"

#define F(field) offsetof(settings, field)
#define INF      1e30
#define U31      2147483647.0

#define HELP_COLUMN 33 /* of the help texts */
#define HELP_WIDTH  100

const option_def option_table[] = {
    {"m|model", "FILE", "GGUF file or directory of safetensors; may also be given without -m",
     CMD_ALL, OPT_TEXT, F(model), 0, 0},
    {"p|prompt", "TEXT", "the prompt", CMD_RUN, OPT_TEXT, F(prompt), 0, 0},
    {"f|file", "FILE", "read the prompt from FILE, - for standard input", CMD_RUN, OPT_TEXT,
     F(file), 0, 0},
    {"sys|system-prompt|system", "TEXT", "system message of a chat model", CMD_TEXT, OPT_TEXT,
     F(system), 0, 0},
    {"chat-template", "NAME",
     "auto (the model's own), chatml, gemma, llama2, llama3, none or a file [auto]", CMD_TEXT,
     OPT_TEXT, F(template), 0, 0},
    {"raw", NULL, "complete the prompt as it is, without a chat template", CMD_RUN, OPT_FLAG,
     F(raw), 0, 0},
    {"prompt-cache|prompt-cache-file", "FILE",
     "begin with the state in FILE, of mlx-lm's form; written after the prompt if there is none",
     CMD_RUN, OPT_TEXT, F(prompt_cache), 0, 0},
    {"prompt-cache-all", NULL, "write that file after the answer, with all of it", CMD_RUN,
     OPT_FLAG, F(prompt_cache_all), 0, 0},
    {"n|predict|n-predict|max-tokens", "N", "most tokens to produce, -1: no limit [512]", CMD_TEXT,
     OPT_COUNT, F(n_predict), 1, U31},
    {"ignore-eos", NULL, "go on after an end token", CMD_TEXT, OPT_FLAG, F(ignore_eos), 0, 0},
    {"special", NULL, "print the text of control tokens too", CMD_TEXT, OPT_FLAG, F(special), 0, 0},

    {"temp|temperature", "T", "0 always takes the most probable token [0.8]", CMD_TEXT, OPT_F32,
     F(temperature), 0, INF},
    {"top-k", "K", "choose among the K most probable tokens, 0: all [40]", CMD_TEXT, OPT_U32,
     F(top_k), 0, U31},
    {"top-p", "P", "choose among the tokens that together reach P [0.95]", CMD_TEXT, OPT_F32,
     F(top_p), 0, 1},
    {"min-p", "P", "drop tokens below P times the most probable [0.05]", CMD_TEXT, OPT_F32,
     F(min_p), 0, 1},
    {"repeat-penalty|repetition-penalty", "X", "make seen tokens less likely, 1: off [1]", CMD_TEXT,
     OPT_F32, F(repeat_penalty), 1e-6, INF},
    {"presence-penalty", "X", "taken from the logit of a seen token [0]", CMD_TEXT, OPT_F32,
     F(presence_penalty), -INF, INF},
    {"frequency-penalty", "X", "taken for each time it was seen [0]", CMD_TEXT, OPT_F32,
     F(frequency_penalty), -INF, INF},
    {"repeat-last-n", "N", "newest tokens that count as seen, -1: all [64]", CMD_TEXT, OPT_COUNT,
     F(repeat_last_n), 0, U31},
    {"l|logit-bias", "ID+X", "add X to the logit of token ID, e.g. 42-100; repeatable", CMD_TEXT,
     OPT_LIST, F(bias), 0, 0},
    {"s|seed", "N", "of the draw; without it each run differs", CMD_TEXT, OPT_SEED, F(seed), 0, 0},

    {"draft", "HOW",
     "draft tokens and verify several in a step: ngram (what followed the same 3 tokens before), "
     "ngram:N, or a smaller model of the same vocabulary; the text stays the same",
     CMD_TEXT, OPT_TEXT, F(draft), 0, 0},
    {"md|draft-model|model-draft", "FILE", "as --draft FILE", CMD_TEXT, OPT_TEXT, F(draft_model), 0,
     0},
    {"draft-max|draft-n|spec-draft-n-max", "N", "most drafts of a step [8]", CMD_TEXT, OPT_U32,
     F(draft_max), 1, 255},

    {"c|ctx-size", "N", "most tokens of prompt and answer, 0: the model's [0]", CMD_ALL, OPT_U32,
     F(ctx_size), 0, U31},
    {"kv", "PLAN",
     "how keys and values are kept: f32 f16 bf16 q8 q6 q5 q4 q3 q2 c8 c6 c5 c4 c3 c2 affineN[:G] "
     "kXvY "
     "A+B layers:FILE layers=LINES config:FILE paged[/N]:PLAN [f16]; bench, perplexity: a list",
     CMD_ALL, OPT_TEXT, F(kv), 0, 0},
    {"ctk|cache-type-k", "TYPE", "keys alone; llama.cpp's type names too", CMD_ALL, OPT_TEXT,
     F(cache_k), 0, 0},
    {"ctv|cache-type-v", "TYPE", "values alone", CMD_ALL, OPT_TEXT, F(cache_v), 0, 0},
    {"kv-bits", "N", "as --kv affineN", CMD_ALL, OPT_U32, F(kv_bits), 2, 8},
    {"kv-group-size", "G", "elements that share a scale: 32, 64, 128 [64]", CMD_ALL, OPT_U32,
     F(kv_group), 32, 128},
    {"kv-start|quantized-kv-start", "N", "the first N tokens are kept dense until then", CMD_ALL,
     OPT_U32, F(kv_start), 0, U31},
    {"kv-block", "N", "keep them in blocks of N tokens of one pool; results are the same", CMD_ALL,
     OPT_U32, F(kv_block), 1, 256},
    {"window", "N", "full layers keep the newest N tokens only", CMD_ALL, OPT_U32, F(window), 1,
     U31},
    {"sinks", "N", "and the first N", CMD_ALL, OPT_U32, F(sinks), 0, U31},
    {"max-kv-size", "N", "as --window N-4 --sinks 4", CMD_ALL, OPT_U32, F(max_kv_size), 5, U31},
    {"undo", "N", "newest tokens that recurrent layers can take back [16]", CMD_ALL, OPT_U32,
     F(undo), 0, 65536},
    {"undo-bytes", "SIZE",
     "memory for that, all these layers together, as 300000, 64M or 1G: the more, the fewer tokens "
     "are computed again [what takes the least]",
     CMD_ALL, OPT_BYTES, F(undo_bytes), 1, (double)(1ull << 50)},
    {"swa-full", NULL, "keep all tokens of layers that have a window", CMD_ALL, OPT_FLAG,
     F(swa_full), 0, 0},

    {"t|threads", "N", "threads to compute with [all CPUs]", CMD_ALL, OPT_U32, F(threads), 1, 1024},
    {"b|batch-size|ub|ubatch-size", "N", "tokens of a prompt computed together [512]",
     CMD_TEXT | CMD_BENCH | CMD_QUALITY, OPT_U32, F(block), 1, 65536},
    {"max-memory", "MIB", "hard limit of all memory but the mapped file", CMD_ALL, OPT_U32,
     F(max_memory), 1, U31},
    {"isa", "NAME", "kernels to use: ref, avx2, best [best]; results are the same", CMD_ALL,
     OPT_TEXT, F(isa), 0, 0},

    {"p|n-prompt", "LIST", "prompt lengths [512]", CMD_BENCH, OPT_TEXT, F(prompts), 0, 0},
    {"n-warm", "LIST", "prompts that another session has computed, needs a paged plan [0]",
     CMD_BENCH, OPT_TEXT, F(warm), 0, 0},
    {"n|n-gen", "LIST", "answer lengths [64]", CMD_BENCH, OPT_TEXT, F(predicts), 0, 0},
    {"d|n-depth", "LIST", "tokens held before the measurement [0]", CMD_BENCH, OPT_TEXT, F(depths),
     0, 0},
    {"rows", "LIST", "sequences that answer together, each with its own state [1]", CMD_BENCH,
     OPT_TEXT, F(rows), 0, 0},
    {"r|repetitions", "N", "measurements of each case [3]", CMD_BENCH, OPT_U32, F(repetitions), 1,
     1000},
    {"o|output", "FORM", "md, csv or json [md]", CMD_BENCH, OPT_TEXT, F(output), 0, 0},

    {"no-history", NULL, "do not keep a history of the lines", CMD_CHAT, OPT_FLAG, F(no_history), 0,
     0},
    {"f|file", "FILE", "the text, - for standard input", CMD_QUALITY, OPT_TEXT, F(file), 0, 0},
    {"chunks", "N", "most windows of the text [all]; tune: half to choose by, half to check [8]",
     CMD_QUALITY, OPT_U32, F(chunks), 0, U31},
    {"kl|kl-divergence", NULL, "also the divergence from dense f32", CMD_PERPLEXITY, OPT_FLAG,
     F(kl), 0, 0},
    {"kl-base", "PLAN", "the divergence from this plan", CMD_PERPLEXITY, OPT_TEXT, F(kl_base), 0,
     0},
    {"budget", "BITS", "mean bits a stored value may take, scales included [4.5]", CMD_TUNE,
     OPT_F32, F(budget), 1, 32},
    {"budget-bytes", "N", "or bytes of all layers at --depth", CMD_TUNE, OPT_F32, F(budget_bytes),
     1, INF},
    {"max-kl", "KL|PLAN", "the fewest bytes within that divergence, or within that of a plan",
     CMD_TUNE, OPT_TEXT, F(max_kl), 0, 0},
    {"check", "N", "windows to check with, the last ones [half]", CMD_TUNE, OPT_U32,
     F(check_chunks), 1, U31},
    {"sensitivity", "FILE", "read what was measured of each layer, or write it there", CMD_TUNE,
     OPT_TEXT, F(sensitivity), 0, 0},
    {"no-center", NULL, "rotated keys without centres, a little faster to read", CMD_TUNE, OPT_FLAG,
     F(no_center), 0, 0},
    {"depth", "N", "tokens held, which weighs layers with a window [1]", CMD_TUNE, OPT_U32,
     F(depth), 1, U31},
    {"out", "FILE", "write the plan, for --kv layers:FILE", CMD_TUNE, OPT_TEXT, F(out), 0, 0},
    {"svg", "FILE", "write a plot (cache: of simulate)", CMD_QUALITY | CMD_BENCH | CMD_CACHE,
     OPT_TEXT, F(svg), 0, 0},

    {"tensors", NULL, "list the tensors", CMD_INSPECT, OPT_FLAG, F(tensors), 0, 0},

    {"cache-dir", "DIR", "directory of saved state [~/.cache/kvstate/state]", CMD_CACHE | CMD_TEXT,
     OPT_TEXT, F(cache_dir), 0, 0},
    {"cache-disk", "MIB",
     "most it may take [4096, or a tenth of what is free]; gc: forget until it is so small",
     CMD_CACHE | CMD_TEXT, OPT_U32, F(cache_disk), 1, U31},
    {"cache-ram", "MIB",
     "memory for what windows drop, so that an edit can go back, and (paged plans) for earlier "
     "prompts, each [64]",
     CMD_TEXT, OPT_U32, F(cache_ram), 1, U31},
    {"no-cache", NULL, "neither save state nor look for it", CMD_TEXT, OPT_FLAG, F(no_cache), 0, 0},
    {"blocks", "LIST", "simulate: capacities in blocks [1000,3000,10000,30000,50000]", CMD_CACHE,
     OPT_TEXT, F(blocks), 0, 0},

    {"json", NULL, "print one JSON object (chat: one a turn)",
     CMD_TEXT | CMD_INSPECT | CMD_CACHE | CMD_QUALITY, OPT_FLAG, F(json), 0, 0},
    {"q|quiet", NULL, "nothing on standard error but errors", CMD_ALL | CMD_CACHE, OPT_FLAG,
     F(quiet), 0, 0},
    {"v|verbose", NULL, "also the seed and what the library reports", CMD_ALL | CMD_CACHE, OPT_FLAG,
     F(verbose), 0, 0},
    {"h|help", NULL, "this text", CMD_ALL | CMD_CACHE, OPT_FLAG, F(help), 0, 0},
};
const size_t n_options = sizeof option_table / sizeof option_table[0];

size_t option_name(const option_def *o, size_t i, char *dst, size_t n)
{
    const char *p = o->names;
    while (i-- > 0) {
        p = strchr(p, '|');
        if (!p) {
            return 0;
        }
        p++;
    }
    size_t len = strcspn(p, "|");
    (void)snprintf(dst, n, "%.*s", (int)len, p);
    return len;
}

/* ---- values */

static int bad_value(const char *name, const char *text, const char *want)
{
    return fail(EXIT_USAGE, "--%s: \"%s\" is not %s", name, text, want);
}

static int set_number(const option_def *o, const char *name, const char *text, void *field)
{
    char want[80];
    char *end = NULL;
    errno = 0;
    double x = strtod(text, &end);
    bool whole = o->kind != OPT_F32;
    (void)snprintf(want, sizeof want,
                   whole ? "a whole number from %.0f to %.0f" : "a number from %g to %g", o->min,
                   o->max);
    if (o->kind == OPT_COUNT && x == -1.0 && *end == '\0' && end != text) {
        *(uint32_t *)field = o->offset == F(repeat_last_n) ? UINT32_MAX : 0;
        return 0;
    }
    if (end == text || *end != '\0' || errno != 0 || !(x >= o->min && x <= o->max) ||
        (whole && x != floor(x))) {
        return bad_value(name, text, want);
    }
    if (whole) {
        *(uint32_t *)field = (uint32_t)x;
    } else {
        *(float *)field = (float)x;
    }
    return 0;
}

static int set_seed(settings *s, const char *name, const char *text)
{
    char *end = NULL;
    errno = 0;
    if (strcmp(text, "-1") == 0) {
        s->seed_given = false;
        return 0;
    }
    unsigned long long x = strtoull(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 || text[0] == '-') {
        return bad_value(name, text, "a whole number");
    }
    s->seed = x;
    s->seed_given = true;
    return 0;
}

/* Bytes, or units of 2^10, 2^20, 2^30 of them. */
static int set_bytes(const option_def *o, const char *name, const char *text, uint64_t *field)
{
    static const char units[] = "KMG";
    char *end = NULL;
    errno = 0;
    unsigned long long x = strtoull(text, &end, 10);
    const char *unit = end != text && *end != '\0' ? strchr(units, *end) : NULL;
    const uint64_t each = unit ? UINT64_C(1) << 10 * (unit - units + 1) : 1;
    const uint64_t most = (uint64_t)o->max / each;
    if (end == text || end[unit ? 1 : 0] != '\0' || errno != 0 || text[0] < '0' || text[0] > '9' ||
        x > most || x < (uint64_t)o->min) {
        return bad_value(name, text, "a number of bytes above 0, with K, M or G for larger units");
    }
    *field = x * each;
    return 0;
}

static int set_flag(const char *name, const char *text, bool *field)
{
    static const char *const yes[] = {"1", "on", "true", "enabled"};
    static const char *const no[] = {"0", "off", "false", "disabled", ""};
    for (size_t i = 0; i < sizeof yes / sizeof yes[0]; i++) {
        if (strcmp(text, yes[i]) == 0) {
            *field = true;
            return 0;
        }
    }
    for (size_t i = 0; i < sizeof no / sizeof no[0]; i++) {
        if (strcmp(text, no[i]) == 0) {
            *field = false;
            return 0;
        }
    }
    return bad_value(name, text, "on or off");
}

static int set_option(settings *s, const option_def *o, const char *name, const char *text)
{
    void *field = (char *)s + o->offset;
    switch (o->kind) {
    case OPT_FLAG:
        return set_flag(name, text, field);
    case OPT_TEXT:
        *(const char **)field = text;
        return 0;
    case OPT_LIST:
        if (s->n_bias == MAX_BIAS) {
            return fail(EXIT_USAGE, "--%s: more than %d", name, MAX_BIAS);
        }
        s->bias[s->n_bias++] = text;
        return 0;
    case OPT_BYTES:
        return set_bytes(o, name, text, field);
    case OPT_SEED:
        return set_seed(s, name, text);
    case OPT_U32:
    case OPT_F32:
    case OPT_COUNT:
        return set_number(o, name, text, field);
    }
    return 0;
}

/* ---- environment and command line */

static int from_environment(settings *s, uint32_t command)
{
    for (size_t i = 0; i < n_options; i++) {
        char name[64];
        char env[80] = "KVSTATE_";
        size_t k = 0;
        while (option_name(&option_table[i], k, name, sizeof name) == 1) {
            k++;
        }
        size_t at = strlen(env);
        for (size_t j = 0; name[j] && at + 1 < sizeof env; j++) {
            char c = name[j];
            env[at++] = c == '-' ? '_' : c >= 'a' && c <= 'z' ? (char)(c - 'a' + 'A') : c;
        }
        env[at] = '\0';
        const char *value = getenv(env);
        if (value && option_table[i].commands & command) {
            int rc = set_option(s, &option_table[i], name, value);
            if (rc != 0) {
                (void)fprintf(stderr, "(from the environment: %s)\n", env);
                return rc;
            }
        }
    }
    return 0;
}

#define MAX_NAMES 160

typedef struct tables {
    struct option longs[MAX_NAMES];
    char names[MAX_NAMES][32];
    char shorts[64];
    const option_def *by_letter[128];
} tables;

/* getopt's tables for one command; val of a long option is 128 + its index in option_table. */
static void make_tables(tables *t, uint32_t command)
{
    size_t n = 0;
    size_t m = 0;
    memset(t, 0, sizeof *t);
    t->shorts[m++] = ':'; /* a missing argument is told apart */
    for (size_t i = 0; i < n_options; i++) {
        const option_def *o = &option_table[i];
        char name[32];
        for (size_t k = 0; o->commands & command && option_name(o, k, name, sizeof name); k++) {
            if (name[1] == '\0') {
                t->by_letter[(unsigned char)name[0]] = o;
                t->shorts[m++] = name[0];
                if (o->kind != OPT_FLAG) {
                    t->shorts[m++] = ':';
                }
            } else if (n + 1 < MAX_NAMES) {
                memcpy(t->names[n], name, sizeof name);
                t->longs[n].name = t->names[n];
                t->longs[n].has_arg = o->kind == OPT_FLAG ? no_argument : required_argument;
                t->longs[n].val = 128 + (int)i;
                n++;
            }
        }
    }
}

static int positional(settings *s, const char *command_name, int n, char **words)
{
    for (int i = 0; i < n; i++) {
        if (s->n_args < s->max_args) {
            s->args[s->n_args++] = words[i];
        } else if (s->model || s->max_args > 0) {
            return fail(EXIT_USAGE, "\"%s\" is one argument too many; kvstate %s --help", words[i],
                        command_name);
        } else {
            s->model = words[i];
        }
    }
    return 0;
}

static int from_argv(settings *s, const tables *t, const char *command_name, int argc, char **argv)
{
    opterr = 0;
    optind = 1;
    for (;;) {
        int index = -1;
        int c = getopt_long_only(argc, argv, t->shorts, t->longs, &index);
        if (c == -1) {
            break;
        }
        if (c == '?' || c == ':') {
            const char *what = optind > 0 && optind <= argc ? argv[optind - 1] : "";
            return fail(EXIT_USAGE,
                        c == '?' ? "unknown option %s; kvstate %s --help lists them"
                                 : "option %s needs a value; see kvstate %s --help",
                        what, command_name);
        }
        const option_def *o = c >= 128 ? &option_table[c - 128] : t->by_letter[c];
        char letter[2] = {(char)c, '\0'};
        int rc = set_option(s, o, c >= 128 && index >= 0 ? t->longs[index].name : letter,
                            o->kind == OPT_FLAG ? "on" : optarg);
        if (rc != 0) {
            return rc;
        }
    }
    return positional(s, command_name, argc - optind, argv + optind);
}

int options_parse(settings *s, uint32_t command, const char *command_name, int argc, char **argv)
{
    static tables t;
    memset(s, 0, sizeof *s);
    s->temperature = 0.8f;
    s->top_k = 40;
    s->undo = 16;
    s->top_p = 0.95f;
    s->min_p = 0.05f;
    s->repeat_penalty = 1.0f;
    s->repeat_last_n = 64;
    s->repetitions = 3;
    s->chunks = command == CMD_TUNE ? 8 : 0;
    s->n_predict = 512; /* a small model may repeat itself until the context is full */
    s->max_args = command == CMD_CACHE ? MAX_ARGS : 0;
    int rc = from_environment(s, command);
    if (rc != 0) {
        return rc;
    }
    make_tables(&t, command);
    return from_argv(s, &t, command_name, argc, argv);
}

/* Text behind the cursor, which stands at column HELP_COLUMN; lines are broken at spaces. */
static void put_wrapped(FILE *out, const char *text)
{
    size_t at = HELP_COLUMN;
    while (*text) {
        size_t n = strcspn(text, " ");
        if (at > HELP_COLUMN && at + n + 1 > HELP_WIDTH) {
            (void)fprintf(out, "\n%*s", HELP_COLUMN, "");
            at = HELP_COLUMN;
        }
        (void)fprintf(out, "%s%.*s", at > HELP_COLUMN ? " " : "", (int)n, text);
        at += n + (at > HELP_COLUMN);
        text += n;
        text += *text == ' ';
    }
    (void)fputc('\n', out);
}

void options_help(FILE *out, uint32_t command)
{
    for (size_t i = 0; i < n_options; i++) {
        const option_def *o = &option_table[i];
        if (!(o->commands & command)) {
            continue;
        }
        char left[80] = "";
        char name[32];
        for (size_t k = 0; option_name(o, k, name, sizeof name); k++) {
            size_t at = strlen(left);
            (void)snprintf(left + at, sizeof left - at, "%s%s%s", k ? ", " : "",
                           name[1] == '\0' ? "-" : "--", name);
        }
        size_t at = strlen(left);
        (void)snprintf(left + at, sizeof left - at, " %s", o->arg ? o->arg : "");
        if (strlen(left) > HELP_COLUMN - 3) {
            (void)fprintf(out, "  %s\n%*s", left, HELP_COLUMN, "");
        } else {
            (void)fprintf(out, "  %-*s", HELP_COLUMN - 2, left);
        }
        put_wrapped(out, o->help);
    }
}
