/* SPDX-License-Identifier: MIT */
/* rope.c: frequencies of rotary encodings.
 *
 * Pair i of n turns by position * base^(-2i/n_rot), stretched by what the model asks for; in double,
 * so that a far position loses nothing, and rounded to f32 only as cosine and sine. */
#include <math.h>

#include "engine/net.h"

float kvs__rope_freqs(const kvs__rope *rope, uint32_t n_ctx, double *freq)
{
    (void)n_ctx;
    for (uint32_t i = 0; i < rope->n_rot / 2; i++) {
        double f = pow((double)rope->base, -2.0 * (double)i / (double)rope->n_rot);
        f *= (double)rope->position_scale;
        freq[i] = rope->factors ? f / (double)rope->factors[i] : f;
    }
    return 1.0f;
}
