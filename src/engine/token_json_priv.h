/* SPDX-License-Identifier: MIT */
/* token_json_priv.h: what the token_json*.c files share: the steps of a tokenizer.json in the form
 * in which they are run.
 *
 * A text passes: added tokens matched as written; normalizer; added tokens matched normalized;
 * pre-tokenizers, each cutting the pieces of the one before; the model. Everything here is
 * immutable once made; what a call needs is in kvs__tj_work.
 */
#ifndef KVS_ENGINE_TOKEN_JSON_PRIV_H
#define KVS_ENGINE_TOKEN_JSON_PRIV_H

#include "engine/json.h"
#include "engine/token.h"
#include "engine/token_buf.h"
#include "engine/token_re.h"

#define KVS__TJ_STAGES      24u
#define KVS__TJ_STRINGS_MAX 64u
#define KVS__TJ_EOG_MAX     16u
#define KVS__TJ_FILE_MAX    ((size_t)128 << 20)
#define KVS__TJ_TEXT_MAX    ((size_t)3 << 29) /* bytes of a rewritten text */

typedef enum kvs__tj_norm_kind {
    KVS__NORM_FORM, /* NFC, NFD, NFKC, NFKD */
    KVS__NORM_LOWER,
    KVS__NORM_STRIP,
    KVS__NORM_STRIP_ACCENTS,
    KVS__NORM_NMT,
    KVS__NORM_REPLACE,
    KVS__NORM_PREPEND,
    KVS__NORM_CHARSMAP,
    KVS__NORM_BYTES
} kvs__tj_norm_kind;

typedef struct kvs__tj_norm {
    kvs__tj_norm_kind kind;
    bool compat;  /* FORM: K; STRIP: left */
    bool compose; /* FORM: C; STRIP: right */
    kvs__re *re;
    kvs__text content;
    uint32_t *trie; /* CHARSMAP: [n_trie] units, then in the same block the texts */
    size_t n_trie;
    const char *texts; /* [n_texts], NUL-separated */
    size_t n_texts;
    size_t block_bytes;
} kvs__tj_norm;

typedef enum kvs__tj_pre_kind {
    KVS__TPRE_SPLIT,
    KVS__TPRE_SPACE,   /* a space before each piece that has none */
    KVS__TPRE_VISIBLE, /* bytes as characters of the visible alphabet */
    KVS__TPRE_META
} kvs__tj_pre_kind;

typedef enum kvs__tj_behave {
    KVS__SPLIT_REMOVED,
    KVS__SPLIT_ISOLATED,
    KVS__SPLIT_PREVIOUS,
    KVS__SPLIT_NEXT,
    KVS__SPLIT_CONTIGUOUS
} kvs__tj_behave;

typedef enum kvs__tj_scheme { KVS__META_ALWAYS, KVS__META_FIRST, KVS__META_NEVER } kvs__tj_scheme;

typedef struct kvs__tj_pre {
    kvs__tj_pre_kind kind;
    kvs__tj_behave behave;
    bool invert;
    bool split; /* META */
    kvs__tj_scheme scheme;
    kvs__text mark; /* META: one character */
    kvs__re *re;
} kvs__tj_pre;

typedef enum kvs__tj_dec_kind {
    KVS__DEC_REPLACE,
    KVS__DEC_STRIP,
    KVS__DEC_META,
    KVS__DEC_BYTE_FALLBACK,
    KVS__DEC_BYTE_LEVEL
} kvs__tj_dec_kind;

typedef struct kvs__tj_dec {
    kvs__tj_dec_kind kind;
    kvs__tj_scheme scheme;
    kvs__text pattern; /* REPLACE: not empty; META: the mark; STRIP: one character */
    kvs__text content;
    size_t start;
    size_t stop;
} kvs__tj_dec;

typedef struct kvs__tj_added {
    kvs__text text;
    int32_t id;
    bool special;
    bool lstrip;
    bool rstrip;
    bool single_word;
    bool normalized;
} kvs__tj_added;

typedef struct kvs__tj_string {
    char *key; /* key, NUL, text in one block */
    size_t key_len;
    size_t text_len;
} kvs__tj_string;

/* Decoded bytes of every token: those of id are pool[at[id]] .. pool[at[id + 1]]. */
typedef struct kvs__tj_pieces {
    uint32_t *at; /* [n_tokens + 1] */
    kvs__tbuf pool;
} kvs__tj_pieces;

struct kvs__tj {
    kvs__json *doc;       /* its text; the nodes only while opening */
    kvs__tj_added *added; /* [n_added], special ones first */
    size_t n_added;
    kvs__token_list raw; /* attr: index in added */
    kvs__token_list normed;
    kvs__tbuf normed_pool;
    kvs__re *word_re; /* one word character, for single_word */

    kvs__tj_norm norms[KVS__TJ_STAGES];
    size_t n_norms;
    kvs__tj_pre pres[KVS__TJ_STAGES];
    size_t n_pres;
    kvs__tj_dec decs[KVS__TJ_STAGES];
    size_t n_decs;
    bool fused;         /* while reading: Fuse was there */
    bool has_decoder;   /* without one tokens are joined by spaces */
    size_t strip_first; /* after fusing: of this character, so many at the start of the text */
    char strip_char;
    kvs__tj_pieces pieces;
    kvs__tj_pieces first; /* as the first token of a text; at is NULL where that is the same */

    bool unigram;
    bool byte_fallback;
    bool fuse_unk;
    bool ignore_merges;
    bool no_cuts; /* BPE: tok->neighbours must not be used */
    int32_t unk;
    kvs__text prefix; /* continuing_subword_prefix, end_of_word_suffix */
    kvs__text suffix;
    int32_t cp_id[0x180]; /* BPE: token of a character, where prefix and suffix are empty */
    double *scores;       /* Unigram: [n_tokens] */
    double unk_score;
    kvs__token_list words; /* Unigram: attr is the id */
    size_t n_words_cap;    /* items allocated */

