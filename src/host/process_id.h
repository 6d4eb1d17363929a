/* SPDX-License-Identifier: Apache-2.0 */
/*
 * process_id.h - identifies a process for as long as the machine runs: the kernel reuses pids, but
 * not with the same start time. Also reads /proc/PID/stat.
 *
 * `root` is the prefix of "/proc": "" for this machine, a folder in tests.
 */
#ifndef LS_HOST_PROCESS_ID_H
#define LS_HOST_PROCESS_ID_H

#include "base/status.h"

#include <stdbool.h>
#include <sys/types.h>

#define PROCESS_ID_TEXT_MAX 64 /* longest text form, terminator included */

typedef struct process_id {
    pid_t pid;
    uint64_t start;  /* clock ticks since the machine's start */
    uint64_t pid_ns; /* inode of the pid namespace */
} process_id;

/* The identity of this process. LS_ESYSTEM where /proc is missing, or is that of another
 * namespace. */
LS_MUST_USE ls_status process_id_self(process_id *out);

/* "3:4711": the process with pid 3 in its own namespace has pid 4711 outside. Its children inherit
 * the variable, which does not apply to them. */
#define PROCESS_OUTER_PID_ENV "LOCKSTEP_PID"

/* The pid of this process outside of its namespace, for messages. */
pid_t process_outer_pid(void);

/* "4711.123456.4026531836" */
const char *process_id_text(char *buf, size_t n, const process_id *id);
bool process_id_parse(const char *text, process_id *out); /* accepts only the whole text */
bool process_id_equal(const process_id *a, const process_id *b);

/* The value of the line NAME of ROOT/proc/PID/status ("self": this process), which also has the
 * groups of the user, of which there may be thousands. False where there is none, or no memory. */
bool process_status_line(const char *root, const char *pid, const char *name, char *buf, size_t n);

/* The pid namespace of ROOT/proc. LS_ESYSTEM when the caller's pid differs between that namespace
 * and its own: then pids of this /proc must not be used for signals. */
LS_MUST_USE ls_status process_namespace(const char *root, uint64_t *out);

typedef enum process_liveness {
    PROCESS_DEAD,           /* proven */
    PROCESS_ALIVE,          /* or not proven to be dead */
    PROCESS_OTHER_NAMESPACE /* in another pid namespace: unknown */
} process_liveness;

/* `pid_ns` is the namespace of ROOT/proc. */
process_liveness process_id_liveness(const char *root, uint64_t pid_ns, const process_id *id);

/* --- /proc/PID/stat --- */

typedef struct process_stat {
    char name[64]; /* of the program, cut by the kernel; printable */
    char state;    /* R S D T Z ... */
    pid_t parent;
    int n_threads;
    uint64_t cpu_ticks; /* processor time in user and kernel mode */
    uint64_t start;
} process_stat;

bool process_stat_parse(const char *stat, process_stat *out);
/* False when there is no such process. */
bool process_stat_read(const char *root, pid_t pid, process_stat *out);
/* Exited, and not waited for yet. A process whose first thread has exited still runs until its last
 * one exits. */
bool process_stat_has_exited(const process_stat *facts);

/* The state letter of a process, 0 when there is no such process. */
char process_state(pid_t pid);
/* "running", "stopped", "waiting for I/O", "asleep", "dead" (0 and all other letters). */
const char *process_state_text(char state);

int64_t process_uptime(const char *root); /* seconds since the machine's start; 0 = unknown */
int64_t process_age(int64_t uptime_s, const process_stat *facts); /* seconds */

/* "42 s", "12 min", "3 h", "5 days" */
const char *process_age_text(char *buf, size_t n, int64_t seconds);
/* "bob", or "user 1001" for a uid without a name. */
const char *process_user_text(char *buf, size_t n, uid_t uid);

/* The command line, arguments separated by spaces, printable and cut to n; "" when it cannot be
 * read. */
void process_command(const char *root, pid_t pid, char *buf, size_t n);

#endif
