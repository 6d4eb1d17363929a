/* SPDX-License-Identifier: Apache-2.0 */
/*
 * forecast.h - how long a training step takes on n machines: the alpha-beta model (Hockney 1994) of
 * the all-reduces that DDP makes, and their overlap with backward. Pure. docs/performance.md
 * describes each term and how it is measured.
 *
 *     step = other + broadcast of buffers + max(backward + copying, end of the last all-reduce)
 *
 * A bucket is sent when it is complete and the one before it is sent: the link is one queue. Its
 * end is later by the latency of its rounds. Copying is processor time, which delays the rest of
 * backward.
 *
 * cli/plan/: lockstep plan, for main.c. Only base, host and cli are below it.
 */
#ifndef LS_CLI_PLAN_FORECAST_H
#define LS_CLI_PLAN_FORECAST_H

#include "base/status.h"

#include <stdbool.h>

/* A bucket of gradients, in the order in which they become complete. */
typedef struct forecast_bucket {
    double ready_s; /* from the begin of backward */
    double bytes;
} forecast_bucket;

/* A step of one rank that has the machine for itself. */
typedef struct forecast_step {
    double other_s; /* the step without backward */
    double backward_s;
    double end_bytes;    /* of the small all-reduce behind the buckets */
    double buffer_bytes; /* of the broadcast before forward; 0: there is none */
    const forecast_bucket *buckets;
    int n_buckets;
} forecast_step;

/* What connects the ranks. */
typedef struct forecast_link {
    double bytes_per_s; /* of data; 0: memory of one host, whose cost is copy_s_per_byte alone */
    double latency_s;   /* of a message in one direction, with the work of both ends */
    double copy_s_per_byte; /* processor time of a rank for each byte that it sends */
} forecast_link;

/* What is computed for. */
typedef struct forecast_case {
    int n;                /* ranks */
    double compute;       /* factor of compute times: > 1 where ranks disturb each other */
    bool has_half_bytes;  /* --compress */
    bool is_balanced;     /* --balance; else all wait for the slowest */
    const double *speeds; /* relative, of the ranks, repeated; NULL: all 1 */
    int n_speeds;
} forecast_case;

typedef enum forecast_bound {
    FORECAST_COMPUTE,
    FORECAST_SLOWEST,   /* the slowest rank, which the others wait for */
    FORECAST_BANDWIDTH, /* of the link */
    FORECAST_LATENCY,
    FORECAST_COPYING /* processor time of communication */
} forecast_bound;

typedef struct forecast_result {
    double step_s;
    double batches_per_s; /* of all ranks */
    double efficiency;    /* of the sum of the speeds of the ranks alone */
    double sent_bytes;    /* by a rank in a step, to others over the link or memory */
    forecast_bound bound;
} forecast_result;

/* How an all-reduce of the native backend between n hosts sends a vector. */
typedef struct forecast_exchange {
    double rounds; /* messages that follow each other */
    double sent;   /* bytes of a rank */
} forecast_exchange;

/* Between hosts, as the rows of algorithm_defaults.c select, for a power of two; the rank that
 * sends most. A round of messages over 64 KiB counts twice: the receiver announces that it is
 * ready. */
forecast_exchange forecast_all_reduce(double bytes, int n);

forecast_result forecast_make(const forecast_step *s, const forecast_link *link,
                              const forecast_case *c);

/* "compute", "slowest machine", ... */
const char *forecast_bound_text(forecast_bound b);

/* The index of the last of `count` results, each for twice as many ranks as the one before, up to
 * which every doubling brings half of the speed of the added ranks or more. */
int forecast_knee(const forecast_result *results, int count);

#endif
