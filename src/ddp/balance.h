/* SPDX-License-Identifier: Apache-2.0 */
/*
 * balance.h - divides the shards of a step among ranks by their speed. Pure: it reads no clock and
 * does not communicate, and computes in integers only. So ranks that give it the same numbers get
 * the same partition, on processors of any kind. Rows of a batch are divided as shards without an
 * exchange (BALANCE_ONE_SUM).
 *
 * A step takes rank r the time fixed[r] + k[r] shard[r] for its k[r] shards. All ranks wait for the
 * slowest one, and then for the exchange of gradients, which takes the time of P + 1 units if the
 * rank with the most pieces (shard_tree.h) has P: each piece is sent once, and the sums once. The
 * planner searches for the partition with the shortest step.
 *
 * Times are means of the middle third of the last steps, so one that is longer by chance, or a rank
 * that was stopped, changes nothing. A partition is replaced when another one has been shorter by
 * BALANCE_GAIN per cent in BALANCE_AGREE comparisons in a row, or by BALANCE_URGENT in one. Each
 * return to the partition before doubles the number of comparisons until the partition has stayed
 * for BALANCE_QUIET steps.
 *
 * A rank that would delay all others gets no shard. After some steps it gets one again, because its
 * speed is not measured without one; the pause doubles each time that it loses it again soon.
 */
#ifndef LS_DDP_BALANCE_H
#define LS_DDP_BALANCE_H

#include "base/status.h"

#include <stdbool.h>

enum {
    BALANCE_SAMPLES = 9,       /* steps of a mean */
    BALANCE_EVERY = 2,         /* steps from one comparison to the next */
    BALANCE_AGREE = 3,         /* comparisons in a row */
    BALANCE_AGREE_MOST = 96,   /* after returns */
    BALANCE_QUIET = 200,       /* steps */
    BALANCE_GAIN = 3,          /* per cent */
    BALANCE_URGENT = 30,       /* per cent */
    BALANCE_PAUSE = 3,         /* steps after a change without a comparison */
    BALANCE_RETRY = 64,        /* steps without shards before the first attempt */
    BALANCE_RETRY_MOST = 4096, /* and before later ones, at most */
    BALANCE_WINDOW = 8,        /* a boundary is at most so many shards from the ideal one */
};

/* --- one rank --- */

/* Times of the last steps. Zeroed before the first one. */
typedef struct balance_times {
    int64_t ns[BALANCE_SAMPLES];
    int n; /* all so far */
} balance_times;

/* Numbers below 1, which no step takes, are left out. */
void balance_times_add(balance_times *t, int64_t ns);
/* The mean without the shortest and the longest third. 0: there is at most one time. */
int64_t balance_times_middle(const balance_times *t);

/* What a rank measures of itself. Zeroed before the first step. */
typedef struct balance_meter {
    balance_times shard;
    balance_times fixed;
    int64_t n_active; /* steps in a row with shards */
    int64_t n_idle;   /* steps in a row without */
    int64_t retry;    /* n_idle at which the rank asks for a shard; 0: BALANCE_RETRY */
} balance_meter;

/* After a step: the rank's own time for its n shards, and for the rest of the step, without waiting
 * for others. */
void balance_meter_add(balance_meter *m, int n, int64_t shards_ns, int64_t fixed_ns);

/* What ranks know of each other. */
typedef struct balance_speed {
    int64_t shard_ns; /* for one shard; 0: unknown. Of a rank without shards: it asks for one */
    int64_t fixed_ns; /* for the rest of a step */
    int64_t wait_ns;  /* of the last step: for gradients after its own were complete */
} balance_speed;

balance_speed balance_meter_speed(const balance_meter *m, int64_t wait_ns);

/* --- all ranks --- */

/* How gradients are added up. */
typedef enum balance_sum {
    BALANCE_BY_PIECES, /* of an aligned partition by one all-reduce, else by exchange (shards.h) */
    BALANCE_EXCHANGE,  /* always by exchange */
    BALANCE_ONE_SUM    /* always by one all-reduce: pieces do not matter */
} balance_sum;

typedef struct balancer {
    int shards;
    int ranks;
    int least; /* shards that each rank must have */
    balance_sum sum;
    int *starts;         /* the partition (shard_tree.h) */
    int *best;           /* the shortest one found by a comparison */
    int *previous;       /* the one before the last change */
    balance_times waits; /* the shortest wait of a rank in a step, in the present partition */
    int64_t unit_ns[2];  /* of the exchange: by one all-reduce, of pieces; -1: not measured */
    int64_t n_steps;
    int64_t n_changes;
    int64_t changed_at;   /* the number of the step */
    int64_t *wait_total;  /* of each rank */
    int pause;            /* steps until the next comparison */
    int n_better;         /* comparisons in a row */
    int agree;            /* so many are needed */
    balance_speed *known; /* of each rank, as they are planned with */
    struct balance_cell *cells;
} balancer;

/* Memory for so many ranks, and the equal partition. LS_ENOMEM. */
LS_MUST_USE ls_status balancer_open(balancer *b, int shards, int ranks, int least, balance_sum sum);
void balancer_close(balancer *b); /* also one that is zeroed or half open */

/* Before the first step: the partition for these speeds. Unknown ones are taken as the slowest
 * known one; the equal partition if none is known. */
void balancer_begin(balancer *b, const balance_speed *speeds);

/* After a step, with what each rank has measured. True: b->starts has changed. */
bool balancer_step(balancer *b, const balance_speed *speeds);

/* The time of a step in a partition. */
int64_t balancer_predict(const balancer *b, const balance_speed *speeds, const int *starts);

#endif
