/* SPDX-License-Identifier: MIT */
/* template.c: the public side of chat templates: entry points, limits, results. The only place
 * that a failure inside the interpreter jumps to (jinja.h I2). */
#include "kvstate/template.h"

#include "engine/jinja.h"

#define MAX_TEMPLATE ((size_t)1 << 20)
#define MAX_BYTES    ((size_t)256 << 20)
#define MAX_OUTPUT   ((size_t)64 << 20)
#define MAX_STEPS    20000000u

struct kvs_template {
    kvs__jheap heap;
    kvs__jnode *body;
};

/* A tree of values with the heap it lies in; the value comes first, so that both are one pointer
 * to the caller. */
typedef struct root {
    kvs_value value;
    kvs__jheap heap;
} root;

static kvs__jheap new_heap(kvs_ctx *ctx, size_t max_bytes, uint64_t max_steps, kvs_err *err,
                           jmp_buf *escape)
{
    kvs__jheap h = {.ctx = ctx, .max_bytes = max_bytes, .max_steps = max_steps};
    h.err = err;
    h.escape = escape;
    return h;
}

/* ---- values */

static kvs_status parse_into(root *r, const char *json, size_t n, uint32_t flags)
{
    jmp_buf escape;
    r->heap.escape = &escape;
    if (setjmp(escape) != 0) {
        return r->heap.status;
    }
    r->value = kvs__jparse_json(&r->heap, json, n, flags);
    return KVS_OK;
}

kvs_status kvs_value_parse(kvs_ctx *ctx, const char *json, size_t n_bytes, uint32_t flags,
                           kvs_value **out, kvs_err *err)
{
    if (!ctx || !out || (!json && n_bytes > 0) || (flags & ~(uint32_t)KVS_VALUE_VARIABLES) != 0) {
        return kvs__fail(err, KVS_E_INVAL, "engine", "kvs_value_parse: NULL or an unknown flag");
    }
    root *r = kvs__calloc(ctx, 1, sizeof *r);
    if (!r) {
        return kvs__nomem(err, "engine", sizeof *r);
    }
    r->heap = new_heap(ctx, SIZE_MAX / 2, UINT64_MAX, err, NULL);
    kvs_status st = parse_into(r, n_bytes > 0 ? json : "", n_bytes, flags);
    if (st != KVS_OK) {
        kvs_value_free(&r->value);
        return st;
    }
    *out = &r->value;
    return KVS_OK;
}

void kvs_value_free(kvs_value *v)
{
    if (v) {
        root *r = (root *)(void *)v;
        kvs__jheap_free(&r->heap);
        kvs__free(r->heap.ctx, r, sizeof *r);
    }
}

kvs_value_kind kvs_value_type(const kvs_value *v)
{
    static const kvs_value_kind kinds[] = {KVS_VALUE_OTHER, KVS_VALUE_NULL,  KVS_VALUE_BOOL,
                                           KVS_VALUE_INT,   KVS_VALUE_FLOAT, KVS_VALUE_TEXT,
                                           KVS_VALUE_ARRAY, KVS_VALUE_OBJECT};
    return v && v->type < KVS_COUNT(kinds) ? kinds[v->type] : KVS_VALUE_OTHER;
}

size_t kvs_value_size(const kvs_value *v)
{
    return !v ? 0 : v->type == J_LIST ? v->u.l->n : v->type == J_DICT ? v->u.d->n : 0;
}

const kvs_value *kvs_value_at(const kvs_value *v, size_t i)
{
    if (i >= kvs_value_size(v)) {
        return NULL;
    }
    return v->type == J_LIST ? &v->u.l->at[i] : &v->u.d->at[i].value;
}

const kvs_value *kvs_value_get(const kvs_value *v, const char *key)
{
    return v && key && v->type == J_DICT ? kvs__jdict_name(v->u.d, key, strlen(key)) : NULL;
}

const char *kvs_value_text(const kvs_value *v, size_t *n_bytes)
{
    bool is = v && v->type == J_STR;
    if (n_bytes) {
        *n_bytes = is ? v->u.s->n : 0;
    }
    return is ? v->u.s->p : NULL;
}

int64_t kvs_value_int(const kvs_value *v, int64_t other)
{
    return v && v->type == J_INT ? v->u.i : other;
}

kvs_status kvs_value_input_span(const kvs_value *v, size_t i, size_t *from, size_t *to)
{
    if (!v || v->type != J_STR || !from || !to || i >= v->u.s->n_spans) {
        return KVS_NO;
    }
    *from = v->u.s->spans[i].from;
    *to = v->u.s->spans[i].to;
    return KVS_OK;
}

/* ---- templates */

