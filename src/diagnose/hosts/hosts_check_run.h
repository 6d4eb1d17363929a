/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hosts_check_run.h - the state of a running check of several hosts: its phases (hosts_check.c) and
 * its messages (hosts_check_exchange.c).
 */
#ifndef LS_DIAGNOSE_HOSTS_HOSTS_CHECK_RUN_H
#define LS_DIAGNOSE_HOSTS_HOSTS_CHECK_RUN_H

#include "diagnose/hosts/hosts_check.h"
#include "diagnose/hosts/hosts_check_node.h"
#include "launch/hosts/starter.h"

#define HOSTS_CHECK_QUESTIONS 8 /* that compare a host's clock */

typedef enum hosts_check_phase {
    HOSTS_CHECK_LOCAL,
    HOSTS_CHECK_NETWORK,
    HOSTS_CHECK_DONE
} hosts_check_phase;

typedef struct run_host {
    struct hosts_check_run *run;
    int index;
    bool is_over; /* done or lost: no message is expected */
    bool has_offer;
    bool has_checked;
    bool has_report;
    uint32_t n_asked; /* of HOSTS_CHECK_ASK_TIME */
    int64_t asked_ns;
    poll_timer limit;
    char failure[LS_ERROR_BYTES]; /* the text of REMOTE_FAILED */
} run_host;

struct hosts_check_run {
    const hosts_check_options *opt;
    hosts_check *out;
    poller *loop;
    starter *starter;
    bool *skip;
    hosts_check_node *own; /* this machine: one of the hosts, or passive */
    run_host *list;
    int n;
    hosts_check_phase phase;
    ls_status failure;
    poll_timer turn;
    poll_timer wait_report;
    int signal_fd;
    poll_watch *signal_watch;
    sigset_t old_mask;
};

/* --- hosts_check.c --- */

/* Schedules the test whether the next phase begins. */
void hosts_check_turn_soon(struct hosts_check_run *run);
/* Whether all has come that a host says before the network tests. */
bool hosts_check_has_checked(const run_host *host);

/* --- hosts_check_exchange.c --- */
const char *hosts_check_name_of(const struct hosts_check_run *run, int i);
bool hosts_check_is_own(const struct hosts_check_run *run, int i);

/* Adds the finding that the host is lost, once. */
void hosts_check_lose_host(run_host *host, const char *why);
/* Starts the time limit for the next message. */
void hosts_check_wait_for(run_host *host);
LS_MUST_USE ls_status hosts_check_ask(struct hosts_check_run *run, int i, hosts_check_message type,
                                      const wire_writer *body);

/* The starter's events, and messages of this machine's own part; arg is the run. */
ls_status hosts_check_take_message(void *arg, int i, const frame *f);
void hosts_check_on_greeted(void *arg, int i, int cores);
void hosts_check_on_ended(void *arg, int i, bool was_launched, const char *why);
void hosts_check_on_line(void *arg, int i, const char *text);
void hosts_check_take_own(void *arg, hosts_check_message type, const wire_writer *body);

#endif
