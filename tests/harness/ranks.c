/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ranks.c - runs a body as processes: forks them, collects their output, kills them at the
 * deadline. threads.c runs it as threads.
 */
#include "harness/ranks.h"

#include "base/clock.h"
#include "base/text.h"
#include "harness/ranks_internal.h"
#include "net/poller.h"
#include "net/socket.h"
#include "hub/hub.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define DEADLINE_MS 60000

typedef struct child {
    struct family *family;
    int rank;
    pid_t pid;
    int pidfd;
    int output; /* read end of its output */
    poll_watch *pid_watch;
    poll_watch *output_watch;
    bool has_ended;
    ls_test_outcome outcome;
    size_t text_bytes;
} child;

typedef struct family {
    const ls_test_job *job;
    poller *loop;
    hub *hub;
    net_address hub_at;
    char job_id[JOB_ID_BYTES];
    int n_running;
    child children[LS_TEST_RANKS_MAX];
} family;

void *ls_test_shared(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    return p == MAP_FAILED ? NULL : p;
}

int ls_test_number(const char *name, int otherwise)
{
    const char *text = getenv(name);

    return text == NULL || *text == '\0' ? otherwise : (int)strtol(text, NULL, 10);
}

ls_status ls_test_failed(const char *file, int line, const char *expr)
{
    char kept[LS_ERROR_BYTES];

    ls_error_save(kept);
    return ls_fail(LS_EINTERNAL, "%s:%d: %s does not hold (last error: %s)", file, line, expr,
                   kept);
}

ls_status ls_test_init(const ls_test_rank *self, ls_comm **out)
{
    const ls_init_options opt = {.size = sizeof(opt),
                                 .transport = self->job->transport,
                                 .timeout_ms = self->job->timeout_ms,
                                 .join_timeout_ms = self->job->join_timeout_ms};

    return comm_init_in(self->env, &opt, out);
}

/* --- in the child --- */

static void set_number(const char *name, int64_t value)
{
    char text[24];

    text_format(text, sizeof(text), "%lld", (long long)value);
    (void)setenv(name, text, 1);
}

static void set_identity(const family *f, int rank)
{
    char url[NET_ADDRESS_TEXT_MAX];

    set_number("LOCKSTEP_RANK", rank);
    set_number("LOCKSTEP_WORLD_SIZE", f->job->n);
    set_number("LOCKSTEP_LOCAL_RANK", rank);
    set_number("LOCKSTEP_LOCAL_WORLD_SIZE", f->job->n);
    set_number("LOCKSTEP_NODE_RANK", 0);
    set_number("LOCKSTEP_NNODES", 1);
    (void)setenv("LOCKSTEP_JOB", f->job_id, 1);
    (void)setenv("LOCKSTEP_STORE", net_address_text(url, sizeof(url), &f->hub_at), 1);
}

/* Without a hub of the harness: on one host the ranks meet under a name derived from torchrun's
 * variables. */
static void set_own_identity(const family *f, int rank)
{
    set_number("RANK", rank);
    set_number("WORLD_SIZE", f->job->n);
    if (f->job->rendezvous == LS_TEST_AT_MASTER)
        return;
    set_number("LOCAL_RANK", rank);
    set_number("LOCAL_WORLD_SIZE", f->job->n);
    (void)setenv("MASTER_ADDR", "127.0.0.1", 1);
    (void)setenv("MASTER_PORT", "29500", 1);
    (void)setenv("TORCHELASTIC_RUN_ID", f->job_id, 1);
}

static const char *from_process(void *self, const char *name)
{
    LS_UNUSED(self);
    return getenv(name);
}

static void run_child(const family *f, int rank, int output) __attribute__((noreturn));
static void run_child(const family *f, int rank, int output)
{
    const comm_env env = {.get = from_process};
    const ls_test_rank self = {.rank = rank, .size = f->job->n, .job = f->job, .env = &env};
    ls_status st;

    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)dup2(output, STDOUT_FILENO);
    (void)dup2(output, STDERR_FILENO);
    if (f->job->rendezvous == LS_TEST_AT_STARTER)
        set_identity(f, rank);
    else
        set_own_identity(f, rank);
    for (size_t i = 0; i < LS_COUNT_OF(f->job->env) && f->job->env[i] != NULL; i++)
        (void)putenv((char *)(uintptr_t)f->job->env[i]);
    st = f->job->body(&self, f->job->arg);
    if (st != LS_OK)
        fprintf(stderr, "rank %d failed: %s: %s\n", rank, ls_status_text(st), ls_last_error());
    exit(st == LS_OK ? 0 : 1);
}

