/* SPDX-License-Identifier: MIT */
/* chat.c: the formats as lists of parts. A part is control tokens or plain text; neighbouring plain
 * text is joined before it is encoded, because a tokenizer may merge across the seam. */
#include "chat.h"

#include <stdlib.h>
#include <string.h>

/* %s stands for the message. "<...>" parts are control tokens where `control` says so. */
typedef struct part {
    bool control;
    const char *text;
} part;

#define MAX_PARTS 8

struct chat_format {
    const char *name;
    const char *sign; /* what its template contains */
    part system[MAX_PARTS];
    part user[MAX_PARTS];
    part answer[MAX_PARTS];
    /* The system message goes in front of the user's, parted by this, for formats without one. */
    const char *system_seam;
};

static const chat_format formats[] = {
    {"chatml",
     "<|im_start|>",
     {{true, "<|im_start|>"}, {false, "system\n%s"}, {true, "<|im_end|>"}, {false, "\n"}},
     {{true, "<|im_start|>"}, {false, "user\n%s"}, {true, "<|im_end|>"}, {false, "\n"}},
     {{true, "<|im_start|>"}, {false, "assistant\n"}},
     NULL},
    {"gemma",
     "<start_of_turn>",
     {{false, NULL}},
     {{true, "<start_of_turn>"}, {false, "user\n%s"}, {true, "<end_of_turn>"}, {false, "\n"}},
     {{true, "<start_of_turn>"}, {false, "model\n"}},
     "\n\n"},
    {"llama3",
     "<|start_header_id|>",
     {{true, "<|start_header_id|>"},
      {false, "system"},
      {true, "<|end_header_id|>"},
      {false, "\n\n%s"},
      {true, "<|eot_id|>"}},
     {{true, "<|start_header_id|>"},
      {false, "user"},
      {true, "<|end_header_id|>"},
      {false, "\n\n%s"},
      {true, "<|eot_id|>"}},
     {{true, "<|start_header_id|>"},
      {false, "assistant"},
      {true, "<|end_header_id|>"},
      {false, "\n\n"}},
     NULL},
    {"llama2", "[INST]", {{false, NULL}}, {{false, "[INST] %s [/INST]"}}, {{false, NULL}}, "\n\n"},
};
#define N_FORMATS (sizeof formats / sizeof formats[0])

const char *chat_name(const chat_format *f)
{
    return f->name;
}

static bool contains(const char *text, size_t n, const char *what)
{
    size_t len = strlen(what);
    for (size_t i = 0; i + len <= n; i++) {
        if (memcmp(text + i, what, len) == 0) {
            return true;
        }
    }
    return false;
}

int chat_find(const char *name, const kvs_model *model, const chat_format **out)
{
    size_t n = 0;
    const char *template = kvs_model_string(model, "tokenizer.chat_template", &n);
    bool automatic = !name || strcmp(name, "auto") == 0;
    *out = NULL;
    if (name && strcmp(name, "none") == 0) {
        return 0;
    }
    for (size_t i = 0; i < N_FORMATS; i++) {
        if (automatic ? template && contains(template, n, formats[i].sign)
                      : strcmp(name, formats[i].name) == 0) {
            *out = &formats[i];
            return 0;
        }
    }
    return automatic ? 0
                     : fail(EXIT_USAGE,
                            "--chat-template: \"%s\" is none of auto, chatml, gemma, llama2, "
                            "llama3, none",
                            name);
}

/* ---- text and ids that grow */

typedef struct buffer {
    char *ptr;
    size_t n;
} buffer;

static bool put(buffer *b, const char *text, size_t n)
{
    char *p = realloc(b->ptr, b->n + n + 1);
    if (!p) {
        return false;
    }
    if (n > 0) {
        memcpy(p + b->n, text, n);
    }
    b->ptr = p;
    b->n += n;
    return true;
}

static int add_id(id_list *out, int32_t id)
{
    if (out->n == out->cap) {
        size_t cap = out->cap ? 2 * out->cap : 256;
        int32_t *p = realloc(out->ids, cap * sizeof *p);
        if (!p) {
            return fail(EXIT_MEMORY, "out of memory");
        }
        out->ids = p;
        out->cap = cap;
    }
    out->ids[out->n++] = id;
    return 0;
}

static int add_text(const kvs_tokenizer *tok, const char *text, size_t n, uint32_t flags,
                    id_list *out)
{
    kvs_err err = {KVS_OK, 0, "", ""};
    size_t count = 0;
    kvs_status st = kvs_tokenizer_encode(tok, text, n, flags, NULL, 0, &count, &err);
    int32_t *p = NULL;
    if (st == KVS_OK) {
        p = realloc(out->ids, (out->n + count + 1) * sizeof *p);
        if (!p) {
            return fail(EXIT_MEMORY, "out of memory");
        }
        out->ids = p;
        out->cap = out->n + count + 1;
        st = kvs_tokenizer_encode(tok, text, n, flags, p + out->n, count, &count, &err);
    }
    if (st != KVS_OK) {
        return fail_err(EXIT_FAILED, st, &err, NULL);
    }
    out->n += count;
    return 0;
}

