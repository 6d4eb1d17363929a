/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dn_primitive.c - creates, caches and runs oneDNN's primitives, for the kernels of the device.
 *
 * Creating one takes milliseconds (oneDNN generates machine code); running one only sets the
 * pointers of its memory objects.
 */
#include "tensor/devices/onednn/dn.h"

#include <string.h>

/* --- the cache --- */

static size_t bucket_of(const primitive_key *key)
{
    const unsigned char *bytes = (const unsigned char *)key;
    uint64_t hash = 14695981039346656037u; // FNV-1a

    for (size_t i = 0; i < sizeof(*key); i++)
        hash = (hash ^ bytes[i]) * 1099511628211u;
    return (size_t)(hash % PRIMITIVE_BUCKETS);
}

primitive *primitive_find(device_state *self, const primitive_key *key)
{
    primitive *p = self->primitives[bucket_of(key)];

    // NOLINTNEXTLINE(bugprone-suspicious-memory-comparison): keys begin as zeros
    while (p != NULL && memcmp(&p->key, key, sizeof(*key)) != 0)
        p = p->next;
    if (p != NULL)
        p->last_use = ++self->n_lookups;
    return p;
}

static void destroy(primitive *p)
{
    layout_use(p->key.layouts[0], -1);
    layout_use(p->key.layouts[1], -1);
    layout_use(p->src, -1);
    layout_use(p->weights, -1);
    layout_use(p->dst, -1);
    for (int i = 0; i <= PRIMITIVE_MAX_ARGS; i++) {
        if (p->args[i].memory != NULL)
            (void)dnnl_memory_destroy(p->args[i].memory);
    }
    if (p->handle != NULL)
        (void)dnnl_primitive_destroy(p->handle);
    dn_host->free(p);
}

void primitive_free_all(device_state *self)
{
    for (size_t i = 0; i < PRIMITIVE_BUCKETS; i++) {
        while (self->primitives[i] != NULL) {
            primitive *p = self->primitives[i];

            self->primitives[i] = p->next;
            destroy(p);
        }
    }
    self->n_primitives = 0;
}

/* Destroys the primitive that was used least recently. */
static void drop_oldest(device_state *self)
{
    primitive **oldest = NULL;
    primitive *p;

    for (size_t i = 0; i < PRIMITIVE_BUCKETS; i++) {
        for (primitive **at = &self->primitives[i]; *at != NULL; at = &(*at)->next) {
            if (oldest == NULL || (*at)->last_use < (*oldest)->last_use)
                oldest = at;
        }
    }
    p = *oldest;
    *oldest = p->next;
    destroy(p);
    self->n_primitives--;
}

static bool grow_scratch(device_state *self, size_t bytes)
{
    void *scratch;

    if (bytes <= self->scratch_bytes)
        return true;
    scratch = dn_host->alloc_aligned(4096, bytes);
    if (scratch == NULL)
        return false;
    dn_host->free(self->scratch);
    self->scratch = scratch;
    self->scratch_bytes = bytes;
    return true;
}

static bool add_memory(device_state *self, primitive *p, int id, compat_desc desc)
{
    dnnl_exec_arg_t *arg = &p->args[p->n_args];

    arg->arg = id;
    if (dnnl_memory_create(&arg->memory, desc, self->engine, DNNL_MEMORY_NONE) != dnnl_success) {
        arg->memory = NULL;
        return false;
    }
    p->n_args++;
    return true;
}

/* The steps that may fail without memory. */
static bool build(device_state *self, primitive *p, compat_pd pd, const primitive_arg *args,
                  int n_args)
{
    const compat_desc scratch = compat_pd_scratch(pd);

    for (int i = 0; i < n_args; i++) {
        if (args[i].layout == NULL || !add_memory(self, p, args[i].id, args[i].layout->desc))
            return false;
    }
    p->scratch_bytes = scratch == NULL ? 0 : compat_desc_bytes(scratch);
    if (scratch != NULL && (!grow_scratch(self, p->scratch_bytes) ||
                            !add_memory(self, p, DNNL_ARG_SCRATCHPAD, scratch)))
        return false;
    return dnnl_primitive_create(&p->handle, pd) == dnnl_success;
}

