/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dnn_plan.h - plans: how one graph is executed on one card. dnn_plan.c asks cuDNN for them;
 * tests/devices/dnn_plan_host.c is the tests' version, which executes graphs in host memory.
 *
 * A planner plans for a card, or without one for a profile of a card: then plans cannot run.
 */
#ifndef LS_TENSOR_DEVICES_CUDA_DNN_DNN_PLAN_H
#define LS_TENSOR_DEVICES_CUDA_DNN_DNN_PLAN_H

#include "tensor/devices/cuda/dnn/dnn_graph.h"

#include "base/status.h"

typedef struct dnn_planner dnn_planner;
typedef struct dnn_plan dnn_plan;

/* Which engines of cuDNN may be used. */
typedef struct dnn_limits {
    bool tf32;          /* float32 may be rounded to TF32 for tensor cores */
    bool deterministic; /* the same bits in every run */
    size_t workspace_bytes;
} dnn_limits;

/* The planner of the current card; its plans run in `stream` (a cudaStream_t). */
LS_MUST_USE ls_status dnn_planner_open(void *stream, dnn_planner **out);

/* A planner for a profile in cuDNN's JSON form. */
LS_MUST_USE ls_status dnn_planner_open_profile(const char *json, size_t bytes, dnn_planner **out);

void dnn_planner_close(dnn_planner *p); /* NULL is allowed */

/* "cudnn 9.19.0": what plans depend on besides the card. */
const char *dnn_planner_version(const dnn_planner *p);

/*
 * At most `most` plans for the graph within the limits, the expected fastest first; *n of them.
 * LS_EUNSUPPORTED when there is none: the text has the graph and cuDNN's reason.
 */
LS_MUST_USE ls_status dnn_plans_create(dnn_planner *p, const dnn_graph *g, const dnn_limits *limits,
                                       int most, dnn_plan **out, int *n);
void dnn_plan_destroy(dnn_plan *plan); /* NULL is allowed */

size_t dnn_plan_workspace_bytes(const dnn_plan *plan);

/* Queues the plan. data[i]: the address of the graph's tensor i, not read for virtual ones. */
LS_MUST_USE ls_status dnn_plan_run(dnn_planner *p, const dnn_plan *plan, void *const *data,
                                   void *workspace);

/* The plan as text, which dnn_plan_load() of an equal planner and graph takes; ls_free() it through
 * the host's table. Texts from files may be damaged: a load then fails. */
LS_MUST_USE ls_status dnn_plan_save(const dnn_plan *plan, char **out, size_t *bytes);
LS_MUST_USE ls_status dnn_plan_load(dnn_planner *p, const dnn_graph *g, const char *text,
                                    size_t bytes, dnn_plan **out);

#endif
