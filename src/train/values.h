/* SPDX-License-Identifier: Apache-2.0 */
/*
 * values.h - the named values of a run: means that its program adds to in its own steps and
 * evaluations. All ranks declare the same names, whose numbers are those of the sums in rank_sums.
 */
#ifndef LS_TRAIN_VALUES_H
#define LS_TRAIN_VALUES_H

#include <lockstep/train.h>

#include "base/text.h"
#include "train/rank_sums.h"

enum { VALUE_NAME_BYTES = 32 };

typedef enum value_of { OF_TRAINING, OF_TEST, VALUE_KINDS } value_of;

typedef struct run_values {
    int n;
    char names[VALUES_MOST][VALUE_NAME_BYTES]; /* padded with zeros */
    ls_value_fn of[VALUES_MOST];               /* NULL: the mean itself */
    double mean[VALUE_KINDS][VALUES_MOST];     /* of the last report, of the last evaluation */
    bool is_known[VALUE_KINDS][VALUES_MOST];
    int best; /* the one whose test mean decides which weights are the best */
    bool lowest_is_best;
    bool is_checked; /* values_warn_unused() */
    bool has_best;
    double best_mean; /* of all evaluations, also those before a resume */
} run_values;

/* The number of a declared value; -1: not declared. */
int values_find(const run_values *v, const char *name);
/* Takes the means of all ranks' sums; a value without weight keeps its mean. */
void values_update(run_values *v, value_of kind, const rank_sums *sum);
/* The current means, VALUES_MOST numbers; NaN where there is none. */
void values_copy(const run_values *v, value_of kind, double *out);
/* Whether the last evaluation was better than all before it, which is noted. */
bool values_improved(run_values *v);
/* At the end of an epoch or a run: warns once, on rank 0, about values that nothing was added to;
 * has_tested: an evaluation has been made, or there is none. */
void values_warn_unused(run_values *v, bool has_tested);
/* Appends "  NAME 0.1234" for each known value. */
void values_append(const run_values *v, value_of kind, text_buf *out);
#endif
