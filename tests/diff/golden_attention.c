/* SPDX-License-Identifier: MIT */
/* golden_attention.c: attention reads of the library and of MLX, both held against a reference in
 * f64 over the very values that each of them stores.
 *
 * Tolerances are a-priori bounds, not fitted. With u the unit roundoff, w_j the exact weights and
 * o the exact output, an output element may be off, to first order, by
 *     sum_j w_j e_j |v_j - o|  (score and exp errors e_j; a common factor cancels in the ratio)
 *   + n u (sum_j w_j |v_j| + |o|)  (n additions on the longest path of numerator and denominator),
 *     e_j = (dim + 3) u |scale| sum_d |q_d k_jd| + (c + d |s_j - max s|) u,
 * where the exp itself gives c and d: 2 and 1 here (test_exp: 1.4 u, and one rounding of the
 * difference), 9 and 2 in MLX, whose exp rounds x log2 e.
 * Such worst cases grow with n; rounding errors that do not conspire grow with sqrt(n), so the RMS
 * over all elements of (error / the same form with sqrt(n), errors added in squares) must be below
 * 1 as well, which is far sharper. The library's reads are f32 whatever the storage. MLX's are f32
 * only for f32 storage; in halves its own roundings enter u, and a bound above the spread of the
 * values themselves is counted as empty.
 *
 * Of affine codes the library makes integers of q and of the weights (docs/numerics.md). With h half a
 * step of a group's q, an element of which is off by h at most, e_j grows by |scale| sum_g h_g sum_d
 * |k_jd|; with h_c half a step of a chunk's weights times scales, the output is off by sum_j h_c code_j
 * more. The f32 roundings are of the parts that codes and biases have in a value: |code * scale| +
 * |bias| takes the place of |k| and |v|. */
#include "golden_common.h"

#define U32 0x1p-24

typedef struct problem {
    char name[24];
    kvs_dtype dtype;
    uint32_t q_heads;
    uint32_t kv_heads;
    uint32_t dim;
    uint32_t tokens;
    uint32_t queries;
    uint32_t window;
    uint32_t keep; /* first tokens that every query sees */
    float scale;
    uint32_t bits; /* 0: dense */
    uint32_t group;
    float *sinks; /* [q_heads] or NULL */
    void *q;      /* [q_heads][queries][dim] of dtype */
    void *k;      /* [kv_heads][tokens][dim] */
    void *v;
    const void *mlx; /* as q */
} problem;

/* How a computation rounds: what the bound needs to know. */
typedef struct arithmetic {
    double u_score;   /* of each product and sum of a score */
    double n_score;   /* roundings of a score */
    double u_score_2; /* further roundings of q, the scale and the score */
    double u_weight;  /* of the weights */
    double exp_fixed; /* error of the exp in 2^-24: fixed + slope * |argument| */
    double exp_slope;
    double u_sum; /* of the output's sums */
    double n_sum;
    double u_out;
    double tiny;  /* absolute error of one rounding that underflows */
    bool sixteen; /* codes are multiplied by integers of 16 bits */
} arithmetic;

/* K or V as attention sees it. */
typedef struct operand {
    double *x;    /* [heads][tokens][dim] */
    double *unit; /* [heads][tokens][groups][2]: scales and biases of codes, else NULL */
} operand;

typedef struct verdict {
    uint64_t n;
    double worst;   /* error / bound */
    double squares; /* of error / root-mean-square bound */
    uint64_t empty;
} verdict;

static void *draw(uint64_t seed, kvs_dtype t, size_t n)
{
    void *p = golden_alloc(n * 4);
    for (size_t i = 0; i < n; i++) {
        golden_store(p, t, i, 2.0f * gold_value(seed, i));
    }
    return p;
}

