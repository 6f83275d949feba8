/* SPDX-License-Identifier: MIT */
/* chat.c: see chat.h. Built-in templates are templates like the models' own: there is one way from
 * messages to text. */
#include "chat.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MAX_FILE ((size_t)1 << 20)

typedef struct control {
    const char *text;
    size_t n;
} control;

struct chat_template {
    const char *name;
    kvs_ctx *ctx;
    const kvs_tokenizer *tok;
    kvs_template *compiled;
    uint64_t hash;
    control *controls; /* by first byte, which `first` counts up */
    size_t first[257];
    size_t longest;
};

typedef struct builtin {
    const char *name;
    const char *sign; /* a control token that it needs, or NULL */
    const char *text;
} builtin;

static const builtin builtins[] = {
    {"chatml", "<|im_start|>",
     "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
     "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"},
    {"gemma", "<start_of_turn>",
     "{{ bos_token }}{% set ns = namespace(system='') %}{% for m in messages %}"
     "{% if m.role == 'system' %}{% set ns.system = m.content ~ '\\n\\n' %}{% else %}"
     "<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
     "{{ ns.system }}{{ m.content | trim }}<end_of_turn>\n{% set ns.system = '' %}{% endif %}"
     "{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"},
    {"llama3", "<|start_header_id|>",
     "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
     "{{ m.content | trim }}<|eot_id|>{% endfor %}"
     "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"},
    {"llama2", NULL,
     "{% set ns = namespace(system='') %}{% for m in messages %}"
     "{% if m.role == 'system' %}{% set ns.system = m.content ~ '\\n\\n' %}"
     "{% elif m.role == 'user' %}{{ bos_token }}[INST] {{ ns.system }}{{ m.content }} [/INST]"
     "{% set ns.system = '' %}{% else %} {{ m.content }} {{ eos_token }}{% endif %}{% endfor %}"},
};
#define N_BUILTINS (sizeof builtins / sizeof builtins[0])

/* ---- control tokens */

static int list_controls(chat_template *t)
{
    size_t n = kvs_tokenizer_size(t->tok);
    size_t count[256] = {0};
    for (int pass = 0; pass < 2; pass++) {
        for (size_t id = 0; id < n; id++) {
            size_t len = 0;
            const char *text = kvs_tokenizer_text(t->tok, (int32_t)id, &len);
            if (len == 0 || !(kvs_tokenizer_attr(t->tok, (int32_t)id) & KVS_TOKEN_CONTROL)) {
                continue;
            }
            unsigned char b = (unsigned char)text[0];
            if (pass == 1) {
                t->controls[t->first[b] + count[b]] = (control){text, len};
            }
            t->longest = len > t->longest ? len : t->longest;
            count[b]++;
        }
        if (pass == 0) {
            for (size_t b = 0; b < 256; b++) {
                t->first[b + 1] = t->first[b] + count[b];
                count[b] = 0;
            }
            t->controls = calloc(t->first[256] + 1, sizeof *t->controls);
            if (!t->controls) {
                return fail(EXIT_MEMORY, "out of memory");
            }
        }
    }
    return 0;
}

/* Bytes of the control token spelled at p, the longest; 0: none. */
static size_t control_at(const chat_template *t, const char *p, size_t left)
{
    size_t best = 0;
    unsigned char b = (unsigned char)p[0];
    for (size_t i = t->first[b]; i < t->first[b + 1]; i++) {
        const control *c = &t->controls[i];
        if (c->n <= left && c->n > best && memcmp(c->text, p, c->n) == 0) {
            best = c->n;
        }
    }
    return best;
}

/* ---- choosing */

static int compile(chat_template *t, const char *text, size_t n, const char *what)
{
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_status st = kvs_template_compile(t->ctx, text, n, &t->compiled, &err);
    t->hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++) {
        t->hash = (t->hash ^ (unsigned char)text[i]) * 0x100000001b3u;
    }
    if (st == KVS_OK) {
        return 0;
    }
    return fail(st == KVS_E_NOMEM ? EXIT_MEMORY : EXIT_INPUT,
                "%s: %s\n         --chat-template names a built-in one (chatml, gemma, llama2, "
                "llama3) or a file",
                what, err.msg);
}

static int use_builtin(chat_template *t, const builtin *b)
{
    if (b->sign && kvs_tokenizer_find(t->tok, b->sign, strlen(b->sign)) < 0) {
        return fail(EXIT_USAGE,
                    "the chat format needs the token %s, which this model does not have; --raw "
                    "completes the prompt without a format",
                    b->sign);
    }
    t->name = b->name;
    return compile(t, b->text, strlen(b->text), b->name);
}

