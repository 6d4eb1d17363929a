/* SPDX-License-Identifier: Apache-2.0 */
/*
 * job.h - a program under test (mostly `lockstep run`), what it prints, and the processes that
 * belong to it.
 *
 * Everything a job starts is known by a mark in its environment and by a memory descriptor that
 * forks and execs inherit. A test that fails shows what the job printed; job_clean_up(), the
 * teardown of every such test, kills whatever is left.
 */
#ifndef TESTS_LAUNCH_JOB_H
#define TESTS_LAUNCH_JOB_H

#include "base/unit.h"

#include "base/text.h"

#include <stdbool.h>
#include <sys/types.h>

#define JOB_MOST        6     /* at a time */
#define JOB_LONG_MS     60000 /* for what must happen at all, however busy the machine is */
#define JOB_GONE_MS     5000  /* within which nothing of a dead job may be left */
#define JOB_SOCKETS_MAX 256

typedef struct job {
    bool is_used;
    pid_t pid;
    char mark[64]; /* "NAME=VALUE" in its environment */
    int mark_fd;
    int out_fd; /* -1: ended */
    int err_fd;
    int in_fd; /* its stdin, -1: closed */
    text_buf out;
    text_buf err;
    bool has_ended;
    int status;
    uint64_t
        sockets[JOB_SOCKETS_MAX]; /* inodes of all its processes' sockets: job_note_sockets() */
    int n_sockets;
} job;

/* A list for job_start(): JOB_LIST("a", "b") */
#define JOB_LIST(...) ((const char *const[]){__VA_ARGS__, NULL})

/* Starts a program; `env` is a NULL-terminated list of NAME=VALUE to add, or "NAME" to remove,
 * or NULL. */
job *job_start(const char *const *argv, const char *const *env);

/* The same with a terminal behind stdin, stdout and stderr; what is printed comes as stdout. */
job *job_start_on_terminal(const char *const *argv, const char *const *env);

/* Waits for the end, reading what it prints. */
void job_await_end(job *j);
/* Waits until it has printed this text (0: to stdout, 1: to stderr). */
void job_await_text(job *j, int which, const char *text);
/* Reads what there is for a while. */
void job_read_output(job *j, int64_t ms);
void job_write(job *j, const char *text);
void job_close_stdin(job *j);

/* Waits for the end and compares: exit code, or 128 + signal. */
void job_expect_code(job *j, int code);
bool job_printed(const job *j, int which, const char *text);
#define job_expect(j, condition)                                                                   \
    do {                                                                                           \
        if (!(condition))                                                                          \
            job_fail(j, __FILE__, __LINE__, #condition);                                           \
    } while (0)
/* The launcher's report names this rank as the cause, and no other, with this text; nothing of
 * the job is left. */
void job_expect_failed_rank(job *j, int rank, const char *how);
/* The report counts so many others, failed or (where they took their time) stopped. */
bool job_counts_others(const job *j, int n);
void job_fail(const job *j, const char *file, int line, const char *condition)
    __attribute__((noreturn));

/* The number behind `word` in what it printed ("pid 4711"), waiting for it. */
long job_await_number(job *j, int which, const char *word);

/* --- its processes --- */

typedef enum job_part { JOB_AGENT, JOB_SHIM, JOB_GUARDIAN, JOB_RANK, JOB_INIT } job_part;

/* The n-th (by rank) process of the kind; waits until there is one. */
pid_t job_find(job *j, job_part part, int n);
/* One with this name (NULL: any), these words in its command line, and this in its environment;
 * 0: none. */
pid_t job_find_process(const job *j, const char *name, const char *words, const char *entry);
/* Waits until there is, or is not, a "sleep SECONDS" that carries no mark of the job; gives its
 * number. */
pid_t job_await_process(job *j, const char *seconds, bool is_there);
/* The one below this process with this name (NULL: any) that leads its process group, or does
 * not; the n-th by number; 0: none. */
pid_t job_find_below(const job *j, pid_t parent, const char *name, bool leads, int n);
int job_count_alive(const job *j); /* all of them, but no zombies */

bool job_has_connection(pid_t pid); /* by TCP */

/* Remembers the sockets that its processes have now. */
void job_note_sockets(job *j);
/* Waits until no process is alive and none of the remembered sockets exists, at most
 * JOB_GONE_MS. */
void job_expect_gone(job *j);

/* cmocka's teardown. */
int job_clean_up(void **state);

/* --- numbers --- */
int job_rounds(void); /* LS_TEST_ROUNDS, 3 */
/* Paths of the tool and of this build's programs, given by the build. */
#define JOB_TOOL  LOCKSTEP_TOOL
#define JOB_ACTOR LOCKSTEP_ACTOR

#endif
