/* SPDX-License-Identifier: MIT */
/* hf_rope.h: the rotary encoding of a config.json as the engine's keys. */
#ifndef KVS_ENGINE_HF_ROPE_H
#define KVS_ENGINE_HF_ROPE_H

#include "engine/hf_priv.h"

kvs_status kvs__hf_write_rope(kvs__hf *hf, kvs__jval config, kvs_err *err);

#endif
