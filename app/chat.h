/* SPDX-License-Identifier: MIT */
/* chat.h: built-in chat formats, chosen by what the model's own template contains. */
#ifndef KVS_APP_CHAT_H
#define KVS_APP_CHAT_H

#include "util.h"

typedef struct chat_format chat_format;

/* By name, or for "auto" by the model's tokenizer.chat_template. *out NULL: no format (a model
 * without a template, or "none"). EXIT_USAGE for an unknown name. */
int chat_find(const char *name, const kvs_model *model, const chat_format **out);
const char *chat_name(const chat_format *f);

typedef struct id_list {
    int32_t *ids;
    size_t n;
    size_t cap;
} id_list;

/* Ids of one user turn and the start of the answer (format given), or of the text as it is. Text of
 * the user never turns into control tokens in a chat. `system` may be NULL. */
int chat_encode(const chat_format *f, const kvs_model *model, const char *system, const char *text,
                size_t n, id_list *out);

#endif
