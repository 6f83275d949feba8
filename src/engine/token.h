/* SPDX-License-Identifier: MIT */
/* token.h: inside of the tokenizer: how one is made, and what its files share.
 *
 * A vocabulary comes as a kvs__vocab_src, whatever file it was read from. Texts stay where they
 * are (views into the mapped file), so the source's bytes must outlive the tokenizer.
 */
#ifndef KVS_ENGINE_TOKEN_H
#define KVS_ENGINE_TOKEN_H

#include "base/base.h"
#include "kvstate/tokenizer.h"

typedef struct kvs__text {
    const char *ptr;
    size_t len;
} kvs__text;

typedef enum kvs__vocab_kind {
    KVS__VOCAB_BPE = 0, /* byte-level BPE: merges, texts in the visible byte alphabet */
    KVS__VOCAB_SPM = 1, /* SentencePiece-style: scores, byte fallback */
    KVS__VOCAB_JSON = 2 /* steps of a tokenizer.json; not made by kvs__tokenizer_new */
} kvs__vocab_kind;

/* tokenizer.ggml.token_type, also SentencePiece's own numbers. */
enum {
    KVS__TYPE_NORMAL = 1,
    KVS__TYPE_UNKNOWN = 2,
    KVS__TYPE_CONTROL = 3,
    KVS__TYPE_USER = 4,
    KVS__TYPE_UNUSED = 5,
    KVS__TYPE_BYTE = 6
};

typedef struct kvs__vocab_token {
    kvs__text text;
    float score;  /* SPM only */
    int32_t type; /* KVS__TYPE_* */
} kvs__vocab_token;

typedef struct kvs__vocab_src {
    kvs__vocab_kind kind;
    size_t n_tokens;
    size_t n_merges; /* BPE only */
    /* Token i, merge i ("left right", best first). Called with i = 0, 1, ... in order, so that a
     * file can be walked; no array of the vocabulary has to be made for the occasion. */
    kvs__vocab_token (*token)(void *user, size_t i);
    kvs__text (*merge)(void *user, size_t i);
    void *user;
    kvs__text pre;                      /* name of the pre-tokeniser; BPE only */
    int32_t special[KVS_SPECIAL_COUNT]; /* -1: none */
    const int32_t *eog;                 /* [n_eog] end-of-generation ids beyond EOS and EOT */
    size_t n_eog;
    /* -1: what the kind (and the pre-tokeniser) is used to, 0 no, 1 yes */
    int add_bos;
    int add_eos;
    int add_space_prefix; /* SPM only */
} kvs__vocab_src;
#define KVS__VOCAB_SRC_INIT                                                                        \
    {                                                                                              \
        KVS__VOCAB_BPE, 0, 0, NULL, NULL, NULL, {NULL, 0}, {-1, -1, -1, -1, -1, -1, -1}, NULL, 0,  \
            -1, -1, -1                                                                             \
    }

/* KVS_E_FORMAT: ids out of range, empty vocabulary, misspelled byte tokens or merges.
 * KVS_E_UNSUPPORTED: unknown pre-tokeniser (the message lists the known ones). Free with
 * kvs__tokenizer_free. */
kvs_status kvs__tokenizer_new(kvs_ctx *ctx, const kvs__vocab_src *src, kvs_tokenizer **out,
                              kvs_err *err);
void kvs__tokenizer_free(kvs_tokenizer *tok); /* NULL is fine */

/* -- Shared by the token*.c files alone. */

#define KVS__SPACE_MARK      "\xe2\x96\x81" /* U+2581, SentencePiece's visible space */
#define KVS__SPACE_MARK_CP   0x2581u
#define KVS__RANK_NONE       UINT32_MAX
#define KVS__NEIGHBOUR_BITS  21u /* 256 KiB: stays in the second-level cache */
#define KVS__NEIGHBOUR_WORDS (((size_t)1 << KVS__NEIGHBOUR_BITS) / 64)
#define KVS__TOKEN_TEXT_MAX  65535u /* bytes; longer texts are refused */
#define KVS__TOKEN_MERGEABLE (KVS_TOKEN_NORMAL | KVS_TOKEN_USER | KVS_TOKEN_UNUSED)