    int32_t *front; /* [n_front] ids that ADD_SPECIAL puts before the text */
    size_t n_front;
    int32_t *back;
    size_t n_back;
    kvs__tj_string *strings; /* [KVS__TJ_STRINGS_MAX], or NULL */
    size_t n_strings;
    int32_t eog[KVS__TJ_EOG_MAX];
};

typedef struct kvs__tj_node {
    double score;
    uint32_t from; /* UINT32_MAX: not reached */
    int32_t id;
} kvs__tj_node;

typedef struct kvs__tj_work {
    kvs__re_match *match;
    kvs__tbuf norm[2];
    kvs__tbuf stage[KVS__TJ_STAGES];
    kvs__tbuf word;
    int32_t *cps; /* [cap_cps] */
    size_t cap_cps;
    int32_t *order; /* [cap_order] scratch of one run of combining marks */
    size_t cap_order;
    kvs__tj_node *nodes; /* [cap_nodes] */
    size_t cap_nodes;
} kvs__tj_work;

/* ptr NULL: v is no string. Documents here own their text, so a string is what it is. */
kvs__text kvs__tj_str(kvs__jval v);
bool kvs__tj_absent(kvs__jval v);                  /* nothing or null */
bool kvs__tj_double(kvs__jval v, double *out);     /* of a number that is finite */
bool kvs__tj_pair(kvs__jval list, kvs__jval v[2]); /* false: no list of two */
/* A file of JSON; name is for messages. Failures are those of kvs__json_file and kvs__json_adopt. */
kvs_status kvs__tj_open(kvs_ctx *ctx, const char *path, const char *name, kvs__json **out,
                        kvs_err *err);
/* Stops the reading of a part with a message that names what is missing. */
kvs_status kvs__tj_refuse(const char *part, kvs__jval node, kvs_err *err);
kvs_status kvs__tj_bad(const char *what, kvs_err *err);
/* A member that may be absent or null; any other type than the wanted one is an error. */
kvs_status kvs__tj_bool(kvs__jval object, const char *key, bool *value, kvs_err *err);
kvs_status kvs__tj_text(kvs__jval object, const char *key, kvs__text *value, kvs_err *err);
/* The steps of a part: its own, or those of a Sequence's list `key`; *first is the first's node. */
kvs_status kvs__tj_each(kvs__jval node, const char *key,
                        kvs_status (*fn)(kvs_tokenizer *tok, kvs__jval node, kvs_err *err),
                        kvs_tokenizer *tok, kvs_err *err);

/* token_json_norm.c */
bool kvs__tj_is_space(uint32_t cp); /* White_Space */
/* The member "pattern". */
kvs_status kvs__tj_pattern(kvs_tokenizer *tok, kvs__jval node, kvs__re **re, kvs_err *err);
/* Within KVS__TJ_TEXT_MAX; for what a file can make longer than it was. */
kvs_status kvs__tj_put(kvs_ctx *ctx, kvs__tbuf *out, kvs__text text, kvs_err *err);
kvs_status kvs__tj_norms_read(kvs_tokenizer *tok, kvs__jval node, kvs_err *err);
void kvs__tj_norms_free(kvs_ctx *ctx, struct kvs__tj *tj);
/* *text becomes the normalized text, in w's buffers; *at_start turns false when the first
 * character of the original is no longer in it. */
kvs_status kvs__tj_normalize(const kvs_tokenizer *tok, kvs__tj_work *w, kvs__text *text,
                             bool *at_start, kvs_err *err);
/* token_json_form.c */
kvs_status kvs__tj_form(kvs_ctx *ctx, kvs__tj_work *w, kvs__text in, bool compat, bool compose,
                        kvs__tbuf *out, kvs_err *err);
/* token_json_map.c */
kvs_status kvs__tj_charsmap_read(kvs_ctx *ctx, kvs__text base64, kvs__tj_norm *n, kvs_err *err);
kvs_status kvs__tj_charsmap(kvs_ctx *ctx, const kvs__tj_norm *n, kvs__text in, kvs__tbuf *out,
                            bool *at_start, kvs_err *err);
/* token_json_pre.c */
kvs_status kvs__tj_pres_read(kvs_tokenizer *tok, kvs__jval node, kvs_err *err);
void kvs__tj_pres_free(struct kvs__tj *tj);
kvs_status kvs__tj_pretokenize(kvs__token_work *w, kvs__text text, bool at_start);
kvs__text kvs__tj_mark(kvs__text text); /* its first character, all of it; else empty */
kvs_status kvs__tj_meta_scheme(kvs__jval node, kvs__tj_scheme *scheme, kvs_err *err);
/* token_json_vocab.c: n_tokens, entries, the map and the model's tables */
kvs_status kvs__tj_vocab_read(kvs_tokenizer *tok, size_t n_rows, kvs_err *err);
/* token_json_model.c */
kvs_status kvs__tj_bpe(kvs__token_work *w, kvs__text word);
kvs_status kvs__tj_unigram(kvs__token_work *w, kvs__text word);
/* token_json_dec.c */
kvs_status kvs__tj_decoder_read(kvs_tokenizer *tok, kvs__jval node, kvs_err *err);
/* token_json_post.c: the post-processor, then the files beside tokenizer.json (dir may be NULL) */
kvs_status kvs__tj_post_read(kvs_tokenizer *tok, kvs__jval node, kvs_err *err);
kvs_status kvs__tj_config_read(kvs_tokenizer *tok, const char *dir, kvs__vocab_src *src,
                               kvs_err *err);

#endif