static problem read_problem(const char *line)
{
    problem p = {.bits = 0};
    char text[32];
    (void)gold_field(line, "name", p.name, sizeof p.name);
    (void)gold_field(line, "dtype", text, sizeof text);
    p.dtype = golden_dtype(text);
    p.q_heads = (uint32_t)gold_number(line, "q_heads");
    p.kv_heads = (uint32_t)gold_number(line, "kv_heads");
    p.dim = (uint32_t)gold_number(line, "dim");
    p.tokens = (uint32_t)gold_number(line, "tokens");
    p.queries = (uint32_t)gold_number(line, "queries");
    p.window = (uint32_t)gold_number(line, "window");
    p.keep = (uint32_t)gold_number(line, "keep");
    (void)gold_field(line, "scale", text, sizeof text);
    p.scale = kvs__f32_bits((uint32_t)strtoul(text, NULL, 16));
    uint64_t seed = (uint64_t)gold_number(line, "seed");
    p.q = draw(seed, p.dtype, (size_t)p.q_heads * p.queries * p.dim);
    p.k = draw(seed + 1, p.dtype, (size_t)p.kv_heads * p.tokens * p.dim);
    p.v = draw(seed + 2, p.dtype, (size_t)p.kv_heads * p.tokens * p.dim);
    if (gold_number(line, "sinks")) {
        void *logits = draw(seed + 3, p.dtype, p.q_heads);
        p.sinks = (float *)golden_alloc(p.q_heads * sizeof(float));
        for (size_t h = 0; h < p.q_heads; h++) {
            p.sinks[h] = golden_load(logits, p.dtype, h);
        }
        free(logits);
    }
    return p;
}

static void free_problem(const problem *p)
{
    free(p->sinks);
    free(p->q);
    free(p->k);
    free(p->v);
}

static kvs_codec codec_of(const problem *p)
{
    kvs_codec c = KVS_CODEC_DENSE(p->dtype);
    c.bits = (uint8_t)p->bits;
    c.group = (uint16_t)p->group;
    return c;
}

/* K or V as attention sees it: the library's one rounding (f32) or MLX's two (dtype). */
static operand stored(kvs_ctx *ctx, const problem *p, const void *x, bool as_mlx)
{
    size_t rows = (size_t)p->kv_heads * p->tokens;
    size_t n = rows * p->dim;
    operand out = {(double *)golden_alloc(n * sizeof(double)), NULL};
    kvs_codec codec = codec_of(p);
    unsigned char *planes = (unsigned char *)golden_alloc(3 * n * 4);
    void *y = golden_alloc(n * 4);
    kvs_err err;
    if (p->bits > 0) {
        unsigned char *s = planes + 4 * n;
        unsigned char *b = planes + 8 * n;
        golden_must(kvs_codec_encode(ctx, &codec, p->dim, rows, x, p->dtype, planes, s, b, &err),
                    &err);
        golden_must(as_mlx ? kvs_codec_decode(ctx, &codec, p->dim, rows, planes, s, b, y, &err)
                           : kvs_codec_decode_f32(ctx, &codec, p->dim, rows, planes, s, b,
                                                  (float *)y, &err),
                    &err);
        size_t groups = n / p->group;
        out.unit = (double *)golden_alloc(2 * groups * sizeof(double));
        for (size_t g = 0; g < groups; g++) {
            out.unit[2 * g] = (double)golden_load(s, p->dtype, g);
            out.unit[2 * g + 1] = (double)golden_load(b, p->dtype, g);
        }
    } else {
        memcpy(y, x, n * golden_size(p->dtype));
    }
    for (size_t i = 0; i < n; i++) {
        out.x[i] = (double)golden_load(y, p->bits == 0 || as_mlx ? p->dtype : KVS_F32, i);
    }
    free(planes);
    free(y);
    return out;
}

static void free_operand(const operand *o)
{
    free(o->x);
    free(o->unit);
}

/* One query of one head: exact weights, scores and sums of magnitudes, in f64. */
typedef struct exact {
    double *w;     /* [tokens], 0 where hidden */
    double *s;     /* scores */
    double *a;     /* |scale| sum |q k|, of codes |q| (|k - bias| + |bias|) */
    double *off;   /* what rounding q may do to a score */
    double *off2;  /* in squares */
    double top;    /* greatest visible score */
    uint32_t last; /* newest visible token */
} exact;

static bool visible(const problem *p, uint32_t last, uint32_t j)
{
    return j <= last && (p->window == 0 || j + p->window > last || j < p->keep);
}

