/* SPDX-License-Identifier: MIT */
/* token_vocab.h: small synthetic vocabularies for tests of the tokenizer.
 *
 * tv_bpe_init gives the 256 bytes of the visible alphabet (id == byte), tv_spm_init an unknown
 * token, BOS, EOS and 256 byte tokens (ids 3..258); tv_add appends. */
#ifndef KVS_TESTS_SUPPORT_TOKEN_VOCAB_H
#define KVS_TESTS_SUPPORT_TOKEN_VOCAB_H

#include <stdio.h>
#include <string.h>

#include "engine/token.h"

enum { TV_TOKENS = 640, TV_MERGES = 128, TV_TEXT = 32 };

typedef struct tv {
    kvs__vocab_src src;
    char bytes[TV_TOKENS][TV_TEXT];
    kvs__text texts[TV_TOKENS];
    float scores[TV_TOKENS];
    int32_t types[TV_TOKENS];
    kvs__text merges[TV_MERGES];
} tv;

static inline int32_t tv_add(tv *v, const char *text, int32_t type, float score)
{
    size_t i = v->src.n_tokens++;
    v->texts[i] = (kvs__text){text, strlen(text)};
    v->types[i] = type;
    v->scores[i] = score;
    return (int32_t)i;
}

static inline void tv_merge(tv *v, const char *merge)
{
    v->merges[v->src.n_merges++] = (kvs__text){merge, strlen(merge)};
}

static inline kvs__vocab_token tv_token(void *user, size_t i)
{
    const tv *v = user;
    return (kvs__vocab_token){v->texts[i], v->scores[i], v->types[i]};
}

static inline kvs__text tv_merge_at(void *user, size_t i)
{
    const tv *v = user;
    return v->merges[i];
}

static inline void tv_init(tv *v, kvs__vocab_kind kind)
{
    *v = (tv){.src = KVS__VOCAB_SRC_INIT};
    v->src.kind = kind;
    v->src.token = tv_token;
    v->src.merge = tv_merge_at;
    v->src.user = v;
}

static inline void tv_bpe_init(tv *v, const char *pre)
{
    tv_init(v, KVS__VOCAB_BPE);
    v->src.pre = (kvs__text){pre, strlen(pre)};
    unsigned next = 256;
    for (unsigned b = 0; b < 256; b++) {
        int shown = (b > 0x20 && b < 0x7f) || (b > 0xa0 && b != 0xad);
        unsigned cp = shown ? b : next++;
        char *t = v->bytes[b];
        if (cp < 0x80) {
            t[0] = (char)cp;
        } else {
            t[0] = (char)(0xc0 | cp >> 6);
            t[1] = (char)(0x80 | (cp & 0x3f));
        }
        (void)tv_add(v, t, KVS__TYPE_NORMAL, 0);
    }
}

static inline void tv_spm_init(tv *v)
{
    tv_init(v, KVS__VOCAB_SPM);
    v->src.special[KVS_SPECIAL_UNK] = tv_add(v, "<unk>", KVS__TYPE_UNKNOWN, 0);
    v->src.special[KVS_SPECIAL_BOS] = tv_add(v, "<s>", KVS__TYPE_CONTROL, 0);
    v->src.special[KVS_SPECIAL_EOS] = tv_add(v, "</s>", KVS__TYPE_CONTROL, 0);
    for (unsigned b = 0; b < 256; b++) {
        (void)snprintf(v->bytes[b], TV_TEXT, "<0x%02X>", b);
        (void)tv_add(v, v->bytes[b], KVS__TYPE_BYTE, 0);
    }
}

#endif
