/* SPDX-License-Identifier: MIT */
/* chat.h: the chat template in use: the model's own, one from a file, or a built-in one; messages to
 * text to ids. */
#ifndef KVS_APP_CHAT_H
#define KVS_APP_CHAT_H

#include "machine.h"

typedef struct chat_template chat_template;

typedef struct chat_message {
    const char *role; /* "system", "user", "assistant": literals */
    char *text;       /* UTF-8 */
    size_t n;
} chat_message;

/* As --chat-template says. For "auto" the model's own; where it has none, `must` takes the built-in
 * one whose control tokens the vocabulary has, and fails without. *out NULL: no template. */
int chat_open(const settings *s, kvs_ctx *ctx, const kvs_model *model, bool must,
              chat_template **out);
void chat_close(chat_template *t); /* NULL is fine */
const char *chat_name(const chat_template *t);
uint64_t chat_hash(const chat_template *t); /* of its source */

/* The text of a conversation, with the beginning of an answer where `prompt`. Freed with
 * kvs_value_free. */
int chat_render(const chat_template *t, const chat_message *messages, size_t n, bool prompt,
                kvs_value **out);

/* Appends the ids of the text from byte `from` on. What is spelled like a control token becomes one
 * where the template wrote it, never where a message did. At the very beginning the begin token is
 * added if the tokenizer asks for it and the template wrote none. */
int chat_encode(const chat_template *t, const kvs_value *text, size_t from, id_list *out);

/* Ids of one user turn and the start of the answer. `system` may be NULL. */
int chat_encode_turn(const chat_template *t, const char *system, const char *text, size_t n,
                     id_list *out);
/* Ids of a text as it is, control tokens included. */
int chat_encode_raw(const kvs_model *model, const char *text, size_t n, id_list *out);

#endif
