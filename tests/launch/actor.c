/* SPDX-License-Identifier: Apache-2.0 */
/*
 * actor.c - a rank that behaves as a test requests: actor ROLE [ARGS]. Written against the public
 * headers only.
 */
#include <lockstep/comm.h>
#include <lockstep/launch.h>

#include <dirent.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static int play(char **args);

static int own_rank(void)
{
    const char *text = getenv("LOCKSTEP_RANK");

    return text == NULL ? 0 : (int)strtol(text, NULL, 10);
}

static int number(char **args, int i, int otherwise)
{
    for (int k = 0; k <= i; k++)
        if (args[k] == NULL)
            return otherwise;
    return (int)strtol(args[i], NULL, 10);
}

static int fail(const char *what)
{
    fprintf(stderr, "%s failed: %s\n", what, ls_last_error());
    return 1;
}

static void wait_for_ever(void)
{
    for (;;)
        pause();
}

/* --- roles without a group --- */

/* exit CODE [RANK]: that rank exits, the others sleep. */
static int role_exit(char **args)
{
    if (number(args, 1, own_rank()) != own_rank())
        wait_for_ever();
    return number(args, 0, 0);
}

/* signal NUMBER [RANK]: that rank dies by it, as without any handler. */
static int role_signal(char **args)
{
    const struct rlimit no_core = {0, 0};

    if (number(args, 1, own_rank()) != own_rank())
        wait_for_ever();
    (void)setrlimit(RLIMIT_CORE, &no_core);
    (void)signal(number(args, 0, SIGKILL), SIG_DFL);
    (void)raise(number(args, 0, SIGKILL));
    return 0;
}

static uint64_t random_state;

static unsigned random_below(unsigned n)
{
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (unsigned)(random_state >> 33) % n;
}

/* lines SEED N: N lines "LINE rank i length xxx..." in write()s of random sizes, to stdout and
 * stderr by turns. */
static int role_lines(char **args)
{
    static char text[1 << 16];
    const int n = number(args, 1, 100);

    random_state = (uint64_t)number(args, 0, 1) * 1000 + (uint64_t)own_rank();
    for (int i = 0; i < n; i++) {
        const int fill = 1 + (int)random_below(random_below(4) == 0 ? 9000 : 60);
        int length = snprintf(text, sizeof(text), "LINE %d %d %d ", own_rank(), i, fill);

        memset(text + length, 'a' + own_rank(), (size_t)fill);
        length += fill;
        text[length++] = '\n';
        for (int at = 0; at < length;) {
            const int most = 1 + (int)random_below(random_below(2) == 0 ? 7 : 3000);
            const int piece = most < length - at ? most : length - at;

            if (write(1 + i % 2, text + at, (size_t)piece) != piece)
                return 1;
            at += piece;
        }
    }
    return 0;
}

/* Starts a grandchild in a session of its own, as daemons do. */
static void make_daemon(void (*run)(void))
{
    const pid_t child = fork();

    if (child == 0) {
        (void)setsid();
        if (fork() == 0) {
            (void)signal(SIGTERM, SIG_IGN);
            (void)signal(SIGHUP, SIG_IGN);
            run();
        }
        _exit(0);
    }
    (void)waitpid(child, NULL, 0);
}

static void exec_bare(void)
{
    static char name[] = "sleep";
    static char time[] = "1000";
    char *argv[] = {name, time, NULL};
    char *none[] = {NULL};

    (void)execve("/bin/sleep", argv, none);
}

/* daemon [ROLE ARGS]: leaves processes in other sessions, one of them without an environment;
 * then plays another role. */
static int role_daemon(char **args)
{
    make_daemon(wait_for_ever);
    make_daemon(exec_bare);
    printf("daemons of rank %d are there\n", own_rank());
    (void)fflush(stdout);
    if (args[0] != NULL)
        return play(args);
    wait_for_ever();
    return 0;
}

static const int stop_signals[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};

static void on_stop_signals(void (*handler)(int))
{
    for (size_t i = 0; i < sizeof(stop_signals) / sizeof(stop_signals[0]); i++)
        (void)signal(stop_signals[i], handler);
}

static volatile sig_atomic_t asked;
static volatile sig_atomic_t n_asked;

static void on_stop(int signal_number)
{
    asked = signal_number;
    n_asked = n_asked + 1;
}

