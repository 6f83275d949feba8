/* SPDX-License-Identifier: MIT */
/* kvstate/engine.h: all of libkvstate_engine. */
#ifndef KVSTATE_ENGINE_H
#define KVSTATE_ENGINE_H

#include "kvstate/batch.h"
#include "kvstate/interchange.h"
#include "kvstate/kvstate.h"
#include "kvstate/model.h"
#include "kvstate/persist.h"
#include "kvstate/plan.h"
#include "kvstate/prefix_cache.h"
#include "kvstate/sampler.h"
#include "kvstate/session.h"
#include "kvstate/speculate.h"
#include "kvstate/template.h"
#include "kvstate/tokenizer.h"

#endif
