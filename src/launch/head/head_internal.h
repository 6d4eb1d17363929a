/* SPDX-License-Identifier: Apache-2.0 */
/*
 * head_internal.h - the state of a head, shared by its parts: events and actions (head.c),
 * connections of nodes (head_nodes.c), the hub and store of a generation and the ranks there
 * (head_ranks.c), elastic jobs (head_elastic.c), the state for another head
 * (head_standby.c), networks (head_networks.c), MPI programs
 * (head_pmi.c), flight recorders (head_rings.c), the status of the job (head_status.c), the report
 * (head_report.c).
 */
#ifndef LS_LAUNCH_HEAD_HEAD_INTERNAL_H
#define LS_LAUNCH_HEAD_HEAD_INTERNAL_H

#include "launch/head/head.h"

#include "base/map.h"
#include "base/report/wait_report.h"
#include "c10d/c10d_store.h"
#include "hub/hub.h"
#include "launch/head/elastic/recovery.h"
#include "launch/head/node_messages.h"
#include "launch/network/clock_offset.h"
#include "launch/network/net_choice.h"
#include "net/auth/listener.h"
#include "net/messages/frame_link.h"
#include "net/messages/stream_mux.h"

typedef struct head_node {
    list_node node; /* in head.nodes or head.gone */
    head *owner;
    uint64_t id; /* the machine's "conn"; 0 before hello */
    uint64_t uid;
    int number;             /* its node rank; -1: none */
    net_address standby_at; /* where its agent listens for others; none: nowhere */
    bool is_own;
    bool is_observer; /* an agent without ranks: it receives notes and the end */
    bool is_paused;   /* by Ctrl-Z: it sends no heartbeats */
    char peer[LISTENER_PEER_TEXT];
    frame_link link;
    poll_timer hello_limit;
    poll_timer close_wait; /* its connection has closed, and its loss is not reported yet */
    int64_t closed_ms;
    /* of the present generation: */
    const rdzv_place *place;   /* NULL: it has none */
    char *states;              /* a letter for each of its ranks */
    node_mpi mpi;              /* what its ranks do in MPI */
    uint32_t mpi_barrier;      /* the one that all of them are in */
    stream_mux streams;        /* its programs' connections to the store here */
    stream_mux hub_streams;    /* its ranks' connections to the hub, with a standby */
    stream_mux member_streams; /* ... to the store of members */
    int ring_fd;               /* the flight recorder being received, and its rank; -1: none */
    int ring_rank;
    /* its clock, where flight recorders are collected: */
    clock_offset clock;
    clock_offset clock_round; /* the measurement under way */
} head_node;

/* What is known of a rank of the present generation. */
typedef struct head_rank {
    int n_joins;     /* connections to the hub that it has made */
    bool left;       /* the last of them sent a leave message */
    bool ended;      /* with code 0 */
    pid_t pid;       /* of one that has joined or ended; 0: unknown */
    pmi_state state; /* likewise */
    bool is_stopped; /* by SIGSTOP or the like; since then: */
    wait_report stopped;
    int64_t named_ms; /* time of the hub's last wait report that names it */
} head_rank;

/* A node's report after the end of its ranks. */
typedef struct head_end {
    node_end end;
    text_buf text;
    text_buf details;
    bool received;
} head_end;

/* A node of the present generation that was lost before its ranks had ended. */
typedef struct head_loss {
    int node;
    char why[512];
    char more[512]; /* from its starter */
} head_loss;

struct head {
    poller *loop;
    head_options opt;
    net_key key; /* a copy */
    net_key job_key;
    char job[JOB_ID_BYTES];
    rdzv *machine;
    poll_timer tick;
    poll_timer beat;
    poll_timer roster_timer;
    bool roster_shown; /* then each change is shown at once */
    listener *listener;
    net_address listens_at;
    list_node nodes;
    list_node gone; /* freed by the reaper */
    poll_timer reaper;
    uint64_t last_id;
    int64_t resumed_ms;
    int64_t silence_ms; /* a node without a heartbeat for so long is lost */
    poll_timer stop_watch;
    net_choice choice;        /* the last one made, and from what: */
    net_offer *probed_offers; /* choice.n_nodes */

