/* SPDX-License-Identifier: Apache-2.0 */
/*
 * survey_run.h - the parts of a survey while it runs: one phase after the other (survey.c), and what hosts are told and tell
 * (survey_talk.c).
 */
#ifndef LS_LAUNCH_SURVEY_RUN_H
#define LS_LAUNCH_SURVEY_RUN_H

#include "launch/hosts/starter.h"
#include "launch/check/survey.h"
#include "launch/check/survey_node.h"

#define SURVEY_QUESTIONS 8 /* about a host's clock */

typedef enum survey_phase { SURVEY_LOOKING, SURVEY_TRYING, SURVEY_DONE } survey_phase;

typedef struct run_host {
    struct survey_run *run;
    int index;
    bool is_over; /* nothing more is expected of it */
    bool has_offer;
    bool has_checked;
    bool has_report;
    uint32_t n_asked; /* about its clock */
    int64_t asked_ns;
    poll_timer limit;
    char failure[LS_ERROR_BYTES]; /* its agent's own words */
} run_host;

struct survey_run {
    const survey_options *opt;
    survey *out;
    poller *loop;
    starter *starter;
    bool *skip;
    survey_node *own; /* this machine: one of the hosts, or only there to be called */
    run_host *list;
    int n;
    survey_phase phase;
    ls_status failure;
    poll_timer turn;
    poll_timer patience;
    int signal_fd;
    poll_watch *signal_watch;
    sigset_t old_mask;
};

/* --- survey.c --- */

/* Something has changed: perhaps the next phase begins. */
void survey_turn_soon(struct survey_run *run);

/* --- survey_talk.c --- */
const char *survey_name_of(const struct survey_run *run, int i);
bool survey_is_own(const struct survey_run *run, int i);

/* Nothing more comes from it: a finding. Not for the second time. */
void survey_lose_host(run_host *host, const char *why);
void survey_wait_for(run_host *host); /* a while, for the next thing that it says */
LS_MUST_USE ls_status survey_ask(struct survey_run *run, int i, survey_message type,
                                 const wire_writer *body);

/* The starter's events, and the words of this machine's own part; arg is the run. */
ls_status survey_take_message(void *arg, int i, const frame *f);
void survey_on_greeted(void *arg, int i, int cores);
void survey_on_ended(void *arg, int i, bool was_ordered, const char *why);
void survey_on_line(void *arg, int i, const char *text);
void survey_take_own(void *arg, survey_message type, const wire_writer *body);

#endif