static int use_file(chat_template *t, const char *path)
{
    FILE *f = fopen(path, "rb");
    if (!f) {
        return fail(EXIT_USAGE,
                    "--chat-template: \"%s\" is none of auto, chatml, gemma, llama2, llama3, none, "
                    "and no file: %s",
                    path, strerror(errno));
    }
    char *text = malloc(MAX_FILE + 1);
    size_t n = text ? fread(text, 1, MAX_FILE + 1, f) : 0;
    int rc = 0;
    if (!text) {
        rc = fail(EXIT_MEMORY, "out of memory");
    } else if (ferror(f)) {
        rc = fail(EXIT_INPUT, "%s: %s", path, strerror(errno));
    } else if (n > MAX_FILE) {
        rc = fail(EXIT_INPUT, "%s: larger than a chat template can be", path);
    } else {
        rc = compile(t, text, n, path);
    }
    t->name = path;
    free(text);
    (void)fclose(f);
    return rc;
}

static int choose(chat_template *t, const char *name, const kvs_model *model, bool must,
                  bool *found)
{
    size_t n = 0;
    *found = true;
    for (size_t i = 0; name && i < N_BUILTINS; i++) {
        if (strcmp(name, builtins[i].name) == 0) {
            return use_builtin(t, &builtins[i]);
        }
    }
    if (name && strcmp(name, "auto") != 0) {
        return use_file(t, name);
    }
    const char *own = kvs_model_string(model, "tokenizer.chat_template", &n);
    if (own) {
        t->name = "the model's own";
        return compile(t, own, n, "the model's chat template");
    }
    for (size_t i = 0; must && i < N_BUILTINS; i++) {
        const char *sign = builtins[i].sign;
        if (sign && kvs_tokenizer_find(t->tok, sign, strlen(sign)) >= 0) {
            return use_builtin(t, &builtins[i]);
        }
    }
    *found = false;
    return must ? fail(EXIT_USAGE, "this model has no chat template; name one with --chat-template")
                : 0;
}

int chat_open(const settings *s, kvs_ctx *ctx, const kvs_model *model, bool must,
              chat_template **out)
{
    bool found = false;
    *out = NULL;
    if (s->template && strcmp(s->template, "none") == 0) {
        return must ? fail(EXIT_USAGE, "a chat needs a template; --chat-template none is for run")
                    : 0;
    }
    chat_template *t = calloc(1, sizeof *t);
    if (!t) {
        return fail(EXIT_MEMORY, "out of memory");
    }
    t->ctx = ctx;
    t->tok = kvs_model_tokenizer(model);
    int rc = choose(t, s->template, model, must, &found);
    if (rc == 0 && found) {
        rc = list_controls(t);
    }
    if (rc != 0 || !found) {
        chat_close(t);
        return rc;
    }
    *out = t;
    return 0;
}

void chat_close(chat_template *t)
{
    if (t) {
        kvs_template_free(t->compiled);
        free(t->controls);
        free(t);
    }
}

const char *chat_name(const chat_template *t)
{
    return t->name;
}

uint64_t chat_hash(const chat_template *t)
{
    return t->hash;
}

/* ---- messages to text */

static void put_token(FILE *f, const chat_template *t, const char *key, kvs_special which)
{
    size_t n = 0;
    int32_t id = kvs_tokenizer_special(t->tok, which);
    const char *text = id >= 0 ? kvs_tokenizer_text(t->tok, id, &n) : "";
    (void)fprintf(f, ",\"%s\":", key);
    json_text(f, text, n);
}

static char *variables(const chat_template *t, const chat_message *m, size_t n, bool prompt,
                       size_t *len)
{
    char *json = NULL;
    FILE *f = open_memstream(&json, len);
    if (!f) {
        return NULL;
    }
    (void)fputs("{\"messages\":[", f);
    for (size_t i = 0; i < n; i++) {
        (void)fprintf(f, "%s{\"role\":\"%s\",\"content\":", i ? "," : "", m[i].role);
        json_text(f, m[i].text, m[i].n);
        (void)fputc('}', f);
    }
    (void)fprintf(f, "],\"tools\":null,\"documents\":null,\"add_generation_prompt\":%s",
                  prompt ? "true" : "false");
    put_token(f, t, "bos_token", KVS_SPECIAL_BOS);
    put_token(f, t, "eos_token", KVS_SPECIAL_EOS);
    (void)fputc('}', f);
    bool bad = ferror(f) != 0;
    if (fclose(f) != 0 || bad) {
        free(json);
        return NULL;
    }
    return json;
}

