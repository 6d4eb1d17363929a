/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hostlist.h - lists of hosts as users, host files and Slurm write them. Pure: text in, names and
 * numbers out.
 *
 * Every resulting name is safe as an argument of ssh: letters, digits, "." "_" "-", not starting
 * with "-", optionally after "user@"; or an IPv6 address, which is written in brackets. An error
 * (LS_EINVAL) names the source ("-H", the file's name), the position in the text or the line, and
 * the right form; then *out is empty.
 */
#ifndef LS_LAUNCH_HOSTS_HOSTLIST_H
#define LS_LAUNCH_HOSTS_HOSTLIST_H

#include "base/status.h"
#include "base/text.h"

#define HOSTLIST_HOSTS_MAX      65536   /* names in a list */
#define HOSTLIST_SLOTS_MAX      65536   /* ranks on one host */
#define HOSTLIST_FILE_BYTES_MAX 4194304 /* of a host file */
#define HOSTLIST_NAME_MAX       253     /* of a host or a user */

typedef struct hostlist_host {
    char *name; /* "a", "user@a", "fe80::1%eth0" */
    int slots;  /* ranks there; 0: not given (mpirun takes 1 in -H, all cores in a file) */
} hostlist_host;

/* Zero-initialise; hostlist_free() leaves it empty and usable. */
typedef struct hostlist {
    hostlist_host *hosts;
    int n;
    int capacity;
} hostlist;

/*
 * -H: "a:8,b:2", "a,b", "[fe80::1]:4". A repeated host keeps its first position; its slots add up,
 * and an entry without a number counts as one slot.
 */
LS_MUST_USE ls_status hostlist_parse(const char *text, hostlist *out);

/*
 * A host file of mpirun or Horovod ("host slots=N", "host slots=N max_slots=M") or of MPICH
 * ("host:N"), one host per line, also plain names; "#" begins a comment. Repeated hosts add up as
 * in -H; the sum is at most max_slots. `name` is for errors.
 */
LS_MUST_USE ls_status hostlist_parse_file(const char *bytes, size_t n, const char *name,
                                          hostlist *out);
/* The same, of a file. */
LS_MUST_USE ls_status hostlist_load(const char *path, hostlist *out);

/*
 * Slurm's node list with one count for each node: "gpu-a[01-02],b7" and "2(x2),1"
 * (SLURM_JOB_NODELIST, SLURM_TASKS_PER_NODE). Several brackets in a name multiply; numbers have the
 * width of the lower bound; text after the last bracket is refused, as by Slurm. counts may be
 * NULL: slots are 0. Repeated names are repeated.
 */
LS_MUST_USE ls_status hostlist_parse_slurm(const char *nodes, const char *counts, hostlist *out);

/*
 * Places n_ranks on the hosts in order: slots become the number of ranks of each host, which may be
 * 0. n_ranks 0: one rank per slot. LS_EINVAL: more ranks than slots, or more than a job takes. The
 * slots of all hosts must be known.
 */
LS_MUST_USE ls_status hostlist_place(hostlist *list, int n_ranks);

void hostlist_free(hostlist *list);

/*
 * Appends the names as hostlist_parse_slurm() reads them: "gpu-a[01-02],node[1,3-5]", sorted, each
 * once. The folded number is the last one before a name's first dot, or of an address; the text
 * after it follows the bracket, "b[1-2].cluster", which Slurm does not read.
 */
void hostlist_fold(const char *const *names, size_t n, text_buf *out);

/*
 * "8,2" (-g), "2(x2),1" (Slurm): numbers from 1 to HOSTLIST_SLOTS_MAX, at most HOSTLIST_HOSTS_MAX
 * of them. *out is freed by the caller with ls_free(). `what` is for errors.
 */
LS_MUST_USE ls_status hostlist_parse_counts(const char *text, const char *what, int **out, int *n);

#endif
