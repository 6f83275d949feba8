/* SPDX-License-Identifier: MIT */
/* token_gguf.h: a tokenizer from the metadata of a GGUF file. */
#ifndef KVS_ENGINE_TOKEN_GGUF_H
#define KVS_ENGINE_TOKEN_GGUF_H

#include "engine/gguf.h"
#include "engine/token.h"

/* pre: name of the pre-tokeniser to use instead of the file's, or NULL. The tokenizer's texts
 * point into the file, so g must stay open. KVS_E_NOTFOUND: the file has no vocabulary;
 * KVS_E_UNSUPPORTED: another kind of it; KVS_E_FORMAT: it contradicts itself. */
kvs_status kvs__tokenizer_from_gguf(kvs_ctx *ctx, const kvs__gguf *g, const char *pre,
                                    kvs_tokenizer **out, kvs_err *err);

#endif
