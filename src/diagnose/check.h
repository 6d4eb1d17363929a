/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check.h - what of this machine will stand in the way of a job, as findings (docs/checking.md lists them all).
 *
 *     check_options o = {.n_ranks = 4, .several_nodes = true};
 *     findings found = {0};
 *     text_buf lines = {0};
 *     if (check_quick(&o, &found) == LS_OK)
 *         findings_to_lines(&found, FINDING_WARNING, &lines);
 *
 * Threads    These fork helpers with a time limit, so: a process with one thread.
 */
#ifndef LS_DIAGNOSE_CHECK_H
#define LS_DIAGNOSE_CHECK_H

#include "diagnose/finding.h"

typedef struct check_sources check_sources; /* see check_sources.h */

typedef struct check_options {
    int n_ranks;        /* on this machine; 0: one for each core that may be used */
    bool several_nodes; /* the job has more than this one: names and networks matter then */
    int master_port;    /* that the job is to use; 0: the usual ones are looked at */
    bool tries_gpus;    /* each GPU is opened, and some of its memory used */
    const check_sources *sources; /* where facts come from; needed: */
} check_options;

/* This machine; and the same for a program that is linked statically and so can load no library: names are asked by getent, and GPUs are
 * not asked. */
extern const check_sources check_this_machine;
extern const check_sources check_the_bare_machine;

/* Adds to `out` what can be had in milliseconds: names, networks, limits, cores, /dev/shm. */
LS_MUST_USE ls_status check_quick(const check_options *options, findings *out);

/* Adds everything. A GPU driver that does not answer takes 20 s, with tries_gpus a GPU that does not answer another 60 s. */
LS_MUST_USE ls_status check_all(const check_options *options, findings *out);

/*
 * The GPUs that a PyTorch program would count: NVIDIA's, of which CUDA_VISIBLE_DEVICES may leave
 * some; without any, AMD's (HIP_VISIBLE_DEVICES, ROCR_VISIBLE_DEVICES). *n is at least 1.
 * LS_ENOTFOUND: there is none, or the variables hide all; the error text says which. Waits for a
 * driver that does not answer, up to 20 s. Forks, as the checks do.
 */
LS_MUST_USE ls_status check_count_gpus(const check_sources *from, int *n);

#endif
