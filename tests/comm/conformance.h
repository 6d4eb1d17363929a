/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conformance.h - what every backend must do, as rank bodies: all of them run on any group.
 *
 * Inputs are small integers, so that every sum and product is exact and results are compared bit
 * for bit with a plain reference. Destinations are poisoned before, buffers are guarded at both
 * ends, and sources must stay as they were.
 */
#ifndef TESTS_COMM_CONFORMANCE_H
#define TESTS_COMM_CONFORMANCE_H

#include "harness/ranks.h"

#define CONFORMANCE_GUARD 64

/* --- numbers (conformance_values.c) --- */

/* The value of element i of a rank's input. */
int conformance_input(int rank, size_t i, ls_reduce_op op);
/* Writes `value` as element i of an array of this type; integers wrap. */
void conformance_put(ls_dtype type, void *array, size_t i, double value);
/* Element i of the reduction over ranks 0..n-1, in the bits that every backend must give; LS_AVG
 * divides by `divisor`. */
void conformance_put_reduced(ls_dtype type, void *array, size_t at, size_t i, int n,
                             ls_reduce_op op, double divisor);

/* --- guarded memory --- */

typedef struct guarded {
    ls_comm *comm; /* from ls_comm_alloc(); NULL: plain memory */
    unsigned char *block;
    unsigned char *data;
    size_t bytes;
} guarded;

LS_MUST_USE ls_status guarded_make(guarded *g, ls_comm *comm, size_t bytes);
void guarded_free(guarded *g);
/* Fills it with a pattern that no result has. */
void guarded_poison(guarded *g);
LS_MUST_USE ls_status guarded_check(const guarded *g, const char *what);

/* --- suites; each gives LS_OK or says what was wrong --- */

ls_status conformance_reductions(ls_comm *comm, const size_t *counts, int n_counts);
ls_status conformance_movers(ls_comm *comm, const size_t *counts, int n_counts);
/* All operations of the two above, with one type: for many ranks. */
ls_status conformance_each(ls_comm *comm, const size_t *counts, int n_counts);
ls_status conformance_vectors(ls_comm *comm);
ls_status conformance_messages(ls_comm *comm);
ls_status conformance_handles(ls_comm *comm);
ls_status conformance_groups(ls_comm *comm);

#endif
