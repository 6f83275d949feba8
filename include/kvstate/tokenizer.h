/* SPDX-License-Identifier: MIT */
/* kvstate/tokenizer.h: text to token ids and back, with a model's own vocabulary.
 *
 * Text is UTF-8. Bytes that are not are read as U+FFFD, one for each maximal ill-formed part, as
 * the Unicode standard recommends and most decoders do; no text is refused for its content.
 * The vocabulary of a GGUF file normalises nothing: where a model was trained on NFC (Qwen, for
 * one), bring text there first. A tokenizer.json says itself how its text is normalised.
 */
#ifndef KVSTATE_TOKENIZER_H
#define KVSTATE_TOKENIZER_H

#include "kvstate/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Immutable once made, so any number of threads may use one. One that came with a model belongs to
 * it and dies with it, and so do all texts that it hands out. */
typedef struct kvs_tokenizer kvs_tokenizer;

/* The tokenizer of a Hugging Face folder (tokenizer.json and, where they are there,
 * tokenizer_config.json, special_tokens_map.json, generation_config.json, chat_template.jinja), or
 * a tokenizer.json alone. KVS_E_NOTFOUND: there is none; KVS_E_FORMAT: malformed, or it contradicts
 * itself; KVS_E_UNSUPPORTED names the part that is not implemented; KVS_E_LIMIT, KVS_E_IO. */
KVS_API kvs_status kvs_tokenizer_open(kvs_ctx *ctx, const char *path, kvs_tokenizer **out,
                                      kvs_err *err);
KVS_API void kvs_tokenizer_close(kvs_tokenizer *tok); /* NULL is fine; never a model's */

/* A text that came with the tokenizer, borrowed, not terminated; NULL where there is none. Keys:
 * "chat_template", "chat_template.NAME" where a file has several, "bos_token", "eos_token",
 * "unk_token", "pad_token", "sep_token", "cls_token", "mask_token", "tokenizer_class". */
KVS_API const char *kvs_tokenizer_string(const kvs_tokenizer *tok, const char *key,
                                         size_t *n_bytes);

/* Flags of encode and decode. */
enum {
    /* Encode: add the begin and end tokens that the model asks for (often only the first). */
    KVS_TOKENIZE_ADD_SPECIAL = 1u << 0,
    /* Encode: read the text of control tokens, e.g. "<|im_end|>", as these tokens. Leave it off
     * for text from outside, or its author can forge turns. Decode: write control tokens as
     * their text; otherwise they produce nothing. */
    KVS_TOKENIZE_SPECIAL = 1u << 1
};

/* Attributes of a token, as flags. */
enum {
    KVS_TOKEN_NORMAL = 1u << 0,
    KVS_TOKEN_UNKNOWN = 1u << 1,
    KVS_TOKEN_CONTROL = 1u << 2,
    KVS_TOKEN_USER = 1u << 3, /* user defined: its text always becomes this token */
    KVS_TOKEN_UNUSED = 1u << 4,
    KVS_TOKEN_BYTE = 1u << 5, /* stands for one byte that no other token covers */
    KVS_TOKEN_EOG = 1u << 6   /* ends a generation: end of text, of turn, of message */
};

typedef enum kvs_special {
    KVS_SPECIAL_BOS = 0,
    KVS_SPECIAL_EOS = 1,
    KVS_SPECIAL_UNK = 2,
    KVS_SPECIAL_PAD = 3,
    KVS_SPECIAL_EOT = 4, /* end of turn */
    KVS_SPECIAL_SEP = 5,
    KVS_SPECIAL_MASK = 6,
    KVS_SPECIAL_COUNT = 7
} kvs_special;

/* Ids of a text. *n_out is the number of ids, also when they do not fit: then nothing is written
 * and the answer is KVS_E_RANGE. out NULL with cap 0 asks for the number alone (KVS_OK).
 * Other failures: KVS_E_INVAL (NULL, unknown flag), KVS_E_LIMIT (above 512 MiB), KVS_E_NOMEM.
 * Takes O(n log n) whatever the text is. */
KVS_API kvs_status kvs_tokenizer_encode(const kvs_tokenizer *tok, const char *text, size_t n_bytes,
                                        uint32_t flags, int32_t *out, size_t cap, size_t *n_out,
                                        kvs_err *err);

/* Bytes of ids, in one go; the same conventions for out, cap and n_out (no terminator is added).
 * The bytes are those of the tokens: where the ids end inside a character, so do they. The space
 * that encode put in front of the text is taken away again. KVS_E_INVAL names a foreign id. */
KVS_API kvs_status kvs_tokenizer_decode(const kvs_tokenizer *tok, const int32_t *ids, size_t n_ids,
                                        uint32_t flags, char *out, size_t cap, size_t *n_out,
                                        kvs_err *err);

/* Text of a token as the vocabulary spells it (NUL-free is not promised, nor UTF-8), or NULL for a
 * foreign id. The bytes it stands for come from kvs_tokenizer_decode. */
KVS_API const char *kvs_tokenizer_text(const kvs_tokenizer *tok, int32_t id, size_t *n_bytes);

/* Id of the token spelled so in the vocabulary (the lowest, if several are), or -1. */
KVS_API int32_t kvs_tokenizer_find(const kvs_tokenizer *tok, const char *text, size_t n_bytes);

KVS_API size_t kvs_tokenizer_size(const kvs_tokenizer *tok);               /* number of tokens */
KVS_API uint32_t kvs_tokenizer_attr(const kvs_tokenizer *tok, int32_t id); /* 0: foreign id */
KVS_API int32_t kvs_tokenizer_special(const kvs_tokenizer *tok, kvs_special which); /* or -1 */
/* What KVS_TOKENIZE_ADD_SPECIAL adds: bit 0 something before the text (the begin token), bit 1
 * something behind it (the end token). */
KVS_API uint32_t kvs_tokenizer_adds(const kvs_tokenizer *tok);

/* Streaming detokeniser: text for a screen, token by token. Never splits a character: bytes of an
 * unfinished one are held back. All pieces together are the decoded bytes with every maximal
 * ill-formed part replaced by U+FFFD. One thread at a time; must not outlive the tokenizer. */
typedef struct kvs_detok kvs_detok;
KVS_API kvs_status kvs_detok_new(const kvs_tokenizer *tok, uint32_t flags, kvs_detok **out,
                                 kvs_err *err);
KVS_API void kvs_detok_free(kvs_detok *d); /* NULL is fine */
/* *text is borrowed until the next call and may be empty. A failing call changes nothing. */
KVS_API kvs_status kvs_detok_put(kvs_detok *d, int32_t id, const char **text, size_t *n_bytes,
                                 kvs_err *err);
/* What is held back at the end (as U+FFFD), and a fresh start for the next text. */
KVS_API void kvs_detok_finish(kvs_detok *d, const char **text, size_t *n_bytes);

#ifdef __cplusplus
}
#endif
#endif