/* Half a step of group g of query i of head h. */
static double half_step(const problem *p, uint32_t h, uint32_t i, uint32_t g)
{
    double top = 0;
    for (uint32_t d = g * p->group; d < (g + 1) * p->group; d++) {
        double q =
            fabs((double)golden_load(p->q, p->dtype, ((size_t)h * p->queries + i) * p->dim + d));
        top = q > top ? q : top;
    }
    return top * fabs((double)p->scale) / 65024 * (1 + 0x1p-20);
}

/* Score of token j, and what may be wrong with it. unit: of the token's codes, or NULL. */
static void score(const problem *p, const double *k, const double *unit, uint32_t h, uint32_t i,
                  uint32_t j, exact *x)
{
    double sum = 0;
    double mag = 0;
    x->off[j] = 0;
    x->off2[j] = 0;
    for (uint32_t d = 0; d < p->dim; d++) {
        size_t at = ((size_t)h * p->queries + i) * p->dim + d;
        double q = (double)golden_load(p->q, p->dtype, at);
        double bias = unit ? unit[d / p->group * 2 + 1] : 0;
        sum += q * k[d];
        mag += fabs(q) * (fabs(k[d] - bias) + fabs(bias));
    }
    for (uint32_t g = 0; unit && g < p->dim / p->group; g++) {
        double half = half_step(p, h, i, g);
        for (uint32_t d = g * p->group; d < (g + 1) * p->group; d++) {
            x->off[j] += half * fabs(k[d]);
            x->off2[j] += half * half * k[d] * k[d];
        }
    }
    x->s[j] = sum * (double)p->scale;
    x->a[j] = mag * fabs((double)p->scale);
}

static void weigh(const problem *p, const operand *k, uint32_t h, uint32_t i, exact *x)
{
    const size_t head = (size_t)(h / (p->q_heads / p->kv_heads)) * p->tokens;
    x->last = p->tokens - p->queries + i;
    x->top = -INFINITY;
    for (uint32_t j = 0; j <= x->last; j++) {
        x->s[j] = -INFINITY;
        if (visible(p, x->last, j)) {
            size_t row = head + j;
            score(p, k->x + row * p->dim, k->unit ? k->unit + row * (p->dim / p->group) * 2 : NULL,
                  h, i, j, x);
            x->top = x->s[j] > x->top ? x->s[j] : x->top;
        }
    }
    double total = p->sinks ? exp((double)p->sinks[h] - x->top) : 0;
    for (uint32_t j = 0; j <= x->last; j++) {
        x->w[j] = exp(x->s[j] - x->top);
        total += x->w[j];
    }
    for (uint32_t j = 0; j <= x->last; j++) {
        x->w[j] /= total;
    }
}

/* Half a step of the weights of codes of element d in j's chunk of 256 tokens. */
static double half_weight(const problem *p, const exact *x, const double *unit, uint32_t d,
                          uint32_t j)
{
    double top = 0;
    for (uint32_t t = j / 256 * 256; t < j / 256 * 256 + 256 && t <= x->last; t++) {
        double w = x->w[t] * fabs(unit[((size_t)t * p->dim + d) / p->group * 2]);
        top = w > top ? w : top;
    }
    return top / 65024 * (1 + 0x1p-10); /* the scores may be off, too */
}