/* orderly CODE: exits with CODE when a signal asks it to. */
static int role_orderly(char **args)
{
    on_stop_signals(on_stop);
    (void)signal(SIGUSR1, on_stop);
    printf("rank %d is ready\n", own_rank());
    (void)fflush(stdout);
    while (!asked)
        (void)usleep(1000);
    printf("rank %d was asked by signal %d\n", own_rank(), (int)asked);
    return number(args, 0, 0);
}

static volatile sig_atomic_t goes_on;

static void on_go(int signal_number)
{
    (void)signal_number;
    goes_on = 1;
}

/* counting: counts the signals that ask it to end, until SIGUSR1. */
static int role_counting(char **args)
{
    (void)args;
    (void)signal(SIGUSR1, on_go);
    on_stop_signals(on_stop);
    printf("rank %d is ready\n", own_rank());
    (void)fflush(stdout);
    while (!goes_on)
        (void)usleep(1000);
    printf("rank %d got %d, the last was signal %d\n", own_rank(), (int)n_asked, (int)asked);
    return 0;
}

/* stubborn: no signal ends it but SIGKILL. */
static int role_stubborn(char **args)
{
    (void)args;
    on_stop_signals(SIG_IGN);
    printf("rank %d is ready\n", own_rank());
    (void)fflush(stdout);
    wait_for_ever();
    return 0;
}

/* --- roles that play another one --- */

static bool is_there(const char *path)
{
    return access(path, F_OK) == 0;
}

/* child ROLE ARGS: with a child that only waits, in the same process group. */
static int role_child(char **args)
{
    const pid_t child = fork();

    if (child == 0)
        wait_for_ever();
    printf("child of rank %d is there\n", own_rank());
    (void)fflush(stdout);
    return child < 0 ? 1 : play(args);
}

/* late FILE RANK ROLE ARGS: that rank waits for the file before it plays. */
static int role_late(char **args)
{
    printf("rank %d begins\n", own_rank());
    (void)fflush(stdout);
    while (own_rank() == number(args, 1, 0) && !is_there(args[0]))
        (void)usleep(10000);
    return play(args + 2);
}

static void say_asked(int signal_number)
{
    static const char text[] = "it was asked\n";

    (void)signal_number;
    (void)!write(STDOUT_FILENO, text, sizeof(text) - 1);
}

/* refuse FILE RANK ROLE ARGS: before any restart that rank exits with 7 once the file is there;
 * the others say when they are asked to end, and do not. After a restart: the other role. */
static int role_refuse(char **args)
{
    const char *restarts = getenv("TORCHELASTIC_RESTART_COUNT");

    if (restarts != NULL && strcmp(restarts, "0") != 0)
        return play(args + 2);
    (void)signal(SIGTERM, say_asked);
    printf("rank %d begins\n", own_rank());
    (void)fflush(stdout);
    while (own_rank() != number(args, 1, 0) || !is_there(args[0]))
        (void)usleep(10000);
    return 7;
}

/* stdin: says what it read. */
static int role_stdin(char **args)
{
    char line[256];
    int n = 0;

    (void)args;
    while (fgets(line, sizeof(line), stdin) != NULL)
        printf("rank %d read %s", own_rank(), line), n++;
    printf("rank %d has read %d lines\n", own_rank(), n);
    return 0;
}

static int role_environment(char **args)
{
    (void)args;
    for (char **e = environ; *e != NULL; e++)
        printf("%s\n", *e);
    return 0;
}

/* --- roles in a group --- */

/* steps N [MS]: N all-reduces, MS between them; says so now and then; 0: for ever. */
static int role_steps(char **args)
{
    const int n = number(args, 0, 0);
    double sum = 0;
    ls_comm *comm;

    if (ls_init(NULL, &comm) != LS_OK)
        return fail("init");
    printf("rank %d has joined\n", own_rank());
    (void)fflush(stdout);
    for (int i = 1; n == 0 || i <= n; i++) {
        double value = 1.0 / (i + own_rank());

        if (ls_all_reduce(comm, &value, &value, 1, LS_F64, LS_SUM, NULL) != LS_OK)
            return fail("all_reduce");
        sum += value;
        if (own_rank() == 0 && i % 100 == 0) {
            printf("step %d\n", i);
            (void)fflush(stdout);
        }
        if (args[0] != NULL && args[1] != NULL)
            (void)usleep((useconds_t)number(args, 1, 0) * 1000);
    }
    ls_comm_destroy(comm);
    printf("sum %a\n", sum);
    return 0;
}