/* ---- turns */

typedef struct turn {
    const kvs_tokenizer *tok;
    buffer plain; /* not encoded yet */
    id_list *out;
} turn;

static int flush_plain(turn *t)
{
    int rc = t->plain.n > 0 ? add_text(t->tok, t->plain.ptr, t->plain.n, 0, t->out) : 0;
    t->plain.n = 0;
    return rc;
}

static int add_control(turn *t, const char *text)
{
    int rc = flush_plain(t);
    int32_t id = kvs_tokenizer_find(t->tok, text, strlen(text));
    if (rc == 0 && id < 0) {
        return fail(EXIT_USAGE,
                    "the chat format needs the token %s, which this model does not "
                    "have; --raw completes the prompt without a format",
                    text);
    }
    return rc == 0 ? add_id(t->out, id) : rc;
}

static int add_parts(turn *t, const part *parts, const char *text, size_t n)
{
    for (size_t i = 0; i < MAX_PARTS && parts[i].text; i++) {
        if (parts[i].control) {
            int rc = add_control(t, parts[i].text);
            if (rc != 0) {
                return rc;
            }
            continue;
        }
        const char *hole = strstr(parts[i].text, "%s");
        size_t head = hole ? (size_t)(hole - parts[i].text) : strlen(parts[i].text);
        bool ok = put(&t->plain, parts[i].text, head);
        if (ok && hole) {
            ok = put(&t->plain, text, n) && put(&t->plain, hole + 2, strlen(hole + 2));
        }
        if (!ok) {
            return fail(EXIT_MEMORY, "out of memory");
        }
    }
    return 0;
}

/* The system message that a chatml template itself puts in when there is none: the literal between
 * "system\n" and <|im_end|>, where it holds no expression. */
static const char *default_system(const kvs_model *model, size_t *n)
{
    static const char head[] = "<|im_start|>system";
    static const char tail[] = "<|im_end|>";
    size_t len = 0;
    const char *t = kvs_model_string(model, "tokenizer.chat_template", &len);
    for (size_t i = 0; t && i + sizeof head < len; i++) {
        if (memcmp(t + i, head, sizeof head - 1) != 0) {
            continue;
        }
        const char *begin = t + i + sizeof head - 1;
        size_t left = len - i - (sizeof head - 1);
        size_t skip = begin[0] == '\n'                                  ? 1
                      : left > 1 && begin[0] == '\\' && begin[1] == 'n' ? 2
                                                                        : 0;
        for (size_t k = skip; skip > 0 && k + sizeof tail - 1 <= left; k++) {
            if (begin[k] && strchr("{}'\"\\", begin[k])) {
                break;
            }
            if (memcmp(begin + k, tail, sizeof tail - 1) == 0) {
                *n = k - skip;
                return begin + skip;
            }
        }
    }
    return NULL;
}

static int add_turns(const chat_format *f, const kvs_model *model, const char *system,
                     const char *text, size_t n, turn *t)
{
    size_t n_system = system ? strlen(system) : 0;
    buffer joined = {NULL, 0};
    int rc = 0;
    if (!f->system_seam && !system) {
        system = default_system(model, &n_system);
    }
    if (system && f->system_seam) {
        if (!put(&joined, system, n_system) ||
            !put(&joined, f->system_seam, strlen(f->system_seam)) || !put(&joined, text, n)) {
            rc = fail(EXIT_MEMORY, "out of memory");
        }
        text = joined.ptr;
        n = joined.n;
    } else if (system) {
        rc = add_parts(t, f->system, system, n_system);
    }
    if (rc == 0) {
        rc = add_parts(t, f->user, text, n);
    }
    if (rc == 0) {
        rc = add_parts(t, f->answer, "", 0);
    }
    if (rc == 0) {
        rc = flush_plain(t);
    }
    free(joined.ptr);
    return rc;
}

int chat_encode(const chat_format *f, const kvs_model *model, const char *system, const char *text,
                size_t n, id_list *out)
{
    const kvs_tokenizer *tok = kvs_model_tokenizer(model);
    int32_t bos = kvs_tokenizer_special(tok, KVS_SPECIAL_BOS);
    int rc = 0;
    if (kvs_tokenizer_adds(tok) & 1 && bos >= 0) {
        rc = add_id(out, bos);
    }
    if (rc != 0 || !f) {
        return rc != 0 ? rc : add_text(tok, text, n, KVS_TOKENIZE_SPECIAL, out);
    }
    turn t = {tok, {NULL, 0}, out};
    rc = add_turns(f, model, system, text, n, &t);
    free(t.plain.ptr);
    return rc;
}
