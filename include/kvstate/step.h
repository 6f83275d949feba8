/* SPDX-License-Identifier: MIT */
/* kvstate/step.h: a decode step in two phases, for callers that replay a captured graph.
 *
 * plan does all bookkeeping of a one-token append that may fail and returns plain integers; the
 * caller feeds them (and the planes they name) to its graph, which encodes the new row and reads;
 * commit stores the encoded row. Offsets and capacities never enter the key, so one captured graph
 * serves every step of a layer of that key. Callers without a graph use kvs_cache_append. */
#ifndef KVSTATE_STEP_H
#define KVSTATE_STEP_H

#include "kvstate/cache.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum kvs_fetch {
    KVS_FETCH_CONCAT = 0, /* the graph reads the stored tokens and then the new row */
    KVS_FETCH_RING = 1    /* the window is full: it writes the row at write_slot, then reads all */
} kvs_fetch;

typedef struct kvs_step {
    size_t struct_size;
    kvs_fetch fetch;
    int64_t position;    /* of the new token (RoPE) */
    uint64_t write_slot; /* slot of its storage (kvs_span.slot) that the row will take */
    uint64_t active;     /* tokens the graph reads beside the new row, sinks included */
    int64_t oldest;      /* first position of the window that is read, sinks apart */
    uint32_t n_inputs;   /* planes read, one more (the write position) for a ring */
    uint32_t n_outputs;  /* planes of the new row */
    char key[32]; /* "p-cat:0:0", "q-cat:GROUP:BITS", "p-ring:0:0", "q-ring:GROUP:BITS" of K */
} kvs_step;
#define KVS_STEP_INIT                                                                              \
    {                                                                                              \
        sizeof(kvs_step), KVS_FETCH_CONCAT, 0, 0, 0, 0, 0, 0, ""                                   \
    }

/* Which fetch the next step of a layer has; changes nothing. KVS_E_STATE: the layer is empty. */
KVS_API kvs_status kvs_step_phase(const kvs_cache *cache, uint32_t layer, kvs_fetch *out,
                                  kvs_err *err);
/* Reserves room for one token. The visible state does not change; a plan that is not committed
 * costs nothing. KVS_E_STATE: empty layer, or one that the step would convert (dense_until).
 * KVS_E_RANGE, here and in phase: the step's window has tokens that an import left out. */
KVS_API kvs_status kvs_step_plan(kvs_cache *cache, uint32_t layer, kvs_step *out, kvs_err *err);
/* Spans of the `active` tokens, in time order (as kvs_cache_spans). */
KVS_API kvs_status kvs_step_inputs(const kvs_cache *cache, uint32_t layer, const kvs_step *step,
                                   kvs_span *out, uint32_t cap, uint32_t *n_spans, kvs_err *err);
/* Stores the encoded row, planes [heads][1][units]. KVS_E_STATE: the layer has moved since the
 * plan; nothing was stored then. Cannot fail for memory unless a view was taken since the plan. */
KVS_API kvs_status kvs_step_commit(kvs_cache *cache, uint32_t layer, const kvs_step *step,
                                   const kvs_planes *row, kvs_err *err);

#ifdef __cplusplus
}
#endif
#endif
