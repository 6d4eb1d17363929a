/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vs.c - two engines in one run: a set of ranks for each, which measure every row in turn, so that a slow spell of the machine hits
 * both. Who has no turn sleeps in a read, whatever its engine would do while it waits.
 *
 * The sets are this program again: under mpirun for MPI, else with ranks of its own. They end when this process does: their
 * sockets end with it, and the kernel sends SIGTERM to what it has started.
 */
#include "cli/bench/turn_wire.h"
#include "cli/cli.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/file.h"
#include "launch/program.h"
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

#define COME_MS   60000         /* for all ranks to come */
#define TURN_MS   (3600 * 1000) /* for one turn */
#define LEAVE_MS  10000         /* for the sets to end */
#define END_MS    2000          /* from a rank's end to that of its set */
#define STEP_MS   20
#define ARGS_MAX  256
#define RANKS_MAX 1024

typedef struct side {
    const char *backend;
    pid_t pid; /* 0: has ended, or was not started */
    int code;  /* how, once it has */
    int fds[RANKS_MAX];
    turn_hello hello;      /* of rank 0 */
    bench_result *results; /* one a turn of the present row */
} side;

typedef struct versus {
    const bench_options *opt;
    int n;
    int listener;
    net_address address;
    side sides[2];
} versus;

/* --- starting a set --- */

/* Debian has both MPIs beside each other, and mpirun is one of them. */
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

/* In the child: what its ranks need is in the command line, which names no secret. */
static void become_set(char **args, pid_t parent)
{
    const int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);

    (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent)
        _exit(126); // it died before the line above
    if (nothing >= 0)
        (void)dup2(nothing, STDIN_FILENO);              // mpirun would read what is ours
    if (geteuid() == 0) {                               // Open MPI asks root to say so twice
        (void)setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1); // NOLINT(concurrency-mt-unsafe)
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
    const char *last[] = {"--backend", s->backend, "--turn", turn};
    int n;

    text_format(n_text, sizeof(n_text), "%d", v->n);
    text_format(turn, sizeof(turn), "%d:%s", index, net_address_text(at, sizeof(at), &v->address));
    if (readlink("/proc/self/exe", self, sizeof(self) - 1) <= 0)
        return ls_fail_errno("/proc/self/exe");
    if (argc > ARGS_MAX - 20)
        return ls_fail(LS_EINVAL, "%d arguments are more than bench has flags", argc);
    n = add_launcher(args, s, n_text);
    args[n++] = self;
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

/* --- their coming --- */

