/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench.h - what lockstep bench measures, and how its parts talk.
 */
#ifndef LS_CLI_BENCH_H
#define LS_CLI_BENCH_H

#include <lockstep/comm.h>

#include "base/status.h"
#include "base/text.h"

#include <stdbool.h>

typedef struct bench_options {
    int64_t min_bytes;
    int64_t max_bytes;
    int64_t step_bytes; /* used when factor is 0 */
    int64_t factor;
    const char *redop; /* "sum", ..., "all" */
    const char *type;  /* "float", ..., "all" */
    int64_t iterations;
    int64_t warmup;
    int64_t check; /* 0: do not look at the results */
    int64_t ranks; /* to start here, when no launcher has */
    const char *backend;
    const char *transport;
    const char *memory; /* "user", "registered" */
    const char *json;   /* file, NULL: none */
} bench_options;

/* Measures on all ranks of `comm`; rank 0 prints. Collective. */
LS_MUST_USE ls_status bench_all_reduce(ls_comm *comm, const bench_options *opt);

/* --- bench_data.c: inputs whose reduction is exact in any order, so that results are compared bit for bit --- */

/* nccl-tests' names: "float", "half", "int32"; -1 where there is none. */
int bench_type(const char *name);
const char *bench_type_name(ls_dtype type);
int bench_redop(const char *name);
const char *bench_redop_name(ls_reduce_op op);
bool bench_is_defined(ls_dtype type, ls_reduce_op op); /* whole numbers have no average */

void bench_fill(void *buffer, size_t count, ls_dtype type, ls_reduce_op op, int rank);
/* Elements of `buffer` that are not the reduction of all ranks' inputs. */
int64_t bench_count_wrong(const void *buffer, size_t count, ls_dtype type, ls_reduce_op op,
                          int n_ranks);

#endif
