/* SPDX-License-Identifier: Apache-2.0 */
/*
 * output_fold.h - writes equal lines of several ranks once: "ranks 0-3| text".
 *
 * Lines of all streams of a job wait in one queue, each for at most OUTPUT_FOLD_MS, the lines with
 * which ranks fail for OUTPUT_FAILURE_MS. A line joins the same line of other ranks only behind
 * earlier lines of its own rank. So the lines of each rank keep their order; lines of different
 * ranks may change places.
 */
#ifndef LS_LAUNCH_OUTPUT_OUTPUT_FOLD_H
#define LS_LAUNCH_OUTPUT_OUTPUT_FOLD_H

#include "base/clock.h"
#include "launch/output/output.h"

#define OUTPUT_FOLD_MS    50
#define OUTPUT_FAILURE_MS 2000      /* more than ranks get to end after a failure */
#define OUTPUT_FOLD_LINES 1024      /* most lines in the queue */
#define OUTPUT_FOLD_BYTES (1 << 20) /* most bytes of their texts */

typedef struct output_fold output_fold;

/*
 * For ranks first_rank up to first_rank + n_ranks - 1, of which n_shown print. A line that n_shown
 * ranks have written is due at once.
 */
LS_MUST_USE ls_status output_fold_create(int first_rank, int n_ranks, int n_shown,
                                         const ls_clock *clock, output_fold **out);
/* NULL is allowed. Lines in the queue are lost: flush them before. */
void output_fold_destroy(output_fold *f);

/* Adds a whole line of a stream. is_failure: its rank prints why it fails. */
void output_fold_add(output_fold *f, const output_stream *s, const char *line, size_t bytes,
                     bool is_failure);

/* Whether a line of this stream's rank waits. */
bool output_fold_has(const output_fold *f, const output_stream *s);

/* Milliseconds until the oldest line is due, -1 when none waits. */
int output_fold_due(const output_fold *f);

void output_fold_flush(output_fold *f); /* writes what is due */
/* ... and all lines of this stream's rank, with those before them */
void output_fold_flush_rank(output_fold *f, const output_stream *s);
void output_fold_flush_all(output_fold *f); /* ... and the rest */

#endif
