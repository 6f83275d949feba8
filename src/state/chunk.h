/* SPDX-License-Identifier: MIT */
/* chunk.h: one softmax chunk of one KV head for a block of rows (a row: one query of one query
 * head), and which chunks some rows need. attend.c shares the chunks out and joins them. */
#ifndef KVS_STATE_CHUNK_H
#define KVS_STATE_CHUNK_H

#include "state/store.h"

#define KVS__ROWS 64u /* of a block: amortises decoding, and the scratch stays inside L2 */

/* Groups whose centres are multiplied at a time: of 4 chunks, which threads take in a row. */
#define KVS__CENTERS (4 * KVS__CHUNK / KVS_CENTER_GROUP)

/* One read. */
typedef struct kvs__job {
    kvs_ctx *ctx;
    const kvs__kern *kern;
    const kvs__store *s;
    const kvs_attend *d;
    const kvs__store *tail; /* mode block: positions from tail->lo on; else NULL */
    uint32_t q_begin;       /* queries of this run */
    uint32_t q_end;
    uint32_t rep;       /* query heads per KV head */
    uint32_t head_rows; /* rows of one KV head: queries * rep */
    uint32_t n_blocks;  /* of rows, per KV head */
    size_t thread_bytes;
    unsigned char *scratch;
    /* split */
    uint32_t wave_first; /* index of the wave's first chunk in the list of chunks */
    uint32_t wave_n;
    bool wave_last;
    float *part; /* [wave_n][heads][head_rows][v_dim + 2]: acc, m, l; m is NaN where nothing seen */
    float *total; /* [heads][head_rows][v_dim + 2] */
} kvs__job;

/* Per-thread scratch. */
typedef struct kvs__work {
    float *q;   /* [KVS__ROWS][k_dim], rotated and scaled */
    float *s;   /* [KVS__ROWS][KVS__CHUNK] scores, then numerators */
    float *acc; /* [KVS__ROWS][v_dim] of a chunk */
    float *tot; /* [KVS__ROWS][v_dim] joined */
    float *kt;  /* [tiles][k_dim][16]; this and tmp NULL where K is read in codes */
    float *tmp; /* [k_dim][16] */
    float *vt;  /* rows of V decoded at a time; NULL where V is read in codes */
    float *m;   /* [KVS__ROWS] of a chunk */
    float *l;
    float *tm; /* [KVS__ROWS] joined */
    float *tl;
    /* of affine codes that are read as such, else NULL (kern.inc) */
    uint32_t *qp;    /* [KVS__ROWS][k_dim / 2] queries in 16 bits */
    float *q_params; /* [KVS__ROWS][groups][2] */
    uint32_t *pairs; /* the kernels' scratch */
    void *raw;       /* a tile put together */
    float *units;    /* [2][groups][KVS__CHUNK] scales and biases of V */
    int16_t *pw;     /* [groups][KVS__ROWS][KVS__CHUNK] numerators in 16 bits */
    float *p_params; /* [groups][KVS__ROWS][2] their step, and the sum with the biases */
    int32_t *sums;   /* [KVS__ROWS][v_dim] */
    /* of centred keys, else NULL */
    float *qt;      /* [KVS__ROWS / 16][k_dim][16]: q with the rows innermost */
    float *cen;     /* [KVS__CENTERS][k_dim]: the centres of a batch of groups */
    float *qc;      /* [KVS__CENTERS][KVS__ROWS]: their products with the queries */
    float *ones;    /* [KVS_CENTER_GROUP] */
    int64_t *batch; /* which batch qc is of, -1: none yet */
    int64_t *head;  /* whose queries q has, for who sets it */
    uint16_t *mask; /* [KVS__ROWS][16] */
    uint16_t *any;  /* [16] tokens that some row of the block sees, of a chunk */
    uint16_t *all;  /* [16] that every row sees */
} kvs__work;

/* Carves a thread's arrays out of base; with base NULL only counts the bytes. */
size_t kvs__work_carve(const kvs__fmt *fmt, unsigned char *base, kvs__work *w);
/* To be called when w->q holds the queries of n rows. */
void kvs__queries_ready(const kvs__job *j, const kvs__work *w, uint32_t n);
/* Chunk at position c0 for rows [row0, row0 + n) of a KV head into w->acc, m, l; w->q holds their
 * queries. False: none of them sees anything of it. */
bool kvs__chunk(const kvs__job *j, const kvs__work *w, uint32_t head, uint32_t row0, uint32_t n,
                int64_t c0);
/* Did row r of the block see something of the last chunk? */
bool kvs__row_sees(const kvs__work *w, uint32_t r);

/* The chunks of some rows: those with sinks, then those of the window, none twice. */
typedef struct kvs__chunk_list {
    int64_t n_sink; /* chunks 0 .. n_sink-1 */
    int64_t first;  /* then first .. first + n - n_sink - 1 */
    int64_t n;
} kvs__chunk_list;
kvs__chunk_list kvs__list_chunks(const kvs__job *j, uint32_t row0, uint32_t n);
/* Position of the i-th. */
int64_t kvs__chunk_at(const kvs__chunk_list *l, int64_t i);

#endif
