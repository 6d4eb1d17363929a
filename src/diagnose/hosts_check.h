/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hosts_check.h - several machines looked at together, before a job: what is wrong with each, whether each can be started and reached, how
 * fast, whose clock is off, what differs between them.
 *
 * Agents are started as for a job (starter.h), but run no ranks: each looks at its machine (check.h) and tries the ways to all others
 * as nodes of a job do (net_probe.h). All they say comes through their ssh or srun, so that it is heard even where nothing else works.
 *
 *     hosts_check_run()     starts, asks and gathers: everything that waits
 *     hosts_check_judge()   pure: from what was gathered to findings about hosts together, paths, and the network that would be taken
 *     hosts_check_to_text(), hosts_check_to_json()
 */
#ifndef LS_DIAGNOSE_SURVEY_H
#define LS_DIAGNOSE_SURVEY_H

#include "diagnose/check.h"
#include "launch/launch.h"
#include "launch/network/net_choice.h"
#include "launch/network/clock_offset.h"
#include "diagnose/hosts_check_messages.h"

#define HOSTS_CHECK_HOSTS_MOST 1024
#define HOSTS_CHECK_MEASURED_MOST                                                                  \
    16 /* up to so many hosts every pair's bandwidth is measured, beyond that neighbours' only */
#define HOSTS_CHECK_APART_NS INT64_C(500000000) /* between clocks, from which on it is a warning */

typedef struct hosts_check_options {
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
} hosts_check_options;

typedef struct hosts_check_host {
    const char *name; /* borrowed from the list of hosts */
    bool is_here;     /* the starting machine */
    bool has_come;    /* its agent has offered addresses, and told what came of its tries */
    bool has_facts;
    hosts_check_facts facts;
    clock_offset clock;
    net_offer offer;
    net_report
        report; /* peers are numbers of hosts; hosts_check.n is the starting machine, if it is none of them */
    findings found;
} hosts_check_host;

/* The way from one host to another. */
typedef struct hosts_check_path {
    bool is_local;       /* both are on one machine */
    net_outcome outcome; /* NET_OK: it works, at the best address; else the worst that was met */
    int address;         /* in the other's offer; -1: none */
    bool is_chosen;      /* that is the network that would be taken */
    uint32_t round_trip_us;
    uint64_t bytes_per_s; /* 0: not measured */
} hosts_check_path;

typedef struct hosts_check {
    hosts_check_host *hosts;
    int n;
    start_way way;
    int64_t clock_limit_ns; /* 0: HOSTS_CHECK_APART_NS */
    bool has_start; /* the starting machine is none of the hosts, and can be called there: */
    net_offer start;
    const char *filter; /* --net */

    /* By hosts_check_judge(). */
    findings common;         /* about no host in particular */
    hosts_check_path *paths; /* [from * n + to] */
    net_pick *picks;         /* of each host; NULL: there is no network for those that have come */
    text_buf matrix;         /* then: all that was tried */
} hosts_check;

/* Zero-initialises *out and fills it. Hosts that cannot be started, or are lost, are findings; a failing status means that nothing could
 * be asked at all. Needs a process with one thread. */
LS_MUST_USE ls_status hosts_check_run(const hosts_check_options *opt, hosts_check *out);

/* Once, after that. LS_ENOMEM, LS_EPROTO: reports that fit no offer. */
LS_MUST_USE ls_status hosts_check_judge(hosts_check *s);
void hosts_check_free(hosts_check *s);

finding_severity hosts_check_worst(const hosts_check *s);

/* Findings by the hosts that have them, those of several only once; then the table of paths. */
void hosts_check_to_text(const hosts_check *s, finding_severity least, text_buf *out);

/* {"hosts": [..], "findings": [..], "paths": [..], "network": [..]}; docs/checking.md has the members. */
void hosts_check_to_json(const hosts_check *s, text_buf *out);

#endif
