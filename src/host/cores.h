/* SPDX-License-Identifier: Apache-2.0 */
/* cores.h - how many cores a process may use, by its affinity and its control group; and how many
 * processes Slurm has started on a node. */
#ifndef LS_HOST_CORES_H
#define LS_HOST_CORES_H

#include "base/status.h"

#include <stdint.h>

/* The cores that this process may use: affinity mask, lowered by a cgroup quota; at least 1.
 * `share`, unless NULL, becomes a value that is equal for the processes of a host that share these
 * cores: of the mask, or 0 when a quota applies. */
int ls_usable_cores(uint64_t *share);

/* The smallest cpu quota, in whole cores, of the groups that `membership` (/proc/self/cgroup) names
 * in the trees under `root` (/sys/fs/cgroup), versions 1 and 2; 0 = none. */
int cores_in_cgroup(const char *membership, const char *root);

/* The number of tasks on node `node` from Slurm's "4(x2),2". LS_EINVAL names `what`. */
LS_MUST_USE ls_status cores_slurm_tasks(const char *text, const char *what, int node, int *out);

#endif
