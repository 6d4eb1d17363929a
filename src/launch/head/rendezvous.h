/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rendezvous.h - who is in the job and as which node, when it starts, when it starts again, how it ends: the machine at its head.
 *
 *     COLLECT --enough nodes--> AGREE --all ready--> RUN --all finished--> END
 *       ^  ^                      |                   |
 *       |  +----a node is lost----+         failure, loss, newcomer, stop
 *       |                                             v
 *       +--------------restart--------------------- DRAIN --no restart--> END
 *
 * A pure step function: an event goes in, actions come out. It reads no clock, opens nothing, allocates only when it is made,
 * and needs no randomness. Each way from COLLECT to AGREE is one view: a generation, its nodes and their ranks. A new view is
 * made only when every node of the last one has ended its ranks or is gone.
 *
 * What the driver does
 *   - Each connection that has proved the key and said hello becomes RDZV_ARRIVED, under a number that is never used again.
 *   - One that closes, or is silent for 5 s, becomes RDZV_GONE.
 *   - It carries out the actions in their order; after RDZV_DO_REJECT and RDZV_DO_END it closes that connection.
 *   - It sends RDZV_TICK at wake_at_ms. Early and additional ticks do no harm.
 * What a node does
 *   - welcome: drops what earlier welcomes said, opens its listeners, tries its networks, says ready.
 *   - start: starts its ranks. A rank that fails is told at once; when all ranks have ended it says finished.
 *   - stop, abort, kill: ends its ranks and says finished; at once when it has none (any more).
 *   - a lost head: kills its ranks, and may come again as a new connection with the same uid.
 *
 * Rules
 *   - By id (static): all ids must come, a node's number is its id, a second node with an id is turned away.
 *   - Otherwise (dynamic): a view is made when max are there, or min are and the last call or the join time has passed, or the
 *     nodes of the last view are all back and nobody else is. Node 0 is the head's own; who was in the last view keeps its
 *     number where it can, a newcomer on a lost node's host takes over that number; then come claimed ids, then the others as
 *     they arrived. Nodes beyond max wait as spares.
 *   - A newcomer while fewer than max run ends all ranks in good order (SIGTERM, grace) and all start again; a failure or a loss
 *     aborts them first. The cause is the first failure that is told; but an exit gives way to a crash told less than 100 ms
 *     after it, and to the loss of a node that was last heard of before that.
 *
 * Recovery in place can be added where DRAIN decides: the machine then gives the living members a new view instead of ending
 * their ranks; ready is already the word by which all agree to a view.
 */
#ifndef LS_LAUNCH_RENDEZVOUS_H
#define LS_LAUNCH_RENDEZVOUS_H

#include "base/status.h"
#include "store/cause.h"

#include <stdbool.h>

#define RDZV_NODES_MAX  4096 /* nodes of a job, and spares beside them */
#define RDZV_LOCAL_MAX  4096 /* ranks of one node */
#define RDZV_HOST_BYTES 65   /* a host's name with its terminator; longer ones are cut */
#define RDZV_TEXT_BYTES 768  /* longest text of an action with its terminator */
#define RDZV_HEAD       0    /* no connection: an action for the head itself */
#define RDZV_NEVER      INT64_MAX

typedef struct rdzv rdzv;

/* What the head was told. Pointers are borrowed for the call of rdzv_create(). */
typedef struct rdzv_options {
    /* Static: nodes come with ids 0..max_nodes-1, and all of them must. Otherwise any node is taken, an id is only a wish. */
    bool by_id;
    int min_nodes; /* by_id: the same as max_nodes */
    int max_nodes;
    int max_spares; /* nodes that may wait beyond max_nodes; the next one is turned away */
    /* That failures may cost. Newcomers cost none, nor do lost nodes while min or more are here (dynamic). */
    int max_restarts;
    const int *per_node;  /* by_id only: -g 8,2, max_nodes entries; NULL: each node says its own */
    uint64_t run_id;      /* hash of the job's name; others are turned away */
    const char *version;  /* others are turned away */
    const char *host;     /* the head's, for texts */
    int64_t join_ms;      /* to wait for nodes, at the start and at each restart; 0: 600 s */
    int64_t last_call_ms; /* between min and max: to wait for more; 0: 30 s, negative: not at all */
    int64_t ready_ms;     /* from welcome to ready; 0: 60 s */
    int64_t grace_ms;     /* for ranks at an orderly end; 0: 10 s */
} rdzv_options;

/* What a node says about itself. Nothing in it is trusted. */
typedef struct rdzv_hello {
    uint64_t uid;  /* drawn by the node when it starts, the same when it connects again; 0: none */
    bool is_head;  /* the head's own node, which the driver knows and no message says */
    int id;        /* the node id it was given, -1: none */
    int n_local;   /* its ranks */
    int min_nodes; /* --nnodes as it was given there; 0: not given */
    int max_nodes;
    const int *per_node; /* its -g list, n_per_node entries; 0: none */
    int n_per_node;
    uint64_t run_id;
    const char *version;
    const char *host;
} rdzv_hello;

