/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dnn_plan.c - plans of cuDNN 9 for graphs of operations, made with its backend interface: the only
 * file that includes cuDNN. dnn_cache.c calls it; every descriptor is destroyed by its plan.
 */
#include "tensor/devices/cuda/dnn/dnn_plan.h"

#include "tensor/devices/cuda/runtime/cuda_internal.h"

#include <cudnn_backend.h>
#include <cudnn_graph.h>

#include <stdio.h>
#include <string.h>

typedef cudnnBackendDescriptor_t descriptor;

struct dnn_planner {
    cudnnHandle_t handle; /* NULL: plans for a profile */
    descriptor profile;   /* NULL: plans for the card of `handle` */
    char version[32];
};

/* What the descriptors of one graph need until its plans exist. */
enum { CONFIGS_MOST = 32, BUILD_MOST = 2 * CONFIGS_MOST + 1 };

typedef struct build {
    dnn_planner *planner;
    const dnn_graph *graph;
    descriptor owned[BUILD_MOST];
    int n_owned;
    cudnnStatus_t status; /* the first failure; after it nothing is called */
    char why[256];
} build;

struct dnn_plan {
    descriptor handle;
    descriptor config; /* NULL: the plan was loaded */
    size_t workspace_bytes;
    int n_bound; /* the tensors that have memory */
    int64_t uids[DNN_MAX_TENSORS];
    int bound[DNN_MAX_TENSORS]; /* indices into the graph's tensors */
};

/* --- descriptors --- */

static void note_failure(build *b, cudnnStatus_t status)
{
    b->status = status;
    cudnnGetLastErrorString(b->why, sizeof(b->why));
}

static descriptor create(build *b, cudnnBackendDescriptorType_t type)
{
    descriptor d = NULL;
    cudnnStatus_t st;

    if (b->status != CUDNN_STATUS_SUCCESS)
        return NULL;
    if (b->n_owned == BUILD_MOST) {
        b->status = CUDNN_STATUS_INTERNAL_ERROR;
        return NULL;
    }
    st = cudnnBackendCreateDescriptor(type, &d);
    if (st != CUDNN_STATUS_SUCCESS) {
        note_failure(b, st);
        return NULL;
    }
    b->owned[b->n_owned++] = d;
    return d;
}

static void set(build *b, descriptor d, cudnnBackendAttributeName_t name,
                cudnnBackendAttributeType_t type, int64_t n, const void *values)
{
    cudnnStatus_t st;

    if (b->status != CUDNN_STATUS_SUCCESS)
        return;
    st = cudnnBackendSetAttribute(d, name, type, n, values);
    if (st != CUDNN_STATUS_SUCCESS)
        note_failure(b, st);
}

