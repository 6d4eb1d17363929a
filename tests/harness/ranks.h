/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ranks.h - runs one function as several ranks of a job, as processes or as threads, with a hub as
 * the launcher serves it.
 *
 * A body returns LS_OK, or a failure whose text is shown; LS_CHECK() makes one from a condition.
 * Ranks that still run at the deadline are killed. The output of the ranks is shown when one did
 * not end as the test expects.
 */
#ifndef TESTS_HARNESS_RANKS_H
#define TESTS_HARNESS_RANKS_H

#include <lockstep/comm.h>

#include "base/status.h"
#include "comm/comm.h"

#include <stdbool.h>
#include <sys/types.h>

#define LS_TEST_RANKS_MAX 128

typedef struct ls_test_rank {
    int rank;
    int size;
    const struct ls_test_job *job;
    const comm_env *env; /* the environment of this rank */
} ls_test_rank;

typedef ls_status (*ls_test_body)(const ls_test_rank *self, void *arg);

/* How the ranks find each other. */
typedef enum ls_test_rendezvous {
    /* The harness serves the hub and reports ends of ranks, as lockstep run does. */
    LS_TEST_AT_STARTER = 0,
    /* One host; RANK, WORLD_SIZE and so on as torchrun sets them; rank 0 serves. */
    LS_TEST_AT_RANK_0,
    LS_TEST_AT_MASTER /* RANK and WORLD_SIZE only; MASTER_ADDR and MASTER_PORT are in `env` */
} ls_test_rendezvous;

typedef struct ls_test_job {
    int n;
    ls_test_body body;
    void *arg; /* a copy for each process, unless it is ls_test_shared() */
    ls_test_rendezvous rendezvous;
    const char *transport;   /* NULL: LOCKSTEP_TRANSPORT, else auto */
    const char *env[8];      /* "NAME=VALUE", processes only */
    int64_t timeout_ms;      /* of each operation; 0: the default */
    int64_t join_timeout_ms; /* 0 = the default */
    int64_t deadline_ms;     /* of the whole job; 0 = 60 s */
    const int *late_lines;   /* receives the hub's wait reports (lines.h); NULL: logged */
    uint64_t *hub_frames;    /* gets the number of frames from the ranks to the hub; may be NULL */
} ls_test_job;

typedef struct ls_test_outcome {
    bool was_killed; /* at the deadline */
    int signal;      /* that ended it; 0 = none */
    int code;        /* exit code; 0 for a body that returned LS_OK, 1 for a failure */
    int64_t end_ms;  /* ls_now_ms() at its end */
    char text[4096]; /* the end of its output */
} ls_test_outcome;

/* Forks n ranks and waits for all. outcomes (n entries) may be NULL. True when every body returned
 * LS_OK; otherwise their last lines are printed, unless outcomes are requested. The caller must
 * have one thread. */
bool ls_test_ranks(const ls_test_job *job, ls_test_outcome *outcomes);

/* The same with threads of this process; bodies join through ls_test_init() only. */
bool ls_test_threads(const ls_test_job *job);

/* Threads when LS_TEST_THREADS is set in the environment, otherwise processes. */
bool ls_test_run(const ls_test_job *job);

/* Joins as this rank, with the job's transport and timeouts. */
LS_MUST_USE ls_status ls_test_init(const ls_test_rank *self, ls_comm **out);

/* Zeroed memory that forked ranks share; freed with the process. */
void *ls_test_shared(size_t bytes);

/* A number from the environment, for LS_TEST_ROUNDS and the like. */
int ls_test_number(const char *name, int otherwise);

/* Ends the body with a failure at this place; never 0. */
ls_status ls_test_failed(const char *file, int line, const char *expr);
#define LS_CHECK(expr)                                                                             \
    do {                                                                                           \
        if (!(expr))                                                                               \
            return ls_test_failed(__FILE__, __LINE__, #expr);                                      \
    } while (0)

#endif
