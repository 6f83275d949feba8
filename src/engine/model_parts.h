/* SPDX-License-Identifier: MIT */
/* model_parts.h: the part of opening a model that net.c does. */
#ifndef KVS_ENGINE_MODEL_PARTS_H
#define KVS_ENGINE_MODEL_PARTS_H

#include "engine/net.h"

/* net.c: fills m->net from m->gguf and m->arch. After a failure kvs__net_free cleans up. */
kvs_status kvs__net_load(kvs_model *m, kvs_err *err);
void kvs__net_free(kvs_model *m);

#endif