/* leave HOW RANK: that rank ends with code 0 ("exit": without leaving, "destroy": after leaving)
 * while the others go on. */
static int role_leave(char **args)
{
    ls_comm *comm;

    if (ls_init(NULL, &comm) != LS_OK)
        return fail("init");
    if (ls_barrier(comm, NULL) != LS_OK)
        return fail("barrier");
    if (own_rank() == number(args, 1, 0)) {
        if (strcmp(args[0], "destroy") == 0)
            ls_comm_destroy(comm);
        return 0;
    }
    if (ls_barrier(comm, NULL) != LS_OK)
        return fail("barrier");
    ls_comm_destroy(comm);
    return 0;
}

/* absent RANK: that rank never joins. */
static int role_absent(char **args)
{
    ls_comm *comm;

    if (own_rank() == number(args, 0, 0))
        return 0;
    if (ls_init(NULL, &comm) != LS_OK)
        return fail("init");
    ls_comm_destroy(comm);
    return 0;
}

/* again RANK: all join twice, but that rank only once. */
static int role_again(char **args)
{
    ls_comm *comm;

    for (int i = 0; i < 2; i++) {
        if (i == 1 && own_rank() == number(args, 0, 0))
            return 0;
        if (ls_init(NULL, &comm) != LS_OK)
            return fail("init");
        if (ls_barrier(comm, NULL) != LS_OK)
            return fail("barrier");
        ls_comm_destroy(comm);
    }
    return 0;
}

/* differ: ranks disagree about the count. */
static int role_differ(char **args)
{
    float values[8] = {0};
    ls_comm *comm;

    (void)args;
    if (ls_init(NULL, &comm) != LS_OK)
        return fail("init");
    if (ls_all_reduce(comm, values, values, own_rank() == 0 ? 4 : 8, LS_F32, LS_SUM, NULL) != LS_OK)
        return fail("all_reduce");
    ls_comm_destroy(comm);
    return 0;
}

/* once: joins, meets, leaves. With a number, sends so many messages to the next rank just before
 * leaving. */
static int role_once(char **args)
{
    const int n = number(args, 0, 0);
    ls_comm *comm;
    int value = 0;

    if (ls_init(NULL, &comm) != LS_OK)
        return fail("init");
    for (int i = 0; i < n; i++) {
        const ls_status st = ls_comm_rank(comm) == 0 ? ls_send(comm, &i, 1, LS_I32, 1, 0, NULL)
                                                     : ls_recv(comm, &value, 1, LS_I32, 0, 0, NULL);

        if (st != LS_OK)
            return fail("message");
    }
    if (n == 0 && ls_barrier(comm, NULL) != LS_OK)
        return fail("barrier");
    ls_comm_destroy(comm);
    return 0;
}

/* peak: as once; then says the most memory it has had. */
static int role_peak(char **args)
{
    const int code = role_once(args);
    FILE *status = fopen("/proc/self/status", "r");
    char line[256];
    long kib = -1;

    while (status != NULL && fgets(line, sizeof(line), status) != NULL)
        if (sscanf(line, "VmHWM: %ld kB", &kib) == 1)
            break;
    if (status != NULL)
        (void)fclose(status);
    printf("peak of rank %d: %ld KiB\n", own_rank(), kib);
    return code;
}

/* --- roles that spawn --- */

static ls_status body_steps(int local_rank, void *arg)
{
    (void)local_rank;
    return role_steps(arg) == 0 ? LS_OK : LS_EPEER;
}

static ls_status body_daemon(int local_rank, void *arg)
{
    (void)local_rank;
    (void)role_daemon(arg);
    return LS_OK;
}

static ls_status body_orderly(int local_rank, void *arg)
{
    (void)local_rank;
    return role_orderly(arg) == 0 ? LS_OK : LS_EPEER;
}

/* --- connections --- */

/* Sockets of TCP that this process has, listeners included. */
static int count_sockets(void)
{
    DIR *d = opendir("/proc/self/fd");
    int n = 0;

    for (const struct dirent *e = d == NULL ? NULL : readdir(d); e != NULL; e = readdir(d)) {
        struct sockaddr_storage at;
        socklen_t bytes = sizeof(at);
        const int fd = (int)strtol(e->d_name, NULL, 10);

        n += e->d_name[0] != '.' && getsockname(fd, (struct sockaddr *)&at, &bytes) == 0 &&
             (at.ss_family == AF_INET || at.ss_family == AF_INET6);
    }
    if (d != NULL)
        (void)closedir(d);
    return n;
}

