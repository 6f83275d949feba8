/* SPDX-License-Identifier: MIT */
/* model_parts.h: the steps of opening a model. */
#ifndef KVS_ENGINE_MODEL_PARTS_H
#define KVS_ENGINE_MODEL_PARTS_H

#include "engine/net.h"

/* net.c: fills m->net from m->gguf and m->arch. After a failure kvs__net_free cleans up. */
kvs_status kvs__net_load(kvs_model *m, kvs_err *err);
void kvs__net_free(kvs_model *m);
/* net_params.c: the hyper-parameters in m->net that architectures share. */
kvs_status kvs__net_params(kvs_model *m, kvs_err *err);

/* model_open.c: kvs_model_open over an open file, which it takes over even when it fails. hf: NULL
 * where the tensors are g's; else g is its metadata. */
kvs_status kvs__model_open_source(kvs_ctx *ctx, kvs__gguf *g, struct kvs__hf *hf, uint32_t flags,
                                  kvs_model **out, kvs_err *err);
kvs_status kvs__model_open_gguf(kvs_ctx *ctx, kvs__gguf *g, uint32_t flags, kvs_model **out,
                                kvs_err *err);

#endif
