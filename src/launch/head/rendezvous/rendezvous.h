/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rendezvous.h - the state machine at a job's head: which nodes are in the job and with which
 * numbers, when the ranks start and restart, and how the job ends.
 *
 *     COLLECT --enough nodes--> AGREE --all ready--> RUN --all finished--> END
 *       ^  ^                      |                   |
 *       |  +----a node is lost----+         failure, loss, new node, stop
 *       |                                             v
 *       +--------------restart--------------------- DRAIN --no restart--> END
 *
 * A pure step function: an event goes in, actions come out. It reads no clock, opens nothing and
 * allocates only in rdzv_create(). Each way from COLLECT to AGREE makes one roster: a generation,
 * its nodes and their ranks. A new roster is made only when every node of the last one has ended
 * its ranks or is lost.
 *
 * What the driver (head.c) does
 *   - Each authenticated connection that has sent its hello becomes RDZV_ARRIVED, under a number
 *     that is never used again.
 *   - One that closes, or sends nothing for 5 s, becomes RDZV_GONE.
 *   - It carries out the actions in their order; after RDZV_DO_REJECT and RDZV_DO_END it closes
 *     that connection.
 *   - It sends RDZV_TICK at wake_at_ms. Early and additional ticks do no harm.
 * What a node does
 *   - welcome: drops the state of earlier welcomes, opens its listeners, probes its networks,
 *     sends ready.
 *   - start: starts its ranks. It reports a failed rank at once, and sends finished when all ranks
 *     have ended.
 *   - stop, abort, kill: ends its ranks and sends finished; at once when it has none (any more).
 *   - a lost head: kills its ranks, and may return as a new connection with the same uid.
 *
 * Rules
 *   - By id (static): all ids must join, a node's number is its id, a second node with an id is
 *     rejected.
 *   - Otherwise (dynamic): a roster is made when max nodes have joined; or when min nodes have
 *     joined and the last call or the join time has passed; or when exactly the nodes of the last
 *     roster have rejoined. Node 0 is the head's own. A node of the last roster keeps its number
 *     where it can; a new node on a lost node's host takes over that number; then come requested
 *     ids, then the other nodes in the order of their arrival. Nodes beyond max wait as spares.
 *   - A waiting node with as many ranks takes the place of a node whose loss is tolerated, while
 *     the others run: it gets a welcome of the present generation, and a start when it is ready. If
 *     it cannot start, it is dropped and the place waits for another node. That ends when the ranks
 *     of the first node have ended by themselves.
 *   - A node that joins while fewer than max run, or that leaves while min stay (dynamic), ends all
 *     ranks in good order (SIGTERM, grace), and all others restart; a failure or a loss aborts the
 *     ranks first. The cause is the failure reported first; but an exit gives way to a crash
 *     reported less than 100 ms later, and to the loss of a node whose last message is older than
 *     the exit.
 *
 * In an elastic job ranks are lost and replaced while the phase is RUN (recovery.h): the machine
 * gets only what is not recovered from.
 *
 * launch/head/rendezvous/: the machine of a job's nodes, for launch/head and agents, through this
 * header.
 */
#ifndef LS_LAUNCH_HEAD_RENDEZVOUS_RENDEZVOUS_H
#define LS_LAUNCH_HEAD_RENDEZVOUS_RENDEZVOUS_H

#include "base/status.h"
#include "hub/cause.h"

#include <stdbool.h>

#define RDZV_NODES_MAX 4096 /* nodes of a job, and spares beside them */
#define RDZV_LOCAL_MAX 4096 /* ranks of one node */
#define RDZV_NAME_BYTES                                                                            \
    64 /* of a name of a job in texts, with its terminator; longer ones are cut */
#define RDZV_HOST_BYTES 65  /* a host's name with its terminator; longer names are cut */
#define RDZV_TEXT_BYTES 768 /* longest text of an action with its terminator */
#define RDZV_HEAD       0   /* no connection: an action for the head itself */
#define RDZV_NEVER      INT64_MAX

typedef struct rdzv rdzv;

/* The settings of the job. Pointers are borrowed for the call of rdzv_create(). */
typedef struct rdzv_options {
    /* Static: the nodes have the ids 0..max_nodes-1, and all must join. Otherwise any node may
     * join, and its id is a request. */
    bool by_id;
    int min_nodes; /* by_id: the same as max_nodes */
    int max_nodes;
    int max_spares; /* nodes that may wait beyond max_nodes; further nodes are rejected */
    /* Restarts after failures. New nodes cost none, nor do lost nodes while min nodes are left
     * (dynamic). */
    int max_restarts;
    /* --elastic: with fewer ranks the job fails; ranks that are lost before are no failure of the
     * others. 0: it is not elastic. */
    int min_ranks;
    const int *per_node;  /* by_id only: -g 8,2, max_nodes entries; NULL: each node has its own */
    uint64_t run_id;      /* hash of the job's name; other jobs' nodes are rejected */
    const char *run_name; /* the job's name, for texts; NULL: not known */
    const char *version;  /* nodes of other versions are rejected */
    const char *host;     /* the head's, for texts */
    int64_t join_ms;      /* to wait for nodes, at the start and at each restart; 0: 600 s */
    int64_t last_call_ms; /* between min and max: to wait for more; 0: 30 s, negative: not at all */
    int64_t ready_ms;     /* from welcome to ready; 0: 60 s */
    int64_t grace_ms;     /* for ranks at an orderly end; 0: 10 s */
} rdzv_options;