    /* The present generation. */
    uint32_t generation;
    int world_size;
    int n_places;
    int hub_port;
    struct elastic *elastic; /* head_elastic.c; NULL: the job is not elastic */
    /* Another node takes over when this one is lost: ranks reach the hub through their agents. */
    bool has_standby;
    bool standby_begun;
    uint32_t proposed;          /* the generation whose states the other agents get; 0: none */
    struct head_standby *moved; /* head_standby.c; NULL: this is the first head */
    hub *hub;
    net_address hub_unix;
    c10d_store *store;
    rdzv_place *places; /* a copy of the machine's */
    uint64_t *voters;   /* with a standby: the uids of the agents that elect a head, by node */
    head_rank *ranks;
    head_end *ends;    /* by node */
    head_loss *losses; /* n_losses of n_places */
    int n_losses;
    net_offer *offers; /* by node, while a network is selected; NULL for one node */
    bool *has_offer;
    net_report *reports;
    bool *has_report;
    int n_offers;
    int n_reports;
    int store_port; /* MASTER_PORT; of several nodes node 0 chooses it, 0 until then */
    /* The failure that broke a group or the job before any rank had ended, or CAUSE_NONE. */
    job_cause broken;
    int64_t broken_ms;
    int64_t failed_ms;
    char mpi_layout[PMI_LAYOUT_BYTES];
    uint32_t n_barriers; /* of MPI programs, passed */
    size_t key_bytes;    /* shared by them since the last barrier */
};

/* --- head.c --- */
LS_MUST_USE ls_status head_allocate(poller *p, const head_options *opt,
                                    head **out); /* NULL: no memory */
void head_event(head *h, const rdzv_event *event);
/* The job cannot go on here: handled as a failure of the roster's first node. */
void head_fail_generation(head *h, const char *why);
void head_broadcast_note(head *h, const char *text); /* a note for every terminal */

/* --- head_nodes.c --- */
void head_node_enter(void *arg, const listener_peer *peer);
void head_observer_enter(head *h, int fd);
head_node *head_find_node(const head *h, uint64_t id);
void head_send(head_node *node, node_message type, const wire_writer *body);
/* Also frees the body. node NULL: the node is not connected. */
void head_send_free(head_node *node, node_message type, wire_writer *body);
void head_send_text(head_node *node, node_message type, const char *text);
bool head_is_paused(const head *h); /* Ctrl-Z stops all ranks until the job is continued */
void head_beat(void *arg);
void head_free_nodes(head *h);

/* --- head_ranks.c --- */

/* A fresh hub and store for this roster. */
LS_MUST_USE ls_status head_open_generation(head *h);
void head_close_generation(head *h);
void head_rank_ended_well(head *h, int slot, const node_exit *left); /* head_elastic.c */
void head_store_end(head *h, int node, const head_end *end);         /* takes its texts */

/* A connection to the store, for a stream of a node's. */
LS_MUST_USE ls_status head_open_store(void *arg, int *fd); /* arg: a node */

/* The user of a connection to that store: node 0's query to another node, and the answer. */
LS_MUST_USE ls_status head_handle_owner_query(head_node *node, const frame *f);
LS_MUST_USE ls_status head_handle_owner_answer(head_node *node, const frame *f);

/* A hub for the next group of an elastic job, of n ranks; the last one is closed. */
LS_MUST_USE ls_status head_open_next_hub(head *h, int n);
/* Opens a hub at a new unix socket, whose address is stored, and for ranks on other nodes at the
 * head's address: *port, 0 if there are none, or these connect through their agents. */
LS_MUST_USE ls_status head_listen_hub(head *h, hub *server, const char *purpose,
                                      net_address *unix_at, int *port);

/* Reports ranks that are stopped, from time to time. */
void head_check_stopped_ranks(void *arg /* head */);

/* --- head_standby.c --- */

/* For a generation: whether another node may take over. */
void head_choose_standby(head *h);
/* Once its ranks have been started. Does nothing where it has begun. */
void head_begin_standby(head *h);
/* The head's state to the other agents; head_committed() when a majority knows it. */
LS_MUST_USE ls_status head_propose(const head *h, uint64_t *index);
/* A node that has been in the job of a lost head. */
ls_status head_return(head_node *node, const rdzv_hello *hello);
void head_close_moved(head *h);
/* To a head that has taken over this node does not return. */
void head_forget_node(const head_node *node);
/* NODE_HUB_STREAM, NODE_MEMBER_STREAM. arg: a node. */
LS_MUST_USE ls_status head_open_hub_stream(void *arg, int *fd);
LS_MUST_USE ls_status head_open_member_stream(void *arg, int *fd);