int chat_render(const chat_template *t, const chat_message *messages, size_t n, bool prompt,
                kvs_value **out)
{
    size_t len = 0;
    kvs_err err = {KVS_OK, 0, "", ""};
    char *json = variables(t, messages, n, prompt, &len);
    if (!json) {
        return fail(EXIT_MEMORY, "out of memory");
    }
    kvs_value *vars = NULL;
    kvs_status st = kvs_value_parse(t->ctx, json, len, KVS_VALUE_VARIABLES, &vars, &err);
    free(json);
    if (st == KVS_OK) {
        kvs_template_opts o = KVS_TEMPLATE_OPTS_INIT;
        time_t now = time(NULL);
        struct tm local;
        o.has_time = 1;
        o.time = now + (localtime_r(&now, &local) ? local.tm_gmtoff : 0);
        st = kvs_template_render(t->ctx, t->compiled, vars, &o, out, &err);
        kvs_value_free(vars);
    }
    return st == KVS_OK ? 0 : fail_err(EXIT_FAILED, st, &err, NULL);
}

/* ---- text to ids */

static int encode_part(const kvs_tokenizer *tok, const char *text, size_t n, uint32_t flags,
                       id_list *out)
{
    kvs_err err = {KVS_OK, 0, "", ""};
    size_t count = 0;
    kvs_status st = kvs_tokenizer_encode(tok, text, n, flags, NULL, 0, &count, &err);
    int32_t *ids = st == KVS_OK ? malloc((count + 1) * sizeof *ids) : NULL;
    if (st == KVS_OK && !ids) {
        return fail(EXIT_MEMORY, "out of memory");
    }
    if (st == KVS_OK) {
        st = kvs_tokenizer_encode(tok, text, n, flags, ids, count, &count, &err);
    }
    int rc = st == KVS_OK ? ids_add(out, ids, count) : fail_err(EXIT_FAILED, st, &err, NULL);
    free(ids);
    return rc;
}

/* The first spelling of a control token in [from, n) that has a byte of a message in it. */
static bool forged(const chat_template *t, const kvs_value *text, size_t from, size_t *at,
                   size_t *len)
{
    size_t n = 0;
    size_t a = 0;
    size_t b = 0;
    const char *p = kvs_value_text(text, &n);
    for (size_t k = 0; kvs_value_input_span(text, k, &a, &b) == KVS_OK; k++) {
        size_t i = a + 1 > t->longest ? a + 1 - t->longest : 0;
        for (i = i > from ? i : from; i < b; i++) {
            size_t c = control_at(t, p + i, n - i);
            if (c > 0 && i + c > a) {
                *at = i;
                *len = c;
                return true;
            }
            i += c > 0 ? c - 1 : 0; /* one that the template wrote */
        }
    }
    return false;
}

int chat_encode(const chat_template *t, const kvs_value *text, size_t from, id_list *out)
{
    size_t n = 0;
    const char *p = kvs_value_text(text, &n);
    id_list ids = {NULL, 0, 0};
    int rc = 0;
    bool more = true;
    while (rc == 0 && more) {
        size_t at = n;
        size_t len = 0;
        more = forged(t, text, from, &at, &len);
        rc = encode_part(t->tok, p + from, at - from, KVS_TOKENIZE_SPECIAL, &ids);
        if (rc == 0 && more) {
            rc = encode_part(t->tok, p + at, len, 0, &ids);
        }
        from = at + len;
    }
    int32_t bos = kvs_tokenizer_special(t->tok, KVS_SPECIAL_BOS);
    bool missing = kvs_tokenizer_adds(t->tok) & 1 && bos >= 0 && (ids.n == 0 || ids.ids[0] != bos);
    if (rc == 0 && out->n == 0 && missing) {
        rc = ids_add(out, &bos, 1);
    }
    if (rc == 0) {
        rc = ids_add(out, ids.ids, ids.n);
    }
    free(ids.ids);
    return rc;
}

int chat_encode_turn(const chat_template *t, const char *system, const char *text, size_t n,
                     id_list *out)
{
    chat_message m[2];
    size_t count = 0;
    kvs_value *rendered = NULL;
    char *mine = system ? strdup(system) : NULL;
    char *yours = malloc(n + 1);
    int rc = 0;
    if (!yours || (system && !mine)) {
        free(yours);
        free(mine);
        return fail(EXIT_MEMORY, "out of memory");
    }
    memcpy(yours, text, n);
    if (mine) {
        m[count++] = (chat_message){"system", mine, strlen(mine)};
    }
    m[count++] = (chat_message){"user", yours, n};
    rc = chat_render(t, m, count, true, &rendered);
    if (rc == 0) {
        rc = chat_encode(t, rendered, 0, out);
    }
    kvs_value_free(rendered);
    free(mine);
    free(yours);
    return rc;
}

int chat_encode_raw(const kvs_model *model, const char *text, size_t n, id_list *out)
{
    const kvs_tokenizer *tok = kvs_model_tokenizer(model);
    int32_t bos = kvs_tokenizer_special(tok, KVS_SPECIAL_BOS);
    int rc = kvs_tokenizer_adds(tok) & 1 && bos >= 0 ? ids_add(out, &bos, 1) : 0;
    return rc == 0 ? encode_part(tok, text, n, KVS_TOKENIZE_SPECIAL, out) : rc;
}