/* Judges output element d; v: [tokens][dim] of the head; unit: of its codes, or NULL. */
static void judge(const problem *p, const exact *x, const double *v, const double *unit, uint32_t d,
                  const arithmetic *r, double got, verdict *out)
{
    double o = 0;
    double mag = 0;
    double v_max = 0;
    double spread = 0;
    for (uint32_t j = 0; j <= x->last; j++) {
        double y = v[(size_t)j * p->dim + d];
        double bias = unit ? unit[((size_t)j * p->dim + d) / p->group * 2 + 1] : 0;
        o += x->w[j] * y;
        mag += x->w[j] * (fabs(y - bias) + fabs(bias));
        v_max = fabs(y) > v_max ? fabs(y) : v_max;
    }
    double bound = 0;
    double square = 0;
    double half = 0;
    uint32_t chunk = UINT32_MAX;
    for (uint32_t j = 0; j <= x->last; j++) {
        if (!visible(p, x->last, j)) {
            continue;
        }
        double away = fabs(v[(size_t)j * p->dim + d] - o);
        double fixed = r->u_score_2 * x->a[j] + r->u_weight +
                       (r->exp_fixed + r->exp_slope * fabs(x->s[j] - x->top)) * U32 +
                       r->n_score * r->tiny;
        double e = r->n_score * r->u_score * x->a[j] + fixed + x->off[j];
        double e2 = r->n_score * pow(r->u_score * x->a[j], 2) + fixed * fixed + x->off2[j];
        if (unit) {
            const double *own = unit + ((size_t)j * p->dim + d) / p->group * 2;
            half = j / 256 != chunk ? half_weight(p, x, unit, d, j) : half;
            chunk = j / 256;
            double code = own[0] != 0 ? fabs((v[(size_t)j * p->dim + d] - own[1]) / own[0]) : 0;
            bound += half * code;
            square += half * half * code * code;
        }
        bound += x->w[j] * away * e;
        square += pow(x->w[j] * away, 2) * e2;
        spread += x->w[j] * away;
    }
    double n = r->n_sum;
    bound += n * r->u_sum * (mag + fabs(o)) + r->u_out * fabs(o) + n * r->tiny * (1 + v_max);
    square += n * (pow(r->u_sum * mag, 2) + pow(r->u_sum * o, 2)) + pow(r->u_out * o, 2) +
              pow(n * r->tiny * (1 + v_max), 2);
    double error = fabs(got - o);
    out->n++;
    if (bound > spread + fabs(o)) {
        out->empty++;
    } else if (!(error <= out->worst * bound)) { /* a NaN gets through here */
        out->worst = error / bound;
    }
    out->squares += error == 0 ? 0 : error * error / square;
}

/* y: [queries][q_heads][dim] when by_query, else [q_heads][queries][dim]. */
static void judge_all(const problem *p, const operand *k, const operand *v, const void *y,
                      kvs_dtype y_dtype, bool by_query, const arithmetic *r, verdict *out)
{
    size_t n = p->tokens * sizeof(double);
    exact x = {.w = (double *)golden_alloc(n),
               .s = (double *)golden_alloc(n),
               .a = (double *)golden_alloc(n),
               .off = (double *)golden_alloc(n),
               .off2 = (double *)golden_alloc(n)};
    for (uint32_t h = 0; h < p->q_heads; h++) {
        const size_t first = (size_t)(h / (p->q_heads / p->kv_heads)) * p->tokens;
        const double *head = v->x + first * p->dim;
        const double *unit =
            r->sixteen && v->unit ? v->unit + first * (p->dim / p->group) * 2 : NULL;
        const operand keys = {k->x, r->sixteen ? k->unit : NULL};
        for (uint32_t i = 0; i < p->queries; i++) {
            weigh(p, &keys, h, i, &x);
            size_t row = by_query ? (size_t)i * p->q_heads + h : (size_t)h * p->queries + i;
            for (uint32_t d = 0; d < p->dim; d++) {
                double got = (double)golden_load(y, y_dtype, row * p->dim + d);
                judge(p, &x, head, unit, d, r, got, out);
            }
        }
    }
    free(x.w);
    free(x.s);
    free(x.a);
    free(x.off);
    free(x.off2);
}

/* The library: f32 throughout, chunks of 256 tokens joined one after another, each join one more
 * exp and two roundings; sink logits join like a chunk. Of codes a score has for each group two steps,
 * two conversions, two products and two sums; an output its step, weight, conversion and sum, and of the
 * biases 16 sums in a lane and 4 of lanes. */
static arithmetic ours(const problem *p)
{
    double joins = (double)p->tokens / 256 + 2;
    arithmetic r = {.u_score = U32,
                    .n_score = p->dim,
                    .u_score_2 = 3 * U32,
                    .u_weight = joins * 16 * U32,
                    .exp_fixed = 2,
                    .exp_slope = 1,
                    .u_sum = U32,
                    .n_sum = (p->tokens < 256 ? p->tokens : 256) + 2 * joins,
                    .u_out = 2 * U32,
                    .sixteen = p->bits > 0};
    if (r.sixteen) {
        r.n_score = 8 + 2 * (double)p->dim / p->group;
        r.n_sum = 26 + 2 * joins;
    }
    return r;
}

/* MLX on its CPU: sums in index order; dense reads accumulate in f32 and round q, score, weight
 * and output to the type, quantised ones round every product and sum to it. */
