/* SPDX-License-Identifier: MIT */
/* token_json.h: a tokenizer from a Hugging Face tokenizer.json. */
#ifndef KVS_ENGINE_TOKEN_JSON_H
#define KVS_ENGINE_TOKEN_JSON_H

#include "engine/token.h"

/* path: a tokenizer.json, which is then all that is read, or a folder with one, of which
 * tokenizer_config.json, special_tokens_map.json, generation_config.json, chat_template.jinja and
 * chat_template.json are read too, where they are there. Nothing stays open. n_rows: rows of the
 * model's embedding (0: as many as tokens); ids between the tokens and the rows get an empty text.
 * KVS_E_NOTFOUND: there is no tokenizer.json; KVS_E_FORMAT: malformed, or it contradicts itself;
 * KVS_E_UNSUPPORTED names the part that is not implemented; KVS_E_LIMIT. */
kvs_status kvs__tokenizer_from_json(kvs_ctx *ctx, const char *path, size_t n_rows,
                                    kvs_tokenizer **out, kvs_err *err);
/* The same from the text of a tokenizer.json. */
kvs_status kvs__tokenizer_from_json_text(kvs_ctx *ctx, const char *text, size_t n, size_t n_rows,
                                         kvs_tokenizer **out, kvs_err *err);

#endif
