/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim.h - a job of several machines in one process: the production code of the launcher runs in
 * fibers, one for each simulated process, over a virtual clock, network and process table. One seed
 * decides everything, so a run can be repeated bit by bit.
 *
 *     world.c          fibers, the queue of events, processes and their memory
 *     net.c            connections between processes and machines, and what delays and cuts them
 *     calls.c          system calls of the launcher (ld --wrap), as the simulated kernel answers
 *     calls_process.c  ... those about processes, and its forks
 *     calls_socket.c   ... those that make and connect sockets
 *     job.c            the processes of a job: lockstep run, shims, guardians
 *     rank.c           its ranks: a training loop
 *     faults.c         the schedule of a seed, and what must hold
 *     test_sim.c       runs seeds, shortens the schedule of one that fails
 *
 * A simulated process has its own copy of all static variables of the program (.data, .bss and the
 * thread-local block), swapped when another process runs. So no file here but world.c may have
 * static variables.
 */
#ifndef LS_TESTS_SIM_SIM_H
#define LS_TESTS_SIM_SIM_H

#include "base/rng.h"
#include "base/status.h"

#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <ucontext.h>

#define MS           INT64_C(1000000)
#define SECOND       (1000 * MS)
#define NEVER        INT64_MAX
#define HOSTS_MAX    7
#define FDS_MAX      512
#define FAULTS_MAX   16
#define JOIN_MS      60000
#define EPOCH_S      1700000000 /* time() at the start */
#define FAILURE_TEXT 512

typedef struct process process;
typedef struct object object;

/* --- faults --- */

typedef enum fault_kind {
    FAULT_CUT,       /* between machines a and b, for length_ms */
    FAULT_CUT_ONE,   /* from a to b only */
    FAULT_ISOLATE,   /* machine a from all others */
    FAULT_DELAY,     /* packets of a take up to `number` ms more, for length_ms */
    FAULT_POWER,     /* machine a is switched off, without a packet to others */
    FAULT_KILL,      /* SIGKILL to the launcher of a */
    FAULT_KILL_AT,   /* the same, when it has made `number` more calls */
    FAULT_STOP,      /* SIGSTOP to the launcher of a, SIGCONT after length_ms */
    FAULT_TERM,      /* SIGTERM to the launcher of a */
    FAULT_RANK,      /* SIGKILL to local rank b of a */
    FAULT_RANK_AT,   /* the same, when it has made `number` calls in its next group */
    FAULT_RANK_STOP, /* SIGSTOP to it, SIGCONT after length_ms */
    FAULT_SHIM,      /* SIGKILL to its shim */
    FAULT_GUARDIAN,  /* SIGKILL to the guardian of a */
    FAULT_SLOW,      /* the processes of a take a hundred times as long, for length_ms */
    FAULT_CLOCK,     /* the clock of a jumps by length_ms */
    FAULT_CALL,      /* the next system call b (enum call) of the launcher of a fails */
    FAULT_FULL,      /* buffers of connections take 2 KiB, for length_ms */
    FAULT_KINDS
} fault_kind;

typedef enum call {
    CALL_BIND,
    CALL_ACCEPT,
    CALL_SOCKET,
    CALL_CONNECT,
    CALL_FORK,
    CALL_MEMFD,
    CALL_PIPE,
    CALL_EPOLL,
    CALL_MEMORY,
    CALLS
} call;

typedef struct fault {
    fault_kind kind;
    int64_t at_ms;
    int64_t length_ms;
    int a;
    int b;
    int number;
    int skipped; /* FAULT_CALL: so many of these calls succeed before */
} fault;

/* --- the world --- */

typedef struct sim_event {
    int64_t at;
    uint64_t order;
    void (*fn)(void *arg, uint64_t number);
    void *arg;
    uint64_t number;
} sim_event;

/* What a seed is about, apart from its faults. */
typedef struct scenario {
    uint64_t seed;
    int n_nodes;
    int n_local;
    int n_steps;
    int step_ms;
    int n_shards;
    int max_restarts;
    bool is_elastic;
    bool has_buffer; /* the model */
    bool by_arrival; /* machines have no node ranks (--rdzv-backend c10d) */
    int64_t latency; /* the least, of a packet */
    int64_t jitter;
    int n_faults;
    fault faults[FAULTS_MAX];
} scenario;