typedef enum rdzv_event_kind {
    RDZV_TICK,
    RDZV_ARRIVED, /* conn, hello */
    RDZV_READY,   /* conn, generation */
    RDZV_FAILED,  /* conn, generation, local_rank, exit_code, crashed, text: a rank, or the start */
    RDZV_FINISHED, /* conn, generation, stopped: all its ranks have ended */
    RDZV_GONE,     /* conn, heard_ms, text */
    RDZV_STOP      /* signal, text: an orderly end is asked for; the second time one at once */
} rdzv_event_kind;

typedef struct rdzv_event {
    rdzv_event_kind kind;
    uint64_t conn;
    const rdzv_hello *hello;
    uint32_t generation; /* of the welcome that it is about; an earlier one's are ignored */
    int local_rank;      /* -1: none in particular */
    int exit_code;       /* 128 + signal for one that was killed */
    bool crashed;        /* by SIGKILL, SIGSEGV, ...: nothing that another rank's end leads to */
    bool stopped;        /* a stop, abort or kill had come; false: all ended with 0 by themselves */
    const job_cause *aborted; /* FAILED: a rank aborted the others' group before; NULL: none did */
    int64_t heard_ms; /* when anything was last heard; now for a connection that was closed */
    int signal;
    /* FAILED: "rank 5 (pid 4711) exited with code 1"; GONE: "silent for 5 s"; STOP: by whom. Or NULL. */
    const char *text;
} rdzv_event;

/* A node's place in a view. Ranks are numbered node by node: node k has n_local of them from rank_base. */
typedef struct rdzv_place {
    uint64_t conn;
    uint32_t generation; /* 1 at the first start; strictly growing, not always by one */
    int n_restarts;      /* that failures have cost: TORCHELASTIC_RESTART_COUNT, equal everywhere */
    int node;
    int n_nodes;
    int rank_base;
    int n_local;
    int world_size;
    char host[RDZV_HOST_BYTES];
} rdzv_place;

typedef enum rdzv_action_kind {
    /* for the node behind conn */
    RDZV_DO_WELCOME, /* place */
    RDZV_DO_WAIT,    /* text: no place for it now; it stays connected */
    RDZV_DO_REJECT,  /* text: what does not fit, with both sides' values */
    RDZV_DO_START,   /* place */
    RDZV_DO_STOP,    /* signal, grace_ms, text: the orderly end of its ranks */
    RDZV_DO_ABORT,   /* cause: pending calls fail with it, SIGTERM, SIGKILL after 1 s */
    RDZV_DO_KILL,    /* SIGKILL now */
    RDZV_DO_END,     /* exit_code, text: the job is over */
    /* for the head itself, where conn is RDZV_HEAD */
    RDZV_DO_NOTE,    /* text: to print once; also for a node whose id another one claims */
    RDZV_DO_ROSTER,  /* text has changed: "1/2 nodes joined; waiting for node 1" */
    RDZV_DO_RESTART, /* text: why. All ranks have ended; the next welcome needs a fresh store */
    RDZV_DO_FINISH   /* exit_code, text: after all RDZV_DO_END; no text when all ended well */
} rdzv_action_kind;

typedef struct rdzv_action {
    rdzv_action_kind kind;
    uint64_t conn;
    const rdzv_place *place;
    const job_cause *cause;
    const char *text;
    int signal;
    int64_t grace_ms;
    int exit_code;
} rdzv_action;

/* Valid until the next step. */
typedef struct rdzv_result {
    const rdzv_action *actions;
    int n_actions;
    int64_t wake_at_ms; /* when a tick is needed, always later than now; RDZV_NEVER */
} rdzv_result;

typedef enum rdzv_phase { RDZV_COLLECT, RDZV_AGREE, RDZV_RUN, RDZV_DRAIN, RDZV_END } rdzv_phase;

/* LS_EINVAL: options that fit nowhere, in the words of the command line. The join window begins at now_ms. */
LS_MUST_USE ls_status rdzv_create(const rdzv_options *opt, int64_t now_ms, rdzv **out);
void rdzv_destroy(rdzv *m); /* NULL is allowed */

/* Takes one event. now_ms never goes back. Events of unknown connections are ignored. */
rdzv_result rdzv_step(rdzv *m, const rdzv_event *event, int64_t now_ms);

rdzv_phase rdzv_phase_now(const rdzv *m);

/* The places of the last view, by node; *n is 0 before the first. Valid until the next step. */
const rdzv_place *rdzv_places(const rdzv *m, int *n);

/* What RDZV_DO_ROSTER last said; for lines that are repeated. */
const char *rdzv_roster(const rdzv *m);

/* Why the ranks were ended the last time, by a failure or a loss: the root cause. CAUSE_NONE: they were not, or run again.
 * *n_after (may be NULL) counts the failures that followed it. */
const job_cause *rdzv_root_cause(const rdzv *m, int *n_after);

/* The node whose loss that was, by its place; -1: it was something else. */
int rdzv_root_loss(const rdzv *m);

#endif