/* --- in the parent --- */

static bool fork_child(family *f, int rank)
{
    child *c = &f->children[rank];
    int pipe_fds[2];

    if (pipe(pipe_fds) != 0)
        return false;
    (void)fflush(NULL);
    c->family = f;
    c->rank = rank;
    c->pid = fork();
    if (c->pid == 0) {
        (void)close(pipe_fds[0]);
        for (int r = 0; r < rank; r++)
            (void)close(f->children[r].output);
        run_child(f, rank, pipe_fds[1]);
    }
    (void)close(pipe_fds[1]);
    c->output = pipe_fds[0];
    c->pidfd = c->pid < 0 ? -1 : (int)syscall(SYS_pidfd_open, c->pid, 0);
    f->n_running += c->pid > 0;
    return c->pidfd >= 0;
}

/* Keeps the end of the text. */
static void keep_text(child *c, const char *bytes, size_t n)
{
    const size_t capacity = sizeof(c->outcome.text) - 1;

    if (c->text_bytes + n > capacity) {
        const size_t drop = c->text_bytes + n - capacity;

        memmove(c->outcome.text, c->outcome.text + drop, c->text_bytes - drop);
        c->text_bytes -= drop;
    }
    memcpy(c->outcome.text + c->text_bytes, bytes, n);
    c->text_bytes += n;
    c->outcome.text[c->text_bytes] = '\0';
}

static void on_output(void *arg, unsigned events)
{
    child *c = arg;
    char bytes[1024];
    const ssize_t n = read(c->output, bytes, sizeof(bytes));

    LS_UNUSED(events);
    if (n > 0) {
        keep_text(c, bytes, (size_t)n);
    } else if (n == 0 || errno != EINTR) {
        poller_unwatch(&c->output_watch);
    }
}

/* Reports a rank's end to the hub, as the agent of the launcher does. */
static void tell_hub(family *f, const child *c)
{
    job_cause cause = {.kind = CAUSE_DIED, .group = GROUP_ALL, .rank = c->rank};

    if (f->hub == NULL)
        return;
    if (c->outcome.signal == 0 && c->outcome.code == 0) {
        hub_rank_exited(f->hub, c->rank);
        return;
    }
    if (c->outcome.signal != 0)
        text_format(cause.text, sizeof(cause.text), "rank %d (pid %d) was killed by signal %d",
                    c->rank, (int)c->pid, c->outcome.signal);
    else
        text_format(cause.text, sizeof(cause.text), "rank %d (pid %d) exited with code %d", c->rank,
                    (int)c->pid, c->outcome.code);
    hub_abort(f->hub, &cause);
}

static void on_end(void *arg, unsigned events)
{
    child *c = arg;
    int status;

    LS_UNUSED(events);
    if (waitpid(c->pid, &status, WNOHANG) != c->pid)
        return;
    poller_unwatch(&c->pid_watch);
    c->has_ended = true;
    c->outcome.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    c->outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
    c->outcome.end_ms = ls_now_ms();
    c->family->n_running--;
    tell_hub(c->family, c);
}

static ls_status watch_children(family *f)
{
    for (int r = 0; r < f->job->n; r++) {
        child *c = &f->children[r];

        LS_TRY(poller_watch(f->loop, c->pidfd, POLL_READ, on_end, c, &c->pid_watch));
        LS_TRY(poller_watch(f->loop, c->output, POLL_READ, on_output, c, &c->output_watch));
    }
    return LS_OK;
}

static void on_late(void *self, const char *text)
{
    const family *f = self;

    (void)!write(*f->job->late_lines, text, strlen(text));
}

static ls_status serve(family *f)
{
    hub_options opt = {.world_size = f->job->n, .events.self = f};
    net_address bound;

    LS_TRY(poller_create(&f->loop));
    if (f->job->rendezvous == LS_TEST_AT_STARTER) {
        memcpy(opt.job, f->job_id, sizeof(opt.job));
        opt.events.wait_report = f->job->late_lines == NULL ? NULL : on_late;
        LS_TRY(hub_create(f->loop, &opt, &f->hub));
        LS_TRY(hub_listen(f->hub, &f->hub_at, &bound));
    }
    return watch_children(f);
}