ls_status primitive_add(device_state *self, const primitive_key *key, compat_pd pd_take,
                        const primitive_arg *args, int n_args, primitive **out)
{
    primitive **list;
    primitive *p;
    bool ok;

    if (pd_take == NULL)
        return dn_fail(LS_EUNSUPPORTED, "oneDNN has no implementation for this problem");
    p = dn_host->alloc(1, sizeof(*p));
    if (p == NULL) {
        compat_pd_destroy(pd_take);
        return dn_fail(LS_ENOMEM, "no memory for a primitive");
    }
    ok = build(self, p, pd_take, args, n_args);
    compat_pd_destroy(pd_take);
    if (!ok) {
        destroy(p);
        return dn_fail(LS_ENOMEM, "oneDNN could not make a primitive");
    }
    if (self->n_primitives >= PRIMITIVES_MOST)
        drop_oldest(self);
    p->key = *key;
    layout_use(key->layouts[0], 1);
    layout_use(key->layouts[1], 1);
    p->last_use = ++self->n_lookups;
    list = &self->primitives[bucket_of(key)];
    p->next = *list;
    *list = p;
    self->n_primitives++;
    *out = p;
    return LS_OK;
}

static bool point(dnnl_exec_arg_t *arg, void **last, void *now)
{
    if (*last == now)
        return true;
    *last = now;
    return dnnl_memory_set_data_handle(arg->memory, now) == dnnl_success;
}

ls_status primitive_run(device_state *self, primitive *p, void *const *data)
{
    const int n_data = p->n_args - (p->scratch_bytes > 0);
    const bool adds = p->key.kind != PRIMITIVE_REORDER && p->key.kind != PRIMITIVE_PERMUTE;
    bool ok = true;
    sigset_t signals;
    int before;

    for (int i = 0; i < n_data; i++)
        ok = point(&p->args[i], &p->data[i], data[i]) && ok;
    if (p->scratch_bytes > 0)
        ok = point(&p->args[n_data], &p->scratch, self->scratch) && ok;
    before = threads_enter(self, adds);
    signals_block(&signals);
    ok = ok && dnnl_primitive_execute(p->handle, self->stream, p->n_args, p->args) == dnnl_success;
    signals_restore(&signals);
    threads_leave(before);
    return ok ? LS_OK : dn_fail(LS_EINTERNAL, "oneDNN could not run a primitive");
}

/* --- convolutions and inner products --- */

/* The roles of the two inputs of a problem. */
static const compat_role inputs_of[3][2] = {
    [COMPAT_FORWARD] = {COMPAT_SRC, COMPAT_WEIGHTS},
    [COMPAT_BACKWARD_DATA] = {COMPAT_DST, COMPAT_WEIGHTS},
    [COMPAT_BACKWARD_WEIGHTS] = {COMPAT_SRC, COMPAT_DST},
};

static int64_t output_size(const primitive_key *key, int axis)
{
    const int64_t reach = (key->weights[2 + axis] - 1) * key->dilation[axis] + 1;

    return (key->src[2 + axis] + 2 * (int64_t)key->padding[axis] - reach) / key->stride[axis] + 1;
}

/* Gradients of weights are float32. */
static ls_dtype weights_type(const primitive_key *key)
{
    return key->prop == COMPAT_BACKWARD_WEIGHTS ? LS_F32 : (ls_dtype)key->type;
}

static compat_desc describe_weights(compat_list *descs, const primitive_key *key)
{
    const ls_dtype type = weights_type(key);
    const int64_t *w = key->weights;
    const int64_t grouped[5] = {key->groups, w[0] / key->groups, w[1], w[2], w[3]};

    if (key->kind == PRIMITIVE_LINEAR)
        return compat_desc_any(descs, type, 2, w);
    if (key->groups > 1)
        return compat_desc_any(descs, type, 5, grouped);
    return compat_desc_any(descs, type, 4, w);
}

/* The problem with any layouts. */
static bool describe(compat_list *descs, const primitive_key *key, compat_problem *p)
{
    const bool spatial = key->kind == PRIMITIVE_CONV2D;
    const int64_t dst[4] = {key->src[0], key->weights[0], spatial ? output_size(key, 0) : 0,
                            spatial ? output_size(key, 1) : 0};
    const int n_dims = spatial ? 4 : 2;

    memset(p, 0, sizeof(*p));
    p->spatial = spatial;
    p->prop = (compat_prop)key->prop;
    for (int i = 0; i < 2; i++) {
        p->stride[i] = key->stride[i];
        p->padding[i] = key->padding[i];
        p->dilation[i] = key->dilation[i];
    }
    p->src = compat_desc_any(descs, (ls_dtype)key->type, n_dims, key->src);
    p->weights = describe_weights(descs, key);
    p->dst = compat_desc_any(descs, (ls_dtype)key->type, n_dims, dst);
    if (key->has_bias)
        p->bias = compat_desc_plain(descs, LS_F32, 1, &key->weights[0]);
    return p->src != NULL && p->weights != NULL && p->dst != NULL &&
           (p->bias != NULL || !key->has_bias);
}