/* What a node reports about itself. Nothing in it is trusted. */
typedef struct rdzv_hello {
    uint64_t uid;  /* drawn by the node when it starts, the same when it connects again; 0: none */
    bool is_head;  /* the head's own node; set by the driver, not by a message */
    int id;        /* the node id it was given, -1: none */
    int n_local;   /* its ranks */
    int min_nodes; /* --nnodes as it was given there; 0: not given */
    int max_nodes;
    const int *per_node; /* its -g list, n_per_node entries; 0: none */
    int n_per_node;
    uint64_t run_id;
    const char *run_name; /* NULL: not known */
    const char *version;
    const char *host;
} rdzv_hello;

typedef enum rdzv_event_kind {
    RDZV_TICK,
    RDZV_ARRIVED, /* conn, hello */
    RDZV_READY,   /* conn, generation */
    RDZV_FAILED,  /* conn, generation, local_rank, exit_code, crashed, text: a rank, or the start */
    RDZV_FINISHED, /* conn, generation, stopped, n_well: all its ranks have ended */
    RDZV_GONE,     /* conn, last_seen_ms, is_tolerated, n_well, text */
    /* conn (RDZV_HEAD: here), signal, text: an orderly end is requested; the second one kills. Of a
     * node that is no longer in the job: nothing. */
    RDZV_STOP,
    RDZV_LEAVE /* the same, but if the others can go on without this node, only it ends */
} rdzv_event_kind;

typedef struct rdzv_event {
    rdzv_event_kind kind;
    uint64_t conn;
    const rdzv_hello *hello;
    uint32_t generation; /* of the welcome that it is about; earlier generations are ignored */
    int local_rank;      /* -1: none in particular */
    int exit_code;       /* 128 + signal for one that was killed */
    bool crashed;        /* by SIGKILL, SIGSEGV, ...: not a consequence of another rank's end */
    bool stopped;        /* after a stop, abort or kill; false: all ended by themselves, */
    int n_well;          /* FINISHED: so many with 0; GONE: the same, if none ran any more */
    const job_cause *aborted; /* FAILED: a rank aborted a group before; NULL: none did */
    bool is_tolerated;        /* GONE: the other nodes go on without it (head_elastic.c) */
    int64_t last_seen_ms;     /* GONE: time of the last message; now for a closed connection */
    int signal;
    /* FAILED: "rank 5 (pid 4711) exited with code 1"; GONE: "no heartbeat for 5 s"; STOP: the
     * sender. Or NULL. */
    const char *text;
} rdzv_event;

/* A node's place in a roster. Ranks are numbered node by node: those of node k begin at
 * rank_base. */
typedef struct rdzv_place {
    uint64_t conn;
    uint32_t generation; /* 1 at the first start; strictly growing, not always by one */
    int n_restarts;      /* that failures have cost: TORCHELASTIC_RESTART_COUNT, equal everywhere */
    int node;
    int n_nodes;
    int rank_base;
    int n_local;
    int world_size;
    bool is_late; /* the node has taken the place of a lost one, while others run */
    char host[RDZV_HOST_BYTES];
} rdzv_place;

typedef enum rdzv_action_kind {
    /* for the node behind conn */
    RDZV_DO_WELCOME, /* place */
    RDZV_DO_WAIT,    /* text: the roster is full; the node stays connected as a spare */
    RDZV_DO_REJECT,  /* text: the conflict, with both sides' values */
    RDZV_DO_START,   /* place */
    RDZV_DO_STOP,    /* signal, grace_ms, text: the orderly end of its ranks */
    RDZV_DO_ABORT,   /* cause: pending calls fail with it, SIGTERM, SIGKILL after 1 s */
    RDZV_DO_KILL,    /* SIGKILL now */
    RDZV_DO_END,     /* exit_code, text: the job is over */
    /* for the head itself, where conn is RDZV_HEAD */
    RDZV_DO_NOTE,    /* text: to print once; also for a node whose id a second node claims */
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

/* LS_EINVAL: bad options, named as on the command line. The join window begins at now_ms. */
LS_MUST_USE ls_status rdzv_create(const rdzv_options *opt, int64_t now_ms, rdzv **out);
/* A machine in RDZV_RUN, for a head that takes over while the ranks run: these nodes are here, with
 * these places. The job is by_id: it ends instead of being restarted. */
LS_MUST_USE ls_status rdzv_resume(const rdzv_options *opt, const rdzv_place *places, int n,
                                  int64_t now_ms, rdzv **out);
void rdzv_destroy(rdzv *m); /* NULL is allowed */

/* Takes one event. now_ms never goes back. Events of unknown connections are ignored. */
rdzv_result rdzv_step(rdzv *m, const rdzv_event *event, int64_t now_ms);

rdzv_phase rdzv_phase_now(const rdzv *m);

/* The places of the last roster, by node; *n is 0 before the first. Valid until the next step. */
const rdzv_place *rdzv_places(const rdzv *m, int *n);

/* The text of the last RDZV_DO_ROSTER; for repeated lines. */
const char *rdzv_roster(const rdzv *m);

/* The root cause of the last drain after a failure or a loss. CAUSE_NONE: there was none, or
 * the ranks run again. *n_after (may be NULL) counts the failures that followed it. */
const job_cause *rdzv_root_cause(const rdzv *m, int *n_after);

/* The number of the node whose loss is the root cause; -1: the cause is not a loss. */
int rdzv_root_loss(const rdzv *m);

#endif
