/* SPDX-License-Identifier: MIT */
/* rec_gates.h: the gates of recurrent layers, scalar on every tier: a few dozen values a token. A
 * tier compiles it with its own flags, so that fmaf is an instruction there and no call. */
#ifndef KVS_KERN_REC_GATES_H
#define KVS_KERN_REC_GATES_H

#include "kern/math.h"

static void gates(float *g, float *b, const float *a, const float *beta, const float *bias,
                  const float *decay, float lo, float hi, size_t n_heads)
{
    for (size_t h = 0; h < n_heads; h++) {
        float dt = kvs__softplus(bias ? a[h] + bias[h] : a[h]);
        dt = dt < lo ? lo : dt;
        dt = dt > hi ? hi : dt;
        g[h] = kvs__exp(decay[h] * dt);
        b[h] = beta ? kvs__sigmoid(beta[h]) : dt;
    }
}

#endif