static compat_desc *desc_in(compat_problem *p, compat_role role)
{
    if (role == COMPAT_SRC)
        return &p->src;
    return role == COMPAT_WEIGHTS ? &p->weights : &p->dst;
}

/* Gives images the layout of conv2d_channels_last(). */
static bool fix_channels_last(compat_list *descs, const primitive_key *key, compat_problem *p)
{
    const int64_t dst[4] = {key->src[0], key->weights[0], output_size(key, 0), output_size(key, 1)};

    p->src = compat_desc_nhwc(descs, (ls_dtype)key->type, key->src);
    p->dst = compat_desc_nhwc(descs, (ls_dtype)key->type, dst);
    return p->src != NULL && p->dst != NULL;
}

/* Makes inputs and outputs of an inner product plain, as the neighbouring operators' are. */
static bool fix_plain(compat_list *descs, const primitive_key *key, compat_problem *p)
{
    const int64_t dst[2] = {key->src[0], key->weights[0]};

    p->src = compat_desc_plain(descs, (ls_dtype)key->type, 2, key->src);
    p->dst = compat_desc_plain(descs, (ls_dtype)key->type, 2, dst);
    return p->src != NULL && p->dst != NULL;
}

/* Families of implementations, by their expected speed. */
typedef enum family { FAMILY_REFERENCE, FAMILY_GEMM, FAMILY_BLOCKED } family;

static family family_of(compat_pd pd)
{
    const char *name = compat_pd_name(pd);

    if (strstr(name, "ref") != NULL || strstr(name, "simple") != NULL)
        return FAMILY_REFERENCE;
    return strstr(name, "gemm") != NULL && strstr(name, "brgemm") == NULL ? FAMILY_GEMM
                                                                          : FAMILY_BLOCKED;
}

/* A variant of the problem: bit i sets the current layout of input i (an activation), bit 2
 * plain weights, bit 3 channels last. */
static compat_pd try_variant(const device_state *self, compat_list *descs, const primitive_key *key,
                             unsigned variant)
{
    compat_problem p;

    if (!describe(descs, key, &p) ||
        (key->kind == PRIMITIVE_LINEAR && !fix_plain(descs, key, &p)) ||
        ((variant & 8) != 0 && !fix_channels_last(descs, key, &p)))
        return NULL;
    for (int i = 0; i < 2; i++) {
        if ((variant >> i & 1) != 0 && key->layouts[i] != NULL)
            *desc_in(&p, inputs_of[p.prop][i]) = key->layouts[i]->desc;
    }
    if ((variant & 4) != 0)
        p.weights = compat_desc_plain(descs, weights_type(key), 2, key->weights);
    return p.weights == NULL ? NULL : compat_pd_create(descs, self->engine, &p);
}

/* Fewest reorders first; a later variant wins only with a faster family. */
static compat_pd choose(const device_state *self, const primitive_key *key)
{
    static const unsigned images[] = {8, 3, 1, 2, 0};
    static const unsigned rows[] = {4, 0};
    const bool spatial = key->kind == PRIMITIVE_CONV2D;
    const unsigned *variants = spatial ? images : rows;
    const size_t n_variants = spatial ? LS_COUNT_OF(images) : LS_COUNT_OF(rows);
    const bool is_last =
        spatial && conv2d_channels_last(self->isa, self->convolutions, (ls_dtype)key->type);
    compat_list descs = {0};
    compat_pd best = NULL;

    for (size_t i = spatial && !is_last ? 1 : 0; i < n_variants; i++) {
        const compat_pd pd = try_variant(self, &descs, key, variants[i]);

        if (pd != NULL && (best == NULL || family_of(pd) > family_of(best))) {
            compat_pd_destroy(best);
            best = pd;
        } else {
            compat_pd_destroy(pd);
        }
    }
    compat_list_free(&descs);
    return best;
}

static const layout *layout_in(device_state *self, compat_pd pd, const primitive_key *key,
                               compat_role role)
{
    return layout_intern(self, compat_pd_desc(pd, (compat_prop)key->prop, role));
}

