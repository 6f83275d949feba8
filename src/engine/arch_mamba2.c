/* SPDX-License-Identifier: MIT */
/* arch_mamba2.c: Mamba-2: layers of the SSD rule and nothing else. What such a model remembers has
 * the same size at any length. */
#include "engine/arch.h"

const kvs__arch kvs__arch_mamba2 = {
    .name = "mamba2",
    .parts = KVS__PART_NO_HEADS | KVS__PART_NO_FFN,
    .rope_style = KVS__ROPE_HALVES,
    .act = KVS__ACT_SILU,
    .setup = kvs__setup_ssd,
};
