/* SPDX-License-Identifier: MIT */
/* token_pre.c: the pre-tokenisers of byte-level BPE, by the names that model files give them.
 *
 * Each is a list of regular expressions. The first cuts the text into its matches and what lies
 * between, the second cuts each of these pieces again, and so on; a piece is matched on its own, so
 * that look-around never sees beyond it. The expressions are those the models were trained with.
 * They are data of the models: a character more in a class changes token ids.
 *
 * Written differently from the originals, with the same matches:
 * - White space is the Unicode property White_Space, spelled out. PCRE2's \s has U+180E besides.
 * - "\s+$" starts only where a run of white space starts. Without that, each place in a long run
 *   would be tried, in quadratic time.
 *
 * No expression has nested repetition, so the work per word is bounded by its length; a limit
 * proportional to the text turns a mistake in that reasoning into an error instead of a hang.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdio.h>
#include <string.h>

#include "engine/token_pre.h"

#define MAX_PASSES 6u

#define WS                                                                                         \
    "\\t-\\r "                                                                                     \
    "\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define SPACE          "[" WS "]"
#define NO_SPACE       "[^" WS "]"
#define TAIL           SPACE "+(?!" NO_SPACE ")|" SPACE "+"
#define CONTRACT       "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define LETTERS        "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+"
#define SYMBOLS        " ?[^" WS "\\p{L}\\p{N}]+"
#define LINES          SPACE "*[\\r\\n]+"
#define GPT2           "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+|" SYMBOLS "|" TAIL
#define CL100K(digits) CONTRACT "|" LETTERS "|" digits "|" SYMBOLS "[\\r\\n]*|" LINES "|" TAIL
#define UPPER          "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER          "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define O200K(suffix, digits)                                                                      \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" suffix "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER  \
    "*" suffix "|" digits "|" SYMBOLS "[\\r\\n/]*|" LINES "|" TAIL
#define QWEN35                                                                                     \
    CONTRACT "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^" WS                               \
             "\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" LINES "|" TAIL
#define DEEPSEEK3                                                                                  \
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|"                                       \
    "[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|" LINES "|" TAIL
#define DEEPSEEK_HAN "[\\x{4e00}-\\x{9fa5}\\x{800}-\\x{4e00}\\x{ac00}-\\x{d7ff}]+"
/* Letters of bicameral scripts as DeepSeek LLM lists them: a snapshot of an older Unicode. */
#define DEEPSEEK_LETTERS                                                                           \
    "A-Za-z\\x{b5}\\x{c0}-\\x{d6}\\x{d8}-\\x{f6}\\x{f8}-\\x{1ba}\\x{1bc}-\\x{1bf}"                 \
    "\\x{1c4}-\\x{293}\\x{295}-\\x{2af}\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37b}-\\x{37d}"         \
    "\\x{37f}\\x{386}\\x{388}-\\x{38a}\\x{38c}\\x{38e}-\\x{3a1}\\x{3a3}-\\x{3f5}"                  \
    "\\x{3f7}-\\x{481}\\x{48a}-\\x{52f}\\x{531}-\\x{556}\\x{10a0}-\\x{10c5}"                       \
    "\\x{13a0}-\\x{13f5}\\x{13f8}-\\x{13fd}\\x{1c90}-\\x{1cba}\\x{1cbd}-\\x{1cbf}"                 \
    "\\x{1d00}-\\x{1d2b}\\x{1d6b}-\\x{1d77}\\x{1d79}-\\x{1d9a}\\x{1e00}-\\x{1f15}"                 \
    "\\x{1f18}-\\x{1f1d}\\x{1f20}-\\x{1f45}\\x{1f48}-\\x{1f4d}\\x{1f50}-\\x{1f57}\\x{1f59}"        \
    "\\x{1f5b}\\x{1f5d}\\x{1f5f}-\\x{1f7d}\\x{1f80}-\\x{1fb4}\\x{1fb6}-\\x{1fbc}\\x{1fbe}"         \
    "\\x{1fc2}-\\x{1fc4}\\x{1fc6}-\\x{1fcc}\\x{1fd0}-\\x{1fd3}\\x{1fd6}-\\x{1fdb}"                 \
    "\\x{1fe0}-\\x{1fec}\\x{1ff2}-\\x{1ff4}\\x{1ff6}-\\x{1ffc}\\x{2102}\\x{2107}"                  \
    "\\x{210a}-\\x{2113}\\x{2115}\\x{2119}-\\x{211d}\\x{2124}\\x{2126}\\x{2128}"                   \
    "\\x{212a}-\\x{212d}\\x{212f}-\\x{2134}\\x{2139}\\x{213c}-\\x{213f}\\x{2145}-\\x{2149}"        \
    "\\x{214e}\\x{2183}\\x{2184}\\x{2c00}-\\x{2c7b}\\x{2c7e}-\\x{2ce4}\\x{2ceb}-\\x{2cee}"         \
    "\\x{2cf2}\\x{2cf3}\\x{a640}-\\x{a66d}\\x{a680}-\\x{a69b}\\x{a722}-\\x{a76f}"                  \
    "\\x{a771}-\\x{a787}\\x{a78b}-\\x{a78e}\\x{ab70}-\\x{abbf}\\x{fb00}-\\x{fb06}"                 \
    "\\x{fb13}-\\x{fb17}\\x{ff21}-\\x{ff3a}\\x{ff41}-\\x{ff5a}\\x{10400}-\\x{1044f}"               \
    "\\x{104b0}-\\x{104d3}\\x{104d8}-\\x{104fb}\\x{10c80}-\\x{10cb2}\\x{10cc0}-\\x{10cf2}"         \
    "\\x{118a0}-\\x{118df}\\x{1e900}-\\x{1e943}"