static void set_descriptor(build *b, descriptor d, cudnnBackendAttributeName_t name,
                           descriptor value)
{
    set(b, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

static void set_type(build *b, descriptor d, cudnnBackendAttributeName_t name, cudnnDataType_t type)
{
    set(b, d, name, CUDNN_TYPE_DATA_TYPE, 1, &type);
}

static void set_bool(build *b, descriptor d, cudnnBackendAttributeName_t name, bool value)
{
    set(b, d, name, CUDNN_TYPE_BOOLEAN, 1, &value);
}

static void finalize(build *b, descriptor d)
{
    cudnnStatus_t st;

    if (b->status != CUDNN_STATUS_SUCCESS)
        return;
    st = cudnnBackendFinalize(d);
    if (st != CUDNN_STATUS_SUCCESS)
        note_failure(b, st);
}

static void destroy_owned(build *b)
{
    while (b->n_owned > 0) {
        const descriptor d = b->owned[--b->n_owned];

        if (d != NULL)
            (void)cudnnBackendDestroyDescriptor(d);
    }
}

/* --- planners --- */

/* Fails with cuDNN's text for the status and its last message. */
static ls_status status_of(cudnnStatus_t status)
{
    if (status == CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED ||
        status == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED)
        return LS_ENOMEM;
    return CUDNN_STATUS_CATEGORY(status) == CUDNN_STATUS_NOT_SUPPORTED ? LS_EUNSUPPORTED
                                                                       : LS_EINTERNAL;
}

static ls_status fail_with(const char *did, cudnnStatus_t status)
{
    char why[256] = "";

    cudnnGetLastErrorString(why, sizeof(why));
    return cu_fail(status_of(status), "cuDNN could not %s: %s%s%s", did,
                   cudnnGetErrorString(status), why[0] == '\0' ? "" : ": ", why);
}

static ls_status create_planner(dnn_planner **out)
{
    const size_t version = cudnnGetVersion();
    dnn_planner *p = cu_host->alloc(1, sizeof(*p));

    if (p == NULL)
        return cu_fail(LS_ENOMEM, "no memory for plans of cuDNN");
    (void)snprintf(p->version, sizeof(p->version), "cudnn %zu.%zu.%zu", version / 10000,
                   version / 100 % 100, version % 100);
    *out = p;
    return LS_OK;
}

ls_status dnn_planner_open(void *stream, dnn_planner **out)
{
    dnn_planner *p;
    cudnnStatus_t st;

    LS_TRY(create_planner(&p));
    st = cudnnCreate(&p->handle);
    if (st == CUDNN_STATUS_SUCCESS)
        st = cudnnSetStream(p->handle, stream);
    if (st != CUDNN_STATUS_SUCCESS) {
        dnn_planner_close(p);
        return fail_with("start on this card", st);
    }
    *out = p;
    return LS_OK;
}

ls_status dnn_planner_open_profile(const char *json, size_t bytes, dnn_planner **out)
{
    dnn_planner *p;
    cudnnStatus_t st;

    LS_TRY(create_planner(&p));
    st = cudnnBackendCreateDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &p->profile);
    if (st == CUDNN_STATUS_SUCCESS)
        st = cudnnBackendSetAttribute(p->profile, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION,
                                      CUDNN_TYPE_CHAR, (int64_t)bytes, json);
    if (st == CUDNN_STATUS_SUCCESS)
        st = cudnnBackendFinalize(p->profile);
    if (st != CUDNN_STATUS_SUCCESS) {
        dnn_planner_close(p);
        return fail_with("read the profile of a card", st);
    }
    *out = p;
    return LS_OK;
}

void dnn_planner_close(dnn_planner *p)
{
    if (p == NULL)
        return;
    if (p->profile != NULL)
        (void)cudnnBackendDestroyDescriptor(p->profile);
    if (p->handle != NULL)
        (void)cudnnDestroy(p->handle);
    cu_host->free(p);
}

const char *dnn_planner_version(const dnn_planner *p)
{
    return p->version;
}

/* --- from graphs to descriptors --- */

static cudnnDataType_t type_of(int32_t dtype)
{
    switch (dtype) {
    case LS_F64:
        return CUDNN_DATA_DOUBLE;
    case LS_F16:
        return CUDNN_DATA_HALF;
    case LS_BF16:
        return CUDNN_DATA_BFLOAT16;
    default:
        return CUDNN_DATA_FLOAT;
    }
}

/* Sums are computed in float32, or in float64 if an operand has that type. */
static cudnnDataType_t math_type(const dnn_graph *g)
{
    for (int i = 0; i < g->n_tensors; i++) {
        if (g->tensors[i].dtype == LS_F64)
            return CUDNN_DATA_DOUBLE;
    }
    return CUDNN_DATA_FLOAT;
}

/* The identifier of tensor i; cuDNN reserves 0 in places. */
static int64_t uid_of(int i)
{
    return i + 1;
}

static descriptor describe_tensor(build *b, int i)
{
    const dnn_tensor *t = &b->graph->tensors[i];
    const int64_t uid = uid_of(i);
    const int64_t alignment = 16;
    const descriptor d = create(b, CUDNN_BACKEND_TENSOR_DESCRIPTOR);

    set_type(b, d, CUDNN_ATTR_TENSOR_DATA_TYPE, type_of(t->dtype));
    set(b, d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, t->dims);
    set(b, d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, t->strides);
    set(b, d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &uid);
    set(b, d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
    set_bool(b, d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, t->is_virtual != 0);
    finalize(b, d);
    return d;
}

/* The attributes of operations: of the roles in order, and of a convolution's scales. */
typedef struct attributes {
    cudnnBackendDescriptorType_t type;
    cudnnBackendAttributeName_t parameters;
    cudnnBackendAttributeName_t roles[DNN_MAX_ROLES];
    cudnnBackendAttributeName_t alpha;
    cudnnBackendAttributeName_t beta;
} attributes;

static const attributes attributes_of[] = {
    [DNN_CONV] = {.type = CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
                  .parameters = CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                  .roles = {CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                            CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                            CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y},
                  .alpha = CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                  .beta = CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA},
    [DNN_CONV_DATA] = {.type = CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
                       .parameters = CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                       .roles = {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
                                 CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                                 CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY},
                       .alpha = CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                       .beta = CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA},
    [DNN_CONV_WEIGHTS] = {.type = CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
                          .parameters = CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                          .roles = {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY},
                          .alpha = CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                          .beta = CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA},
    [DNN_ADD] = {.type = CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR,
                 .parameters = CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR,
                 .roles = {CUDNN_ATTR_OPERATION_POINTWISE_XDESC,
                           CUDNN_ATTR_OPERATION_POINTWISE_BDESC,
                           CUDNN_ATTR_OPERATION_POINTWISE_YDESC}},
};

static descriptor describe_convolution(build *b, const dnn_node *node)
{
    const int64_t stride[2] = {node->stride[0], node->stride[1]};
    const int64_t padding[2] = {node->padding[0], node->padding[1]};
    const int64_t dilation[2] = {node->dilation[0], node->dilation[1]};
    const int64_t spatial = 2;
    const cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    const descriptor c = create(b, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);

    set(b, c, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &spatial);
    set_type(b, c, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, math_type(b->graph));
    set(b, c, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode);
    set(b, c, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2, padding);
    set(b, c, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2, padding);
    set(b, c, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2, dilation);
    set(b, c, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2, stride);
    finalize(b, c);
    return c;
}

static descriptor describe_addition(build *b)
{
    const cudnnPointwiseMode_t mode = CUDNN_POINTWISE_ADD;
    const descriptor p = create(b, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);

    set(b, p, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    set_type(b, p, CUDNN_ATTR_POINTWISE_MATH_PREC, math_type(b->graph));
    finalize(b, p);
    return p;
}

static descriptor describe_node(build *b, const dnn_node *node, const descriptor *tensors)
{
    const attributes *a = &attributes_of[node->op];
    const bool is_convolution = node->op != DNN_ADD;
    const double one = 1;
    const double zero = 0;
    const descriptor d = create(b, a->type);

    set_descriptor(b, d, a->parameters,
                   is_convolution ? describe_convolution(b, node) : describe_addition(b));
    if (is_convolution) {
        set(b, d, a->alpha, CUDNN_TYPE_DOUBLE, 1, &one);
        set(b, d, a->beta, CUDNN_TYPE_DOUBLE, 1, &zero);
    }
    for (int i = 0; i < DNN_MAX_ROLES; i++)
        set_descriptor(b, d, a->roles[i], tensors[node->tensors[i]]);
    finalize(b, d);
    return d;
}

static descriptor describe_graph(build *b)
{
    descriptor tensors[DNN_MAX_TENSORS];
    descriptor nodes[DNN_MAX_NODES];
    descriptor graph;

    for (int i = 0; i < b->graph->n_tensors; i++)
        tensors[i] = describe_tensor(b, i);
    for (int i = 0; i < b->graph->n_nodes; i++)
        nodes[i] = describe_node(b, &b->graph->nodes[i], tensors);
    graph = create(b, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    set(b, graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, b->graph->n_nodes,
        nodes);
    if (b->planner->handle != NULL)
        set(b, graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &b->planner->handle);
    finalize(b, graph);
    return graph;
}

/* --- engines --- */

/* Whether a numerical note of an engine is within the limits. */
static bool is_note_allowed(cudnnBackendNumericalNote_t note, bool is_half,
                            const dnn_limits *limits)
{
    switch (note) {
    case CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC:
        return !limits->deterministic;
    case CUDNN_NUMERICAL_NOTE_TENSOR_CORE: // of float32: rounds the inputs to TF32
        return is_half || limits->tf32;
    case CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS: // to float16, whose range is smaller
    case CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION:
        return false;
    default:
        return true;
    }
}

static bool is_half_graph(const dnn_graph *g)
{
    for (int i = 0; i < g->n_tensors; i++) {
        if (g->tensors[i].dtype == LS_F16 || g->tensors[i].dtype == LS_BF16)
            return true;
    }
    return false;
}

static bool is_allowed(build *b, descriptor config, const dnn_limits *limits)
{
    cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    const bool is_half = is_half_graph(b->graph);
    descriptor engine = create(b, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    int64_t n = 0;

    if (engine == NULL ||
        cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                 1, &n, &engine) != CUDNN_STATUS_SUCCESS ||
        cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                                 CUDNN_TYPE_NUMERICAL_NOTE, CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &n,
                                 notes) != CUDNN_STATUS_SUCCESS)
        return false;
    for (int64_t i = 0; i < n; i++) {
        if (!is_note_allowed(notes[i], is_half, limits))
            return false;
    }
    return true;
}

/* The configurations that a heuristic recommends; 0 also when it does not know the graph. */
static int find_configs(build *b, descriptor graph, cudnnBackendHeurMode_t mode,
                        descriptor configs[CONFIGS_MOST])
{
    const descriptor h = create(b, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    int64_t n = 0;

    set_descriptor(b, h, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    if (b->planner->profile != NULL)
        set_descriptor(b, h, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, b->planner->profile);
    set(b, h, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    finalize(b, h);
    for (int i = 0; i < CONFIGS_MOST; i++)
        configs[i] = create(b, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    if (b->status != CUDNN_STATUS_SUCCESS)
        return 0;
    b->status = cudnnBackendGetAttribute(h, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                         CUDNN_TYPE_BACKEND_DESCRIPTOR, CONFIGS_MOST, &n, configs);
    if (b->status != CUDNN_STATUS_SUCCESS)
        return 0;
    return n < CONFIGS_MOST ? (int)n : CONFIGS_MOST;
}

/* --- plans --- */

/* What the plan needs of the graph when it runs. */
static void bind_tensors(dnn_plan *plan, const dnn_graph *g)
{
    for (int i = 0; i < g->n_tensors; i++) {
        if (g->tensors[i].is_virtual)
            continue;
        plan->uids[plan->n_bound] = uid_of(i);
        plan->bound[plan->n_bound++] = i;
    }
}

/* Runtime-compiled engines need a driver to load their kernel. Without a card it is enough that
 * cuDNN has compiled it: its message then names the load of the module. */
static bool is_compiled(const dnn_planner *p, const build *b)
{
    return p->profile != NULL &&
           (strstr(b->why, "LibraryLoadData") != NULL || strstr(b->why, "ModuleLoad") != NULL);
}

/* Finalizes the plan for the card and reads its workspace; false, with b->status, when it cannot be
 * executed there. */
static bool finalize_plan(build *b, dnn_plan *plan)
{
    int64_t bytes = 0;
    int64_t n = 0;

    if (b->planner->profile != NULL)
        set_descriptor(b, plan->handle, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, b->planner->profile);
    else
        set(b, plan->handle, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1,
            &b->planner->handle);
    finalize(b, plan->handle);
    if (b->status != CUDNN_STATUS_SUCCESS && is_compiled(b->planner, b)) {
        b->status = CUDNN_STATUS_SUCCESS;
        return true;
    }
    if (b->status == CUDNN_STATUS_SUCCESS)
        b->status = cudnnBackendGetAttribute(plan->handle, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                             CUDNN_TYPE_INT64, 1, &n, &bytes);
    plan->workspace_bytes = (size_t)bytes;
    return b->status == CUDNN_STATUS_SUCCESS;
}

static ls_status allocate_plan(const dnn_graph *g, dnn_plan **out)
{
    dnn_plan *plan = cu_host->alloc(1, sizeof(*plan));

    if (plan == NULL)
        return cu_fail(LS_ENOMEM, "no memory for a plan of cuDNN");
    bind_tensors(plan, g);
    if (cudnnBackendCreateDescriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &plan->handle) !=
        CUDNN_STATUS_SUCCESS) {
        plan->handle = NULL;
        dnn_plan_destroy(plan);
        return cu_fail(LS_ENOMEM, "no memory for a plan of cuDNN");
    }
    *out = plan;
    return LS_OK;
}

/* A plan keeps its configuration. */
static void take_config(build *b, descriptor config, dnn_plan *plan)
{
    plan->config = config;
    for (int i = 0; i < b->n_owned; i++) {
        if (b->owned[i] == config)
            b->owned[i] = NULL;
    }
}

/* *out is NULL when the card cannot run the configuration within the limits. */
static ls_status plan_config(build *b, descriptor config, const dnn_limits *limits, dnn_plan **out)
{
    dnn_plan *plan;

    *out = NULL;
    LS_TRY(allocate_plan(b->graph, &plan));
    set_descriptor(b, plan->handle, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
    if (finalize_plan(b, plan) && plan->workspace_bytes <= limits->workspace_bytes) {
        take_config(b, config, plan);
        *out = plan;
        return LS_OK;
    }
    if (b->status == CUDNN_STATUS_SUCCESS)
        (void)snprintf(b->why, sizeof(b->why), "an engine needs a workspace of %zu bytes",
                       plan->workspace_bytes);
    b->status = CUDNN_STATUS_SUCCESS;
    dnn_plan_destroy(plan);
    return LS_OK;
}

/* Adds the plans that one heuristic recommends to out[0..*n); b->graph is described in `graph`. */
static ls_status add_plans(build *b, descriptor graph, cudnnBackendHeurMode_t mode,
                           const dnn_limits *limits, int most, dnn_plan **out, int *n)
{
    descriptor configs[CONFIGS_MOST];
    const int n_configs = find_configs(b, graph, mode, configs);
    ls_status st = LS_OK;

    for (int i = 0; i < n_configs && *n < most && st == LS_OK; i++) {
        if (!is_allowed(b, configs[i], limits))
            continue;
        st = plan_config(b, configs[i], limits, &out[*n]);
        if (st == LS_OK && out[*n] != NULL)
            ++*n;
    }
    return st;
}

static ls_status fail_without_plan(const dnn_graph *g, const char *why)
{
    char text[DNN_TEXT_BYTES];

    return cu_fail(LS_EUNSUPPORTED, "cuDNN has no plan for %s%s%s",
                   dnn_graph_text(text, sizeof(text), g), why[0] == '\0' ? "" : ": ", why);
}

ls_status dnn_plans_create(dnn_planner *p, const dnn_graph *g, const dnn_limits *limits, int most,
                           dnn_plan **out, int *n)
{
    static const cudnnBackendHeurMode_t modes[] = {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK};
    build described = {.planner = p, .graph = g};
    const descriptor graph = describe_graph(&described);
    char why[sizeof(described.why)] = "";
    ls_status st = LS_OK;

    *n = 0;
    memcpy(why, described.why, sizeof(why));
    for (size_t i = 0; i < LS_COUNT_OF(modes) && *n == 0 && st == LS_OK &&
                       described.status == CUDNN_STATUS_SUCCESS;
         i++) {
        build b = {.planner = p, .graph = g};

        st = add_plans(&b, graph, modes[i], limits, most, out, n);
        if (b.why[0] != '\0')
            memcpy(why, b.why, sizeof(why));
        destroy_owned(&b);
    }
    destroy_owned(&described);
    return st == LS_OK && *n == 0 ? fail_without_plan(g, why) : st;
}

void dnn_plan_destroy(dnn_plan *plan)
{
    if (plan == NULL)
        return;
    if (plan->handle != NULL)
        (void)cudnnBackendDestroyDescriptor(plan->handle);
    if (plan->config != NULL)
        (void)cudnnBackendDestroyDescriptor(plan->config);
    cu_host->free(plan);
}

size_t dnn_plan_workspace_bytes(const dnn_plan *plan)
{
    return plan->workspace_bytes;
}

ls_status dnn_plan_run(dnn_planner *p, const dnn_plan *plan, void *const *data, void *workspace)
{
    // Made for each call: cuDNN refuses other pointers in a pack that is finalized.
    build b = {.planner = p};
    const descriptor pack = create(&b, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    void *pointers[DNN_MAX_TENSORS];

    for (int i = 0; i < plan->n_bound; i++)
        pointers[i] = data[plan->bound[i]];
    set(&b, pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, plan->n_bound, plan->uids);
    set(&b, pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, plan->n_bound,
        pointers);
    set(&b, pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
    finalize(&b, pack);
    if (b.status == CUDNN_STATUS_SUCCESS)
        b.status = cudnnBackendExecute(p->handle, plan->handle, pack);
    destroy_owned(&b);
    return b.status == CUDNN_STATUS_SUCCESS ? LS_OK : fail_with("run a plan", b.status);
}

/* --- plans as text --- */

ls_status dnn_plan_save(const dnn_plan *plan, char **out, size_t *bytes)
{
    int64_t n = 0;
    char *text;
    cudnnStatus_t st;

    st = cudnnBackendGetAttribute(plan->handle, CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION,
                                  CUDNN_TYPE_CHAR, 0, &n, NULL);
    if (st != CUDNN_STATUS_SUCCESS || n <= 0)
        return fail_with("write a plan as text", st);
    text = cu_host->alloc((size_t)n + 1, 1);
    if (text == NULL)
        return cu_fail(LS_ENOMEM, "no memory for the text of a plan");
    st = cudnnBackendGetAttribute(plan->handle, CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION,
                                  CUDNN_TYPE_CHAR, n, &n, text);
    if (st != CUDNN_STATUS_SUCCESS) {
        cu_host->free(text);
        return fail_with("write a plan as text", st);
    }
    *out = text;
    *bytes = strlen(text);
    return LS_OK;
}

ls_status dnn_plan_load(dnn_planner *p, const dnn_graph *g, const char *text, size_t bytes,
                        dnn_plan **out)
{
    build b = {.planner = p, .graph = g};
    dnn_plan *plan;

    LS_TRY(allocate_plan(g, &plan));
    set(&b, plan->handle, CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
        (int64_t)bytes, text);
    if (!finalize_plan(&b, plan)) {
        dnn_plan_destroy(plan);
        return fail_with("read a plan", b.status);
    }
    *out = plan;
    return LS_OK;
}
