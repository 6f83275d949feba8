/* SPDX-License-Identifier: MIT */
#include "kern/kern.h"

void kvs__kern_init_attn_neon(kvs__kern *k)
{
    (void)k;
}
