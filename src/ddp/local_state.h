/* SPDX-License-Identifier: Apache-2.0 */
/* local_state.h - the members of an ls_local_sgd, for local_sgd.c and local_elastic.c. */
#ifndef LS_DDP_LOCAL_STATE_H
#define LS_DDP_LOCAL_STATE_H

#include "ddp/local_copy.h"
#include "ddp/local_mean.h"
#include "ddp/local_ranks.h"
#include "ddp/local_sgd.h"
#include "ddp/shard_tree.h"

enum { NO_ISLAND = -1, NO_FRAGMENT = -1, COPY_TAG = 1 };

typedef struct local_param {
    const char *name;
    ls_tensor *live;
    size_t in_copy; /* offset */
    size_t count;
    int fragment;
    size_t at;       /* in the numbers of its fragment */
    ls_tensor *mean; /* the last one */
    ls_tensor *momentum;
    char *momentum_name;
    ls_tensor *difference; /* with a delay: the mean that has come and is not applied yet */
    char *difference_name;
} local_param;

/* A mean that has been started and not applied; as it is in files. */
typedef struct local_flight {
    int64_t fragments; /* of the parameters */
    int64_t fragment;  /* NO_FRAGMENT: none, and the rest means nothing */
    int64_t started;   /* after this step */
    int64_t due;       /* is applied after this step */
} local_flight;

/* Copies of the islands of this rank and of those of the rank before it. */
typedef struct local_snapshot {
    local_copy **copies; /* of each island; NULL: none here */
} local_snapshot;

struct ls_local_sgd {
    ls_comm *comm;
    ls_model *model;
    ls_local_sgd_options options; /* resolved */
    local_ranks ranks;            /* of islands of several ranks */
    int *starts;      /* the partition of the islands among those that exchange (shard_tree.h) */
    shard_node range; /* of this rank */
    int64_t step;     /* complete */

    local_param *params; /* that are not frozen */
    int n_params;
    int n_frozen;
    size_t *fragment_counts; /* of elements */
    ls_named *outer;         /* momentums; with a delay also differences and the flight */
    int n_outer;
    local_flight flight;
    bool is_awaited;          /* the flight's mean has not come yet */
    local_exchange *exchange; /* then, on ranks that exchange differences; NULL otherwise */

    local_layout layout;
    local_copy **copies; /* of each island; NULL: none here */
    int current;         /* NO_ISLAND: the model is shown, or nothing has been entered */
    bool is_shown;
    float **values; /* of each island of this rank: differences of a fragment */

    // local_elastic.c
    local_snapshot last; /* what ranks return to after a loss */
    local_snapshot next; /* under way */
    int64_t n_snapshots;
    float *outer_then; /* of the last one: means, momentums, with a delay differences */
    local_flight flight_then;
    ls_named outer_items[2];
};

/* The islands of this rank in its group: LS_EINVAL when there are fewer than ranks that exchange
 * differences. */
LS_MUST_USE ls_status local_divide_islands(ls_local_sgd *l);
/* What depends on the group. */
void local_leave_group(ls_local_sgd *l);

bool local_is_own(const ls_local_sgd *l, int island);
/* The rank that has the island, or of several the first one. */
int local_rank_of(const ls_local_sgd *l, int island);

/* A copy of an island goes from one rank to another, whose own stays as it was, or NULL, until the
 * new one has come as a whole. */
LS_MUST_USE ls_status local_send_copy(const ls_local_sgd *l, local_copy **copy, int from, int to);

/* Waits for the mean that has been started, if one has, which is applied when it is due. */
LS_MUST_USE ls_status local_flight_wait(ls_local_sgd *l);

/* local_elastic.c */
void local_snapshots_close(ls_local_sgd *l);

#endif
