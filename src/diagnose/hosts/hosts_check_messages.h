/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hosts_check_messages.h - the messages of a check of several hosts (hosts_check.h): frames between
 * a starter and its agents, in place of a job's (launch_request.h).
 *
 *     starter -> agent   HOSTS_CHECK_REQUEST; nothing more before the agent's offer
 *     agent -> starter   HOSTS_CHECK_OFFER; HOSTS_CHECK_FACTS and HOSTS_CHECK_FINDINGs when known,
 *                        HOSTS_CHECK_LOCAL_DONE after the last of them
 *     starter -> agent   HOSTS_CHECK_ASK_TIME a few times, HOSTS_CHECK_TRY once
 *     agent -> starter   an answer to each: HOSTS_CHECK_TIME, HOSTS_CHECK_REPORT
 *
 * A host's messages are untrusted input: every decoder validates them.
 */
#ifndef LS_DIAGNOSE_HOSTS_HOSTS_CHECK_MESSAGES_H
#define LS_DIAGNOSE_HOSTS_HOSTS_CHECK_MESSAGES_H

#include "diagnose/finding.h"
#include "launch/network/net_choice.h"
#include "launch/spec/launch_request.h"

#define HOSTS_CHECK_VERSION      1
#define HOSTS_CHECK_FINDINGS_MAX 4096 /* of one host */

/* The numbers do not overlap with those of launch_request.h that a check uses. */
typedef enum hosts_check_message {
    HOSTS_CHECK_REQUEST = 2, /* hosts_check_request */
    HOSTS_CHECK_TRY,         /* net_peers */
    HOSTS_CHECK_ASK_TIME,    /* number u32 */
    HOSTS_CHECK_OFFER = 32,  /* net_offer */
    HOSTS_CHECK_FACTS,       /* hosts_check_facts */
    HOSTS_CHECK_FINDING,     /* id, severity u8, what, fix */
    HOSTS_CHECK_LOCAL_DONE,  /* text: the failure of the check; "" for none */
    HOSTS_CHECK_TIME,        /* hosts_check_time */
    HOSTS_CHECK_REPORT,      /* net_report */
} hosts_check_message;

typedef struct hosts_check_request {
    launch_request base; /* node is the host's number in the check; no heads, no program */
    int n_ranks;         /* 0: one for each usable core */
    int master_port;     /* 0: torchrun's default ports */
    bool is_quick;
    bool tries_gpus;
} hosts_check_request;

/* The facts that are compared between hosts; "" for what is unknown or missing there. */
typedef struct hosts_check_facts {
    bool is_uninstalled; /* the host runs a copied agent binary */
    char version[64];
    char build[72];
    char machine[32]; /* "x86_64" */
    char kernel[96];  /* "Linux 6.1.0-28-amd64" */
    char libc[64];    /* "glibc 2.36" */
    char simd[256];   /* "avx2 fma avx512f": selects kernels */
    char python[64];
    char torch[64];
} hosts_check_facts;

/* In nanoseconds since 1970, by the host's clock. */
typedef struct hosts_check_time {
    uint32_t number; /* of the request */
    int64_t received_ns;
    int64_t sent_ns;
} hosts_check_time;

/* Writes one frame to a blocking descriptor; `peer` is for errors. */
LS_MUST_USE ls_status hosts_check_write(int fd, const char *peer, hosts_check_message type,
                                        const wire_writer *body);

WIRE_FUNCTIONS(hosts_check_facts_write, hosts_check_facts_read, hosts_check_facts)
WIRE_FUNCTIONS(hosts_check_time_write, hosts_check_time_read, hosts_check_time)

void hosts_check_request_write(wire_writer *w, const hosts_check_request *o);
/* LS_EPROTO: malformed. The caller frees a request's base with launch_request_free(). */
LS_MUST_USE ls_status hosts_check_request_read(const frame *f, hosts_check_request *out);
void hosts_check_finding_write(wire_writer *w, const finding *f);
/* Appends the finding; one of an unknown kind is dropped. */
LS_MUST_USE ls_status hosts_check_finding_read(const frame *f, findings *out);
LS_MUST_USE ls_status hosts_check_text_read(const frame *f, char *out, size_t n);
LS_MUST_USE ls_status hosts_check_number_read(const frame *f, uint32_t *out);

#endif
