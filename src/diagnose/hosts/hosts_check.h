/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hosts_check.h - checks several hosts together before a job: the problems of each host, whether
 * agents start there, paths and bandwidths between hosts, clocks, differences of software.
 *
 * Agents are started as for a job (starter.h) but run no ranks: each checks its machine (check.h)
 * and tests the networks to all others as nodes of a job do (net_probe.h). All messages pass
 * through ssh or srun, so results arrive even where no other connection works.
 *
 *     hosts_check_run()      starts, asks and gathers; the only part that waits
 *     hosts_check_judge()    pure: from facts to findings, paths and the selected network
 *     hosts_check_to_text(), hosts_check_to_json()
 *
 * diagnose/hosts/: checks of several machines, by agents on them. The tool calls it.
 */
#ifndef LS_DIAGNOSE_HOSTS_HOSTS_CHECK_H
#define LS_DIAGNOSE_HOSTS_HOSTS_CHECK_H

#include "diagnose/checks/check.h"
#include "diagnose/hosts/hosts_check_messages.h"
#include "launch/launch.h"
#include "launch/network/clock_offset.h"
#include "launch/network/net_choice.h"

#define HOSTS_CHECK_HOSTS_MOST 1024

/*
 * The bandwidth of every pair is measured up to this many hosts; beyond, that of ring neighbours.
 */
#define HOSTS_CHECK_MEASURED_MOST 16

/* A larger offset between clocks is a warning. */
#define HOSTS_CHECK_CLOCK_LIMIT_NS INT64_C(500000000)

typedef struct hosts_check_options {
    /*
     * The hosts and how agents are started; a host's slots are the ranks that limits are checked
     * for.
     */
    const agent_hosts_spec *hosts;
    const net_key *key;
    const char *net; /* as of a job */
    net_ports ports;
    check_options checks; /* n_ranks is ignored */
    bool is_quick;
    void *self;
    /* Prints a progress line, or a line of a host's login shell. */
    void (*note)(void *self, const char *line);
} hosts_check_options;

typedef struct hosts_check_host {
    const char *name;  /* borrowed from the list of hosts */
    bool is_here;      /* the starting machine */
    bool has_answered; /* with its addresses and its network report */
    bool has_facts;
    hosts_check_facts facts;
    clock_offset clock;
    net_offer offer;
    net_report report; /* peers are indices of hosts; n: a starting machine that is no host */
    findings found;
} hosts_check_host;

/* The path from one host to another. */
typedef struct hosts_check_path {
    bool is_local;       /* both hosts are one machine */
    net_outcome outcome; /* NET_OK: the best address works; else its failure */
    int address;         /* in the destination's offer; -1: none */
    bool is_chosen;      /* the address is of the selected network */
    uint32_t round_trip_us;
    uint64_t bytes_per_s; /* 0: not measured */
} hosts_check_path;

typedef struct hosts_check {
    hosts_check_host *hosts;
    int n;
    start_way way;
    int64_t clock_limit_ns; /* 0: HOSTS_CHECK_CLOCK_LIMIT_NS */
    bool has_start;         /* the starting machine is no host, but listens at `start` */
    net_offer start;
    const char *filter; /* --net */

    /* Set by hosts_check_judge(). */
    findings common;         /* of all hosts together */
    hosts_check_path *paths; /* [from * n + to] */
    net_pick *picks;         /* of each host; NULL when no network connects all that answered */
    text_buf matrix;         /* without picks: all tests of addresses */
} hosts_check;

/*
 * Fills *out. Hosts that do not start or are lost are findings; a failing status means that no host
 * could be asked. Forks: needs a process with one thread.
 */
LS_MUST_USE ls_status hosts_check_run(const hosts_check_options *opt, hosts_check *out);

/* Call once, after hosts_check_run(). LS_ENOMEM; LS_EPROTO: a report does not match the offers. */
LS_MUST_USE ls_status hosts_check_judge(hosts_check *s);
void hosts_check_free(hosts_check *s);

finding_severity hosts_check_worst(const hosts_check *s);

/* Appends the findings by host, those of several hosts once, then the table of paths. */
void hosts_check_to_text(const hosts_check *s, finding_severity least, text_buf *out);

/* {"hosts": [..], "findings": [..], "paths": [..], "network": [..]}: see docs/checking.md. */
void hosts_check_to_json(const hosts_check *s, text_buf *out);

/*
 * The part of an agent: checks its machine and answers requests until stdin ends, then returns
 * LS_OK. The caller reports a failure as REMOTE_FAILED. `sources`: see check.h.
 */
LS_MUST_USE ls_status hosts_check_agent_run(const hosts_check_request *task,
                                            const agent_remote *remote,
                                            const check_sources *sources);

#endif
