/* SPDX-License-Identifier: MIT */
/* kvstate/kvstate.h: all of libkvstate. */
#ifndef KVSTATE_KVSTATE_H
#define KVSTATE_KVSTATE_H

#include "kvstate/base.h"
#include "kvstate/cache.h"
#include "kvstate/codec.h"
#include "kvstate/mask.h"
#include "kvstate/pages.h"
#include "kvstate/prefix.h"
#include "kvstate/recurrent.h"
#include "kvstate/retain.h"
#include "kvstate/rows.h"
#include "kvstate/step.h"
#include "kvstate/store.h"
#include "kvstate/txn.h"

#endif
