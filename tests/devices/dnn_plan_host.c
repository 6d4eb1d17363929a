/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dnn_plan_host.c - executes graphs of operations in host memory, for tests of the device without a
 * GPU: in place of dnn_plan.c. Each element is the sum that defines it, in float64.
 */
#include "devices/dnn_plan_host.h"

#include "base/alloc.h"
#include "tensor/devices/cuda/runtime/cuda_internal.h"
#include "tensor/devices/cuda/dnn/dnn_plan.h"
#include "devices/gpu_host_internal.h"
#include "devices/host_elements.h"

#include <stdio.h>
#include <string.h>

struct dnn_planner {
    gpu_stream *stream;
    char version[16];
};

#define HOUR_NS (INT64_C(3600) * 1000000000)

static dnn_host host;

dnn_host *dnn_host_state(void)
{
    return &host;
}

struct dnn_plan {
    dnn_graph graph;
    int number;
};

/* --- planners and plans --- */

ls_status dnn_planner_open(void *stream, dnn_planner **out)
{
    *out = cu_host->alloc(1, sizeof(**out));
    if (*out == NULL)
        return cu_fail(LS_ENOMEM, "no memory for plans");
    (*out)->stream = stream;
    (void)snprintf((*out)->version, sizeof((*out)->version), "host");
    return LS_OK;
}

void dnn_planner_close(dnn_planner *p)
{
    cu_host->free(p);
}

const char *dnn_planner_version(const dnn_planner *p)
{
    return p->version;
}

static ls_status create_plan(const dnn_graph *g, int number, dnn_plan **out)
{
    *out = cu_host->alloc(1, sizeof(**out));
    if (*out == NULL)
        return cu_fail(LS_ENOMEM, "no memory for a plan");
    (*out)->graph = *g;
    (*out)->number = number;
    if (host.on_graph != NULL)
        host.on_graph(host.arg, g);
    return LS_OK;
}

ls_status dnn_plans_create(dnn_planner *p, const dnn_graph *g, const dnn_limits *limits, int most,
                           dnn_plan **out, int *n)
{
    ls_status st = LS_OK;

    LS_UNUSED(p);
    LS_UNUSED(limits);
    *n = 0;
    while (*n < most && *n < DNN_HOST_PLANS && st == LS_OK) {
        st = create_plan(g, *n, &out[*n]);
        *n += st == LS_OK;
        host.n_created += st == LS_OK;
    }
    while (st != LS_OK && *n > 0)
        dnn_plan_destroy(out[--*n]);
    return st;
}

void dnn_plan_destroy(dnn_plan *plan)
{
    cu_host->free(plan);
}

size_t dnn_plan_workspace_bytes(const dnn_plan *plan)
{
    return 1000 * (size_t)(plan->number + 1);
}

ls_status dnn_plan_save(const dnn_plan *plan, char **out, size_t *bytes)
{
    *out = cu_host->alloc(1, 32);
    if (*out == NULL)
        return cu_fail(LS_ENOMEM, "no memory for the text of a plan");
    *bytes = (size_t)snprintf(*out, 32, "plan %d", plan->number);
    return LS_OK;
}

ls_status dnn_plan_load(dnn_planner *p, const dnn_graph *g, const char *text, size_t bytes,
                        dnn_plan **out)
{
    int number = 0;

    LS_UNUSED(p);
    while (number < DNN_HOST_PLANS) {
        char want[32];

        (void)snprintf(want, sizeof(want), "plan %d", number);
        if (strlen(want) == bytes && memcmp(want, text, bytes) == 0) {
            host.n_loaded++;
            return create_plan(g, number, out);
        }
        number++;
    }
    return cu_fail(LS_EFORMAT, "this is not the text of a plan");
}

/* --- elements --- */

typedef struct operand {
    const dnn_tensor *t;
    void *data;
} operand;

static size_t offset_of(const dnn_tensor *t, const int64_t *at)
{
    size_t offset = 0;

    for (int i = 0; i < 4; i++)
        offset += (size_t)(at[i] * t->strides[i]);
    return offset;
}

static double get(const operand *o, const int64_t *at)
{
    return host_get(o->data, offset_of(o->t, at), o->t->dtype);
}

