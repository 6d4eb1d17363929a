/* SPDX-License-Identifier: Apache-2.0 */
/* launch.h - starts the ranks of a job from a program, without `lockstep run`. */
#ifndef LOCKSTEP_LAUNCH_H
#define LOCKSTEP_LAUNCH_H

#include <lockstep/base.h>

LS_BEGIN_DECLS

/* The function that each child runs. Its status becomes the child's exit code (0 or 1), and its
 * error text reaches the parent. */
typedef ls_status (*ls_spawn_fn)(int local_rank, void *arg);

typedef struct ls_spawn_options {
    size_t size; /* sizeof(ls_spawn_options) */
    int nodes;   /* machines that call this together; 0 or 1: only this one */
    const int
        *per_node;      /* ranks of each of the nodes, the same list everywhere; NULL: each its n */
    int node;           /* number of this node; node 0 listens, the others connect in any order */
    const char *master; /* HOST[:PORT] of node 0; NULL: MASTER_ADDR and MASTER_PORT; port 29500 */
    int64_t grace_ms;   /* from the signal that stops all to SIGKILL; default 10 s */
} ls_spawn_options;

/*
 * Forks n processes that run fn(0..n-1, arg) and waits for all of them, as
 * torch.multiprocessing.spawn. In each child ls_init(NULL) finds its rank. The first child that
 * fails ends the others (SIGTERM, after 1 s SIGKILL), and its error text, with rank and signal,
 * becomes this thread's last error. No child outlives the caller, however it dies.
 *
 * LS_EINVAL unless the process has one thread: a fork after OpenMP has started threads hangs. `opt`
 * may be NULL.
 *
 * With several nodes all ranks of all nodes are one job, numbered node by node; each node's call
 * returns the same failure. The nodes authenticate with the user's key file (LOCKSTEP_KEY_FILE,
 * ~/.config/lockstep/key): LS_EAUTH names the file to copy. LS_EMISMATCH: the nodes have different
 * numbers or lists of nodes, or two nodes have the same number; both sides are notified.
 */
LS_API LS_MUST_USE ls_status ls_spawn(ls_spawn_fn fn, int n, void *arg,
                                      const ls_spawn_options *opt);

LS_END_DECLS

#endif
