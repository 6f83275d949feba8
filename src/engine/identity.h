/* SPDX-License-Identifier: MIT */
/* identity.h: what state is kept under: the numbers that a session of a plan computes with. */
#ifndef KVS_ENGINE_IDENTITY_H
#define KVS_ENGINE_IDENTITY_H

#include "engine/net.h"
#include "kvstate/plan.h"
#include "kvstate/recurrent.h"
#include "kvstate/store.h"

/* desc: rope, adapter, media and salt, and the model's digest; its plan and the model's own position
 * settings for a context of n_ctx tokens are put in here. */
kvs_status kvs__identity(kvs_ctx *ctx, const kvs__net *net, const kvs_cache *cache, uint32_t n_ctx,
                         const kvs_identity_desc *desc, uint8_t out[KVS_DIGEST_BYTES],
                         kvs_err *err);
/* KVS_E_INVAL: the plan was made for another model. */
kvs_status kvs__net_check_plan(const kvs__net *net, const kvs_plan *plan, kvs_err *err);

#endif
