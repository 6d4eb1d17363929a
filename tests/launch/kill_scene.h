/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kill_scene.h - a job of two nodes in a phase of its life, and the processes that it consists of:
 * node 0 has rank 0, node 1 ranks 1 and 2.
 *
 * Each phase is held by something that a test can see (a file that is not there yet, a rank that
 * does not end), so that nothing depends on how quick the machine is; but for SCENE_DRAINING, which
 * is 700 ms long, and SCENE_AGAIN, which is a moment.
 */
#ifndef TESTS_LAUNCH_KILL_SCENE_H
#define TESTS_LAUNCH_KILL_SCENE_H

#include "launch/job.h"

typedef enum scene_way {
    SCENE_SSH,      /* from node 0 by ssh */
    SCENE_OBSERVED, /* from a machine without ranks by ssh */
    SCENE_BY_HAND   /* each by its own command */
} scene_way;

typedef enum scene_phase {
    SCENE_REQUEST,  /* node 1 has no launch request yet */
    SCENE_SENDING,  /* ... nor an agent */
    SCENE_WAITING,  /* for a third node */
    SCENE_NETWORKS, /* are tried; a third node does not answer */
    SCENE_JOINING,  /* ranks are in ls_init(), but for rank 2 */
    SCENE_TRAINING,
    SCENE_ENDING,   /* SIGTERM has come, and no rank ends by itself */
    SCENE_DRAINING, /* rank 2 has failed, the others are being ended, a restart will follow */
    SCENE_AGAIN,    /* it has been announced */
    SCENE_PHASES
} scene_phase;

typedef enum scene_part {
    PART_HEAD, /* the launcher that has the head */
    PART_SSH,
    PART_AGENT, /* node 1's */
    PART_NEAR_SHIM,
    PART_REMOTE_SHIM,
    PART_NEAR_RANK,
    PART_REMOTE_RANK,
    PART_REMOTE_CHILD, /* of a rank of node 1 */
    PART_NEAR_GUARDIAN,
    PART_REMOTE_GUARDIAN
} scene_part;

typedef struct scene {
    scene_way way;
    scene_phase phase;
    job *head;
    job *agent; /* node 1's launcher, if by hand; or NULL */
    job *third; /* started by scene_release() */
    char folder[64];
    char port[16];
    char key_env[96];
} scene;

/* Starts the job; its processes are there, but the phase has not begun. LATE_MS: until a late
 * rank is named, 0: as usual. */
void scene_start(scene *s, scene_way way, scene_phase phase, int late_ms);
pid_t scene_find(const scene *s, scene_part part); /* waits for it */
void scene_enter(scene *s);                        /* the phase begins */

/* Lets what holds the phase go. */
void scene_release(scene *s);

/* Waits until nothing is left of the job: processes, sockets, files. */
void scene_expect_gone(const scene *s);
void scene_clean_up(scene *s);

#define SCENE_GRACE_MS 3000

#endif