static void put(const operand *o, const int64_t *at, double v)
{
    host_put(o->data, offset_of(o->t, at), o->t->dtype, v);
}

/* The next index of a row-major walk; false at the end. */
static bool next_index(const dnn_tensor *t, int64_t *at)
{
    for (int i = 3; i >= 0; i--) {
        if (++at[i] < t->dims[i])
            return true;
        at[i] = 0;
    }
    return false;
}

/* --- convolutions --- */

/* The operands as row-major values; that of the result holds sums. Gradients have the dimensions of
 * the forward's tensors. */
typedef struct convolution {
    const dnn_node *node;
    const int64_t *x_dims;
    const int64_t *w_dims;
    const int64_t *y_dims;
    double *x;
    double *w;
    double *y;
} convolution;

static size_t row_of(const int64_t *dims, int64_t n, int64_t c, int64_t h)
{
    return (size_t)(((n * dims[1] + c) * dims[2] + h) * dims[3]);
}

static void add_product(const convolution *c, double *x, double *w, double *y)
{
    if (c->node->op == DNN_CONV)
        *y += *x * *w;
    else if (c->node->op == DNN_CONV_DATA)
        *x += *y * *w;
    else
        *w += *x * *y;
}

/* The products of one row of outputs with one row of weights and one row of x. */
static void add_row(const convolution *c, double *x, double *w, double *y)
{
    for (int64_t column = 0; column < c->y_dims[3]; column++) {
        const int64_t first = column * c->node->stride[1] - c->node->padding[1];

        for (int64_t k = 0; k < c->w_dims[3]; k++) {
            const int64_t at = first + k * c->node->dilation[1];

            if (at >= 0 && at < c->x_dims[3])
                add_product(c, &x[at], &w[k], &y[column]);
        }
    }
}

/* The products of image n, output channel o and input channel i of its group. */
static void add_plane(const convolution *c, int64_t n, int64_t o, int64_t i)
{
    const int64_t group_outputs = c->w_dims[0] * c->w_dims[1] / c->x_dims[1];
    const int64_t channel = o / group_outputs * c->w_dims[1] + i;

    for (int64_t row = 0; row < c->y_dims[2]; row++) {
        const int64_t first = row * c->node->stride[0] - c->node->padding[0];

        for (int64_t k = 0; k < c->w_dims[2]; k++) {
            const int64_t at = first + k * c->node->dilation[0];

            if (at >= 0 && at < c->x_dims[2])
                add_row(c, &c->x[row_of(c->x_dims, n, channel, at)],
                        &c->w[row_of(c->w_dims, o, i, k)], &c->y[row_of(c->y_dims, n, o, row)]);
        }
    }
}

static void add_products(const convolution *c)
{
    for (int64_t n = 0; n < c->y_dims[0]; n++) {
        for (int64_t o = 0; o < c->w_dims[0]; o++) {
            for (int64_t i = 0; i < c->w_dims[1]; i++)
                add_plane(c, n, o, i);
        }
    }
}

/* Row-major values of an operand, or zeros; NULL without memory. */
static double *values_of(const operand *o, bool are_zero)
{
    const int64_t *d = o->t->dims;
    double *values = ls_calloc((size_t)(d[0] * d[1] * d[2] * d[3]), sizeof(*values));
    int64_t at[4] = {0};
    size_t i = 0;

    if (values == NULL || are_zero)
        return values;
    do {
        values[i++] = get(o, at);
    } while (next_index(o->t, at));
    return values;
}

static void write_values(const operand *o, const double *values)
{
    int64_t at[4] = {0};

    do {
        put(o, at, *values++);
    } while (next_index(o->t, at));
}

/* The role of the result. */
static int result_of(const dnn_node *node)
{
    return node->op == DNN_CONV ? 2 : node->op == DNN_CONV_DATA ? 0 : 1;
}

