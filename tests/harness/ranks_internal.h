/* SPDX-License-Identifier: Apache-2.0 */
/* ranks_internal.h - shared by ranks.c and threads.c. */
#ifndef TESTS_HARNESS_RANKS_INTERNAL_H
#define TESTS_HARNESS_RANKS_INTERNAL_H

#include "net/address.h"
#include "hub/cause.h"

/* A job id and a hub address of no other job. */
void ls_test_fresh_job(char job[JOB_ID_BYTES], net_address *hub_at);

#endif
