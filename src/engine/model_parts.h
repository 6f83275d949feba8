/* SPDX-License-Identifier: MIT */
/* model_parts.h: the steps of opening a model, one file each. */
#ifndef KVS_ENGINE_MODEL_PARTS_H
#define KVS_ENGINE_MODEL_PARTS_H

#include "engine/net.h"

/* net.c: fills m->net from m->gguf and m->arch. After a failure kvs__net_free cleans up. */
kvs_status kvs__net_load(kvs_model *m, kvs_err *err);
void kvs__net_free(kvs_model *m);

/* vocab.c: the tokenizer of the file, m->tok; left NULL where the file has none. */
kvs_status kvs__vocab_load(kvs_model *m, kvs_err *err);

#endif
