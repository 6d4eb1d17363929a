/* SPDX-License-Identifier: Apache-2.0 */
/*
 * join.h - how a rank joins its job: reaches the hub (or serves it), publishes a boot record, reads
 * those of all ranks.
 *
 *   join.c         the steps, and the exchange of records
 *   join_hub.c     finds the hub and its key, and serves it on rank 0
 *   join_pmi.c     finds the hub through the key-value space of PMI or PMIx
 *   join_listen.c  this rank's listeners, and the values that identify hosts and processes
 *
 * comm/join/: how a process becomes a rank: identity, hub, boot records. Called by comm/group and
 * comm/engine; boot.h goes to backends.
 */
#ifndef LS_COMM_JOIN_JOIN_H
#define LS_COMM_JOIN_JOIN_H

#include "base/report/wait_report.h"
#include "comm/join/boot_record.h"
#include "comm/join/identity.h"
#include "comm/join/pmix_client.h"
#include "hub/hub.h"

#define JOIN_SCOPE_BYTES 24

/* The options and settings of ls_init, resolved. */
typedef struct join_settings {
    const char *backend;   /* name of the chosen one */
    const char *transport; /* "auto", "shm", "tcp" */
    const char *key_file;  /* NULL: the default */
    const void *secret;    /* instead of a key file; NULL: none */
    size_t secret_bytes;
    const char *iface; /* filter as in net/interface.h; "": all */
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
    hub_thread *hub;                    /* of rank 0; NULL when another process hosts the hub */
    bool hub_at_rank_0;                 /* the hub ends with rank 0 */
    char advice[512];                   /* for wait reports of missing ranks; "": none */
    bool hub_has_listened;              /* the address came from the hub of this join */
    char store_scope[JOIN_SCOPE_BYTES]; /* prefix in join_settings.store; "": not used */
    char scope[JOIN_SCOPE_BYTES];       /* prefix of this join's keys in the hub's store */
    uint32_t world_group;               /* id of the world's group */
    comm_boot boot;                     /* for the backend; points into this struct */
    /* --- private --- */
    net_key key; /* if has_key: of the hub, or created by rank 0 for TCP between ranks */
    bool has_key;
    wait_report report;         /* of the wait until the hub is known */
    bool is_one_host;           /* all ranks are known to run on this host */
    bool has_launcher_listener; /* other joins of this process cannot use it meanwhile */
    net_address hub_address;
    pmix_client pmix; /* if has_pmix: finalized when the join is released */
    bool has_pmix;
    boot_publication own;
    boot_record *records;
    uint64_t *hosts;  /* by rank */
    int cores;        /* that this rank may use */
    int core_sharers; /* ranks of this host on the same cores, including this one */
} join;

/* Joins a job of several ranks; blocks until all records have arrived. LS_ETIMEOUT names the
 * missing ranks, LS_EMISMATCH both ranks and the different setting, LS_EAUTH the key file. */
LS_MUST_USE ls_status join_job(const identity *id, const join_settings *s, join **out);

/* Closes everything that was not moved out. NULL is allowed. */
void join_release(join *j);

/* --- join_hub.c --- */

/* Reaches the hub: fills in control, hub, hub_at_rank_0, hub_address, key and scope. */
LS_MUST_USE ls_status join_reach_hub(join *j, const join_settings *s);

/* --- join_listen.c --- */

/* Opens local_fd, listen_fd and this rank's addresses, as the transport needs them. */
LS_MUST_USE ls_status join_listen(join *j, const join_settings *s);

/* Releases the launcher's listener for the next join. */
void join_release_listener(join *j);

/* The address (port 0) of the best interface to other hosts that matches the filter ("": any). */
LS_MUST_USE ls_status join_interface_address(const char *filter, net_address *out);

bool join_needs_tcp(const join *j, const join_settings *s);

/* Equal for all threads of a process, different for different processes. */
uint64_t join_process_value(void);

#endif