static kvs_status compile_into(kvs_template *t, const char *text, size_t n)
{
    jmp_buf escape;
    t->heap.escape = &escape;
    if (setjmp(escape) != 0) {
        return t->heap.status;
    }
    t->body = kvs__jparse(&t->heap, text, n);
    return KVS_OK;
}

kvs_status kvs_template_compile(kvs_ctx *ctx, const char *text, size_t n_bytes, kvs_template **out,
                                kvs_err *err)
{
    if (!ctx || !out || (!text && n_bytes > 0)) {
        return kvs__fail(err, KVS_E_INVAL, "engine", "kvs_template_compile: NULL argument");
    }
    if (n_bytes > MAX_TEMPLATE) {
        return kvs__fail(err, KVS_E_LIMIT, "engine", "a template of %zu bytes; at most %zu",
                         n_bytes, MAX_TEMPLATE);
    }
    kvs_template *t = kvs__calloc(ctx, 1, sizeof *t);
    if (!t) {
        return kvs__nomem(err, "engine", sizeof *t);
    }
    t->heap = new_heap(ctx, MAX_BYTES, 64 * MAX_STEPS, err, NULL);
    kvs_status st = compile_into(t, n_bytes > 0 ? text : "", n_bytes);
    if (st != KVS_OK) {
        kvs_template_free(t);
        return st;
    }
    *out = t;
    return KVS_OK;
}

void kvs_template_free(kvs_template *t)
{
    if (t) {
        kvs__jheap_free(&t->heap);
        kvs__free(t->heap.ctx, t, sizeof *t);
    }
}

/* Renders on its own heap and copies the result to r's. */
static kvs_status render_into(root *r, const kvs_template *t, const kvs_value *vars,
                              const kvs_template_opts *o, kvs__jheap *h)
{
    jmp_buf escape;
    r->heap.escape = &escape;
    // cppcheck-suppress autoVariables ; not used after this function
    h->escape = &escape;
    if (setjmp(escape) != 0) {
        h->escape = NULL;
        return h->status != KVS_OK ? h->status : r->heap.status;
    }
    kvs__jsb out = {.h = h, .max = o->max_output};
    kvs__jrun run = {.h = h, .vars = vars, .out = &out, .opts = o};
    (void)kvs__jpush(&run, NULL);
    kvs__jexec(&run, t->body);
    const kvs__jstr *s = kvs__jsb_done(&out).u.s;
    kvs__jsb copy = {.h = &r->heap};
    kvs__jsb_str(&copy, s, 0, s->n);
    r->value = kvs__jsb_done(&copy);
    h->escape = NULL;
    return KVS_OK;
}

static kvs_status read_opts(kvs_template_opts *o, const kvs_template_opts *opts, kvs_err *err)
{
    if (opts) {
        kvs_status st = kvs__opts_read(o, sizeof *o, opts, "kvs_template_opts", err);
        if (st != KVS_OK) {
            return st;
        }
    }
    if (o->reserved != 0 || o->has_time > 1) {
        return kvs__fail(err, KVS_E_INVAL, "engine", "has_time %u, reserved %u", o->has_time,
                         o->reserved);
    }
    if (o->has_time && (o->time > 253402300799 || o->time < -62135596800)) {
        return kvs__fail(err, KVS_E_RANGE, "engine", "time %lld is not of the years 1 to 9999",
                         (long long)o->time);
    }
    o->max_bytes = o->max_bytes > 0 ? o->max_bytes : MAX_BYTES;
    o->max_output = o->max_output > 0 ? o->max_output : MAX_OUTPUT;
    o->max_steps = o->max_steps > 0 ? o->max_steps : MAX_STEPS;
    return KVS_OK;
}

kvs_status kvs_template_render(kvs_ctx *ctx, const kvs_template *t, const kvs_value *vars,
                               const kvs_template_opts *opts, kvs_value **out, kvs_err *err)
{
    kvs_template_opts o = KVS_TEMPLATE_OPTS_INIT;
    if (!ctx || !t || !out || (vars && vars->type != J_DICT)) {
        return kvs__fail(err, KVS_E_INVAL, "engine",
                         "kvs_template_render: NULL, or variables that are no object");
    }
    kvs_status st = read_opts(&o, opts, err);
    if (st != KVS_OK) {
        return st;
    }
    root *r = kvs__calloc(ctx, 1, sizeof *r);
    if (!r) {
        return kvs__nomem(err, "engine", sizeof *r);
    }
    r->heap = new_heap(ctx, SIZE_MAX / 2, UINT64_MAX, err, NULL);
    kvs__jheap h = new_heap(ctx, o.max_bytes, o.max_steps, err, NULL);
    st = render_into(r, t, vars, &o, &h);
    kvs__jheap_free(&h);
    if (st != KVS_OK) {
        kvs_value_free(&r->value);
        return st;
    }
    *out = &r->value;
    return KVS_OK;
}
