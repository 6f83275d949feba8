/* SPDX-License-Identifier: MIT */
/* arch_phi3.c: Phi 3, 3.5 and 4 (mini and larger; not small nor MoE). q, k, v are one matrix, gate
 * and up another: split by rows, nothing is copied. Long contexts have a divisor for each rotary
 * pair (longrope), which comes as two tensors; some files name no kind of scaling beside them. */
#include "engine/arch.h"

const kvs__arch kvs__arch_phi3 = {
    .name = "phi3",
    .parts = KVS__PART_FUSED | KVS__PART_ROPE_FREQS,
    .rope_style = KVS__ROPE_HALVES,
    .act = KVS__ACT_SILU,
    .setup = kvs__setup_window,
};
