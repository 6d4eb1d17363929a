/* SPDX-License-Identifier: Apache-2.0 */
/*
 * node_messages.h - the frames between the head of a job and the agent of each node, also the
 * head's own. Bodies are written with net/messages/wire_fields.h. A message of an earlier
 * generation is ignored.
 */
#ifndef LS_LAUNCH_HEAD_NODE_MESSAGES_H
#define LS_LAUNCH_HEAD_NODE_MESSAGES_H

#include "base/text.h"
#include "launch/head/elastic/recovery.h"
#include "launch/head/rendezvous/rendezvous.h"
#include "launch/pmi/pmi.h"
#include "net/address.h"
#include "net/messages/frame.h"
#include "net/messages/wire_fields.h"

#define NODE_BODY_MAX     ((size_t)256 * 1024)
#define NODE_QUEUE_MAX    ((size_t)16 * 1024 * 1024) /* unsent; then the agent is dropped */
#define NODE_DETAILS_MAX  ((size_t)64 * 1024)
#define NODE_REPORT_MAX   ((size_t)192 * 1024) /* the details of a few nodes */
#define NODE_RING_MAX     (UINT32_C(4) << 20)
#define NODE_GRACE_MAX_MS (INT64_C(1000) * 3600 * 24 * 3650)
#define NODE_BEAT_MS      1000
#define NODE_CALLER_HEAD  0 /* handshake_claim.from of an agent that is node 0 itself */

/* Each with its body. */
typedef enum node_message {
    /* To the head. */
    NODE_HELLO = 1,     /* node_hello */
    NODE_FETCH_REQUEST, /* nothing; instead of a hello: asks for the launch request */
    NODE_OFFER,         /* generation u32, net_offer: the node's addresses */
    NODE_PROBED,        /* generation u32, net_report: results of NODE_PROBE */
    NODE_READY,         /* node_master; node 0 chooses the port, others send 0 */
    NODE_FAILED,        /* node_failure: a rank */
    /* generation u32, cause: why a group of a rank that has failed broke, before its NODE_FAILED;
     * new only to a head that does not host the hub of the group. */
    NODE_CAUSE,
    NODE_RANK_EXITED,  /* node_exit */
    NODE_FINISHED,     /* node_end */
    NODE_STOP,         /* signal u32: the job is to end */
    NODE_STATES,       /* generation u32, a letter per rank as in /proc/PID/stat, 'E': ended */
    NODE_RING,         /* node_ring: of a rank that has ended, before NODE_FINISHED */
    NODE_MPI,          /* node_mpi */
    NODE_OWNER_ANSWER, /* node_owner_answer: to NODE_OWNER_QUERY */
    NODE_STATUS,       /* to NODE_STATUS_ASK: question u32, 1 in the last one u8, text of ranks */
    NODE_STANDBY, /* text: where this agent listens for others (standby.h); before NODE_HELLO */
    NODE_FOUND,   /* node_found: a rank, to a head that has taken over */

    /* To an agent. */
    NODE_WELCOME = 32,   /* node_welcome */
    NODE_LAUNCH_REQUEST, /* launch_request.h; answers NODE_FETCH_REQUEST; then the head closes */
    NODE_WAIT,           /* text */
    NODE_REJECT,         /* text; then the head closes */
    NODE_PROBE,          /* generation u32, n u32, n of net_peer: the peers to probe */
    NODE_NETWORK,        /* generation u32, net_pick; with several nodes ready follows only then */
    NODE_START,          /* node_master; of a late node, node_slot messages follow */
    NODE_END_RANKS,      /* node_stop: in good order */
    NODE_ABORT,          /* cause: SIGTERM soon, SIGKILL after that */
    NODE_KILL,           /* nothing */
    NODE_ABORTED,        /* node_failure: this rank has aborted a group, so others fail */
    NODE_OVER,           /* node_over */
    NODE_NOTE,           /* text for users */
    NODE_REPLACE,        /* node_slot: a new process is to be started there */
    NODE_DROP,           /* node_slot: nothing will be started there any more */
    NODE_EVICT,          /* node_slot: SIGKILL, the job goes on without this process */
    NODE_EXITED_EARLY,   /* node_failure: this rank exited with 0 while others are in MPI */
    NODE_STATUS_ASK,     /* question u32, u32 the rank whose operations are wanted */

    /* Both ways. */
    NODE_BEAT = 64,   /* nothing; every NODE_BEAT_MS */
    NODE_PAUSE,       /* nothing: Ctrl-Z; no heartbeats of the sender until NODE_RESUME */
    NODE_RESUME,      /* nothing */
    NODE_STREAM,      /* stream u32, bytes of a connection to PyTorch's store; no bytes: its end */
    NODE_CLOCK,       /* the head's clock i64, the agent's i64 (0 in the query); both monotonic */
    NODE_MPI_KEYS,    /* generation u32, keys by pmi_write_new_keys(), for all other nodes */
    NODE_MPI_BARRIER, /* generation u32, number u32: this node is in it; back: all are */
    NODE_OWNER_QUERY, /* node_owner_query of node 0; passed to the node that has the address */
    NODE_HUB_STREAM,  /* as NODE_STREAM: connections to the hub, */
    NODE_MEMBER_STREAM, /* and to the store of members */
    /* To the head, signal u32: the node wants to leave. If the job cannot go on without it, this is
     * NODE_STOP. Back, nothing: the others go on, its ranks are to end; then the head closes. */
    NODE_LEAVE,
} node_message;

