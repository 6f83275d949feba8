/* SPDX-License-Identifier: MIT */
/* wmat_ref.c: the reference of weights x activations. This order of operations is the
 * specification that every tier equals bit for bit; nothing here is tuned. */
#include <math.h>

#include "base/half.h"
#include "kern/math.h"
#include "kern/wmat.h"

#define LANES 16u
#define PAD   32u  /* a row is summed as if zeros filled it up to a multiple of this */
#define STEP  256u /* elements decoded at a time: whole blocks of every type */

static float tree(float lane[LANES])
{
    for (size_t h = LANES / 2; h > 0; h /= 2) {
        for (size_t i = 0; i < h; i++) {
            lane[i] += lane[i + h];
        }
    }
    return lane[0] == lane[0] ? lane[0] : kvs__f32_bits(KVS__NAN_BITS);
}

static float dot(const float *x, const kvs__wrows *w, size_t j)
{
    float lane[LANES] = {0};
    float value[STEP];
    for (size_t k0 = 0; k0 < w->k; k0 += STEP) {
        size_t n = w->k - k0 < STEP ? w->k - k0 : STEP;
        kvs__wrows_decode(w, j, k0, n, value);
        for (size_t i = 0; i < n; i++) {
            lane[i % LANES] = fmaf(x[k0 + i], value[i], lane[i % LANES]);
        }
    }
    for (size_t k = w->k; k % PAD != 0; k++) {
        lane[k % LANES] = fmaf(0.0f, 0.0f, lane[k % LANES]);
    }
    return tree(lane);
}

static void matmul(float *y, size_t ldy, const float *x, size_t ldx, size_t rows,
                   const kvs__wrows *w, void *scratch)
{
    (void)scratch;
    for (size_t r = 0; r < rows; r++) {
        for (size_t j = 0; j < w->n; j++) {
            y[r * ldy + j] = dot(x + r * ldx, w, j);
        }
    }
}

static void dequant(float *dst, kvs__wtype type, const void *src, size_t n)
{
    kvs__gguf_dequant(type, src, n, dst);
}

static void row(float *dst, const kvs__wrows *w, size_t j)
{
    kvs__wrows_decode(w, j, 0, w->k, dst);
}

void kvs__wkern_init_ref(kvs__wkern *k)
{
    k->row = row;
    k->matmul = matmul;
    k->dequant = dequant;
}