/* The arguments in the order: src, weights, dst, bias. */
static ls_status add_operator(device_state *self, const primitive_key *key, compat_pd pd,
                              primitive **out)
{
    static const int ids[3][4] = {
        [COMPAT_FORWARD] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_BIAS},
        [COMPAT_BACKWARD_DATA] = {DNNL_ARG_DIFF_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_DST, 0},
        [COMPAT_BACKWARD_WEIGHTS] = {DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_DST,
                                     DNNL_ARG_DIFF_BIAS},
    };
    static const compat_role roles[3] = {COMPAT_SRC, COMPAT_WEIGHTS, COMPAT_DST};
    primitive_arg args[4];

    for (int i = 0; i < 3; i++)
        args[i] = (primitive_arg){ids[key->prop][i], layout_in(self, pd, key, roles[i])};
    args[3] = (primitive_arg){ids[key->prop][3], NULL};
    if (key->has_bias)
        args[3].layout = layout_plain(self, 1, &key->weights[0]);
    LS_TRY(primitive_add(self, key, pd, args, key->has_bias ? 4 : 3, out));
    (*out)->src = args[0].layout;
    (*out)->weights = args[1].layout;
    (*out)->dst = args[2].layout;
    for (int i = 0; i < 3; i++)
        layout_use(args[i].layout, 1);
    return LS_OK;
}

ls_status primitive_for(device_state *self, const primitive_key *key, primitive **out)
{
    compat_pd pd;
    ls_status st;
    int before;

    *out = primitive_find(self, key);
    if (*out != NULL)
        return LS_OK;
    before = threads_enter(self, true);
    pd = choose(self, key);
    st = pd == NULL ? dn_fail(LS_EUNSUPPORTED, "oneDNN has no implementation for this problem")
                    : add_operator(self, key, pd, out);
    threads_leave(before);
    return st;
}

/* --- products of matrices --- */

/* (batch, rows, columns), whose last two lie swapped in memory with `swapped`. A single row or
 * column is the same either way, but oneDNN takes the strides of a swapped one for a row that is
 * too short, and refuses to run. */
static compat_desc describe_matrices(compat_list *list, int32_t type, int64_t batch, int64_t rows,
                                     int64_t columns, bool swapped)
{
    const int64_t dims[3] = {batch, rows, columns};
    const bool is_swapped = swapped && rows > 1 && columns > 1;
    const int64_t strides[3] = {rows * columns, is_swapped ? 1 : columns, is_swapped ? rows : 1};

    return compat_desc_strided(list, (ls_dtype)type, 3, dims, strides);
}

static ls_status make_matmul(device_state *self, const primitive_key *key, const matmul_shape *s,
                             primitive **out)
{
    compat_list list = {0};
    const layout *l[3] = {
        layout_intern(self, describe_matrices(&list, s->type, s->batch, s->m, s->k, s->a_swapped)),
        layout_intern(self, describe_matrices(&list, s->type, s->batch, s->k, s->n, s->b_swapped)),
        layout_intern(self, describe_matrices(&list, s->out, s->batch, s->m, s->n, false)),
    };
    const primitive_arg args[] = {
        {DNNL_ARG_SRC, l[0]}, {DNNL_ARG_WEIGHTS, l[1]}, {DNNL_ARG_DST, l[2]}};
    const int before = threads_enter(self, true);
    ls_status st;

    if (l[0] == NULL || l[1] == NULL || l[2] == NULL)
        st = dn_fail(LS_ENOMEM, "no memory for a layout");
    else
        st = primitive_add(self, key,
                           compat_pd_matmul(self->engine, l[0]->desc, l[1]->desc, l[2]->desc), args,
                           3, out);
    threads_leave(before);
    compat_list_free(&list);
    return st;
}

ls_status matmul_for(device_state *self, const matmul_shape *shape, primitive **out)
{
    primitive_key key;

    memset(&key, 0, sizeof(key));
    key.kind = PRIMITIVE_MATMUL;
    key.type = shape->type;
    key.prop = shape->out;
    key.src[0] = shape->batch;
    key.src[1] = shape->m;
    key.src[2] = shape->k;
    key.src[3] = shape->a_swapped;
    key.weights[0] = shape->n;
    key.weights[1] = shape->b_swapped;
    *out = primitive_find(self, &key);
    return *out != NULL ? LS_OK : make_matmul(self, &key, shape, out);
}