typedef struct machine {
    int64_t clock;      /* what its clock is ahead */
    int64_t slow_until; /* of its processes */
    int64_t delay_until;
    int64_t delay; /* the most, of a packet */
    bool is_off;
    int next_port;
    process *agent;
    process *guardian;
    process *ranks[4];
    process *shims[4];
    int call_skips[CALLS]; /* so many succeed, */
    int call_fails[CALLS]; /* and then so many fail */
    int64_t calls_left;    /* until its launcher is killed; 0: it is not */
    int64_t rank_calls[4]; /* the same of its ranks, from their next seats on */
    /* Results. */
    bool has_ended;
    bool was_killed;
    int exit_code;
    int64_t ended_at;
} machine;

typedef struct world {
    const scenario *spec;
    int64_t now;
    uint64_t order;
    ls_rng rng;
    uint64_t trace; /* a hash of all that has happened */
    uint64_t n_events;
    sim_event *events; /* a heap */
    int n_events_waiting;
    int events_max;
    jmp_buf scheduler;
    process *current;
    process *processes; /* all of them, the newest first */
    object *objects;
    int last_pid;
    int n_alive;
    int64_t last_end;  /* of a process */
    int64_t last_kill; /* at a call */
    int64_t last_failed_call;
    uint64_t last_random;
    machine hosts[HOSTS_MAX];
    bool is_cut[HOSTS_MAX][HOSTS_MAX]; /* from, to */
    int64_t cut_since[HOSTS_MAX][HOSTS_MAX];
    int n_cuts[HOSTS_MAX][HOSTS_MAX];
    int64_t full_until;
    bool is_verbose;
    int n_groups;               /* formed after the first one */
    int n_takeovers;            /* of the head */
    struct history *history;    /* faults.c */
    char failure[FAILURE_TEXT]; /* the first; "": none */
} world;

extern world *W;

/* --- world.c --- */

typedef enum process_role { ROLE_AGENT, ROLE_GUARDIAN, ROLE_SHIM, ROLE_RANK } process_role;

struct process {
    process *next;
    process *parent;
    process *rank; /* of a shim */
    process_role role;
    int pid;
    int host;
    int local_rank;
    char name[24];
    ucontext_t context; /* at its beginning */
    jmp_buf at;         /* where it waits */
    bool has_begun;
    void *stack;
    unsigned char *statics;
    bool *is_own; /* by piece of them: not as at the start of a program */
    void (*main)(void *arg);
    void *arg;
    uint64_t serial; /* of its last wait */
    bool is_waiting;
    bool is_stopped;
    bool was_woken; /* while it was stopped */
    bool is_dead;
    bool is_reaped;
    int wait_status;
    int64_t began_at;
    int64_t group;      /* of a rank: of its last seat */
    int64_t calls_left; /* in it, until the rank is killed; 0: it is not */
    uint64_t pending;   /* signals, as bits */
    object *fds[FDS_MAX];
    struct watch *waits; /* of poll() */
    struct block *blocks;
    uint64_t n_blocks;
    struct mapping *mappings;
    struct environment *env;
};

/* The variables of a process, in one block. */
typedef struct environment {
    struct environment *previous; /* pointers into it may be in use */
    char *list[];
} environment;

environment *environment_make(char *const *from, const char *name, const char *value);
void environment_add(process *p, const char *name, const char *value);
void environment_free(environment *e);

void world_init(void);    /* once, before all others */
void world_learned(void); /* after some runs: which variables processes write is known */
void world_begin(const scenario *s);
void world_run(int64_t until); /* until then, a failure, or the end of all processes */
bool world_end(void);          /* false: the run does not count, and is to be repeated */
void world_at(int64_t at, void (*fn)(void *arg, uint64_t number), void *arg, uint64_t number);
uint64_t world_random(uint64_t below);
void world_trace(uint64_t a, uint64_t b);
void world_fail(const char *format, ...) LS_PRINTF(1, 2);
void world_log(const char *format, ...) LS_PRINTF(1, 2);