#define DEEPSEEK_MARKS                                                                             \
    "[!-/:-~\\x{ff01}-\\x{ff0f}\\x{ff1a}-\\x{ff5e}\\x{2018}-\\x{201f}\\x{3000}-\\x{3002}]+"
#define FALCON_MARKS "[\\p{P}$+<=>^~|`]+"

enum { WHOLE_WORDS = 1, ADDS_BOS = 2 };

struct scheme {
    const char *names; /* separated by spaces */
    unsigned flags;
    const char *passes[MAX_PASSES];
};

static const struct scheme schemes[] = {
    {"default", 0, {"[\\p{P}$+<=>^~|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}},
    {"gpt-2 phi-2 mpt olmo jais trillion exaone4 granite-docling gigachat a.x-4.0 mellum "
     "modern-bert roberta-bpe jina-es jina-de jina-v1-en jina-v2-es jina-v2-de jina-v2-code",
     0,
     {GPT2}},
    {"smollm starcoder refact command-r codeshell exaone minerva-7b", 0, {"\\p{N}", GPT2}},
    {"llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2",
     WHOLE_WORDS | ADDS_BOS,
     {CL100K("\\p{N}{1,3}")}},
    {"dbrx smaug-bpe chatglm-bpe", 0, {CL100K("\\p{N}{1,3}")}},
    {"glm4 glm5", WHOLE_WORDS, {CL100K("\\p{N}{1,3}")}},
    {"qwen2 deepseek-r1-qwen stablelm2 hunyuan megrez solar-open grok-2 kormo",
     0,
     {CL100K("\\p{N}")}},
    {"qwen35", 0, {QWEN35}},
    {"falcon", 0, {FALCON_MARKS, GPT2, "[0-9][0-9][0-9]"}},
    {"deepseek-llm",
     0,
     {"[\\r\\n]", SPACE "?[" DEEPSEEK_LETTERS "]+", SPACE "?" DEEPSEEK_MARKS,
      "(?<!" SPACE ")" SPACE "+$", DEEPSEEK_HAN, "\\p{N}"}},
    {"deepseek-coder", 0, {"[\\r\\n]", SPACE "?\\p{L}+", SPACE "?\\p{P}+", DEEPSEEK_HAN, "\\p{N}"}},
    {"deepseek-v3 hunyuan-dense joyai-llm",
     0,
     {"\\p{N}{1,3}", "[\\x{4e00}-\\x{9fa5}\\x{3040}-\\x{309f}\\x{30a0}-\\x{30ff}]+", DEEPSEEK3}},
    {"gpt-4o llama4 kanana2", 0, {O200K("(?i:'s|'t|'re|'ve|'m|'ll|'d)?", "\\p{N}{1,3}")}},
    {"tekken", WHOLE_WORDS | ADDS_BOS, {O200K("", "\\p{N}")}},
};

struct kvs__pre {
    kvs_ctx *ctx;
    const struct scheme *scheme;
    pcre2_general_context *memory;
    pcre2_code *code[MAX_PASSES];
    unsigned n_passes;
};

/* -- Memory: PCRE2 gives no size back on free, so it is kept in front of the block. */

#define HEADER 16u

void *kvs__pcre_alloc(size_t bytes, void *ctx)
{
    size_t total = 0;
    if (!kvs__add_size(bytes, HEADER, &total)) {
        return NULL;
    }
    char *p = kvs__alloc(ctx, total);
    if (!p) {
        return NULL;
    }
    memcpy(p, &total, sizeof total);
    return p + HEADER;
}

void kvs__pcre_free(void *ptr, void *ctx)
{
    if (ptr) {
        char *p = (char *)ptr - HEADER;
        size_t total = 0;
        memcpy(&total, p, sizeof total);
        kvs__free(ctx, p, total);
    }
}

/* -- Lookup */

static bool has_name(const char *names, kvs__text name)
{
    while (*names) {
        size_t n = strcspn(names, " ");
        if (n == name.len && memcmp(names, name.ptr, n) == 0) {
            return true;
        }
        names += n + (names[n] == ' ');
    }
    return false;
}

static kvs_status unknown_name(kvs__text name, kvs_err *err)
{
    char known[160] = "";
    size_t used = 0;
    for (size_t i = 0; i < KVS_COUNT(schemes); i++) {
        int n = (int)strcspn(schemes[i].names, " ");
        if (used + (size_t)n + 2 < sizeof known) {
            used +=
                (size_t)snprintf(known + used, sizeof known - used, " %.*s", n, schemes[i].names);
        }
    }
    int shown = name.len > 24 ? 24 : (int)name.len;
    return kvs__fail(err, KVS_E_UNSUPPORTED, "engine",
                     "unknown pre-tokeniser \"%.*s\"; override it by one of:%s", shown,
                     name.len > 0 ? name.ptr : "", known);
}

/* -- Making */

static kvs_status compile(kvs__pre *pre, unsigned pass, kvs_err *err)
{
    pcre2_compile_context *cc = pcre2_compile_context_create(pre->memory);
    if (!cc) {
        return kvs__nomem(err, "engine", sizeof(void *));
    }
    int code = 0;
    PCRE2_SIZE at = 0;
    const char *text = pre->scheme->passes[pass];
    const uint32_t options =
        PCRE2_UTF | PCRE2_UCP | PCRE2_NO_UTF_CHECK | PCRE2_DOLLAR_ENDONLY | PCRE2_NEVER_BACKSLASH_C;
    pre->code[pass] =
        pcre2_compile((PCRE2_SPTR)text, PCRE2_ZERO_TERMINATED, options, &code, &at, cc);
    pcre2_compile_context_free(cc);
    if (!pre->code[pass]) {
        if (code == PCRE2_ERROR_NOMEMORY || code == 121) {
            return kvs__nomem(err, "engine", sizeof(void *));
        }
        return kvs__fail(err, KVS_E_INTERNAL, "engine",
                         "pre-tokeniser expression %u: PCRE2 error %d at %zu", pass, code, at);
    }
    /* Without a just-in-time compiler the interpreter matches the same, more slowly. */
    (void)pcre2_jit_compile(pre->code[pass], PCRE2_JIT_COMPLETE);
    return KVS_OK;
}

static const struct scheme *find_scheme(kvs__text name)
{
    for (size_t i = 0; i < KVS_COUNT(schemes); i++) {
        if (has_name(schemes[i].names, name)) {
            return &schemes[i];
        }
    }
    return NULL;
}

kvs_status kvs__pre_new(kvs_ctx *ctx, kvs__text name, kvs__pre **out, kvs_err *err)
{
    const struct scheme *scheme = find_scheme(name);
    if (!scheme) {
        return unknown_name(name, err);
    }
    kvs__pre *pre = kvs__calloc(ctx, 1, sizeof *pre);
    if (!pre) {
        return kvs__nomem(err, "engine", sizeof *pre);
    }
    pre->ctx = ctx;
    pre->scheme = scheme;
    pre->memory = pcre2_general_context_create(kvs__pcre_alloc, kvs__pcre_free, ctx);
    kvs_status st = pre->memory ? KVS_OK : kvs__nomem(err, "engine", sizeof(void *));
    while (st == KVS_OK && pre->n_passes < MAX_PASSES && scheme->passes[pre->n_passes]) {
        st = compile(pre, pre->n_passes, err);
        pre->n_passes += st == KVS_OK;
    }
    if (st != KVS_OK) {
        kvs__pre_free(pre);
        return st;
    }
    *out = pre;
    return KVS_OK;
}

void kvs__pre_free(kvs__pre *pre)
{
    if (!pre) {
        return;
    }
    for (unsigned i = 0; i < pre->n_passes; i++) {
        pcre2_code_free(pre->code[i]);
    }
    pcre2_general_context_free(pre->memory);
    kvs__free(pre->ctx, pre, sizeof *pre);
}

bool kvs__pre_whole_words(const kvs__pre *pre)
{
    return (pre->scheme->flags & WHOLE_WORDS) != 0;
}

bool kvs__pre_adds_bos(const kvs__pre *pre)
{
    return (pre->scheme->flags & ADDS_BOS) != 0;
}

/* -- Splitting */

struct match {
    pcre2_match_data *data;
    pcre2_match_context *limits;
    kvs_ctx *ctx;
};

void kvs__pre_match_free(void *match)
{
    struct match *m = match;
    if (m) {
        pcre2_match_data_free(m->data);
        pcre2_match_context_free(m->limits);
        kvs__free(m->ctx, m, sizeof *m);
    }
}

void *kvs__pre_match_new(const kvs__pre *pre)
{
    struct match *m = kvs__calloc(pre->ctx, 1, sizeof *m);
    if (m) {
        m->ctx = pre->ctx;
        m->data = pcre2_match_data_create(1, pre->memory);
        m->limits = pcre2_match_context_create(pre->memory);
        if (!m->data || !m->limits) {
            kvs__pre_match_free(m);
            m = NULL;
        }
    }
    return m;
}

/* 1: found, 0: none, else an error. */
static int find(const pcre2_code *code, struct match *m, const char *text, size_t len, size_t at)
{
    int rc = pcre2_match(code, (PCRE2_SPTR)text, len, at, PCRE2_NO_UTF_CHECK, m->data, m->limits);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {
        rc = pcre2_match(code, (PCRE2_SPTR)text, len, at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                         m->data, m->limits);
    }
    if (rc == PCRE2_ERROR_NOMATCH) {
        return 0;
    }
    return rc >= 0 ? 1 : rc;
}

static kvs_status match_failed(int rc, size_t len, kvs_err *err)
{
    if (rc == PCRE2_ERROR_NOMEMORY) {
        return kvs__nomem(err, "engine", len);
    }
    return kvs__fail(err, KVS_E_LIMIT, "engine",
                     "pre-tokeniser gave up on a piece of %zu bytes (PCRE2 error %d)", len, rc);
}

static kvs_status split(const kvs__pre *pre, kvs__token_work *w, unsigned pass, const char *text,
                        size_t len)
{
    if (len == 0) {
        return KVS_OK;
    }
    if (pass == pre->n_passes) {
        return kvs__token_bpe_word(w, text, len);
    }
    struct match *m = w->match;
    size_t done = 0;
    while (done < len) {
        int rc = find(pre->code[pass], m, text, len, done);
        if (rc < 0) {
            return match_failed(rc, len, w->err);
        }
        const PCRE2_SIZE *span = pcre2_get_ovector_pointer(m->data);
        size_t from = rc == 1 ? span[0] : len;
        size_t to = rc == 1 ? span[1] : len;
        if (to <= done && rc == 1) {
            return kvs__fail(w->err, KVS_E_INTERNAL, "engine", "pre-tokeniser matched nothing");
        }
        kvs_status st = split(pre, w, pass + 1, text + done, from - done);
        if (st == KVS_OK) {
            st = split(pre, w, pass + 1, text + from, to - from);
        }
        if (st != KVS_OK) {
            return st;
        }
        done = to;
    }
    return KVS_OK;
}

kvs_status kvs__pre_split(const kvs__pre *pre, kvs__token_work *w, const char *text, size_t len)
{
    struct match *m = w->match;
    const uint64_t steps = 100000 + 64 * (uint64_t)len;
    pcre2_set_match_limit(m->limits, steps > UINT32_MAX ? UINT32_MAX : (uint32_t)steps);
    pcre2_set_depth_limit(m->limits, steps > UINT32_MAX ? UINT32_MAX : (uint32_t)steps);
    return split(pre, w, 0, text, len);
}
