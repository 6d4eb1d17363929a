/* SPDX-License-Identifier: Apache-2.0 */
/*
 * survey_messages.h - what hosts are asked, and tell, when they are looked at together (survey.h): frames between a starter and its agents,
 * in the place of a job's (orders.h).
 *
 *     starter -> agent   SURVEY_ORDERS; nothing more before its offer has come
 *     agent -> starter   SURVEY_OFFER; SURVEY_FACTS and SURVEY_FINDING as they become known, SURVEY_CHECKED after the last of them
 *     starter -> agent   SURVEY_ASK_TIME a few times, and once SURVEY_TRY
 *     agent -> starter   an answer to each: SURVEY_TIME, SURVEY_TRIED
 *
 * Nothing a host says is trusted further than its ssh.
 */
#ifndef LS_LAUNCH_SURVEY_MESSAGES_H
#define LS_LAUNCH_SURVEY_MESSAGES_H

#include "launch/check/finding.h"
#include "launch/network/net_choice.h"
#include "launch/hosts/orders.h"

#define SURVEY_VERSION      1
#define SURVEY_FINDINGS_MAX 4096 /* of one host */

/* The numbers go on where far_message ends. */
typedef enum survey_message {
    SURVEY_ORDERS = 2, /* survey_orders */
    SURVEY_TRY,        /* n u32, n of net_peer */
    SURVEY_ASK_TIME,   /* number u32 */
    SURVEY_OFFER = 32, /* net_offer */
    SURVEY_FACTS,      /* survey_facts */
    SURVEY_FINDING,    /* id, severity u8, what, mend */
    SURVEY_CHECKED,    /* text: why something is missing, "" */
    SURVEY_TIME,       /* survey_time */
    SURVEY_TRIED,      /* net_report */
} survey_message;

typedef struct survey_orders {
    orders base;     /* node is its number in the survey; no heads, and nothing is run */
    int n_ranks;     /* 0: one for each core that may be used */
    int master_port; /* 0: the usual ones */
    bool is_quick;
    bool tries_gpus;
} survey_orders;

/* What is compared between hosts. "" where it is not known, or does not exist there. */
typedef struct survey_facts {
    bool is_bare; /* Lockstep is not there: the agent has travelled */
    char version[64];
    char build[72];
    char machine[32]; /* "x86_64" */
    char kernel[96];  /* "Linux 6.1.0-28-amd64" */
    char libc[64];    /* "glibc 2.36" */
    char simd[256];   /* "avx2 fma avx512f": what kernels are chosen by */
    char python[64];
    char torch[64];
} survey_facts;

/* In nanoseconds since 1970, by the host's clock. */
typedef struct survey_time {
    uint32_t number; /* of the question */
    int64_t heard_ns;
    int64_t told_ns;
} survey_time;

void survey_orders_write(wire_writer *w, const survey_orders *o);
void survey_facts_write(wire_writer *w, const survey_facts *facts);
void survey_finding_write(wire_writer *w, const finding *f);
void survey_time_write(wire_writer *w, const survey_time *t);
void survey_peers_write(wire_writer *w, const net_peer *peers, int n);

/* LS_EPROTO names what is wrong. */
LS_MUST_USE ls_status survey_orders_read(const frame *f, survey_orders *out); /* orders_free() */
LS_MUST_USE ls_status survey_facts_read(const frame *f, survey_facts *out);
/* Adds it, or nothing if this build does not know such findings. */
LS_MUST_USE ls_status survey_finding_read(const frame *f, findings *out);
LS_MUST_USE ls_status survey_time_read(const frame *f, survey_time *out);
LS_MUST_USE ls_status survey_peers_read(const frame *f, net_peer out[NET_PEERS_MAX], int *n);
LS_MUST_USE ls_status survey_offer_read(const frame *f, net_offer *out);
LS_MUST_USE ls_status survey_report_read(const frame *f, net_report *out);
LS_MUST_USE ls_status survey_text_read(const frame *f, char *out, size_t n);
LS_MUST_USE ls_status survey_number_read(const frame *f, uint32_t *out);

#endif
