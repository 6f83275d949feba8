/* SPDX-License-Identifier: MIT */
#include "kern/kern.h"

void kvs__kern_init_codec_avx2(kvs__kern *k)
{
    (void)k;
}
