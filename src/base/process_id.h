/* SPDX-License-Identifier: Apache-2.0 */
/*
 * process_id.h - which process is meant, for as long as the machine runs: the kernel gives a number again, but never with the
 * same start, and a process that is below an agent cannot outlive the agent's namespace of numbers.
 *
 * `root` is what stands before "/proc": "" for this machine, a folder in tests.
 */
#ifndef LS_BASE_PROCESS_ID_H
#define LS_BASE_PROCESS_ID_H

#include "base/status.h"

#include <stdbool.h>
#include <sys/types.h>

#define PROCESS_ID_TEXT_MAX 64 /* longest text form with its terminator */

typedef struct process_id {
    pid_t pid;
    uint64_t start;  /* clock ticks after the machine's own start */
    uint64_t pid_ns; /* inode of the namespace that the number is of */
} process_id;

/* Who this process is. LS_ESYSTEM where /proc is missing, or is that of another namespace. */
LS_MUST_USE ls_status process_id_self(process_id *out);

/* "3:4711" says that the process with number 3 is number 4711 to those outside of its namespace. What it starts inherits this, but is not
 * meant. */
#define PROCESS_OUTER_PID_ENV "LOCKSTEP_PID"

/* The number of this process to name to people: the one that they see. */
pid_t process_outer_pid(void);

/* "4711.123456.4026531836" */
const char *process_id_text(char *buf, size_t n, const process_id *id);
bool process_id_parse(const char *text, process_id *out); /* the whole text, and nothing else */
bool process_id_equal(const process_id *a, const process_id *b);

/* The namespace whose numbers ROOT/proc has. LS_ESYSTEM when the reader itself has another number in its own one: what is found
 * there under a number must not be sent a signal by that number. */
LS_MUST_USE ls_status process_namespace(const char *root, uint64_t *out);

typedef enum process_liveness {
    PROCESS_DEAD,           /* certainly */
    PROCESS_ALIVE,          /* or nothing proves that it does not */
    PROCESS_OTHER_NAMESPACE /* in another namespace, so nobody here can tell */
} process_liveness;

/* `pid_ns` is that of ROOT/proc. */
process_liveness process_id_liveness(const char *root, uint64_t pid_ns, const process_id *id);

/* --- /proc/PID/stat --- */

typedef struct process_stat {
    char name[64]; /* of the program, cut by the kernel; printable */
    char state;    /* R S D T Z ... */
    pid_t parent;
    int n_threads;
    uint64_t cpu_ticks; /* processor time, in user and kernel mode */
    uint64_t start;
} process_stat;

bool process_stat_parse(const char *stat, process_stat *out);
/* False when there is no such process. */
bool process_stat_read(const char *root, pid_t pid, process_stat *out);
/* Has ended, and only waits for its parent to look: the last thread of a process whose first has ended still runs. */
bool process_stat_has_exited(const process_stat *facts);

/* The state letter of a process, 0 when there is no such process. */
char process_state(pid_t pid);
/* "running", "stopped", "waiting for I/O", "asleep", "dead" (0 and all other letters). */
const char *process_state_text(char state);

int64_t process_uptime(const char *root); /* seconds since the machine's start; 0: unknown */
int64_t process_age(int64_t uptime_s, const process_stat *facts); /* seconds */

/* The command line, arguments separated by blanks, printable and cut to n; "" where there is none
 * or it cannot be read. */
void process_command(const char *root, pid_t pid, char *buf, size_t n);

#endif
