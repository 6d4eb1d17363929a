/* SPDX-License-Identifier: Apache-2.0 */
/*
 * native.h - the native backend's own objects: one state a process, a peer for every other rank, groups, and works.
 *
 * match.c brings messages and receives together, exec.c carries out collectives, direct.c send and receive, join.c finds the ranks
 * of this host, mesh.c connects with the others, sleep.c lets threads wait. Groups whose ranks are all on this host give what team.h supports to their team.
 *
 * Everything but sleep.c runs under the engine's lock. Works that have ended and groups that have broken are handed to the
 * engine only by native_complete_works(), when nothing of this folder stands on the stack above a list that they could change.
 */
#ifndef LS_NATIVE_NATIVE_H
#define LS_NATIVE_NATIVE_H

#include "base/map.h"
#include "comm/backend.h"
#include "comm/native/link.h"
#include "comm/native/local.h"
#include "comm/native/schedule.h"
#include "comm/native/segment.h"
#include "comm/native/team.h"

#define NATIVE_LANES          4          /* chunks of one operation under way */
#define NATIVE_WINDOW         4          /* operations of one group under way */
#define NATIVE_HISTORY        16         /* finished operations of a group whose stamps are kept */
#define NATIVE_CREDIT         (1U << 20) /* charged bytes to one peer that may wait for their receives */
#define NATIVE_UNEXPECTED_MAX 65536      /* messages of one peer that may wait */
#define NATIVE_SIZE_CLASS     16

typedef backend_state native_state;
typedef backend_group native_group;
typedef struct native_peer native_peer;
typedef struct native_work native_work;
typedef struct transfer transfer;
typedef struct unexpected_message unexpected_message;
typedef struct sleepers sleepers;
typedef struct mesh mesh;

/* One message to or from a peer on behalf of a work. */
struct transfer {
    list_node node;
    native_group *group;
    native_peer *peer; /* NULL: from any */
    bool is_send;
    bool is_direct;
    bool in_pieces;        /* direct receives: stands in peer->pieces */
    bool announce;         /* tell the peer at once, though the payload waits */
    bool is_offered;       /* direct: the receiver may read it from... */
    message_offer offered; /* ...there; SHARED: where the second half goes */
    segment_view *view;    /* direct receives: the sender's memory, while both copy; else NULL */
    uint64_t sequence;     /* direct sends: the peer's next_message */
    uint64_t step;         /* direct: the tag */
    const uint8_t *from;
    uint8_t *to;
    size_t bytes; /* of this message; direct: of all pieces */
    size_t total;
    size_t moved;         /* direct: bytes of finished pieces */
    size_t queued;        /* direct: bytes given to the peer_link */
    const uint8_t *stamp; /* encoded; the work's */
    void (*finished)(transfer *t);
    void *owner;
};

/* A message that came before its receive. */
struct unexpected_message {
    list_node node;
    native_peer *peer;
    message m;
    uint8_t stamp[STAMP_BYTES]; /* m's */
    bool is_complete;
    transfer *claimer; /* a receive posted while the payload was coming in */
    int size_class;
    uint8_t *data; /* behind this struct */
};

struct native_peer {
    native_state *state;
    int rank; /* world */
    peer_link *
        link; /* NULL: this rank itself; idle until something is to be sent to another host's rank */
    bool is_local;
    bool is_gone;          /* its link has ended, and that has been noticed */
    char host[64];         /* of another host's rank, for messages */
    char unreachable[200]; /* why no connection came about, else "" */
    bool is_watched;       /* its descriptor is in the set that sleepers poll */
    bool watches_write;
    list_node receives;        /* transfers of collectives */
    list_node awaiting;        /* sends that wait for READY */
    list_node pieces;          /* direct receives whose pieces come in */
    list_node unexpected;      /* of collectives */
    size_t n_unexpected;       /* direct ones included */
    uint64_t unexpected_bytes; /* charged bytes among them */
    uint64_t charged;          /* sent to it */
    uint64_t credit;           /* of those, what found its receive */
    uint64_t consumed;         /* of what it charged */
    uint64_t reported;         /* consumed, as it knows */
    uint64_t next_message;
    transfer *receiving; /* whose payload is coming in */
    unexpected_message *receiving_unexpected;
};

/* One chunk under way. */
typedef struct lane {
    list_node node; /* in state->runnable while it can go on */
    native_work *work;
    plan steps;
    uint8_t *scratch;
    size_t scratch_bytes;
    size_t chunk;
    int next_round;
    int pending; /* messages of the round */
    bool is_busy;
    bool is_queued;
} lane;

