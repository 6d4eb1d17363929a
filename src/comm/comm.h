/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm.h - what other layers may know of process groups besides <lockstep/comm.h>.
 */
#ifndef LS_COMM_COMM_H
#define LS_COMM_COMM_H

#include <lockstep/comm.h>

/* Names the next operation of this group ("bucket 3/7") in stamps, late reports and errors;
 * otherwise they show the call site. At most 39 bytes are kept. */
void comm_label(ls_comm *comm, const char *label);

/* ls_all_reduce() of LS_AVG in place, divided by `divisor` (not 0, the same on all ranks) instead
 * of the group's size. */
LS_MUST_USE ls_status comm_average(ls_comm *comm, void *data, size_t count, ls_dtype type,
                                   double divisor, ls_work **out);

/* Notes in the flight recorder what this rank did beside its operations ("backward"), when it is
 * over; ls_now_ns() at its start and end. */
void comm_phase(ls_comm *comm, const char *name, int64_t start_ns, int64_t end_ns);

/* Notes what this rank must not exit in the middle of ("saving step 40 to FILE"), until the next
 * call; NULL: nothing. Lockstep's launcher takes an exit in between for a failure, also with code
 * 0. */
void comm_activity(ls_comm *comm, const char *text);

/* Where variables come from, so that tests give their own. Returns NULL for what is not set. */
typedef struct comm_env {
    const char *(*get)(void *self, const char *name);
    void *self;
} comm_env;

/* ls_init() with variables of the caller's: several ranks can then live in one process, one thread
 * each. */
LS_MUST_USE ls_status comm_init_in(const comm_env *env, const ls_init_options *opt, ls_comm **out);

#endif
