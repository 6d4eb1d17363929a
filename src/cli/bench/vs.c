/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vs.c - compares backends in one run: one set of ranks per backend. The sets measure every row in
 * alternating turns, so that a slow period of the machine affects all of them. A rank without a
 * turn sleeps in a read.
 *
 * Each set is this program again, for MPI under mpirun. The sets end with this process: their
 * sockets are closed, and the kernel sends SIGTERM to the children of this process.
 */
#include "cli/bench/turn_wire.h"
#include "cli/cli.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/median.h"
#include "host/process.h"
#include "host/program.h"
#include "net/socket.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define CONNECT_MS 60000            /* for all ranks to connect */
#define TURN_MS    INT64_C(3600000) /* for one turn */
#define LEAVE_MS   10000            /* for the sets to end */
#define END_MS     2000             /* from a rank's end to that of its set */
#define STEP_MS    20
#define ARGS_MAX   256
#define RANKS_MAX  1024
#define NAME_BYTES 64

typedef struct side {
    char backend[NAME_BYTES];
    pid_t pid; /* 0: it has ended or was not started */
    int code;  /* exit code, once it has ended */
    int fds[RANKS_MAX];
    turn_hello hello;      /* of rank 0 */
    bench_result *results; /* one per turn of the current row */
} side;

typedef struct versus {
    const bench_options *opt;
    int n;
    int listener;
    net_address address;
    side sides[TURN_SIDES]; /* the first is ours */
    int n_sides;
} versus;

/* --- starting a set --- */

/* With both MPIs installed, mpirun is one of them. */
static const char *mpirun_of(const char *backend)
{
    const char *own = text_equal(backend, "mpi:mpich") ? "mpirun.mpich" : "mpirun.openmpi";

    return program_is_in_path(own) ? own : "mpirun";
}

static int add_launcher(char **args, const side *s, char *n_text)
{
    static char np[] = "-np";
    static char oversubscribe[] = "--oversubscribe";
    static char bind_to[] = "--bind-to";
    static char none[] = "none";
    int n = 0;

    if (!text_starts(s->backend, "mpi"))
        return 0;
    args[n++] = (char *)(uintptr_t)mpirun_of(s->backend);
    if (!text_equal(s->backend, "mpi:mpich")) {
        args[n++] = oversubscribe;
        args[n++] = bind_to;
        args[n++] = none;
    }
    args[n++] = np;
    args[n++] = n_text;
    return n;
}

/* In the child: its ranks get all they need, no secret among it, from the command line. */
static void become_set(char **args, pid_t parent)
{
    const int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);

    (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent)
        _exit(126); // the parent ended before prctl()
    if (nothing >= 0)
        (void)dup2(nothing, STDIN_FILENO);                      // mpirun would read our stdin
    if (geteuid() == 0) {                                       // Open MPI needs both for root
        (void)setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);         // NOLINT(concurrency-mt-unsafe)
        (void)setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1); // NOLINT(concurrency-mt-unsafe)
    }
    (void)execvp(args[0], args);
    print_error("lockstep bench: %s: %s\n", args[0], ls_errno_text(errno));
    _exit(127);
}

static ls_status start_set(versus *v, int index, int argc, char **argv)
{
    side *s = &v->sides[index];
    const pid_t parent = getpid();
    char n_text[16];
    char turn[NET_ADDRESS_TEXT_MAX + 2];
    char at[NET_ADDRESS_TEXT_MAX];
    char self[4096] = {0};
    char *args[ARGS_MAX];
    const char *first[] = {self, "bench", bench_kind_name(v->opt->kind)};
    const char *last[] = {"--backend", s->backend, "--turn", turn};
    int n;

    text_format(n_text, sizeof(n_text), "%d", v->n);
    text_format(turn, sizeof(turn), "%d:%s", index, net_address_text(at, sizeof(at), &v->address));
    if (readlink("/proc/self/exe", self, sizeof(self) - 1) <= 0)
        return ls_fail_errno("/proc/self/exe");
    if (argc > ARGS_MAX - 20)
        return ls_fail(LS_EINVAL, "%d arguments are too many", argc);
    n = add_launcher(args, s, n_text);
    for (size_t i = 0; i < LS_COUNT_OF(first); i++)
        args[n++] = (char *)(uintptr_t)first[i];
    for (int i = 0; i < argc; i++)
        args[n++] = argv[i];
    for (size_t i = 0; i < LS_COUNT_OF(last); i++)
        args[n++] = (char *)(uintptr_t)last[i];
    args[n] = NULL;
    s->pid = fork();
    if (s->pid == 0)
        become_set(args, parent);
    if (s->pid < 0) {
        s->pid = 0;
        return ls_fail_errno("starting the ranks of backend %s", s->backend);
    }
    return LS_OK;
}

/* --- connections of the ranks --- */