/* One operation under way. */
struct native_work {
    list_node node;
    native_group *group;
    backend_work *work;
    uint8_t stamp[STAMP_BYTES];
    bool is_direct;
    bool is_running; /* collectives: counted in the group's window */
    bool has_ended;
    transfer direct;
    plan_choice choice;
    size_t next_chunk;
    size_t chunks_left;
    lane lanes[NATIVE_LANES];
};

struct backend_group {
    list_node node;
    native_state *state;
    const group_info *info;
    native_peer **peers; /* by group rank */
    team *team;          /* NULL: not all members are local, or the transport is tcp */
    plan_layout layout;
    list_node works;    /* collectives in the order of their start, then... */
    list_node directs;  /* ...send and receive */
    list_node receives; /* direct transfers without a message, in the order they were posted */
    int n_running;
    int next_history;
    uint64_t history[NATIVE_HISTORY]; /* sequences */
    uint8_t history_stamps[NATIVE_HISTORY][STAMP_BYTES];
    bool is_broken;
    bool has_cause; /* not handed over yet */
    job_cause cause;
};

struct backend_state {
    const comm_host *host;
    int rank;
    int size;
    bool is_tcp_only;
    bool shares_cores;
    size_t segment_bytes;
    algorithm_table *algorithms;
    local *local;    /* NULL: tcp only */
    mesh *mesh;      /* NULL: all ranks are on this host */
    int *host_names; /* of each rank: the lowest rank of its host; NULL: one host, or tcp only */
    native_peer *peers;
    list_node groups;
    uint32_t *closed; /* ids of groups that were closed: what still comes for them is dropped */
    size_t n_closed;
    size_t closed_capacity;
    list_node runnable;   /* lanes */
    list_node ended;      /* works */
    list_node unexpected; /* direct ones of all peers, in the order they came */
    list_node free_items;
    list_node free_transfers;
    list_node free_collectives;
    list_node free_directs;
    list_node free_unexpected[NATIVE_SIZE_CLASS];
    unsigned idle_calls;
    sleepers *sleepers;
};

/* --- native.c --- */

/* Everything but the connections. */
LS_MUST_USE ls_status native_create(const comm_boot *boot, const comm_host *host,
                                    native_state **out);
/* Closes all links at once; there are no groups any more. */
void native_destroy(native_state *s);

/* Breaks the group, once; the engine hears of it from native_complete_works(). rank: world rank that is guilty, -1: unknown. */
void native_break(native_group *g, cause_kind kind, int rank, const char *format, ...)
    LS_PRINTF(4, 5);
/* "rank 3 (node7)" of a peer, into buf, which it returns. */
const char *native_peer_text(const native_peer *p, char *buf, size_t n);
/* For plans: NULL where it does not help. */
const plan_layout *native_layout(const native_group *g);
native_group *native_find_group(native_state *s, uint32_t id);
bool native_is_closed(const native_state *s, uint32_t id);
/* To be called when a peer's link may have ended. */
void native_on_link_end(native_peer *p);
/* Hands ended works and broken groups to the engine. */
void native_complete_works(native_state *s);
/* The work has ended well; native_complete_works() does the rest. */
void native_end_work(native_work *w);

/* --- join.c --- */
/* Connects with the ranks of this host and listens for the others (mesh.h); the listeners of boot are closed or taken in any case. */
LS_MUST_USE ls_status native_join(native_state *s, const comm_boot *boot);
/* The channel to a rank of this host has ended. */
void native_on_channel_end(native_peer *p);

/* --- hosts.c --- */
/* Collective over the job, once connected. */
LS_MUST_USE ls_status native_exchange_hosts(native_state *s, const comm_boot *boot);

/* --- match.c --- */
void match_init(native_peer *p);
link_sink match_sink(native_peer *p);
void match_send(transfer *t);
void match_receive(transfer *t);
/* Forgets all transfers of the group; nothing touches its buffers afterwards. */
void match_cancel(native_group *g);
/* The peer's link has ended: breaks the groups that wait for it. */
void match_peer_gone(native_peer *p);
/* Whether no other rank of the group can send any more. */
bool match_all_ended(const native_group *g);
/* Before an operation starts: what came early must mean the same. */
void match_check_unexpected(native_work *w);
/* After it has ended: nothing of it may be left over. */
void match_check_leftover(native_work *w);
/* Queues a message that says nothing. */
void match_send_credit(native_peer *p);
/* Frees what came for a group that is closed. */
void match_free_group(native_state *s, uint32_t id);
bool match_is_expecting(const native_peer *p);
/* For direct.c. */
void match_queue_control(native_peer *p, message_type type, const transfer *t);
void match_queue_payload(transfer *t, const uint8_t *from, size_t bytes, message_type type,
                         bool is_charged);
