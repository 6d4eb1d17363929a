/* SPDX-License-Identifier: Apache-2.0 */
/* small_run.h - a whole run of a small network on the small set, as a program would do it. */
#ifndef TESTS_TRAIN_SMALL_RUN_H
#define TESTS_TRAIN_SMALL_RUN_H

#include <lockstep/train.h>

#include "train/small_set.h"

enum { SMALL_WEIGHTS = 544, SMALL_STEPS = 48 };

typedef struct small_result {
    ls_status status;
    char error[592];
    ls_run_state state;
    double value;                      /* with is_one_call: the mean loss, as the run's own value */
    float weights[SMALL_WEIGHTS];      /* all parameters, then zeros */
    double lr[SMALL_STEPS];            /* of each step that this process has done */
    int64_t n_changes;                 /* of the partition, with --balance */
    int n_shards;                      /* of this rank at the end, likewise */
    int n_rows;                        /* with --balance rows: of its batches at the end */
    unsigned char n_seen[SMALL_TRAIN]; /* without is_one_call: times that it had a sample */
} small_result;

typedef struct small_job {
    ls_train_flags flags; /* .data is the folder */
    ls_comm *comm;        /* NULL: one process */
    int64_t stop_at;      /* raises a signal before this step; 0: never */
    int stop_by;          /* the signal; 0: SIGTERM */
    int64_t leave_at;    /* closes the run before this step, without report and weights; 0: never */
    int64_t exit_at;     /* exits with code 0 before this step; 0: never */
    int64_t kill_at;     /* kills itself before this step; 0: never */
    int64_t wait_at;     /* says so and waits for a stop signal before this step; 0: never */
    int64_t lose_at;     /* the card is lost during this step; 0: never (card.h) */
    int64_t spoil_at;    /* changes a weight of this rank after this step; 0: never */
    double spoil_by;     /* what is added to the weight; 0: 1 */
    int batch_norm;      /* a convolution and a batch norm before the last layer */
    int flat_batch_norm; /* a batch norm of the pixels: a row has one value per channel */
    int pad;             /* training images are padded and cropped at random; 0: as they are */
    double dropout;      /* before the last layer */
    int64_t weight;      /* of each row (ls_run_weigh); 0: batches are not weighed */
    int64_t weigh_from;  /* step of the first batch that is weighed */
    int forgets_weights; /* does not call ls_run_use_weights() */
    size_t state_most;   /* of a state that capsules hold; 0: the default */
    size_t bucket_bytes; /* of ddp; 0: the default */
    int plain_mean;      /* of ddp */
    int is_one_call;     /* ls_run_train(); of the members above stop_at, kill_at, weight count */
    int has_no_test_set; /* nothing is evaluated */
    int other_classes;   /* of the last layer; 0: as many as the set has */
    int64_t (*shard_ns)(int rank, int64_t step); /* of a shard or row, instead of measured times;
                                                  * NULL: none */
    int64_t row_us[2];                           /* what each row of ranks 0 and 1 takes besides */
    int stop_when_divided; /* this rank stops when rank 0 has 1.5 times the rows of rank 1 */
    const char *flip; /* LOCKSTEP_TEST_FLIP of rank flip_rank (tensor/test_flip.h); NULL: of none */
    int flip_rank;
    int64_t kill_in_change; /* kills itself when the ranks have agreed on this change of the
                             * partition, before they carry it out; 0: never */
} small_job;

/* What most tests begin with. */
ls_train_flags small_flags(const char *dir);

small_result small_run(const small_job *job);

/* The same; what the run writes to the descriptor (1 or 2) goes to `text`. */
small_result small_run_captured(const small_job *job, int fd, char *text, size_t n);

void small_assert_same_file(const char *a, const char *b);

#endif
