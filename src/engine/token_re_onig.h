/* SPDX-License-Identifier: MIT */
/* token_re_onig.h: an Oniguruma expression written so that PCRE2 finds the same matches. */
#ifndef KVS_ENGINE_TOKEN_RE_ONIG_H
#define KVS_ENGINE_TOKEN_RE_ONIG_H

#include "engine/token.h"
#include "engine/token_buf.h"

kvs_status kvs__re_translate(kvs_ctx *ctx, kvs__text pattern, kvs__tbuf *out, kvs_err *err);

#endif
