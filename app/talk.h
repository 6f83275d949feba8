/* SPDX-License-Identifier: MIT */
/* talk.h: a conversation: its messages and the exact ids that stand for them.
 *
 * I1  ids are what the model read and wrote so far; ids that it wrote are never made from text again
 *     while the template leaves the text before them as it was.
 * I2  turns[k] says where in ids the prompt and the answer of turn k end, and holds the text that
 *     prompt was made from; both end no later than those of turn k + 1.
 * I3  what made the ids behind the first n anew leaves no turn that takes others for its own: one
 *     whose answer ended there holds up to n, one whose prompt did is unknown. */
#ifndef KVS_APP_TALK_H
#define KVS_APP_TALK_H

#include "chat.h"

typedef struct talk_turn {
    kvs_value *prompt;   /* NULL: unknown, e.g. of a file written with another template */
    size_t n_prompt_ids; /* ids up to the beginning of the answer */
    size_t n_ids;        /* and to its end */
    size_t n_messages;   /* the user's and the answer's included */
    bool answer_gone;    /* ids has another form of the answer, or none */
} talk_turn;

typedef struct talk {
    const chat_template *template;
    const kvs_model *model;
    chat_message *messages;
    size_t n_messages, cap_messages;
    talk_turn *turns;
    size_t n_turns, cap_turns;
    id_list ids;
} talk;

/* What talk_ask did: ids[0 .. kept) were there before, `exact` if that is all there was. */
typedef struct talk_asked {
    size_t kept;
    size_t n_new; /* ids of this turn's own text; ids.n where that can't be told */
    bool exact;
} talk_asked;

void talk_free(talk *t);
void talk_clear(talk *t); /* all but the system message */
/* The system message, NULL takes it away. */
int talk_system(talk *t, const char *text, size_t n);
const chat_message *talk_get_system(const talk *t); /* NULL: none */

/* Appends a user's message and makes ids the prompt of its answer. A failure changes nothing. */
int talk_ask(talk *t, const char *text, size_t n, talk_asked *out);
/* Appends the answer that belongs to it. */
int talk_answer(talk *t, const id_list *made, const char *text, size_t n);
/* Takes back the last question (with its answer, if it has one); false: there is none. */
bool talk_undo(talk *t);

/* JSON with messages and ids. Loading replaces the conversation, or fails and changes nothing. */
int talk_save(const talk *t, const char *path);
int talk_load(talk *t, const settings *s, kvs_ctx *ctx, const char *path);

#endif
