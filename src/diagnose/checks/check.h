/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check.h - checks of this machine for problems that a job would meet, reported as findings;
 * docs/checking.md lists them all.
 *
 *     check_options o = {.n_ranks = 4, .several_nodes = true, .sources = check_this_machine()};
 *     findings found = {0};
 *     text_buf lines = {0};
 *
 *     if (check_quick(&o, &found) == LS_OK)
 *         findings_to_lines(&found, FINDING_WARNING, &lines);
 *
 * Threads: the checks fork helpers with a time limit, so the process must have one thread.
 *
 * diagnose/checks/: checks of one machine; needs nothing of launch. The tool and launched jobs call
 * it.
 */
#ifndef LS_DIAGNOSE_CHECKS_CHECK_H
#define LS_DIAGNOSE_CHECKS_CHECK_H

#include "diagnose/finding.h"

/* Where the facts come from: check_sources.h. */
typedef struct check_sources check_sources;

typedef struct check_options {
    int n_ranks;                  /* on this machine; 0: one for each usable core */
    bool several_nodes;           /* the job has other nodes, so names and networks matter */
    int master_port;              /* the job's port; 0: torchrun's default ports are checked */
    bool tries_gpus;              /* open each GPU and test some of its memory */
    const check_sources *sources; /* required */
} check_options;

/* This machine. Checks run on one thread, so the table may be shared. */
const check_sources *check_this_machine(void);

/* This machine for a statically linked program: getent resolves names, GPUs are not checked. */
extern const check_sources check_static_machine;

/* Appends findings that take milliseconds: names, networks, limits, cores, /dev/shm. */
LS_MUST_USE ls_status check_quick(const check_options *options, findings *out);

/*
 * Appends all findings. A GPU driver that hangs takes 20 s, with tries_gpus a GPU that hangs takes
 * another 60 s.
 */
LS_MUST_USE ls_status check_all(const check_options *options, findings *out);

/*
 * Counts the GPUs that a PyTorch program sees: NVIDIA's, of which CUDA_VISIBLE_DEVICES may hide
 * some, or without any AMD's (HIP_VISIBLE_DEVICES, ROCR_VISIBLE_DEVICES). *n is at least 1.
 * LS_ENOTFOUND: the machine has none, or the variables hide all. A driver that hangs takes 20 s.
 * Forks, as the checks do.
 */
LS_MUST_USE ls_status check_count_gpus(const check_sources *from, int *n);

#endif
