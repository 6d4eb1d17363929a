/* SPDX-License-Identifier: Apache-2.0 */
/* scene.h - the failures that ranks report, in memory that the test shares with them. */
#ifndef TESTS_COMM_SCENE_H
#define TESTS_COMM_SCENE_H

#include "base/unit.h"
#include "harness/ranks.h"

#include <stdatomic.h>

#define SCENE_TRANSPORTS 2

/* What one rank met. */
typedef struct witness {
    ls_status status;
    char text[LS_ERROR_BYTES];
    int64_t failed_ms;
    atomic_int n_done;
} witness;

typedef struct scene {
    witness ranks[LS_TEST_RANKS_MAX];
    atomic_int pids[LS_TEST_RANKS_MAX]; /* of ranks that are at work */
    _Atomic int64_t event_ms;           /* when the fault happened */
} scene;

extern const char *const scene_transports[SCENE_TRANSPORTS];

scene *scene_create(void); /* all 0, shared with forked ranks */
void scene_destroy(scene *s);

/* In a rank: notes how a call ended; LS_OK when it failed, as it had to. */
ls_status scene_note(scene *s, int rank, ls_status st);

bool scene_run(scene *s, int n, ls_test_body body, const char *transport);

/* Until all ranks have put down their pids. */
void scene_wait_for_all(const scene *s, int n);

/* The rank's call failed with this status and a text with this part; within 1 s of the event. */
void scene_assert_failure(const scene *s, int rank, ls_status status, const char *part);
void scene_assert_in_time(const scene *s, int rank);

#endif
