/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rank_list.h - sets of ranks and of their streams: the values of -r, -t, --ranks and
 * --local-ranks-filter.
 */
#ifndef LS_LAUNCH_SPEC_RANK_LIST_H
#define LS_LAUNCH_SPEC_RANK_LIST_H

#include "base/status.h"

#include <stdbool.h>

#define RANK_LIST_MOST      128   /* parts */
#define RANK_LIST_RANK_MOST 65535 /* the highest number that a part may name */

#define LINE_FILTER_MOST 4096 /* bytes of --duplicate-stdout-filters and its kin */

/* Bits, as torchrun numbers them. */
typedef enum rank_streams {
    RANK_STREAMS_NONE = 0,
    RANK_STDOUT = 1,
    RANK_STDERR = 2,
    RANK_STREAMS_BOTH = 3
} rank_streams;

typedef struct rank_part {
    int first;
    int last;
    unsigned streams;
} rank_part;

/* Zero-initialised: no streams of any rank. */
typedef struct rank_list {
    unsigned otherwise; /* streams of ranks that no part names */
    int n;
    rank_part parts[RANK_LIST_MOST]; /* a later one wins */
} rank_list;

/* "3" (for all ranks) or "0:3,1:1" or "0-7:1"; `what` names the value in the error text. Ranks
 * beyond those of the job are allowed, as nodes may differ in size. */
LS_MUST_USE ls_status rank_list_parse_streams(const char *text, const char *what, rank_list *out);

/* "0,3" or "0-3,7": both streams of these, none of others. */
LS_MUST_USE ls_status rank_list_parse_ranks(const char *text, const char *what, rank_list *out);

unsigned rank_list_streams(const rank_list *list, int rank);
bool rank_list_is_empty(const rank_list *list); /* no streams of any rank */

#endif
