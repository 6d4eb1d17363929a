/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hub_scene.h - a hub in its thread, and ranks as control connections of this process: what the
 * tests of a hub share.
 */
#ifndef TESTS_STORE_HUB_SCENE_H
#define TESTS_STORE_HUB_SCENE_H

#include "base/unit.h"

#include "base/thread.h"
#include "hub/control.h"
#include "hub/hub.h"

#define SOON 20000 /* ms: much more than any step takes */
#define JOB  "0123456789abcdef"

/* The events of the hub; written on the hub's thread under the lock. */
typedef struct seen_events {
    ls_mutex lock;
    int n_joined;
    int n_left;
    int n_lost;
    int n_failed;
    int n_late;
    int64_t late_ms[8];
    job_cause failed;
    char late[2048];
} seen_events;

extern seen_events seen;

/* --- the hub and its events; with the key and in the security mode of this run --- */
hub_options options(int world_size);
hub_thread *start_with(const hub_options *opt);
hub_thread *start(int world_size);
int count_of(const int *n); /* of seen */
void await_count(const int *n, int wanted);

/* --- ranks --- */
control_options joining(const hub_thread *t, int rank, int world_size);
control *join(const hub_thread *t, int rank, int world_size);
job_cause await_cause(control *c);
bool has_cause(control *c);

/* --- operations --- */
extern const int all_ranks[4];
op_stamp stamp_of(coll_kind kind, uint64_t sequence, uint64_t count, const char *site);
void waits(control *c, const op_stamp *s, int n_members);
/* control_waiting() by ranks 0 to n_members - 1; 0: all. */
ls_status report_wait(control *c, const op_stamp *s, uint64_t number, int n_members,
                      int64_t report_in_ms, int64_t waited_ms, uint64_t *ticket);

/* All tests, then some of them again in each of the modes that seal connections; gives main's
 * result. */
int run_hub_tests(const struct CMUnitTest *tests, size_t n, const struct CMUnitTest *sealed,
                  size_t n_sealed);

#endif
