/* SPDX-License-Identifier: MIT */
/* talk.c: how the ids of a conversation grow (talk.h).
 *
 * The whole conversation is rendered for each turn. Where the text begins with the prompt of the
 * last turn and the answer as the template writes it (as it is, or trimmed), only what follows is
 * made into ids. Where the template changed an earlier answer, e.g. took its thinking away, the ids
 * of the last prompt that is unchanged are kept and all after it is made anew. */
#include "talk.h"

#include <stdlib.h>
#include <string.h>

static int no_memory(void)
{
    return fail(EXIT_MEMORY, "out of memory");
}

/* ---- messages */

static void cut_messages(talk *t, size_t n)
{
    while (t->n_messages > n) {
        free(t->messages[--t->n_messages].text);
    }
}

static void cut_turns(talk *t, size_t n)
{
    while (t->n_turns > n) {
        kvs_value_free(t->turns[--t->n_turns].prompt);
    }
}

static int add_message(talk *t, const char *role, const char *text, size_t n)
{
    if (t->n_messages == t->cap_messages) {
        size_t cap = t->cap_messages > 0 ? 2 * t->cap_messages : 8;
        chat_message *p = realloc(t->messages, cap * sizeof *p);
        if (!p) {
            return no_memory();
        }
        t->messages = p;
        t->cap_messages = cap;
    }
    char *copy = malloc(n + 1);
    if (!copy) {
        return no_memory();
    }
    if (n > 0) {
        memcpy(copy, text, n);
    }
    copy[n] = '\0';
    chat_message *m = &t->messages[t->n_messages++];
    m->role = role;
    m->text = copy;
    m->n = n;
    return 0;
}

static int add_turn(talk *t, kvs_value *prompt)
{
    if (t->n_turns == t->cap_turns) {
        size_t cap = t->cap_turns > 0 ? 2 * t->cap_turns : 8;
        talk_turn *p = realloc(t->turns, cap * sizeof *p);
        if (!p) {
            return no_memory();
        }
        t->turns = p;
        t->cap_turns = cap;
    }
    t->turns[t->n_turns++] = (talk_turn){prompt, t->ids.n, t->ids.n, t->n_messages, false};
    return 0;
}

/* The first n of ids are as they were, what follows is not that of turns[0 .. n_turns) any more. */
static void forget_ids(talk *t, size_t n_turns, size_t n)
{
    for (size_t i = 0; i < n_turns; i++) {
        talk_turn *turn = &t->turns[i];
        if (turn->n_ids > n) {
            turn->n_ids = n;
            turn->answer_gone = true;
        }
        if (turn->n_prompt_ids > n) {
            turn->n_prompt_ids = n;
            kvs_value_free(turn->prompt);
            turn->prompt = NULL;
        }
    }
}

const chat_message *talk_get_system(const talk *t)
{
    bool has = t->n_messages > 0 && strcmp(t->messages[0].role, "system") == 0;
    return has ? &t->messages[0] : NULL;
}

int talk_system(talk *t, const char *text, size_t n)
{
    bool has = talk_get_system(t) != NULL;
    if (!text) {
        if (has) {
            free(t->messages[0].text);
            t->n_messages--;
            memmove(t->messages, t->messages + 1, t->n_messages * sizeof *t->messages);
        }
    } else {
        int rc = add_message(t, "system", text, n);
        if (rc != 0) {
            return rc;
        }
        chat_message m = t->messages[--t->n_messages];
        if (has) {
            free(t->messages[0].text);
        } else {
            memmove(t->messages + 1, t->messages, t->n_messages * sizeof *t->messages);
            t->n_messages++;
        }
        t->messages[0] = m;
    }
    for (size_t i = 0; i < t->n_turns; i++) {
        t->turns[i].n_messages += (size_t)(text && !has);
        t->turns[i].n_messages -= (size_t)(!text && has);
    }
    return 0;
}

void talk_clear(talk *t)
{
    cut_turns(t, 0);
    cut_messages(t, talk_get_system(t) ? 1 : 0);
    t->ids.n = 0;
}

void talk_free(talk *t)
{
    cut_turns(t, 0);
    cut_messages(t, 0);
    free(t->turns);
    free(t->messages);
    free(t->ids.ids);
}

bool talk_undo(talk *t)
{
    if (t->n_turns == 0) {
        return false;
    }
    cut_turns(t, t->n_turns - 1);
    const talk_turn *last = t->n_turns > 0 ? &t->turns[t->n_turns - 1] : NULL;
    cut_messages(t, last ? last->n_messages : talk_get_system(t) ? 1 : 0);
    t->ids.n = last ? last->n_ids : 0;
    return true;
}

