/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hosts_check_messages.h - what hosts are asked, and tell, when they are looked at together (hosts_check.h): frames between a starter and its agents,
 * in the place of a job's (launch_request.h).
 *
 *     starter -> agent   HOSTS_CHECK_ORDERS; nothing more before its offer has come
 *     agent -> starter   HOSTS_CHECK_OFFER; HOSTS_CHECK_FACTS and HOSTS_CHECK_FINDING as they become known, HOSTS_CHECK_CHECKED after the last of them
 *     starter -> agent   HOSTS_CHECK_ASK_TIME a few times, and once HOSTS_CHECK_TRY
 *     agent -> starter   an answer to each: HOSTS_CHECK_TIME, HOSTS_CHECK_TRIED
 *
 * Nothing a host says is trusted further than its ssh.
 */
#ifndef LS_DIAGNOSE_SURVEY_MESSAGES_H
#define LS_DIAGNOSE_SURVEY_MESSAGES_H

#include "diagnose/finding.h"
#include "launch/network/net_choice.h"
#include "launch/hosts/launch_request.h"

#define HOSTS_CHECK_VERSION      1
#define HOSTS_CHECK_FINDINGS_MAX 4096 /* of one host */

/* The numbers go on where remote_message ends. */
typedef enum hosts_check_message {
    HOSTS_CHECK_ORDERS = 2, /* hosts_check_orders */
    HOSTS_CHECK_TRY,        /* n u32, n of net_peer */
    HOSTS_CHECK_ASK_TIME,   /* number u32 */
    HOSTS_CHECK_OFFER = 32, /* net_offer */
    HOSTS_CHECK_FACTS,      /* hosts_check_facts */
    HOSTS_CHECK_FINDING,    /* id, severity u8, what, mend */
    HOSTS_CHECK_CHECKED,    /* text: why something is missing, "" */
    HOSTS_CHECK_TIME,       /* hosts_check_time */
    HOSTS_CHECK_TRIED,      /* net_report */
} hosts_check_message;

typedef struct hosts_check_orders {
    launch_request base; /* node is its number in the check; no heads, and nothing is run */
    int n_ranks;         /* 0: one for each core that may be used */
    int master_port;     /* 0: the usual ones */
    bool is_quick;
    bool tries_gpus;
} hosts_check_orders;

/* What is compared between hosts. "" where it is not known, or does not exist there. */
typedef struct hosts_check_facts {
    bool is_bare; /* Lockstep is not there: the agent has travelled */
    char version[64];
    char build[72];
    char machine[32]; /* "x86_64" */
    char kernel[96];  /* "Linux 6.1.0-28-amd64" */
    char libc[64];    /* "glibc 2.36" */
    char simd[256];   /* "avx2 fma avx512f": what kernels are chosen by */
    char python[64];
    char torch[64];
} hosts_check_facts;

/* In nanoseconds since 1970, by the host's clock. */
typedef struct hosts_check_time {
    uint32_t number; /* of the question */
    int64_t heard_ns;
    int64_t told_ns;
} hosts_check_time;

void hosts_check_orders_write(wire_writer *w, const hosts_check_orders *o);
void hosts_check_facts_write(wire_writer *w, const hosts_check_facts *facts);
void hosts_check_finding_write(wire_writer *w, const finding *f);
void hosts_check_time_write(wire_writer *w, const hosts_check_time *t);
void hosts_check_peers_write(wire_writer *w, const net_peer *peers, int n);

/* LS_EPROTO names what is wrong. */
LS_MUST_USE ls_status hosts_check_orders_read(const frame *f,
                                              hosts_check_orders *out); /* launch_request_free() */
LS_MUST_USE ls_status hosts_check_facts_read(const frame *f, hosts_check_facts *out);
/* Adds it, or nothing if this build does not know such findings. */
LS_MUST_USE ls_status hosts_check_finding_read(const frame *f, findings *out);
LS_MUST_USE ls_status hosts_check_time_read(const frame *f, hosts_check_time *out);
LS_MUST_USE ls_status hosts_check_peers_read(const frame *f, net_peer out[NET_PEERS_MAX], int *n);
LS_MUST_USE ls_status hosts_check_offer_read(const frame *f, net_offer *out);
LS_MUST_USE ls_status hosts_check_report_read(const frame *f, net_report *out);
LS_MUST_USE ls_status hosts_check_text_read(const frame *f, char *out, size_t n);
LS_MUST_USE ls_status hosts_check_number_read(const frame *f, uint32_t *out);

#endif