static arithmetic mlx(const problem *p)
{
    double u = p->dtype == KVS_F32 ? U32 : p->dtype == KVS_F16 ? 0x1p-11 : 0x1p-8;
    bool narrow = p->bits > 0;
    arithmetic r = {.u_score = narrow ? u : U32,
                    .n_score = narrow ? 2.0 * p->dim : p->dim,
                    .u_score_2 = 3 * u,
                    .u_weight = 2 * u,
                    .exp_fixed = 9,
                    .exp_slope = 2,
                    .u_sum = narrow ? u : U32,
                    .n_sum = narrow ? 2.0 * p->tokens : p->tokens,
                    .u_out = u,
                    .tiny = p->dtype == KVS_F16 ? 0x1p-25 : 0};
    return r;
}

static kvs_cache *filled(kvs_ctx *ctx, const problem *p, kvs_layout layout, uint32_t step)
{
    kvs_layer_spec spec = KVS_LAYER_SPEC_INIT;
    spec.n_kv_heads = p->kv_heads;
    spec.k_dim = spec.v_dim = p->dim;
    spec.k = spec.v = codec_of(p);
    spec.layout = layout;
    spec.window = p->window;
    spec.sinks = p->keep;
    spec.max_block = p->queries > step ? p->queries : step;
    kvs_cache_opts opts = KVS_CACHE_OPTS_INIT;
    opts.n_layers = 1;
    opts.layers = &spec;
    kvs_cache *cache = NULL;
    kvs_err err;
    golden_must(kvs_cache_new(ctx, &opts, &cache, &err), &err);
    for (uint32_t at = 0; at < p->tokens; at += step) {
        kvs_kv kv = KVS_KV_INIT;
        size_t skip = (size_t)at * p->dim * golden_size(p->dtype);
        kv.n_tokens = p->tokens - at < step ? p->tokens - at : step;
        kv.dtype = p->dtype;
        kv.k = (const unsigned char *)p->k + skip;
        kv.v = (const unsigned char *)p->v + skip;
        kv.k_token_stride = kv.v_token_stride = p->dim;
        kv.k_head_stride = kv.v_head_stride = (size_t)p->tokens * p->dim;
        golden_must(kvs_cache_append(cache, 0, &kv, &err), &err);
    }
    return cache;
}

static void read_cache(kvs_cache *cache, const problem *p, kvs_dtype out_dtype, void *out)
{
    kvs_attend a = KVS_ATTEND_INIT;
    a.n_queries = p->queries;
    a.n_q_heads = p->q_heads;
    a.q_dtype = p->dtype;
    a.q = p->q;
    a.q_token_stride = p->dim;
    a.q_head_stride = (size_t)p->queries * p->dim;
    a.out_dtype = out_dtype;
    a.out = out;
    a.scale = p->scale;
    a.sink_logits = p->sinks;
    kvs_err err;
    golden_must(kvs_cache_attend(cache, 0, &a, &err), &err);
}

/* The library's read in f32, [queries][q_heads][dim]; every layout and every other output type
 * must agree with it to the bit. */
static float *read_ours(kvs_ctx *ctx, const problem *p, ledger *l)
{
    size_t n = (size_t)p->q_heads * p->queries * p->dim;
    float *y = (float *)golden_alloc(n * 4);
    void *z = golden_alloc(n * 4);
    kvs_cache *cache = filled(ctx, p, KVS_LAYOUT_GROW, p->tokens);
    read_cache(cache, p, KVS_F32, y);
    for (int t = KVS_F16; t <= KVS_BF16; t++) {
        read_cache(cache, p, (kvs_dtype)t, z);
        for (size_t i = 0; i < n; i++) {
            uint32_t expect = 0;
            golden_store(&expect, (kvs_dtype)t, 0, y[i]);
            if (ledger_fails(l, golden_bits(z, (kvs_dtype)t, i) ==
                                    golden_bits(&expect, (kvs_dtype)t, 0))) {
                fprintf(stderr, "%s: output %zu as %s is not the rounded f32 one\n", p->name, i,
                        golden_type_name((kvs_dtype)t));
            }
        }
    }
    kvs_cache_free(cache);
    if (p->window > 0) {
        cache = filled(ctx, p, KVS_LAYOUT_RING, 13);
        read_cache(cache, p, KVS_F32, z);
        if (ledger_fails(l, memcmp(y, z, n * 4) == 0)) {
            fprintf(stderr, "%s: a ring reads otherwise than a growing cache\n", p->name);
        }
        kvs_cache_free(cache);
    }
    free(z);
    return y;
}