typedef struct kvs__token_entry {
    const char *ptr;
    uint32_t len;
    uint32_t attr; /* KVS_TOKEN_* */
} kvs__token_entry;

/* Open addressing, linear probing, load at most 1/2. A slot is 0 (free) or tag << id_bits | id + 1:
 * four bytes, because clearing fresh pages costs more than all else when a vocabulary is built. */
typedef struct kvs__token_map {
    uint32_t *slots;
    size_t n_slots; /* a power of two */
    unsigned id_bits;
} kvs__token_map;

/* Texts that become tokens before anything else, sorted by text: walked like a trie. */
typedef struct kvs__token_list {
    kvs__token_entry *items; /* [n]; attr holds the id */
    size_t n;
    uint32_t first[257]; /* items that start with byte b: first[b] .. first[b + 1] */
} kvs__token_list;

typedef struct kvs__bpe_pair {
    uint32_t left;
    uint32_t right;
    uint32_t rank; /* KVS__RANK_NONE: free slot */
    int32_t id;
} kvs__bpe_pair;

struct kvs__pre;
struct kvs__sym;
struct kvs__tj;      /* token_json_priv.h */
struct kvs__tj_work; /* the same */

/* Rank of joining two neighbours (lower goes first) and the id of the result. */
typedef uint32_t (*kvs__pair_fn)(const kvs_tokenizer *tok, const char *text,
                                 const struct kvs__sym *left, const struct kvs__sym *right,
                                 int32_t *id);

struct kvs_tokenizer {
    kvs_ctx *ctx;
    kvs__vocab_kind kind;
    uint32_t adds; /* bit 0 BOS, bit 1 EOS */
    bool add_space_prefix;
    size_t n_tokens;
    size_t max_len;            /* bytes of the longest text */
    size_t max_out;            /* of what a token decodes to, at most */
    kvs__token_entry *entries; /* [n_tokens] */
    kvs__token_map map;
    int32_t byte_id[256]; /* token of a byte, or -1 */
    int32_t special[KVS_SPECIAL_COUNT];
    kvs__token_list user;     /* user-defined tokens */
    kvs__token_list user_ctl; /* and control and unknown tokens */
    char *pool;               /* spellings of list items that differ from the vocabulary's */
    size_t pool_bytes;
    /* BPE */
    struct kvs__pre *pre;
    kvs__bpe_pair *pairs; /* [n_pairs], open addressing */
    size_t n_pairs;
    /* SPM */
    uint32_t *ranks;      /* [n_tokens] scores as ascending unsigned numbers, best first */
    uint64_t *neighbours; /* [KVS__NEIGHBOUR_WORDS] may these two characters be in one token? */
    /* JSON; ranks, user and user_ctl are not used then */
    struct kvs__tj *json;
};

/* One character or an already joined piece of the text being merged. */
typedef struct kvs__sym {
    uint32_t at; /* byte offset and length in the text */
    uint32_t len;
    int32_t id;      /* -1: no token */
    uint32_t rank;   /* of joining it with next */
    int32_t pair_id; /* the token that would give */
    uint32_t prev;   /* UINT32_MAX: none */
    uint32_t next;
    uint32_t heap_at;
} kvs__sym;

/* Where a decoding is; zeroed at its start. */
typedef struct kvs__decode_state {
    bool started;    /* a byte was produced; JSON: a token was seen */
    bool stripped;   /* JSON: no more is taken off the start */
    size_t n_strips; /* JSON: characters taken off the start */
} kvs__decode_state;

/* State of one encode call; buffers grow and are kept until its end. */
typedef struct kvs__token_work {
    const kvs_tokenizer *tok;
    int32_t *ids;
    size_t n_ids;
    size_t cap_ids;
    char *buf; /* rewritten text */
    size_t buf_bytes;
    kvs__sym *syms;
    uint64_t *heap;
    size_t cap_syms;
    void *match; /* pcre2_match_data */
    struct kvs__tj_work *json;
    uint32_t flags; /* KVS_TOKENIZE_*; JSON */
    bool after_unk;
    kvs_err *err;
} kvs__token_work;