/* --- head_elastic.c --- */

/* For a generation, before its hub. Nothing unless the job is elastic. */
LS_MUST_USE ls_status head_open_elastic(head *h);
void head_close_elastic(head *h);
/* Where the ranks of that node find the store of members. */
void head_write_members(const head *h, const head_node *node, node_welcome *out);

/* A rank has failed. True: the others go on, or will; false: handle it as in other jobs. */
bool head_recovers_rank(head *h, const head_node *node, int local_rank, const char *why);
/* The same for all ranks of a lost node: sets is_tolerated of its RDZV_GONE, and n_well, if all of
 * them had ended. place may be NULL: it has none. */
void head_recover_place(head *h, const rdzv_place *place, rdzv_event *gone);
/* Whether the ranks of the other nodes would go on. */
bool head_can_spare(const head *h, const rdzv_place *place);
void head_elastic_ended(head *h, int slot); /* with code 0 */
/* All ranks of this node have ended by themselves; those that are not known to have ended before,
 * with code 0: to a head that has taken over, no other message says so. */
void head_elastic_finished(head *h, const rdzv_place *place);
/* A node has taken the place of a lost one, and waits for processes to start. */
void head_offer_slots(head *h, const rdzv_place *place);
LS_MUST_USE ls_status head_handle_found(head_node *node, const frame *f);

/* For head_standby.c: the members as bytes, and their store. */
void head_write_recovery(const head *h, wire_writer *w);
LS_MUST_USE ls_status head_read_recovery(head *h, wire_reader *r);
const net_address *head_members_at(const head *h); /* NULL: there are none */
/* All groups of the lost head have failed. */
void head_move_members(head *h, const char *why);
int head_count_seats(const head *h); /* of the present roster */

/* A slot is a rank of the first group, a place for a process on a node. -1: it has no rank now. */
int head_rank_in_slot(const head *h, int slot);
int head_slot_of_rank(const head *h, int rank);
/* The place with this slot, and the node that has it in this generation, of which *local is the
 * local rank; NULL: none. */
const rdzv_place *head_place_of_slot(const head *h, int slot);
head_node *head_node_of_slot(const head *h, int slot, int *local);
uint32_t head_hub_generation(const head *h); /* of the present hub */

/* --- head_pmi.c --- */
void head_open_mpi(head *h); /* for a generation */
LS_MUST_USE ls_status head_handle_mpi(head_node *node, const frame *f);
LS_MUST_USE ls_status head_handle_mpi_keys(head_node *node, const frame *f);
LS_MUST_USE ls_status head_handle_mpi_barrier(head_node *node, const frame *f);
/* A rank that exits with code 0 while other ranks are in MPI with it has failed: they would wait
 * forever. */
void head_fail_early_mpi_exits(head *h);

/* --- head_networks.c --- */
LS_MUST_USE ls_status head_open_networks(head *h);
void head_close_networks(head *h);
void head_free_networks(head *h); /* also the choice */
LS_MUST_USE ls_status head_handle_offer(head_node *node, const frame *f);
LS_MUST_USE ls_status head_handle_probed(head_node *node, const frame *f);

/* --- head_rings.c --- */
void head_compare_clock(head_node *node); /* with this one, if flight recorders are collected */
LS_MUST_USE ls_status head_handle_clock(head_node *node, const frame *f);
LS_MUST_USE ls_status head_handle_ring(head_node *node, const frame *f);
void head_drop_ring(head_node *node); /* the part that was received */

/* --- head_status.c --- */
LS_MUST_USE ls_status head_handle_status(head_node *node, const frame *f);

/* --- head_report.c --- */

/* The abort of a rank that explains present failures; NULL: there is none. */
const job_cause *head_recent_abort(const head *h);
/* The same from a rank's flight recorder, for groups whose hub is elsewhere. */
LS_MUST_USE ls_status head_handle_cause(head_node *node, const frame *f);
bool head_has_failed(const head *h, int exit_code); /* false: stopped by a signal */

/* The report about a failed job, and its exit code instead of the machine's. */
void head_make_report(const head *h, const char *fallback, text_buf *out, int *exit_code);

#endif