static void report(const problem *p, const char *who, const verdict *v, ledger *l)
{
    double rms = sqrt(v->squares / (double)v->n);
    bool empty = v->empty == v->n;
    printf("%-7s b%ug%-3u %-4s worst error / bound %.4f, rms / expected %.4f%s\n", p->name, p->bits,
           p->group, who, v->worst, rms, empty ? " (empty bound)" : "");
    if (ledger_fails(l, v->worst <= 1 && rms <= 1 && v->n > 0)) {
        fprintf(stderr, "%s: beyond the bound\n", p->name);
    }
}

/* Returns the number of f32 outputs judged. */
static uint64_t check(kvs_ctx *ctx, const problem *p, ledger *l)
{
    verdict own = {0};
    verdict theirs = {0};
    arithmetic r = ours(p);
    operand k = stored(ctx, p, p->k, false);
    operand v = stored(ctx, p, p->v, false);
    float *y = read_ours(ctx, p, l);
    judge_all(p, &k, &v, y, KVS_F32, true, &r, &own);
    report(p, "ours", &own, l);
    free(y);
    free_operand(&k);
    free_operand(&v);
    r = mlx(p);
    k = stored(ctx, p, p->k, true);
    v = stored(ctx, p, p->v, true);
    judge_all(p, &k, &v, p->mlx, p->dtype, false, &r, &theirs);
    report(p, "mlx", &theirs, l);
    free_operand(&k);
    free_operand(&v);
    if (p->dtype == KVS_F32 && theirs.empty > 0) {
        gold_die("an empty bound on f32", p->name);
    }
    return own.n;
}

static const void *outputs(const gold_file *f, const problem *p)
{
    char name[40];
    if (p->bits > 0) {
        (void)snprintf(name, sizeof name, "%s/b%ug%u", p->name, p->bits, p->group);
    } else {
        (void)snprintf(name, sizeof name, "%s/dense", p->name);
    }
    gold_record r;
    const void *data = gold_find(f, name, &r);
    if (gold_elements(&r) != (size_t)p->q_heads * p->queries * p->dim) {
        gold_die("wrong shape", name);
    }
    return data;
}

int main(void)
{
    gold_file f = gold_read(KVS_GOLDEN_DIR "/attention.kvg");
    gold_record r;
    const char *text = (const char *)gold_find(&f, "cases", &r);
    const char *all = getenv("KVS_TEST_TIERS_OFF");
    kvs_ctx *ctx = golden_ctx(all != NULL && strcmp(all, "all") == 0 ? KVS_TIER_ALL : 0, 2);
    ledger l = {0, 0};
    uint64_t judged = 0;
    uint32_t cases = 0;
    for (const char *line = text; line < text + r.dims[0]; line = strchr(line, '\n') + 1) {
        problem p = read_problem(line);
        char codecs[64];
        (void)gold_field(line, "codecs", codecs, sizeof codecs);
        p.mlx = outputs(&f, &p);
        judged += check(ctx, &p, &l);
        cases++;
        for (const char *c = codecs; *c == 'b'; c += strcspn(c, ",") + 1) {
            char *end = NULL;
            p.bits = (uint32_t)strtoul(c + 1, &end, 10);
            p.group = (uint32_t)strtoul(end + 1, &end, 10);
            p.mlx = outputs(&f, &p);
            judged += check(ctx, &p, &l);
            cases++;
            if (*end == 0) {
                break;
            }
        }
        free_problem(&p);
    }
    kvs_ctx_free(ctx);
    free(f.data);
    printf("%u reads, %llu outputs judged against f64, %llu comparisons, %llu failed\n", cases,
           (unsigned long long)judged, (unsigned long long)l.compared,
           (unsigned long long)l.failed);
    return l.failed == 0 && cases == 69 && judged > 20000 ? 0 : 1;
}
