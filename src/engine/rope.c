/* SPDX-License-Identifier: MIT */
/* rope.c: frequencies of rotary encodings.
 *
 * Pair i of n turns by position * base^(-2i/n_rot), stretched by what the model asks for; in double,
 * so that a far position loses nothing, and rounded to f32 only as cosine and sine.
 *
 * Where the definition looks at the length of the sequence (dynamic, longrope), the context length
 * is taken, once: a token's encoding must not change while the sequence grows, or its result would
 * depend on how the tokens came. */
#include <math.h>

#include "engine/net.h"

#define TWO_PI 6.283185307179586476925286766559

static double plain(const kvs__rope *r, double base, uint32_t i)
{
    return pow(base, -2.0 * (double)i / (double)r->n_rot);
}

/* Pair that makes `turns` turns within the original context. */
static double yarn_pair(const kvs__rope *r, double turns)
{
    double n = (double)r->n_rot;
    return n * log((double)r->n_ctx_orig / (turns * TWO_PI)) / (2.0 * log((double)r->base));
}

static void yarn(const kvs__rope *r, double *freq)
{
    double low = floor(yarn_pair(r, (double)r->beta_fast));
    double high = ceil(yarn_pair(r, (double)r->beta_slow));
    low = low > 0.0 ? low : 0.0;
    high = high < (double)r->n_rot - 1.0 ? high : (double)r->n_rot - 1.0;
    if (low == high) {
        high += 0.001;
    }
    for (uint32_t i = 0; i < r->n_rot / 2; i++) {
        double ramp = ((double)i - low) / (high - low);
        ramp = ramp < 0.0 ? 0.0 : ramp > 1.0 ? 1.0 : ramp;
        double f = plain(r, (double)r->base, i);
        freq[i] = f * (1.0 - ramp) + f / (double)r->factor * ramp;
    }
}

static void llama3(const kvs__rope *r, double *freq)
{
    double orig = (double)r->n_ctx_orig;
    double low = (double)r->low;
    double high = (double)r->high;
    double factor = (double)r->factor;
    for (uint32_t i = 0; i < r->n_rot / 2; i++) {
        double f = plain(r, (double)r->base, i);
        double turns = orig * f / TWO_PI;
        if (turns < low) {
            freq[i] = f / factor;
        } else if (turns > high) {
            freq[i] = f;
        } else {
            double smooth = (turns - low) / (high - low);
            freq[i] = f * ((1.0 - smooth) / factor + smooth);
        }
    }
}

static double dynamic_base(const kvs__rope *r, uint32_t n_ctx)
{
    double most = (double)r->n_ctx_train;
    double len = (double)n_ctx > most ? (double)n_ctx : most;
    double grow = (double)r->factor * len / most - ((double)r->factor - 1.0);
    double n = (double)r->n_rot;
    return (double)r->base * pow(grow, n / (n - 2.0));
}

static double magnitude(double factor, double mscale)
{
    return factor <= 1.0 ? 1.0 : 0.1 * mscale * log(factor) + 1.0;
}

static double turn_of(const kvs__rope *r)
{
    if (r->turn > 0.0f) {
        return (double)r->turn;
    }
    double factor = (double)r->factor;
    if (r->kind == KVS__ROPE_YARN) {
        double mscale = r->mscale > 0.0f ? (double)r->mscale : 1.0;
        double mul = r->turn_mul > 0.0f ? (double)r->turn_mul : 1.0;
        return mul * magnitude(factor, mscale) / magnitude(factor, (double)r->mscale_all);
    }
    if (r->kind == KVS__ROPE_LONG && r->turn_mul > 0.0f) {
        return (double)r->turn_mul;
    }
    if (r->kind == KVS__ROPE_LONG && r->n_ctx_train > r->n_ctx_orig) {
        double orig = (double)r->n_ctx_orig;
        return sqrt(1.0 + log((double)r->n_ctx_train / orig) / log(orig));
    }
    return 1.0;
}

float kvs__rope_score_scale(const kvs__rope *rope)
{
    double m = magnitude((double)rope->factor, (double)rope->mscale_all);
    return rope->kind == KVS__ROPE_YARN ? (float)(m * m) : 1.0f;
}

float kvs__rope_freqs(const kvs__rope *rope, uint32_t n_ctx, double *freq)
{
    const kvs__rope *r = rope;
    uint32_t half = r->n_rot / 2;
    double base = r->kind == KVS__ROPE_DYNAMIC ? dynamic_base(r, n_ctx) : (double)r->base;
    const float *divisors = r->factors;
    if (r->kind == KVS__ROPE_LONG && n_ctx <= r->n_ctx_orig) {
        divisors = r->short_factors;
    }
    for (uint32_t i = 0; i < half; i++) {
        freq[i] = plain(r, base, i);
    }
    if (r->kind == KVS__ROPE_YARN) {
        yarn(r, freq);
    } else if (r->kind == KVS__ROPE_LLAMA3) {
        llama3(r, freq);
    }
    for (uint32_t i = 0; i < half; i++) {
        bool still = (double)i >= (double)r->part * (double)half;
        if (r->kind == KVS__ROPE_LINEAR || r->kind == KVS__ROPE_PROPORTIONAL) {
            freq[i] /= (double)r->factor;
        }
        if (r->kind == KVS__ROPE_PROPORTIONAL && still) {
            freq[i] = 0.0;
        }
        freq[i] = divisors ? freq[i] / (double)divisors[i] : freq[i];
    }
    return (float)turn_of(r);
}
