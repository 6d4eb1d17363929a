/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shim.c - the shim and the guardian. Both run between fork and exec, so they make plain system
 * calls only. Called by the agent, and by the first process of a namespace (isolate.h).
 *
 * A shim leads its own session and is a subreaper: all descendants of its rank, also of double
 * forks, stay below it. It outlives the rank just long enough to kill them. The kernel kills the
 * rank when its shim dies (PDEATHSIG); the agent or the guardian then finds the rank's descendants.
 */
#include "launch/isolate/shim.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/text.h"
#include "host/process.h"
#include "launch/isolate/isolate.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    KILL_MS = 3000,
    LEFT_MOST = 16,       /* processes that cannot be killed and are reported */
    SHIMS_FIRST_MS = 300, /* shims kill their descendants, also those without a mark */
    EXIT_EXEC_FAILED = 127,
    EXIT_SETUP_FAILED = 126
};

static void send_record(const shim_spec *spec, const shim_record *record)
{
    ssize_t n;

    do {
        n = write(spec->agent_fd, record, sizeof(*record));
    } while (n < 0 && errno == EINTR);
}

static void report(const shim_spec *spec, shim_status status, int value, const char *text)
{
    shim_record record;

    memset(&record, 0, sizeof(record));
    record.status = (int32_t)status;
    record.value = value;
    text_format(record.text, sizeof(record.text), "%s", text);
    send_record(spec, &record);
}

static void report_end(const shim_spec *spec, int status, const struct rusage *used)
{
    shim_record record;

    memset(&record, 0, sizeof(record));
    record.status = SHIM_ENDED;
    record.value = status;
    record.peak_bytes = (int64_t)used->ru_maxrss * 1024;
    send_record(spec, &record);
}

/* --- the rank, before exec --- */

static void redirect(int from, int to)
{
    if (from >= 0 && from != to && dup2(from, to) < 0)
        _exit(EXIT_SETUP_FAILED);
}

static void open_streams(const shim_spec *spec)
{
    const int null_fd = spec->stdin_fd < 0 ? open("/dev/null", O_RDONLY | O_CLOEXEC) : -1;

    redirect(spec->stdin_fd >= 0 ? spec->stdin_fd : null_fd, STDIN_FILENO);
    redirect(spec->stdout_fd, STDOUT_FILENO);
    redirect(spec->stderr_fd, STDERR_FILENO);
}

static void keep_open(int fd)
{
    if (fd >= 0)
        fcntl(fd, F_SETFD, 0);
}

/* This process has one thread, so functions that are not thread-safe are safe here. */
static void run_function(const shim_spec *spec)
{
    ls_status st;

    clearenv(); // NOLINT(concurrency-mt-unsafe)
    for (char *const *entry = spec->environment; *entry != NULL; entry++)
        putenv(*entry); // NOLINT(concurrency-mt-unsafe)
    st = spec->fn(spec->local_rank, spec->fn_arg);
    if (st != LS_OK)
        report(spec, SHIM_MESSAGE, st, ls_last_error());
    // flushes stdio, as a return from main does
    exit(st == LS_OK ? EXIT_SUCCESS : EXIT_FAILURE); // NOLINT(concurrency-mt-unsafe)
}

/* The cores were allowed when they were chosen. */
static void bind_rank(const shim_spec *spec)
{
    const int failure = binding_apply(spec->binding);

    if (failure == 0)
        return;
    report(spec, SHIM_NOT_STARTED, failure, "");
    _exit(EXIT_SETUP_FAILED);
}

static void become_rank(const shim_spec *spec, pid_t shim, const char *name)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != shim)
        _exit(EXIT_SETUP_FAILED); /* the shim has exited before prctl() */
    prctl(PR_SET_CHILD_SUBREAPER, 0);
    if (spec->proc_fd >= 0) { // only the rank itself can read its pid outside the namespace
        const pid_t outer = isolate_outer_pid(spec->proc_fd);

        process_set_shown_pid(spec->environment, getpid(), outer);
        report(spec, SHIM_STARTED, (int)outer, "");
    }
    prctl(PR_SET_NAME, name);
    setpgid(0, 0);
    bind_rank(spec);
    open_streams(spec);
    keep_open(spec->key_fd);
    keep_open(spec->ring_fd);
    keep_open(spec->pmi_fd);
    keep_open(spec->listen_fd);
    keep_open(spec->error_fd);
    process_reset_signals(&spec->mask);
    if (spec->fn != NULL)
        run_function(spec);
    execvpe(spec->argv[0], spec->argv, spec->environment);
    report(spec, SHIM_EXEC_FAILED, errno, "");
    _exit(EXIT_EXEC_FAILED);
}

/* --- the shim --- */

/* Forwards a signal from the agent; false when the agent has exited. */
static bool forward_signal(int agent_fd, pid_t rank)
{
    unsigned char number;
    ssize_t n;

    do {
        n = read(agent_fd, &number, 1);
    } while (n < 0 && errno == EINTR);
    if (n <= 0)
        return false;
    if (kill(-rank, number) != 0)
        kill(rank, number); // it has left its process group
    return true;
}

