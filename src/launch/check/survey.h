/* SPDX-License-Identifier: Apache-2.0 */
/*
 * survey.h - several machines looked at together, before a job: what is wrong with each, whether each can be started and reached, how
 * fast, whose clock is off, what differs between them.
 *
 * Agents are started as for a job (starter.h), but run no ranks: each looks at its machine (check.h) and tries the ways to all others
 * as nodes of a job do (net_probe.h). All they say comes through their ssh or srun, so that it is heard even where nothing else works.
 *
 *     survey_run()     starts, asks and gathers: everything that waits
 *     survey_judge()   pure: from what was gathered to findings about hosts together, paths, and the network that would be taken
 *     survey_to_text(), survey_to_json()
 */
#ifndef LS_LAUNCH_SURVEY_H
#define LS_LAUNCH_SURVEY_H

#include "launch/check/check.h"
#include "launch/launch.h"
#include "launch/network/net_choice.h"
#include "launch/clock_offset.h"
#include "launch/check/survey_messages.h"

#define SURVEY_HOSTS_MOST 1024
#define SURVEY_MEASURED_MOST                                                                       \
    16 /* up to so many hosts every pair's bandwidth is measured, beyond that neighbours' only */
#define SURVEY_APART_NS INT64_C(500000000) /* between clocks, from which on it is a warning */

typedef struct survey_options {
    const agent_hosts_spec
        *hosts; /* which, and how they are started; slots are ranks to hold limits against */
    const net_key *key;
    const char *net; /* as of a job */
    net_ports ports;
    check_options checks; /* n_ranks does not count */
    bool is_quick;
    /* A line for a person who waits, or about what a login shell there prints. */
    void *self;
    void (*note)(void *self, const char *line);
} survey_options;

typedef struct survey_host {
    const char *name; /* borrowed from the list of hosts */
    bool is_here;     /* the starting machine */
    bool has_come;    /* its agent has offered addresses, and told what came of its tries */
    bool has_facts;
    survey_facts facts;
    clock_offset clock;
    net_offer offer;
    net_report
        report; /* peers are numbers of hosts; survey.n is the starting machine, if it is none of them */
    findings found;
} survey_host;

/* The way from one host to another. */
typedef struct survey_path {
    bool is_local;       /* both are on one machine */
    net_outcome outcome; /* NET_OK: it works, at the best address; else the worst that was met */
    int address;         /* in the other's offer; -1: none */
    bool is_chosen;      /* that is the network that would be taken */
    uint32_t round_trip_us;
    uint64_t bytes_per_s; /* 0: not measured */
} survey_path;

typedef struct survey {
    survey_host *hosts;
    int n;
    start_way way;
    int64_t clock_limit_ns; /* 0: SURVEY_APART_NS */
    bool has_start; /* the starting machine is none of the hosts, and can be called there: */
    net_offer start;
    const char *filter; /* --net */

    /* By survey_judge(). */
    findings common;    /* about no host in particular */
    survey_path *paths; /* [from * n + to] */
    net_pick *picks;    /* of each host; NULL: there is no network for those that have come */
    text_buf matrix;    /* then: all that was tried */
} survey;

/* Zero-initialises *out and fills it. Hosts that cannot be started, or are lost, are findings; a failing status means that nothing could
 * be asked at all. Needs a process with one thread. */
LS_MUST_USE ls_status survey_run(const survey_options *opt, survey *out);

/* Once, after that. LS_ENOMEM, LS_EPROTO: reports that fit no offer. */
LS_MUST_USE ls_status survey_judge(survey *s);
void survey_free(survey *s);

finding_severity survey_worst(const survey *s);

/* Findings by the hosts that have them, those of several only once; then the table of paths. */
void survey_to_text(const survey *s, finding_severity least, text_buf *out);

/* {"hosts": [..], "findings": [..], "paths": [..], "network": [..]}; docs/checking.md has the members. */
void survey_to_json(const survey *s, text_buf *out);

#endif