bool match_charge(native_peer *p, size_t bytes);
/* Charges and posts a message that needs no queue; false: neither. */
bool match_post(native_peer *p, const message *m, const uint8_t *payload);
/* Takes the peer's next message if it is already there and is this one; credits are filled in. */
bool match_take(native_peer *p, link_wanted *wanted, uint8_t *to);
void match_return_credit(native_peer *p, const message *m);
/* Keeps a message until its receive is posted; *place is where its payload goes. */
LS_MUST_USE ls_status match_save_unexpected(native_peer *p, const message *m, list_node *list,
                                            uint8_t **target);

/* --- pool.c: NULL without memory --- */
transfer *pool_new_transfer(native_state *s);
void pool_free_transfer(native_state *s, transfer *t);
/* A transfer that nobody waits for any more: those of collectives are the pool's, the others part of their work. */
void pool_drop_transfer(native_state *s, transfer *t);
link_item *pool_new_item(native_state *s);
void pool_free_item(native_state *s, link_item *item);
unexpected_message *pool_new_unexpected(native_state *s, size_t bytes);
void pool_free_unexpected(
    unexpected_message *c); /* takes it off its list; a payload still coming is dropped */
void pool_free(native_state *s);

/* --- errors.c: each breaks the group --- */
/* Whether two encoded stamps mean the same operation. */
bool errors_same_operation(const uint8_t *a, const uint8_t *b);
void errors_stamp_mismatch(native_group *g, native_peer *p, const uint8_t *theirs,
                           const uint8_t *ours);
void errors_size_mismatch(native_group *g, native_peer *p, uint64_t theirs, uint64_t ours,
                          const uint8_t *stamp);
/* A message that no step of ours belongs to, though the stamps agree. */
void errors_extra_message(native_group *g, const native_peer *p, const message *m,
                          const uint8_t *stamp);
/* The peer's link has ended. */
void errors_lost_peer(native_group *g, native_peer *p, const uint8_t *stamp);

/* --- exec.c --- */
void exec_start(native_group *g, backend_work *work);
/* Carries on lanes that can; true when there were any. */
bool exec_run(native_state *s);
void exec_release(native_work *w);
void exec_free(native_state *s);
/* Starts what the window of the group lets in. */
void exec_fill_window(native_group *g);

/* --- direct.c --- */
void direct_start(native_group *g, backend_work *work);
LS_MUST_USE ls_status direct_on_message(native_peer *p, native_group *g, const message *m,
                                        uint8_t **target);
/* These bytes of the payload have come. */
void direct_received(transfer *t, size_t bytes);
/* Ends a receive from a known rank whose message is already there; false: it is not, or is not
 * one that can be taken at once. */
bool direct_try_receive(transfer *t);
void direct_claim_unexpected(unexpected_message *c, transfer *t);
void direct_sent(transfer *t, size_t bytes);
void direct_release(native_work *w);
void direct_free(native_state *s);

/* --- sleep.c --- */
LS_MUST_USE ls_status sleep_create(int control_fd, sleepers **out);
void sleep_destroy(sleepers *z);
void sleep_forked(const sleepers *z); /* closes what a forked child inherited */
/* Watches the peer's descriptor, for writing too when its stream is full. Under the engine's lock. */
LS_MUST_USE ls_status sleep_watch(sleepers *z, native_peer *p);
void sleep_unwatch(sleepers *z, native_peer *p);
void sleep_update(sleepers *z, native_peer *p);
/* The same for the mesh, for as long as it lives. */
LS_MUST_USE ls_status sleep_watch_mesh(sleepers *z, const mesh *m);
/* At most `max` peers whose descriptors have something to read or are writable again; *has_calls: the mesh has something to do. */
int sleep_ready(sleepers *z, native_peer **peers, int max, bool *has_calls);
/* Whether a sleeper saw that peers, or local channels, have something. */
bool sleep_peers_ready(const sleepers *z);
bool sleep_locals_ready(sleepers *z); /* asked once, then it is forgotten */
/* The begin and end of a call to progress() by this thread. */
void sleep_begin_progress(native_state *s);
void sleep_end_progress(native_state *s, bool moved);
void sleep_wait(native_state *s, int timeout_ms);
void sleep_wake(native_state *s);

#endif
