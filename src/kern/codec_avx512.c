/* SPDX-License-Identifier: MIT */
#include "kern/kern.h"

void kvs__kern_init_codec_avx512(kvs__kern *k)
{
    (void)k;
}