/* Fails when a set has ended; its ranks have printed the reason to stderr. */
static ls_status check_sets(versus *v)
{
    for (int i = 0; i < v->n_sides; i++) {
        side *s = &v->sides[i];
        int status;

        if (s->pid <= 0 || waitpid(s->pid, &status, WNOHANG) != s->pid)
            continue;
        s->pid = 0;
        s->code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        return ls_fail(LS_EPEER, "the ranks of backend %s exited with code %d", s->backend,
                       s->code);
    }
    return LS_OK;
}

static ls_status take_rank(versus *v, int fd)
{
    turn_hello hello;
    uid_t user = 0;

    LS_TRY(net_peer_user(fd, &user, NULL));
    if (user != geteuid())
        return ls_fail(LS_EAUTH, "a process of user %u", (unsigned)user);
    LS_TRY(net_recv_all(fd, "a rank", &hello, sizeof(hello), ls_deadline_ms(CONNECT_MS)));
    if (hello.side < 0 || hello.side >= v->n_sides || hello.rank < 0 || hello.rank >= v->n ||
        hello.size != v->n || v->sides[hello.side].fds[hello.rank] >= 0)
        return ls_fail(LS_EPROTO, "rank %d of %d", hello.rank, hello.size);
    hello.backend[sizeof(hello.backend) - 1] = '\0';
    hello.transport[sizeof(hello.transport) - 1] = '\0';
    v->sides[hello.side].fds[hello.rank] = fd;
    if (hello.rank == 0)
        v->sides[hello.side].hello = hello;
    return LS_OK;
}

static ls_status gather_ranks(versus *v)
{
    const int64_t deadline_ms = ls_deadline_ms(CONNECT_MS);
    const int all = v->n_sides * v->n;
    int n = 0;

    while (n < all) {
        int fd = -1;

        if (net_wait(v->listener, POLLIN, ls_deadline_ms(STEP_MS)) == LS_OK)
            LS_TRY(net_accept(v->listener, &fd));
        if (fd >= 0 && take_rank(v, fd) == LS_OK)
            n++;
        else
            file_close(&fd);
        LS_TRY(check_sets(v));
        if (ls_deadline_left(deadline_ms) == 0)
            return ls_fail(LS_ETIMEOUT, "timed out: %d of %d ranks connected within %d s", n, all,
                           CONNECT_MS / 1000);
    }
    return LS_OK;
}

/* --- turns --- */

static ls_status give_turn(versus *v, side *s, bench_result *out)
{
    const char packet = TURN_PACKET;
    char name[64];

    text_format(name, sizeof(name), "rank 0 of backend %s", s->backend);
    for (int r = 0; r < v->n; r++)
        LS_TRY(net_send_all(s->fds[r], "a rank", &packet, 1, ls_deadline_ms(CONNECT_MS)));
    return net_recv_all(s->fds[0], name, out, sizeof(*out), ls_deadline_ms(TURN_MS));
}

/* The median time of all turns, with the check result of the first turn. */
static bench_time median_time(const versus *v, const side *s, double *scratch, int in_place)
{
    const size_t n = (size_t)v->opt->cycles;
    bench_time all = s->results[0].side[in_place];

    for (size_t k = 0; k < n; k++)
        scratch[k] = s->results[k].side[in_place].time_us;
    all.time_us = median_of(scratch, n);
    return all;
}

/* The result of a peer in a row: its time, and the ratio of times within each turn. */
static void sum_up(const versus *v, const side *s, double *scratch, int in_place, bench_peer *out)
{
    const size_t n = (size_t)v->opt->cycles;

    out->result.side[in_place] = median_time(v, s, scratch, in_place);
    for (size_t k = 0; k < n; k++)
        scratch[k] =
            s->results[k].side[in_place].time_us / v->sides[0].results[k].side[in_place].time_us;
    out->ratio[in_place] = median_of(scratch, n);
    out->spread[in_place] = 100 * (scratch[3 * n / 4] - scratch[n / 4]) / out->ratio[in_place];
}

/* After a connection to a set has failed: waits for the end of the set, whose exit code is the
 * better error. */
static ls_status explain(versus *v, ls_status status)
{
    const int64_t deadline_ms = ls_deadline_ms(END_MS);

    while (ls_deadline_left(deadline_ms) > 0) {
        LS_TRY(check_sets(v));
        (void)poll(NULL, 0, STEP_MS);
    }
    return status;
}

static ls_status run_row(versus *v, bench_table *t, const bench_case *c, double *scratch)
{
    bench_result ours = {0};

    for (int64_t k = 0; k < v->opt->cycles; k++)
        for (int i = 0; i < v->n_sides; i++) {
            side *s = &v->sides[(k + i) % v->n_sides];
            const ls_status st = give_turn(v, s, &s->results[k]);

            if (st != LS_OK)
                return explain(v, st);
        }
    for (int in_place = 0; in_place < (bench_has_in_place(c->kind) ? 2 : 1); in_place++) {
        ours.side[in_place] = median_time(v, &v->sides[0], scratch, in_place);
        for (int i = 1; i < v->n_sides; i++)
            sum_up(v, &v->sides[i], scratch, in_place, &t->peers[i - 1]);
    }
    bench_table_vs_row(t, c, &ours);
    return LS_OK;
}

