/* SPDX-License-Identifier: Apache-2.0 */
/*
 * binding.h - --numa-binding: the cores that a rank runs on, and the NUMA nodes that its memory
 * comes from. The names and what they mean are torchrun's.
 *
 * The home of a rank is the NUMA node of its GPU: the GPU of its local rank, in the order of the
 * bus, or of CUDA_VISIBLE_DEVICES. Without GPUs the ranks of a machine are distributed over the
 * NUMA nodes, each node gets ranks that follow each other.
 */
#ifndef LS_LAUNCH_ISOLATE_BINDING_H
#define LS_LAUNCH_ISOLATE_BINDING_H

#include "host/topology.h"

typedef enum binding_kind {
    BINDING_NONE,
    BINDING_NODE,         /* all cores of the home */
    BINDING_SOCKET,       /* all cores of the socket of the home */
    BINDING_EXCLUSIVE,    /* a share of the physical cores of the home, of this rank alone */
    BINDING_CORE_COMPLEX, /* the cores of the home that share one last cache */
    BINDING_KINDS
} binding_kind;

enum { BINDING_GPUS = 64 };

/* NUMA nodes of the GPUs by their number; -1: not known. */
typedef struct binding_gpus {
    int nodes[BINDING_GPUS];
    int n;
} binding_gpus;

typedef struct rank_binding {
    cpu_mask cores;
    cpu_mask nodes;
    bool is_set; /* false: the rank is not bound */
} rank_binding;

/* NULL is BINDING_NONE. LS_EINVAL names the values. */
LS_MUST_USE ls_status binding_parse(const char *text, binding_kind *out);

/* The NVIDIA GPUs that a program sees, from sysfs below `root` ("": this machine) and the value of
 * CUDA_VISIBLE_DEVICES, which may be NULL. Entries that are no numbers count as unknown. */
void binding_read_gpus(const char *root, const char *visible, binding_gpus *out);

/* Chooses among the cores in `allowed` for rank `local_rank` of `n_local`. Pure. LS_EINVAL: there
 * are fewer physical cores than ranks (BINDING_EXCLUSIVE); LS_ENOTFOUND: no core is allowed. */
LS_MUST_USE ls_status binding_choose(const topology *t, const cpu_mask *allowed,
                                     const binding_gpus *gpus, binding_kind kind, int local_rank,
                                     int n_local, rank_binding *out);

/* Binds the calling process, and what it starts. Memory comes from the nodes as long as they have
 * some, then from others. Plain system calls, for use between fork and exec; errno on failure, else
 * 0. Where the kernel has no policies for memory only cores are bound. */
int binding_apply(const rank_binding *b);

#endif