typedef struct node_count {
    int n;
} node_count;

/* rdzv_hello with its strings. */
typedef struct node_hello {
    rdzv_hello hello;     /* points to the members below */
    node_count *per_node; /* freed with node_hello_free() */
    char run_name[RDZV_NAME_BYTES];
    char version[64];
    char host[RDZV_HOST_BYTES];
} node_hello;

typedef struct node_failure {
    uint32_t generation;
    int local_rank;
    int exit_code;
    bool crashed;
    char text[sizeof(((job_cause *)0)->text)];
} node_failure;

/* All ranks of a node have ended. */
typedef struct node_end {
    uint32_t generation;
    bool stopped; /* after a stop, abort or kill */
    int n_well;   /* ended with code 0 */
    int n_failed;
    int n_stopped;  /* ended by the agent because others had failed */
    int local_rank; /* the first that failed, -1: none */
    int exit_code;
    bool crashed;
    int64_t error_s;     /* time of its error file, 0: none */
    const char *text;    /* "rank 5 (pid 4711) exited with code 1" */
    const char *details; /* lines of the report about it */
} node_end;

typedef struct node_welcome {
    rdzv_place place; /* but conn and host */
    char job[JOB_ID_BYTES];
    int hub_port;       /* at the head's address, 0: */
    char hub_unix[128]; /* or a unix socket, for the head's own node; "": none, it will not start */
    int members_port;   /* of an elastic job: the store of members, as the hub; 0 and "": none */
    char members_unix[128];
    /* Another node takes over when the head's, head_node, is lost. The ranks reach hub and store of
     * members through their agent. */
    bool has_standby;
    int head_node;
    bool has_store; /* for PyTorch programs */
    int max_restarts;
    int silence_ms;      /* without a heartbeat for so long head or node is lost */
    bool collects_rings; /* the head collects flight recorders */
    char mpi_layout[PMI_LAYOUT_BYTES];
} node_welcome;

/* A place for a process of an elastic job (recovery.h). */
typedef struct node_slot {
    uint32_t generation;
    int local_rank;
    int member;
} node_slot;

/* The process in a place of an elastic job, and what has become of it. */
typedef struct node_found {
    uint32_t generation;
    int local_rank;
    int member;
    recovery_found found;
} node_found;

/* MASTER_PORT, the same on all nodes. */
typedef struct node_master {
    uint32_t generation;
    int port; /* 0: not chosen */
} node_master;

