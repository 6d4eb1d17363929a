/* SPDX-License-Identifier: Apache-2.0 */
/*
 * levels.h - the levels of a team: all its members, those of one socket, those of one core complex
 * (cores that share their last cache); and which member works on which bytes of a vector at each
 * level, so that a cache line crosses a level as seldom as possible.
 *
 * Level 0 is the team, the last one the innermost. A level is left out where it is not known or
 * gains nothing, so there may be level 0 only. At each level the members of a group divide the
 * vector: each has one interval (levels_interval()), and every byte one owner in each group.
 *
 *   up      for a reduction, from the innermost level to level 0: a member adds up its interval of
 *           what its group has: of the members' contributions, above the innermost level of the
 *           sums of the groups inside its group. A group's sum is one partial result for each
 *           maximal subtree of the aligned tree (layout.h) inside it: so no level changes the
 *           order of the additions.
 *   down    from level 1 to the innermost: a member copies its interval from its owners one level
 *           further out, unless it has the bytes already.
 *   take    each member copies everything from the owners in its innermost group.
 *
 * So a byte of the result crosses into a group once, and of a sum once for each of its subtrees.
 * Pure, but for the memory.
 */
#ifndef LS_COMM_BACKENDS_NATIVE_TEAM_LEVELS_H
#define LS_COMM_BACKENDS_NATIVE_TEAM_LEVELS_H

#include "comm/backends/native/plan/layout.h"
#include "host/topology.h"

#include <stddef.h>

#define LEVELS_MAX   3
#define LEVELS_ALIGN 64 /* intervals are whole cache lines */

typedef struct levels {
    int n;
    int depth;                   /* number of levels, at least 1 */
    plan_layout at[LEVELS_MAX];  /* its "hosts" are the groups of the level */
    int *index[LEVELS_MAX];      /* of a member in its group */
    int *tree_index[LEVELS_MAX]; /* of a subtree among those of its group */
    int *outer[LEVELS_MAX];      /* of a group: the group that it is in, one level further out */
    int *n_inner[LEVELS_MAX];    /* of a group: groups inside it; at the innermost level members */
    int *n_trees[LEVELS_MAX];    /* of a group */
    int max_trees;               /* of all groups but the team */
} levels;

/* Where a step reads from: bytes of a member's contribution or partial result. */
typedef struct levels_source {
    int member;
    int tree;  /* its index among the partial results of the member; 0 for contributions */
    int first; /* the ranks [first, first + n_ranks) that it is the sum of */
    int n_ranks;
} levels_source;

/* places[i]: of member i. levels_free() frees it. */
LS_MUST_USE ls_status levels_make(int n, const topology_place *places, levels *out);
void levels_free(levels *v);

int levels_group(const levels *v, int level, int member);
int levels_leader(const levels *v, int level, int group); /* its lowest member */

/* What member `member` has of a vector of `bytes` at this level: [*at, *end). */
void levels_interval(const levels *v, int level, int member, size_t bytes, size_t *at, size_t *end);
/* The member of the group that has byte `at`; *end: its interval ends there. */
int levels_owner(const levels *v, int level, int group, size_t bytes, size_t at, size_t *end);

/* The next part [at, *end) of the member's interval for which the sources stay the same. Fills in
 * `sources`, at most n, in rank order; returns their number. */
int levels_up(const levels *v, int level, int member, size_t bytes, size_t at,
              levels_source *sources, size_t *end);

/* The next part [at, *end) of what the member reads in the step down to `level` (depth: the take);
 * returns its owner, the member itself where it has the bytes. root: the member that has
 * everything at first, -1: each owner at level 0 has its interval. */
int levels_down(const levels *v, int level, int member, int root, size_t bytes, size_t at,
                size_t *end);

/*
 * The buffer of a member: a vector of `bytes`, then for each level but the first its partial
 * results, one for each subtree of its group, `widening` times as wide as the vector's elements.
 */
size_t levels_partial_at(const levels *v, int level, int member, int tree, size_t bytes,
                         int widening, size_t at);
/* The longest vector for which every member's buffer fits into `capacity`: n * 4 * LEVELS_ALIGN at
 * least. */
size_t levels_fit(const levels *v, size_t capacity, int widening);

#endif
