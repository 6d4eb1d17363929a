/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layout.h - which ranks of a group share a host, and which subtrees of the aligned tree are on one
 * host.
 *
 * Between hosts a reduction sends one partial result for each maximal subtree, and bytes that are
 * only moved cross to a host once.
 */
#ifndef LS_COMM_BACKENDS_NATIVE_PLAN_LAYOUT_H
#define LS_COMM_BACKENDS_NATIVE_PLAN_LAYOUT_H

#include "base/status.h"

#include <stdbool.h>

typedef struct plan_layout {
    int n;
    int n_hosts;
    int n_trees;
    int n_peers;  /* that a rank has at most on other hosts where the plans of plan_hosts.c add */
    int *host_of; /* by group rank; hosts are numbered by their lowest rank */
    int *members; /* group ranks, host by host, ascending */
    int *host_first; /* by host: where its ranks begin in `members` */
    int *host_size;
    int *tree_of; /* by group rank; trees are numbered in rank order */
    int *tree_first;
    int *tree_size;
} plan_layout;

/* names[i]: any number that ranks of one host share. layout_free() frees it. */
LS_MUST_USE ls_status layout_make(int n, const int *names, plan_layout *out);
void layout_free(plan_layout *l);

/* Whether some subtree of more than one rank is on one of several hosts: otherwise a layout gains
 * nothing. */
bool layout_helps(const plan_layout *l);

/* The rank of `tree` that adds the tree's contributions to part i; the owner (rank i) in its own
 * tree. */
int layout_adder(const plan_layout *l, int tree, int i);
/* The rank of `host` that receives part i for the others; the owner on its own host. */
int layout_receiver(const plan_layout *l, int host, int i);

#endif