/* Fails when a set has ended; its ranks have said on stderr why. */
static ls_status check_sets(versus *v)
{
    for (int i = 0; i < 2; i++) {
        side *s = &v->sides[i];
        int status;

        if (s->pid <= 0 || waitpid(s->pid, &status, WNOHANG) != s->pid)
            continue;
        s->pid = 0;
        s->code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        return ls_fail(LS_EPEER, "the ranks of backend %s have ended with code %d", s->backend,
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
    LS_TRY(net_recv_all(fd, "a rank", &hello, sizeof(hello), ls_deadline_ms(COME_MS)));
    if (hello.side < 0 || hello.side > 1 || hello.rank < 0 || hello.rank >= v->n ||
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
    const int64_t deadline_ms = ls_deadline_ms(COME_MS);
    int n = 0;

    while (n < 2 * v->n) {
        int fd = -1;

        if (net_wait(v->listener, POLLIN, ls_deadline_ms(STEP_MS)) == LS_OK)
            LS_TRY(net_accept(v->listener, &fd));
        if (fd >= 0 && take_rank(v, fd) == LS_OK)
            n++;
        else
            file_close(&fd);
        LS_TRY(check_sets(v));
        if (ls_deadline_left(deadline_ms) == 0)
            return ls_fail(LS_ETIMEOUT, "%d of %d ranks have come within %d s", n, 2 * v->n,
                           COME_MS / 1000);
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
        LS_TRY(net_send_all(s->fds[r], "a rank", &packet, 1, ls_deadline_ms(COME_MS)));
    return net_recv_all(s->fds[0], name, out, sizeof(*out), ls_deadline_ms(TURN_MS));
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Sorts. */
static double median_of(double *values, size_t n)
{
    qsort(values, n, sizeof(*values), ascending);
    return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

/* The row from all turns: median times, what was found in the first one's check, and the ratio inside turns. */
static void sum_up(versus *v, double *scratch, int in_place, bench_result rows[2], double *ratio,
                   double *spread)
{
    const size_t n = (size_t)v->opt->cycles;

    for (int i = 0; i < 2; i++) {
        for (size_t k = 0; k < n; k++)
            scratch[k] = v->sides[i].results[k].side[in_place].time_us;
        rows[i].side[in_place] = v->sides[i].results[0].side[in_place];
        rows[i].side[in_place].time_us = median_of(scratch, n);
    }
    for (size_t k = 0; k < n; k++)
        scratch[k] = v->sides[1].results[k].side[in_place].time_us /
                     v->sides[0].results[k].side[in_place].time_us;
    *ratio = median_of(scratch, n);
    *spread = 100 * (scratch[3 * n / 4] - scratch[n / 4]) / *ratio;
}

/* A broken connection is the end of a set, as soon as all its ranks have ended. */
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
    bench_result rows[2] = {0};
    double ratio[2] = {0};
    double spread[2] = {0};

    for (int64_t k = 0; k < v->opt->cycles; k++)
        for (int i = 0; i < 2; i++) {
            side *s = &v->sides[(k + i) % 2];
            const ls_status st = give_turn(v, s, &s->results[k]);

            if (st != LS_OK)
                return explain(v, st);
        }
    for (int in_place = 0; in_place < 2; in_place++)
        if (in_place == 0 || bench_has_in_place(c->kind))
            sum_up(v, scratch, in_place, rows, &ratio[in_place], &spread[in_place]);
    bench_table_vs_row(t, c, &rows[0], &rows[1], ratio, spread);
    return LS_OK;
}

static ls_status run_rows(versus *v, bench_table *t)
{
    double *scratch = ls_calloc((size_t)v->opt->cycles, sizeof(*scratch));
    bench_sweep sweep = bench_sweep_begin(v->opt, v->n);
    ls_status st = LS_OK;
    bench_case c;

    if (scratch == NULL)
        return ls_fail(LS_ENOMEM, "no memory for %lld turns", (long long)v->opt->cycles);
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
                     .vs_backend = v->sides[1].backend,
                     .vs_transport = v->sides[1].hello.transport};
    ls_status st;

    bench_table_begin(&t, v->n);
    st = run_rows(v, &t);
    if (st == LS_OK)
        st = bench_table_end(&t);
    bench_table_free(&t);
    return st;
}

/* --- life --- */

static ls_status open_sides(versus *v)
{
    v->listener = -1;
    v->sides[0].backend = v->opt->backend != NULL ? v->opt->backend : "auto";
    v->sides[1].backend = v->opt->vs;
    for (int i = 0; i < 2; i++)
        for (int r = 0; r < RANKS_MAX; r++)
            v->sides[i].fds[r] = -1;
    if (v->n > RANKS_MAX)
        return ls_fail(LS_EINVAL, "-g %d: %d ranks are the most with --vs", v->n, RANKS_MAX);
    for (int i = 0; i < 2; i++) {
        v->sides[i].results = ls_calloc((size_t)v->opt->cycles, sizeof(bench_result));
        if (v->sides[i].results == NULL)
            return ls_fail(LS_ENOMEM, "no memory for %lld turns", (long long)v->opt->cycles);
    }
    LS_TRY(net_address_fresh_unix("bench", &v->address));
    return net_listen(&v->address, NET_PACKET, 2 * v->n, &v->listener, NULL);
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

/* The ends of their sockets tell ranks to leave. */
static void close_sides(versus *v)
{
    const int64_t deadline_ms = ls_deadline_ms(LEAVE_MS);

    for (int i = 0; i < 2; i++) {
        side *s = &v->sides[i];

        for (int r = 0; r < v->n && r < RANKS_MAX; r++)
            file_close(&s->fds[r]);
        ls_free(s->results);
    }
    file_close(&v->listener);
    for (int i = 0; i < 2; i++)
        wait_for_end(v->sides[i].pid, deadline_ms);
}

ls_status bench_vs(const bench_options *opt, int argc, char **argv)
{
    versus *v = ls_calloc(1, sizeof(*v));
    ls_status st;

    if (v == NULL)
        return ls_fail(LS_ENOMEM, "no memory for two sets of ranks");
    v->opt = opt;
    v->n = (int)(opt->ranks * opt->threads);
    st = open_sides(v);
    for (int i = 0; i < 2 && st == LS_OK; i++)
        st = start_set(v, i, argc, argv);
    if (st == LS_OK)
        st = gather_ranks(v);
    if (st == LS_OK)
        st = compare(v);
    close_sides(v);
    ls_free(v);
    return st;
}
