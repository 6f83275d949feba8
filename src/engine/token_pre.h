/* SPDX-License-Identifier: MIT */
/* token_pre.h: cutting text into the words that byte-level BPE merges inside of. */
#ifndef KVS_ENGINE_TOKEN_PRE_H
#define KVS_ENGINE_TOKEN_PRE_H

#include "engine/token.h"

typedef struct kvs__pre kvs__pre;

/* KVS_E_UNSUPPORTED for a name that is not in the table. */
kvs_status kvs__pre_new(kvs_ctx *ctx, kvs__text name, kvs__pre **out, kvs_err *err);
void kvs__pre_free(kvs__pre *pre); /* NULL is fine */

/* A word that is a token as a whole is taken without merging. */
bool kvs__pre_whole_words(const kvs__pre *pre);
bool kvs__pre_adds_bos(const kvs__pre *pre); /* unless the model says otherwise */

/* Memory that matching needs, one per call of encode. NULL: out of memory. */
void *kvs__pre_match_new(const kvs__pre *pre);
void kvs__pre_match_free(void *match); /* NULL is fine */

/* Calls kvs__token_bpe_word for each word of well-formed UTF-8, in order. */
kvs_status kvs__pre_split(const kvs__pre *pre, kvs__token_work *w, const char *text, size_t len);
kvs_status kvs__token_bpe_word(kvs__token_work *w, const char *word, size_t len);

/* Memory hooks for PCRE2; user is the context. */
void *kvs__pcre_alloc(size_t bytes, void *ctx);
void kvs__pcre_free(void *ptr, void *ctx);

#endif
