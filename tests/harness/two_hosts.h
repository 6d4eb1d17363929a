/* SPDX-License-Identifier: Apache-2.0 */
/* two_hosts.h - ranks of ls_test_ranks() on two hosts, which are network namespaces. */
#ifndef TESTS_HARNESS_TWO_HOSTS_H
#define TESTS_HARNESS_TWO_HOSTS_H

#include "harness/ranks.h"

#include <stdbool.h>

/* This process moves into a namespace of its own, joined to a second one by a virtual cable, until
 * its end. False: not allowed here. */
bool two_hosts_make(void);
/* A rank moves to the second one, before it joins. */
bool two_hosts_move(void);
void two_hosts_end(void);

/* The job of so many ranks, which meet at rank 0 on the first host, with a folder of its own for
 * the user's key, until two_hosts_end(). */
ls_test_job two_hosts_job(int n, ls_test_body body, void *arg);

#endif