static void kill_rest(family *f)
{
    for (int r = 0; r < f->job->n; r++) {
        child *c = &f->children[r];

        if (c->pid > 0 && !c->has_ended) {
            c->outcome.was_killed = true;
            (void)kill(c->pid, SIGKILL);
        }
    }
}

/* Waits until all ranks have ended; kills them at the deadline. */
static ls_status attend(family *f)
{
    const int64_t timeout_ms = f->job->deadline_ms == 0 ? DEADLINE_MS : f->job->deadline_ms;
    const int64_t deadline_ms = ls_now_ms() + timeout_ms;

    while (f->n_running > 0) {
        if (ls_now_ms() > deadline_ms)
            kill_rest(f);
        LS_TRY(poller_run_once(f->loop, 100));
    }
    return LS_OK;
}

/* The last output is still in the pipes. A grandchild may hold one open, so the end of the pipe is
 * not awaited. */
static void read_rest(child *c)
{
    char bytes[1024];
    ssize_t n;

    if (net_set_blocking(c->output, false) != LS_OK)
        return;
    while ((n = read(c->output, bytes, sizeof(bytes))) > 0)
        keep_text(c, bytes, (size_t)n);
}

static void dissolve(family *f)
{
    for (int r = 0; r < f->job->n; r++) {
        child *c = &f->children[r];

        poller_unwatch(&c->pid_watch);
        poller_unwatch(&c->output_watch);
        if (c->pid > 0 && !c->has_ended) {
            (void)kill(c->pid, SIGKILL);
            (void)waitpid(c->pid, NULL, 0);
        }
        if (c->pid > 0) {
            (void)close(c->output);
            (void)close(c->pidfd);
        }
    }
    if (f->hub != NULL && f->job->hub_frames != NULL)
        *f->job->hub_frames = hub_frames(f->hub);
    hub_destroy(f->hub);
    poller_destroy(f->loop);
}

static bool report(family *f, ls_test_outcome *outcomes)
{
    bool all_good = true;

    for (int r = 0; r < f->job->n; r++)
        read_rest(&f->children[r]);
    for (int r = 0; r < f->job->n; r++) {
        const ls_test_outcome *o = &f->children[r].outcome;
        const bool is_good = o->code == 0 && o->signal == 0 && !o->was_killed;

        all_good = all_good && is_good;
        if (outcomes != NULL)
            outcomes[r] = *o;
        else if (!is_good)
            fprintf(stderr, "--- rank %d of %d: code %d, signal %d%s\n%s\n", r, f->job->n, o->code,
                    o->signal, o->was_killed ? ", killed at the deadline" : "", o->text);
    }
    return all_good;
}

void ls_test_fresh_job(char job[JOB_ID_BYTES], net_address *hub_at)
{
    char text[NET_ADDRESS_TEXT_MAX];

    if (net_address_fresh_unix("test", hub_at) != LS_OK)
        return;
    // The last 16 digits of the fresh name.
    net_address_text(text, sizeof(text), hub_at);
    text_format(job, JOB_ID_BYTES, "%s", text + strlen(text) - (JOB_ID_BYTES - 1));
}

bool ls_test_ranks(const ls_test_job *job, ls_test_outcome *outcomes)
{
    family *f = calloc(1, sizeof(*f));
    bool all_good = false;
    bool is_started = f != NULL;

    LS_ASSERT(f != NULL && job->n >= 1 && job->n <= LS_TEST_RANKS_MAX);
    f->job = job;
    ls_test_fresh_job(f->job_id, &f->hub_at);
    for (int r = 0; is_started && r < job->n; r++)
        is_started = fork_child(f, r);
    if (is_started && serve(f) == LS_OK && attend(f) == LS_OK)
        all_good = report(f, outcomes);
    else
        fprintf(stderr, "the harness failed: %s\n", ls_last_error());
    dissolve(f);
    free(f);
    return all_good;
}

bool ls_test_run(const ls_test_job *job)
{
    return ls_test_number("LS_TEST_THREADS", 0) != 0 ? ls_test_threads(job)
                                                     : ls_test_ranks(job, NULL);
}