/* Reaps exited children. True when the rank is among them: *status and *used are the rank's. */
static bool reap(pid_t rank, int *status, struct rusage *used)
{
    struct rusage its;
    bool rank_ended = false;
    int ended;
    pid_t pid;

    while ((pid = wait4(-1, &ended, WNOHANG, &its)) > 0)
        if (pid == rank) {
            *status = ended;
            *used = its;
            rank_ended = true;
        }
    return rank_ended;
}

static void watch(const shim_spec *spec, pid_t rank, int child_fd)
{
    struct pollfd fds[] = {{.fd = spec->agent_fd, .events = POLLIN},
                           {.fd = child_fd, .events = POLLIN}};
    struct signalfd_siginfo info;
    struct rusage used;
    int status = 0;

    for (;;) {
        if (poll(fds, 2, -1) < 0)
            continue;
        if (fds[1].revents != 0 && read(child_fd, &info, sizeof(info)) > 0 &&
            reap(rank, &status, &used)) {
            report_end(spec, status, &used);
            return;
        }
        if (fds[0].revents != 0 && !forward_signal(spec->agent_fd, rank))
            return;
    }
}

/* In a namespace the agent searches itself, because pids differ there. */
static void report_left(const shim_spec *spec)
{
    pid_t left[LEFT_MOST];
    const int n = spec->proc_fd < 0 ? process_list_children(getpid(), left, LEFT_MOST) : 0;

    for (int i = 0; i < n; i++)
        report(spec, SHIM_UNKILLABLE, (int)left[i], "");
}

static void become_shim(const shim_spec *spec)
{
    const int keep[] = {STDIN_FILENO,   STDOUT_FILENO,       STDERR_FILENO,   spec->agent_fd,
                        spec->stdin_fd, spec->stdout_fd,     spec->stderr_fd, spec->key_fd,
                        spec->ring_fd,  spec->pmi_fd,        spec->listen_fd, spec->error_fd,
                        spec->proc_fd,  spec->group->leaf_fd};
    const pid_t shim = getpid();
    char name[16] = ""; /* of the program, also for a rank that runs a function */
    sigset_t all;
    sigset_t child;
    pid_t rank;
    int child_fd;

    process_close_since(spec->users, keep, (int)LS_COUNT_OF(keep));
    setsid();
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    prctl(PR_GET_NAME, name);
    prctl(PR_SET_NAME, "lockstep-shim");
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, NULL);
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    child_fd = signalfd(-1, &child, SFD_CLOEXEC);
    if (spec->proc_fd >= 0)
        report(spec, SHIM_PID, (int)isolate_outer_pid(spec->proc_fd), "");

    rank = cgroup_fork(spec->group);
    if (rank == 0)
        become_rank(spec, shim, name);
    if (rank < 0 || child_fd < 0) {
        report(spec, SHIM_NOT_STARTED, errno, "");
        report(spec, SHIM_ENDED, EXIT_SETUP_FAILED << 8, "");
    } else {
        if (spec->proc_fd < 0)
            report(spec, SHIM_STARTED, rank, "");
        /*
         * The rank alone holds its ends of the pipes, so the agent sees them close. The key marks
         * this shim for the guardian.
         */
        const int mine[] = {spec->agent_fd, spec->key_fd, child_fd};
        process_close_all_but(mine, (int)LS_COUNT_OF(mine));
        watch(spec, rank, child_fd);
    }
    process_kill_children(ls_deadline_ms(KILL_MS));
    report_left(spec);
    _exit(0);
}

ls_status shim_start(const shim_spec *spec, pid_t *pid)
{
    *pid = fork();
    if (*pid < 0)
        return ls_fail_errno("starting rank %d", spec->local_rank);
    if (*pid == 0)
        become_shim(spec);
    return LS_OK;
}

void shim_start_inside(const shim_spec *spec)
{
    const pid_t pid = fork();

    if (pid == 0)
        become_shim(spec);
    if (pid < 0) {
        report(spec, SHIM_NOT_STARTED, errno, "");
        report(spec, SHIM_ENDED, EXIT_SETUP_FAILED << 8, "");
    }
}

/* --- the guardian --- */

static void become_guardian(const process_mark *job, const cgroup *group, int lifeline_fd)
{
    const int keep[] = {lifeline_fd, job->key_fd, group->parent_fd, group->fd};
    sigset_t all;
    char byte;
    ssize_t n;

    process_close_all_but(keep, (int)LS_COUNT_OF(keep));
    setsid();
    prctl(PR_SET_NAME, "lockstep-guard");
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, NULL);
    do {
        n = read(lifeline_fd, &byte, 1);
    } while (n > 0 || (n < 0 && errno == EINTR));
    cgroup_kill(group);
    (void)poll(NULL, 0, SHIMS_FIRST_MS);
    process_sweep_job(job, ls_deadline_ms(KILL_MS));
    (void)cgroup_remove(group, ls_deadline_ms(KILL_MS));
    _exit(0);
}

ls_status guardian_start(const process_mark *job, const cgroup *group, int lifeline_fd, pid_t *pid)
{
    *pid = fork();
    if (*pid < 0)
        return ls_fail_errno("starting the guardian");
    if (*pid == 0)
        become_guardian(job, group, lifeline_fd);
    return LS_OK;
}