static ls_status run_rows(versus *v, bench_table *t)
{
    double *scratch;
    bench_sweep sweep = bench_sweep_begin(v->opt, v->n);
    ls_status st = LS_OK;
    bench_case c;

    LS_TRY(LS_NEW(&scratch, (size_t)v->opt->cycles, "for %lld turns", (long long)v->opt->cycles));
    while (st == LS_OK && bench_sweep_next(&sweep, &c))
        st = run_row(v, t, &c, scratch);
    ls_free(scratch);
    return st;
}

static ls_status compare(versus *v)
{
    bench_table t = {.opt = v->opt,
                     .backend = v->sides[0].hello.backend,
                     .transport = v->sides[0].hello.transport,
                     .n_peers = v->n_sides - 1};
    ls_status st;

    for (int i = 1; i < v->n_sides; i++)
        t.peers[i - 1] =
            (bench_peer){.backend = v->sides[i].backend, .transport = v->sides[i].hello.transport};
    bench_table_begin(&t, v->n);
    st = run_rows(v, &t);
    if (st == LS_OK)
        st = bench_table_end(&t);
    bench_table_free(&t);
    return st;
}

/* --- open and close --- */

static ls_status add_side(versus *v, const char *name, size_t length)
{
    side *s = &v->sides[v->n_sides];

    if (length == 0 || length >= NAME_BYTES)
        return ls_fail(LS_EINVAL,
                       "--vs: \"%.40s\" is not a backend; give a comma-separated list: mpi,gloo",
                       name);
    if (v->n_sides == TURN_SIDES)
        return ls_fail(LS_EINVAL, "--vs %.80s: more than %d backends", v->opt->vs, BENCH_PEERS_MAX);
    text_format(s->backend, sizeof(s->backend), "%.*s", (int)length, name);
    for (int r = 0; r < RANKS_MAX; r++)
        s->fds[r] = -1;
    LS_TRY(
        LS_NEW(&s->results, (size_t)v->opt->cycles, "for %lld turns", (long long)v->opt->cycles));
    v->n_sides++;
    return LS_OK;
}

static ls_status open_sides(versus *v)
{
    const char *own = v->opt->backend != NULL ? v->opt->backend : "auto";
    const char *name = v->opt->vs;

    v->listener = -1;
    if (v->n > RANKS_MAX)
        return ls_fail(LS_EINVAL, "-g %d: more than %d ranks with --vs", v->n, RANKS_MAX);
    LS_TRY(add_side(v, own, strlen(own)));
    for (bool more = true; more; name += strcspn(name, ",") + more) {
        more = strchr(name, ',') != NULL;
        LS_TRY(add_side(v, name, strcspn(name, ",")));
    }
    process_allow_files(64 + (uint64_t)(v->n_sides * v->n));
    LS_TRY(net_address_fresh_unix("bench", &v->address));
    return net_listen(&v->address, NET_PACKET, v->n_sides * v->n, &v->listener, NULL);
}

static void wait_for_end(pid_t pid, int64_t deadline_ms)
{
    while (pid > 0 && waitpid(pid, NULL, WNOHANG) == 0) {
        if (ls_deadline_left(deadline_ms) == 0) {
            (void)kill(pid, SIGTERM);
            return;
        }
        (void)poll(NULL, 0, STEP_MS);
    }
}

/* Ranks end when their sockets are closed. */
static void close_sides(versus *v)
{
    const int64_t deadline_ms = ls_deadline_ms(LEAVE_MS);

    for (int i = 0; i < v->n_sides; i++) {
        side *s = &v->sides[i];

        for (int r = 0; r < v->n && r < RANKS_MAX; r++)
            file_close(&s->fds[r]);
        ls_free(s->results);
    }
    file_close(&v->listener);
    for (int i = 0; i < v->n_sides; i++)
        wait_for_end(v->sides[i].pid, deadline_ms);
}

ls_status bench_vs(const bench_options *opt, int argc, char **argv)
{
    versus *v;
    ls_status st;

    LS_TRY(LS_NEW(&v, 1, "for sets of ranks"));
    v->opt = opt;
    v->n = (int)(opt->ranks * opt->threads);
    st = open_sides(v);
    for (int i = 0; i < v->n_sides && st == LS_OK; i++)
        st = start_set(v, i, argc, argv);
    if (st == LS_OK)
        st = gather_ranks(v);
    if (st == LS_OK)
        st = compare(v);
    close_sides(v);
    ls_free(v);
    return st;
}
