/* SPDX-License-Identifier: Apache-2.0 */
/*
 * join.h - a rank's way into its job: reach the hub (or serve it), publish a boot record, read
 * everybody's.
 *
 *   join.c        the order of things, and the exchange of records
 *   join_hub.c    where the hub is, with which key, and serving it on rank 0
 *   join_pmi.c  ... where PMI or PMIx is all that the ranks have in common
 *   join_listen.c this rank's own listeners, and what tells hosts and processes apart
 */
#ifndef LS_COMM_JOIN_H
#define LS_COMM_JOIN_H

#include "base/wait_report.h"
#include "comm/boot_record.h"
#include "comm/identity.h"
#include "comm/pmix_client.h"
#include "store/hub.h"

#define JOIN_SCOPE_BYTES 24

/* What ls_init was asked for, resolved. */
typedef struct join_settings {
    const char *backend;   /* name of the chosen one */
    const char *transport; /* "auto", "shm", "tcp" */
    const char *key_file;  /* NULL: the default */
    const char *iface;     /* filter as in net/interface.h; "": none */
    bool insecure;
    net_security security; /* of TCP connections */
    int64_t deadline_ms;   /* ls_deadline_ms() */
    int64_t join_ms;       /* for messages */
    size_t segment_bytes;
    size_t piece_elements;
    int connections;
    const char *algorithms;
    ls_store *store; /* HUB_AT_STORE */
} join_settings;

/* A rank that has joined. control and hub may be moved out by setting them to NULL. */
typedef struct join {
    identity id;
    control *control;
    hub_thread *hub;              /* rank 0's own, NULL: somebody else's */
    bool hub_at_rank_0;           /* the hub ends with rank 0 */
    char advice[512];             /* for reports of ranks that do not join; "": none */
    bool hub_has_listened;            /* its address was told by the hub that this join is for */
    char scope[JOIN_SCOPE_BYTES]; /* in front of this join's keys in the hub's store */
    uint32_t world_group;         /* id of the world's group */
    comm_boot boot;               /* for the backend; points into this struct */
    /* --- private --- */
    net_key key; /* has_key: of the hub, or made by rank 0 for TCP between ranks */
    bool has_key;
    wait_report report;         /* of the wait until the hub is known */
    bool is_one_host;           /* known before anybody has spoken */
    bool has_starters_listener; /* nobody else in this process may take it meanwhile */
    net_address hub_address;
    pmix_client pmix; /* has_pmix: left when the join is released */
    bool has_pmix;
    boot_publication own;
    boot_record *records;
    uint64_t *hosts;  /* by rank */
    int cores;        /* that this rank may use */
    int core_sharers; /* ranks of this host that run on the same ones, this one included */
} join;

/*
 * Joins a job of more than one rank; blocks until all records are here. LS_ETIMEOUT names the ranks
 * that did not come, LS_EMISMATCH both ranks and what differs, LS_EAUTH the key file.
 */
LS_MUST_USE ls_status join_job(const identity *id, const join_settings *s, join **out);

/* Closes what is still here. NULL is allowed. */
void join_release(join *j);

/* --- join_hub.c --- */

/* Reaches the hub: control, hub, hub_at_rank_0, hub_address, key and scope are filled in. */
LS_MUST_USE ls_status join_reach_hub(join *j, const join_settings *s);

/* --- join_listen.c --- */

/* local_fd, listen_fd and this rank's addresses, as far as the transport wants them. */
LS_MUST_USE ls_status join_listen(join *j, const join_settings *s);

/* The starter's listener, if this join had it, is free for the next one. */
void join_give_listener_back(join *j);

/* The address (port 0) of the best interface that passes the filter ("": any) and leads to other
 * hosts. */
LS_MUST_USE ls_status join_interface_address(const char *filter, net_address *out);

/* Whether ranks may have to talk over TCP. */
bool join_wants_tcp(const join *j, const join_settings *s);

/* Equal for threads of one process, for no two processes. */
uint64_t join_process_value(void);

#endif