/* ---- asking */

static bool begins(const char *p, size_t n, const char *with, size_t len)
{
    return len <= n && memcmp(p, with, len) == 0;
}

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* Bytes at p that are the answer, as it is or trimmed at its end or both; false: it is not there. */
static bool answer_at(const char *p, size_t n, const chat_message *m, size_t *len)
{
    const char *from = m->text;
    size_t left = m->n;
    for (int form = 0; form < 3; form++) {
        while (form == 1 && left > 0 && is_space(from[left - 1])) {
            left--;
        }
        while (form == 2 && left > 0 && is_space(from[0])) {
            from++;
            left--;
        }
        if (begins(p, n, from, left)) {
            *len = left;
            return true;
        }
    }
    return false;
}

/* How much of the ids stands for the beginning of this text; *from is where the rest begins. */
static size_t keep(const talk *t, const char *p, size_t n, size_t *from, bool *exact)
{
    for (size_t k = t->n_turns; k > 0; k--) {
        const talk_turn *turn = &t->turns[k - 1];
        size_t len = 0;
        const char *prompt = kvs_value_text(turn->prompt, &len);
        if (!prompt || !begins(p, n, prompt, len)) {
            continue;
        }
        *from = len;
        const chat_message *answer = &t->messages[turn->n_messages - 1];
        if (!turn->answer_gone && answer_at(p + *from, n - *from, answer, &len)) {
            *from += len;
            *exact = k == t->n_turns;
            return turn->n_ids;
        }
        return turn->n_prompt_ids;
    }
    *from = 0;
    *exact = t->ids.n == 0;
    return 0;
}

/* Ids of the part of the text that the conversation without its last message has not. */
static int count_new(const talk *t, const kvs_value *text, size_t *n_new)
{
    kvs_value *before = NULL;
    id_list tail = {NULL, 0, 0};
    size_t n = 0;
    size_t n_before = 0;
    int rc = chat_render(t->template, t->messages, t->n_messages - 1, false, &before);
    const char *p = kvs_value_text(text, &n);
    const char *q = kvs_value_text(before, &n_before);
    if (rc == 0 && begins(p, n, q, n_before)) {
        rc = chat_encode(t->template, text, n_before, &tail);
        *n_new = tail.n;
    }
    free(tail.ids);
    kvs_value_free(before);
    return rc;
}

static int ask(talk *t, talk_asked *out, kvs_value **text, id_list *ids)
{
    size_t n = 0;
    size_t from = 0;
    int rc = chat_render(t->template, t->messages, t->n_messages, true, text);
    if (rc != 0) {
        return rc;
    }
    const char *p = kvs_value_text(*text, &n);
    out->kept = keep(t, p, n, &from, &out->exact);
    rc = ids_add(ids, t->ids.ids, out->kept);
    if (rc == 0) {
        rc = chat_encode(t->template, *text, from, ids);
    }
    out->n_new = ids->n - out->kept;
    if (rc == 0 && !out->exact) {
        out->n_new = ids->n;
        rc = count_new(t, *text, &out->n_new);
    }
    return rc;
}

int talk_ask(talk *t, const char *text, size_t n, talk_asked *out)
{
    kvs_value *rendered = NULL;
    id_list ids = {NULL, 0, 0};
    *out = (talk_asked){0, 0, false};
    int rc = add_message(t, "user", text, n);
    if (rc != 0) {
        return rc;
    }
    rc = ask(t, out, &rendered, &ids);
    if (rc == 0) {
        id_list old = t->ids;
        t->ids = ids;
        ids = old;
        rc = add_turn(t, rendered);
        if (rc != 0) {
            ids = t->ids;
            t->ids = old;
        } else {
            forget_ids(t, t->n_turns - 1, out->kept);
        }
    }
    if (rc != 0) {
        kvs_value_free(rendered);
        cut_messages(t, t->n_messages - 1);
    }
    free(ids.ids);
    return rc;
}

int talk_answer(talk *t, const id_list *made, const char *text, size_t n)
{
    int rc = add_message(t, "assistant", text, n);
    if (rc == 0) {
        rc = ids_add(&t->ids, made->ids, made->n);
    }
    talk_turn *turn = &t->turns[t->n_turns - 1];
    turn->n_ids = t->ids.n;
    turn->n_messages = t->n_messages;
    return rc;
}
