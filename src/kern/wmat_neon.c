/* SPDX-License-Identifier: MIT */
#include "kern/wmat.h"

void kvs__wkern_init_neon(kvs__wkern *k)
{
    (void)k;
}