process *process_new(process_role role, int host, process *parent, void (*fn)(void *), void *arg);
process *process_of(int pid);
void process_wait(int64_t until); /* of the current one; until it is woken */
void process_wake(process *p);
void process_stop(process *p, bool stops);
void process_signal(process *p, int number);
void process_die(process *p, int wait_status); /* does not return for the current one */
void process_map(void *at, size_t bytes);      /* the current one; unmapped when it ends */
void process_unmap(const void *at);
void *sim_alloc(size_t bytes); /* the simulator's own, zeroed */
void sim_free(void *block);

/* --- net.c --- */

typedef enum object_kind {
    OBJECT_NULL,
    OBJECT_CONSOLE,
    OBJECT_FILE, /* a memfd of the real kernel */
    OBJECT_SOCKET,
    OBJECT_LISTENER,
    OBJECT_STREAM, /* a connection, or a pipe */
    OBJECT_EPOLL,
    OBJECT_COUNTER,
    OBJECT_SIGNALS
} object_kind;

typedef struct segment {
    struct segment *next;
    int64_t due;
    size_t bytes; /* 0: the end; SIZE_MAX: a reset */
    size_t taken;
    unsigned char data[];
} segment;

typedef struct watch {
    struct watch *next_of_target;
    struct watch *next_of_owner;
    object *target;
    object *epoll;
    process *waiter; /* of poll() */
    int fd;
    uint32_t events;
    uint64_t data;
} watch;

struct object {
    object *next;
    object_kind kind;
    int refs;       /* descriptors */
    bool is_closed; /* there was one, and none is left */
    int flags;
    int fd; /* of the real kernel */
    int host;
    int pid; /* of its maker */
    uint64_t count;
    watch *watchers;
    watch *watched; /* of an epoll */
    process *waiter;
    process *owner; /* of a signalfd */
    /* sockets */
    int family;
    bool is_packet;
    struct sockaddr_storage at;
    struct sockaddr_storage to;
    object *peer;
    object *pending[64]; /* of a listener */
    int n_pending;
    segment *in; /* has arrived */
    segment *in_last;
    size_t in_bytes;
    segment *flight; /* on its way to here */
    segment *flight_last;
    size_t flight_bytes;
    bool is_held; /* the network is cut: nothing arrives */
    bool is_delivering;
    bool is_connecting;
    bool is_connected;
    bool has_ended; /* the peer sends no more */
    bool has_shut;  /* this end sends no more */
    bool is_pipe;
    int error;
    int64_t user_timeout;
    uint64_t number; /* of the connection */
};

object *object_new(object_kind kind);
void object_drop(object *o); /* one descriptor fewer */
void object_free(object *o); /* with the world */
void object_changed(object *o);
uint32_t object_ready(const object *o);
int fd_of(object *o);      /* a new descriptor of the current process; -1: errno */
object *object_of(int fd); /* NULL: errno */
void stream_pair(object *a, object *b);
ssize_t stream_send(object *o, const void *data, size_t bytes);
ssize_t stream_receive(object *o, void *data, size_t bytes, bool peeks);
void stream_shut(object *o); /* it sends no more */
int net_start_connect(object *o, const struct sockaddr *to, socklen_t bytes);
int net_bind(object *o, const struct sockaddr *at, socklen_t bytes);
void net_cut(int from, int to, bool is_cut);
void net_set_user_timeout(object *o, int64_t ns);
int64_t net_silence(const object *o); /* for so long its peer's system has not answered */
void net_host_off(int host);

/* --- calls.c --- */

void begin_call(void); /* the launcher may be killed at any of its calls */
bool call_fails(call c);
machine *own_host(void); /* of the current process */
int fail(int error);     /* sets errno; -1 */

/* --- job.c --- */

void job_start(void);
void job_shim(void *arg);
void job_guardian(void *arg);
void job_check_leaks(const process *p);

/* --- rank.c --- */

int job_rank(int local_rank, void *arg); /* ls_spawn_fn */

/* --- faults.c --- */

void scenario_make(uint64_t seed, scenario *out);
void scenario_print(const scenario *s);
void faults_begin(void);
void faults_end(void); /* checks what must hold at the end */
void fault_text(const fault *f, char *buf, size_t n);

/* Reports of ranks and of the head, which are compared. */
void history_begin(int generation);
void history_step(int member, int step, uint64_t state);
void history_save(int step);
void history_finish(void);
void history_error(process *p, const char *text);

#endif
