/* SPDX-License-Identifier: MIT */
#include "kern/wmat.h"

void kvs__wkern_init_vec_avx2(kvs__wkern *k)
{
    (void)k;
}
