/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ranks_internal.h - what the two kinds of ranks share.
 */
#ifndef TESTS_HARNESS_RANKS_INTERNAL_H
#define TESTS_HARNESS_RANKS_INTERNAL_H

#include "net/address.h"
#include "store/cause.h"

/* A job's number and a hub's address that no other job has. */
void ls_test_fresh_job(char job[JOB_ID_BYTES], net_address *hub_at);

#endif