/* Whether a process of the job's user holds the end `client` of a connection to `server`. */
typedef struct node_owner_query {
    uint32_t generation;
    uint32_t question;
    net_address client;
    net_address server;
} node_owner_query;

typedef struct node_owner_answer {
    uint32_t generation;
    uint32_t question;
    bool is_users;
} node_owner_answer;

/* The orderly end of a node's ranks. */
typedef struct node_stop {
    int signal;       /* that the job received */
    int64_t grace_ms; /* 0 to NODE_GRACE_MAX_MS */
    char text[RDZV_TEXT_BYTES];
} node_stop;

/* The end of the job. */
typedef struct node_over {
    int exit_code;
    bool failed;
    const char *report;
} node_over;

/* A piece of a rank's flight recorder. Pieces that are left out are zeros; the last has no
 * bytes. */
typedef struct node_ring {
    uint32_t generation;
    int local_rank;
    uint32_t total; /* bytes of the whole recorder, at most NODE_RING_MAX */
    uint32_t offset;
    const uint8_t *bytes; /* in the frame, when it is read */
    size_t n;
} node_ring;

/* A rank that has ended with code 0. */
typedef struct node_exit {
    uint32_t generation;
    int local_rank;
    int pid;
    pmi_state state;
} node_exit;

/* The MPI state of a node's ranks. */
typedef struct node_mpi {
    uint32_t generation;
    uint32_t barrier; /* number of the barrier that ranks wait in, from 1 on; 0: none */
    bool has_members; /* some are between MPI_Init and MPI_Finalize */
} node_mpi;

/* NODE_MPI_BARRIER */
typedef struct node_barrier {
    uint32_t generation;
    uint32_t number;
} node_barrier;

/* "no heartbeat for 5 s" */
#define NODE_SILENCE_TEXT 64
const char *node_silence_text(char buf[NODE_SILENCE_TEXT], int64_t silence_ms);

void node_write_hello(wire_writer *w, const rdzv_hello *hello);
/* LS_EPROTO, here and below, names the field. */
LS_MUST_USE ls_status node_read_hello(const frame *f, node_hello *out);
void node_hello_free(node_hello *h);

WIRE_FUNCTIONS(node_write_failure, node_read_failure, node_failure)
WIRE_FUNCTIONS(node_write_welcome, node_read_welcome, node_welcome)
WIRE_FUNCTIONS(node_write_master, node_read_master, node_master)
WIRE_FUNCTIONS(node_write_slot, node_read_slot, node_slot)
WIRE_FUNCTIONS(node_write_found, node_read_found, node_found)
WIRE_FUNCTIONS(node_write_owner_query, node_read_owner_query, node_owner_query)
WIRE_FUNCTIONS(node_write_owner_answer, node_read_owner_answer, node_owner_answer)
WIRE_FUNCTIONS(node_write_stop, node_read_stop, node_stop)
WIRE_FUNCTIONS(node_write_exit, node_read_exit, node_exit)
WIRE_FUNCTIONS(node_write_ring, node_read_ring, node_ring)
WIRE_FUNCTIONS(node_write_mpi, node_read_mpi, node_mpi)
WIRE_FUNCTIONS(node_write_barrier, node_read_barrier, node_barrier)

/* Cut the texts. The texts that are read are kept in those buffers. */
void node_write_end(wire_writer *w, const node_end *e);
LS_MUST_USE ls_status node_read_end(const frame *f, node_end *out, text_buf *text,
                                    text_buf *details);
void node_write_over(wire_writer *w, const node_over *o);
LS_MUST_USE ls_status node_read_over(const frame *f, node_over *out, text_buf *report);

/* The bodies of one number or one text. */
LS_MUST_USE ls_status node_read_number(const frame *f, uint32_t *out);
LS_MUST_USE ls_status node_read_text(const frame *f, text_buf *out);

#endif