/* The sum over all ranks, everywhere and at each of some roots, and rank 0's copy of it. */
static int reduce(ls_comm *comm, size_t count)
{
    const int n = ls_comm_size(comm);
    const int roots[] = {0, 1, n / 2, n - 1};
    float *data = calloc(count, sizeof(*data));
    float *sum = calloc(count, sizeof(*sum));
    bool good = data != NULL && sum != NULL;

    for (size_t i = 0; good && i < count; i++)
        data[i] = (float)(ls_comm_rank(comm) + (int)(i % 7));
    good = good && ls_all_reduce(comm, data, sum, count, LS_F32, LS_SUM, NULL) == LS_OK;
    for (size_t i = 0; good && i < count; i++)
        good = sum[i] == (float)(n * (n - 1) / 2 + n * (int)(i % 7));
    for (int r = 0; good && r < 4; r++) {
        memset(sum, 0, count * sizeof(*sum));
        good = ls_reduce(comm, data, sum, count, LS_F32, LS_SUM, roots[r], NULL) == LS_OK;
        for (size_t i = 0; good && ls_comm_rank(comm) == roots[r] && i < count; i++)
            good = sum[i] == (float)(n * (n - 1) / 2 + n * (int)(i % 7));
    }
    good = good && ls_broadcast(comm, sum, sum, count, LS_F32, 0, NULL) == LS_OK;
    free(data);
    free(sum);
    return good ? 0 : fail("a reduction");
}

/* reduce: joins and reduces vectors of all sizes. Rank 0 prints the most sockets of a rank. */
static int role_reduce(char **args)
{
    ls_comm *comm;
    int32_t most;

    (void)args;
    if (ls_init(NULL, &comm) != LS_OK)
        return fail("init");
    if (ls_barrier(comm, NULL) != LS_OK || reduce(comm, 2) != 0 || reduce(comm, 3000) != 0 ||
        reduce(comm, 200000) != 0)
        return fail("reduce");
    most = count_sockets();
    if (ls_all_reduce(comm, &most, &most, 1, LS_I32, LS_MAX, NULL) != LS_OK)
        return fail("all_reduce");
    if (ls_comm_rank(comm) == 0)
        printf("ranks %d sockets %d\n", ls_comm_size(comm), (int)most);
    ls_comm_destroy(comm);
    return 0;
}

/* spawn N BODY ARGS: steps, daemon or orderly, in ranks of our own. */
static int role_spawn(char **args)
{
    const ls_spawn_fn body = strcmp(args[1], "daemon") == 0    ? body_daemon
                             : strcmp(args[1], "orderly") == 0 ? body_orderly
                                                               : body_steps;

    printf("printed once"); /* not ended, so it is still buffered when the ranks are forked */
    if (ls_spawn(body, number(args, 0, 2), args + 2, NULL) != LS_OK)
        return fail("spawn");
    printf("\n");
    return 0;
}

static const struct {
    const char *name;
    int (*play)(char **args);
} roles[] = {
    {"exit", role_exit},         {"signal", role_signal},   {"lines", role_lines},
    {"daemon", role_daemon},     {"orderly", role_orderly}, {"counting", role_counting},
    {"stubborn", role_stubborn}, {"child", role_child},     {"late", role_late},
    {"refuse", role_refuse},     {"stdin", role_stdin},     {"environment", role_environment},
    {"steps", role_steps},       {"leave", role_leave},     {"absent", role_absent},
    {"again", role_again},       {"differ", role_differ},   {"once", role_once},
    {"peak", role_peak},         {"spawn", role_spawn},     {"reduce", role_reduce},
};

static int play(char **args)
{
    for (size_t i = 0; i < sizeof(roles) / sizeof(roles[0]); i++)
        if (args[0] != NULL && strcmp(args[0], roles[i].name) == 0)
            return roles[i].play(args + 1);
    fprintf(stderr, "actor: which role?\n");
    return 2;
}

int main(int argc, char **argv)
{
    (void)argc;
    return play(argv + 1);
}