static ls_status convolve(const dnn_node *node, const operand *roles)
{
    const int result = result_of(node);
    double *values[DNN_MAX_ROLES];
    convolution c = {.node = node,
                     .x_dims = roles[0].t->dims,
                     .w_dims = roles[1].t->dims,
                     .y_dims = roles[2].t->dims};
    bool ok = true;

    for (int i = 0; i < DNN_MAX_ROLES; i++) {
        values[i] = values_of(&roles[i], i == result);
        ok = ok && values[i] != NULL;
    }
    if (ok) {
        c.x = values[0];
        c.w = values[1];
        c.y = values[2];
        add_products(&c);
        write_values(&roles[result], values[result]);
    }
    for (int i = 0; i < DNN_MAX_ROLES; i++)
        ls_free(values[i]);
    return ok ? LS_OK : cu_fail(LS_ENOMEM, "no memory for a convolution");
}

static void add(const operand *roles)
{
    const int64_t *b = roles[1].t->dims;
    int64_t at[4] = {0};

    do {
        const int64_t of_b[4] = {at[0] % b[0], at[1] % b[1], at[2] % b[2], at[3] % b[3]};

        put(&roles[2], at, get(&roles[0], at) + get(&roles[1], of_b));
    } while (next_index(roles[2].t, at));
}

/* --- graphs --- */

static ls_status run_node(const dnn_graph *g, const dnn_node *node, void *const *data)
{
    operand roles[DNN_MAX_ROLES];

    for (int i = 0; i < DNN_MAX_ROLES; i++)
        roles[i] = (operand){&g->tensors[node->tensors[i]], data[node->tensors[i]]};
    if (node->op != DNN_ADD)
        return convolve(node, roles);
    add(roles);
    return LS_OK;
}

/* A run of a plan in a stream. */
typedef struct plan_work {
    const dnn_plan *plan;
    void *workspace;
    void *data[DNN_MAX_TENSORS];
} plan_work;

/* Memory for virtual tensors; false: there is none. */
static bool allocate_virtual(const dnn_graph *g, void **data)
{
    bool ok = true;

    for (int i = 0; i < g->n_tensors; i++) {
        if (g->tensors[i].is_virtual)
            data[i] = ls_calloc(1, dnn_tensor_bytes(&g->tensors[i]));
        ok = ok && data[i] != NULL;
    }
    return ok;
}

static gpu_error run_plan(const void *args)
{
    plan_work w = *(const plan_work *)args;
    const dnn_graph *g = &w.plan->graph;
    bool ok;

    host.n_runs++;
    host.last_run = w.plan->number;
    if ((host.slow >> w.plan->number & 1) != 0)
        gpu_host_state()->clock_ns += HOUR_NS;
    // A plan may use all of its workspace.
    memset(w.workspace, 0xff, dnn_plan_workspace_bytes(w.plan));
    ok = allocate_virtual(g, w.data);
    for (int i = 0; i < g->n_nodes && ok; i++)
        ok = run_node(g, &g->nodes[i], w.data) == LS_OK;
    for (int i = 0; i < g->n_tensors; i++) {
        if (g->tensors[i].is_virtual)
            ls_free(w.data[i]);
    }
    return ok ? HOST_OK : HOST_OUT_OF_MEMORY;
}

ls_status dnn_plan_run(dnn_planner *p, const dnn_plan *plan, void *const *data, void *workspace)
{
    plan_work w = {.plan = plan, .workspace = workspace};
    char why[64];
    gpu_error e;

    if (gpu_host_state()->is_lost)
        return cu_fail(LS_EINTERNAL, "plan %d failed to launch", plan->number);
    if ((host.refused >> plan->number & 1) != 0)
        return cu_fail(LS_EUNSUPPORTED, "plan %d cannot run", plan->number);
    for (int i = 0; i < plan->graph.n_tensors; i++)
        w.data[i] = plan->graph.tensors[i].is_virtual ? NULL : data[i];
    e = gpu_host_queue(p->stream, &(gpu_host_work){.run = run_plan,
                                                   .args = &w,
                                                   .args_bytes = sizeof(w),
                                                   .shape = (size_t)(uintptr_t)plan});
    if (e == HOST_OK)
        return LS_OK;
    return cu_fail(e == HOST_OUT_OF_MEMORY ? LS_ENOMEM : LS_EINTERNAL, "plan %d failed: %s",
                   plan->number, gpu_error_text(why, sizeof(why), e));
}