kvs_status kvs__token_push(kvs__token_work *w, int32_t id);
kvs_status kvs__token_reserve_syms(kvs__token_work *w, size_t n);

/* The lowest id with this text, or -1. */
int32_t kvs__token_map_find(const kvs_tokenizer *tok, const char *text, size_t len);
uint64_t kvs__token_hash(const char *text, size_t len);
kvs_status kvs__token_map_build(kvs_tokenizer *tok, kvs_err *err);

kvs_status kvs__token_lists_build(kvs_tokenizer *tok, kvs_err *err);
void kvs__token_lists_free(kvs_tokenizer *tok);
/* The longest item that text starts with: its id and length, or -1. */
int32_t kvs__token_list_match(const kvs__token_list *list, const char *text, size_t len,
                              size_t *match_len);

/* Joins syms[0..n), whose at, len and id are set, best rank first, leftmost on ties. What is left
 * hangs together by next, from 0. heap: [n] scratch. */
void kvs__token_merge(const kvs_tokenizer *tok, const char *text, kvs__sym *syms, uint64_t *heap,
                      size_t n, kvs__pair_fn pair);

void kvs__token_list_index(kvs__token_list *list); /* after items and n have been filled */
/* Every item that text starts with, the shortest first; -1: no more. */
typedef struct kvs__list_walk {
    size_t lo;
    size_t hi;
    size_t depth;
} kvs__list_walk;
kvs__list_walk kvs__token_list_start(const kvs__token_list *list, const char *text);
int32_t kvs__token_list_next(const kvs__token_list *list, kvs__list_walk *walk, const char *text,
                             size_t len, size_t *match_len);

/* Special ids and end-of-generation marks, of src or by spelling; entries and map are there. */
void kvs__token_special_fill(kvs_tokenizer *tok, const kvs__vocab_src *src);

/* The merge table: room for n_merges; a pair that is there already is replaced. */
kvs_status kvs__token_pairs_new(kvs_tokenizer *tok, size_t n_merges, kvs_err *err);
kvs_status kvs__token_pair_put(kvs_tokenizer *tok, kvs__bpe_pair pair, kvs_err *err);
uint32_t kvs__token_bpe_rank(const kvs_tokenizer *tok, const char *text, const kvs__sym *left,
                             const kvs__sym *right, int32_t *id);
/* Characters that stand side by side in what merging can make. */
kvs_status kvs__token_neighbours_new(kvs_tokenizer *tok, kvs_err *err);
void kvs__token_neighbours_add(kvs_tokenizer *tok, uint32_t a, uint32_t b);
bool kvs__token_are_neighbours(const kvs_tokenizer *tok, uint32_t a, uint32_t b);

/* token_json.c: the kind's own encode, decode and free. */
kvs_status kvs__tj_encode(kvs__token_work *w, const char *text, size_t n, uint32_t flags);
void kvs__tj_work_free(const kvs_tokenizer *tok, struct kvs__tj_work *w); /* NULL is fine */
size_t kvs__tj_token_bytes(const kvs_tokenizer *tok, int32_t id, uint32_t flags,
                           struct kvs__decode_state *state, char *out);
void kvs__tj_free(kvs_ctx *ctx, struct kvs__tj *tj, size_t n_tokens); /* NULL is fine */

kvs_status kvs__token_bpe_build(kvs_tokenizer *tok, const kvs__vocab_src *src, kvs_err *err);
kvs_status kvs__token_bpe_section(kvs__token_work *w, const char *text, size_t len);
uint32_t kvs__token_spm_rank(float score);
kvs_status kvs__token_spm_build(kvs_tokenizer *tok, kvs_err *err);
/* text has three writable bytes before it, for the space prefix. */
kvs_status kvs__token_spm_section(kvs__token_work *w, char *text, size_t len);
/* Bytes of a token of the visible byte alphabet; at most len of them. */
size_t kvs__token_bpe_bytes(const char *text, size_t len, char *out);
/* The visible character of a byte; returns its bytes, 1 or 2. */
size_t kvs__token_bpe_visible(unsigned byte, char *out);
/* The byte that a visible character stands for, or -1. */
int kvs__token_bpe_byte_of(uint32_t cp);

#endif
