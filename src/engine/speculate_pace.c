/* SPDX-License-Identifier: MIT */
/* speculate_pace.c: how many drafts a round is to have, from what earlier ones came to. Counts alone
 * decide, so the same text always has the same rounds.
 *
 * A draft is charged a quarter of a step. Measured (docs/design.md, bench_rows): the second to
 * eighth token of a step cost a sixth to a quarter of the first one each. */
#include "engine/speculate_priv.h"

#define STEP        16
#define VERIFY_COST 4u
#define START_DEPTH 4u
#define START       (STEP / 2)
#define MOST_CREDIT (8 * STEP)
#define PAUSE_FIRST 16u
#define PAUSE_MOST  512u

void kvs__pace_start(kvs__pace *p, uint32_t most, uint32_t own, bool fixed)
{
    *p = (kvs__pace){.most = most, .cost = VERIFY_COST + own, .credit = START, .fixed = fixed};
    p->depth = most < START_DEPTH ? most : START_DEPTH;
}

uint32_t kvs__pace_depth(const kvs__pace *p)
{
    return p->fixed ? p->most : p->wait > 0 ? 0 : p->depth;
}

static void rest(kvs__pace *p)
{
    p->pause = p->pause ? 2 * p->pause : PAUSE_FIRST;
    p->pause = p->pause < PAUSE_MOST ? p->pause : PAUSE_MOST;
    p->wait = p->pause;
    p->credit = 0; /* one draft that fails brings on the next pause */
    p->depth = 1;
}

void kvs__pace_note(kvs__pace *p, uint32_t drafts, uint32_t accepted)
{
    if (p->wait > 0) {
        p->wait--;
    }
    if (drafts == 0 || p->fixed) {
        return;
    }
    int64_t credit = p->credit + (int64_t)accepted * STEP - (int64_t)drafts * p->cost;
    p->credit = credit < MOST_CREDIT ? (int32_t)credit : MOST_CREDIT;
    if (accepted == drafts) {
        p->depth = 2 * drafts > p->depth ? 2 * drafts : p->depth;
    } else {
        p->depth = accepted > p->depth / 2 ? accepted : p->depth / 2;
    }
    p->depth = p->depth < 1 ? 1 : p->depth;
    p->depth = p->depth < p->most ? p->depth : p->most;
    if (p->credit < 0) {
        rest(p);
    } else if (accepted > 0) {
        p->pause = 0;
    }
}
