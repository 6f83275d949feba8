/* SPDX-License-Identifier: MIT */
/* hf_config.h: reading config.json and writing the engine's keys, for hf_config.c and hf_layers.c.
 * The first failure stays in the writer and the calls after it do nothing. */
#ifndef KVS_ENGINE_HF_CONFIG_H
#define KVS_ENGINE_HF_CONFIG_H

#include "engine/hf_priv.h"

typedef struct kvs__hf_writer {
    kvs__hf *hf;
    kvs__jval config;
    kvs_err *err;
    kvs_status st;           /* the first failure */
    const char *written[64]; /* suffixes: the first value of a key counts */
    size_t n_written;
} kvs__hf_writer;

/* The value of a name; none where it is null, which is how configurations are written. */
kvs__jval kvs__hf_get(const kvs__hf_writer *w, const char *name);
/* False: absent or wrong (w->st tells). */
bool kvs__hf_read_u32(kvs__hf_writer *w, const char *name, uint32_t *out);
bool kvs__hf_read_number(kvs__hf_writer *w, const char *name, double *out);
bool kvs__hf_read_bool(kvs__hf_writer *w, const char *name, bool fallback);
void kvs__hf_put_u32(kvs__hf_writer *w, const char *suffix, uint32_t v);
void kvs__hf_put_f32(kvs__hf_writer *w, const char *suffix, double v);
void kvs__hf_put_bool(kvs__hf_writer *w, const char *suffix, bool v);
/* "config.json: NAME is KIND VALUE, not WANTED". */
void kvs__hf_wrong(kvs__hf_writer *w, const char *name, kvs__jval v, const char *wanted);
/* "config.json: NAME WHY". */
void kvs__hf_refuse(kvs__hf_writer *w, const char *name, const char *why);

/* hf_layers.c: keys of families whose layers are recurrent or not all alike. */
void kvs__hf_write_layers(kvs__hf_writer *w);

#endif
