/* SPDX-License-Identifier: Apache-2.0 */
/*
 * starter.c - the ssh or srun processes of other hosts, from start to end. Each host's end is
 * reported once. Called by the agent that starts a job on several hosts, and by the check of
 * several hosts.
 */
#include "launch/hosts/starter_internal.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "host/process.h"
#include "launch/spec/launch_request.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    TRIES_MOST = 8,       /* of a host with a busy sshd */
    PAUSE_FIRST_MS = 200, /* doubled each time */
    GREETING_MS = 60000,  /* from the start to the greeting; ssh's own timeout is 10 s */
    TAIL_MS = 2000,       /* from the first sign of a process's end to the last */
    SSH_LOST = 255,       /* ssh's exit code for a lost connection or a killed remote program */
    END_MS = 4000         /* for agents to end after the job, before their ssh is killed */
};

static void start_more(void *arg);

void starter_start_soon(starter *s)
{
    poller_timer_set(s->loop, &s->start_timer, ls_now_ms(), start_more, s);
}

const char *starter_name_of(const starter_host *h)
{
    return h->owner->hosts->hosts[h->index].name;
}

/* --- the process --- */

/* Between fork and exec: system calls only. A session of its own, so that Ctrl-C and Ctrl-Z reach
 * only the agent. */
static void become_program(const starter *s, char **argv, int fd, int err_fd, pid_t parent)
{
    static const char missing[] = "cannot run ";
    const char *error;

    process_reset_signals(&s->mask);
    setsid();
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(126); /* the parent died before prctl() */
    if (dup2(fd, STDIN_FILENO) < 0 || dup2(fd, STDOUT_FILENO) < 0 ||
        dup2(err_fd, STDERR_FILENO) < 0)
        _exit(126);
    execvp(argv[0], argv);
    error = ls_errno_text(errno);
    if (write(STDERR_FILENO, missing, strlen(missing)) > 0 &&
        write(STDERR_FILENO, argv[0], strlen(argv[0])) > 0 && write(STDERR_FILENO, ": ", 2) > 0)
        (void)!write(STDERR_FILENO, error, strlen(error));
    _exit(127);
}

static ls_status set_nonblocking(int fd)
{
    return fcntl(fd, F_SETFL, O_NONBLOCK) == 0 ? LS_OK : ls_fail_errno("a pipe");
}

/* Closes the child's descriptors here, also when the fork fails. */
static ls_status fork_program(starter_host *h, char **argv, int fd, int err_fd)
{
    const starter *s = h->owner;
    const pid_t parent = getpid();

    h->pid = fork();
    if (h->pid == 0)
        become_program(s, argv, fd, err_fd, parent);
    close(fd);
    close(err_fd);
    if (h->pid > 0)
        return LS_OK;
    h->pid = 0;
    return ls_fail_errno("starting %s", argv[0]);
}

static ls_status open_program(starter_host *h, char **argv)
{
    poller *p = h->owner->loop;
    int fds[2];
    int err_fds[2];

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0)
        return ls_fail_errno("a socket pair");
    h->fd = fds[0];
    if (pipe2(err_fds, O_CLOEXEC) != 0) {
        close(fds[1]);
        return ls_fail_errno("a pipe");
    }
    h->err_fd = err_fds[0];
    LS_TRY(fork_program(h, argv, fds[1], err_fds[1]));
    LS_TRY(set_nonblocking(h->fd));
    LS_TRY(set_nonblocking(h->err_fd));
    LS_TRY(poller_watch(p, h->fd, POLL_READ, starter_on_host, h, &h->watch));
    return poller_watch(p, h->err_fd, POLL_READ, starter_on_errors, h, &h->err_watch);
}

/* --- its end --- */

void starter_close_channel(starter_host *h)
{
    poller_close(&h->watch, &h->fd);
}

void starter_close_errors(starter_host *h)
{
    poller_close(&h->err_watch, &h->err_fd);
}

static void clear_host(starter_host *h)
{
    starter_close_channel(h);
    starter_close_errors(h);
    poller_timer_cancel(&h->timer);
    frame_reader_free(&h->in);
    byte_queue_free(&h->out);
    text_free(&h->line);
    h->ending = false;
    h->agent_binary_left = 0;
    h->n_shell_bytes = 0;
}

/* The last line of a killed process is not the reason for its end. */
static bool has_printed_reason(const starter_host *h)
{
    return h->last_line[0] != 0 && !WIFSIGNALED(h->wait_status);
}

static void write_why(starter_host *h, char *buf, size_t n)
{
    const start_way way = h->owner->opt.way;
    const size_t n_line = strlen(h->last_line);
    char end[96];

    h->fix[0] = 0;
    if (h->why[0] == 0 && h->state != HOST_LAUNCHED)
        start_fix(way, starter_name_of(h), h->last_line, h->fix, sizeof(h->fix));
    if (h->why[0] != 0)
        text_format(buf, n, "%s", h->why);
    else if (h->state == HOST_LAUNCHED && way == START_SSH && WIFEXITED(h->wait_status) &&
             WEXITSTATUS(h->wait_status) == SSH_LOST && !has_printed_reason(h))
        text_format(buf, n, "agent killed or connection lost (ssh exited with code 255)");
    else if (h->state == HOST_LAUNCHED)
        text_format(buf, n, "%s %s%s%s", way == START_SSH ? "ssh" : "srun",
                    process_end_text(end, sizeof(end), h->wait_status),
                    has_printed_reason(h) ? ": " : "", has_printed_reason(h) ? h->last_line : "");
    else if (h->last_line[0] != 0)
        text_format(buf, n, "%.*s; fix: %s", (int)(n_line - (h->last_line[n_line - 1] == '.')),
                    h->last_line, h->fix);
    else
        text_format(buf, n, "%s %s; fix: %s", way == START_SSH ? "ssh" : "srun",
                    process_end_text(end, sizeof(end), h->wait_status), h->fix);
}

static void try_again(void *arg)
{
    const starter_host *h = arg;

    starter_start_soon(h->owner);
}

/* sshd refused concurrent connections: the retries are spread in time. */
static bool retry(starter_host *h)
{
    int64_t pause_ms = PAUSE_FIRST_MS;

    if (h->state != HOST_STARTING || h->why[0] != 0 || h->n_tries >= TRIES_MOST ||
        !start_may_retry(h->last_line))
        return false;
    pause_ms <<= h->n_tries - 1;
    pause_ms += (int64_t)(ls_rng_next(&h->owner->jitter) % (uint64_t)pause_ms);
    clear_host(h);
    h->state = HOST_IDLE;
    h->last_line[0] = 0;
    poller_timer_set(h->owner->loop, &h->timer, ls_now_ms() + pause_ms, try_again, h);
    return true;
}

/* The process is reaped, and what it wrote is read. */
static void finish(starter_host *h)
{
    const bool was_launched = h->state == HOST_LAUNCHED;
    char why[STARTER_LINE_MOST + 1024];

    if (h->err_fd >= 0)
        starter_read_errors(h);
    starter_start_soon(h->owner);
    if (retry(h))
        return;
    write_why(h, why, sizeof(why));
    clear_host(h);
    h->state = HOST_ENDED;
    h->owner->events.ended(h->owner->events.self, h->index, was_launched, why);
}

static void end_timed_out(void *arg)
{
    starter_host *h = arg;
    const int64_t received_ms = h->owner->received_ms;

    if (h->fd >= 0 && (h->owner->paused || ls_now_ms() - received_ms < TAIL_MS)) {
        poller_timer_set(h->owner->loop, &h->timer, ls_now_ms() + TAIL_MS, end_timed_out, h);
        return; /* its last bytes are still being read */
    }
    if (h->pid > 0) {
        kill(h->pid, SIGKILL);
        (void)waitpid(h->pid, &h->wait_status, 0);
        h->pid = 0;
    }
    finish(h);
}

void starter_begin_end(starter_host *h)
{
    if (h->pid == 0 && h->fd < 0) {
        finish(h);
        return;
    }
    if (h->ending)
        return;
    h->ending = true;
    poller_timer_set(h->owner->loop, &h->timer, ls_now_ms() + TAIL_MS, end_timed_out, h);
}

void starter_fail_host(starter_host *h, const char *why)
{
    if (h->why[0] == 0)
        text_format(h->why, sizeof(h->why), "%s", why);
    starter_close_channel(h);
    if (h->pid > 0)
        kill(h->pid, SIGTERM);
    starter_begin_end(h);
}

static void greeting_timed_out(void *arg)
{
    starter_fail_host(arg, "timed out: the agent did not start within 60 s");
}

void starter_reap(starter *s)
{
    for (int i = 0; i < s->n; i++) {
        starter_host *h = &s->list[i];

        if (h->pid <= 0 || waitpid(h->pid, &h->wait_status, WNOHANG) != h->pid)
            continue;
        h->pid = 0;
        starter_begin_end(h);
    }
}

/* --- starting --- */

static void start(starter_host *h)
{
    starter *s = h->owner;
    char **argv;
    ls_status st = start_command_make(&s->opt, starter_name_of(h), &argv);

    h->state = HOST_STARTING;
    h->n_tries++;
    h->wait_status = 0;
    frame_reader_init(&h->in, REMOTE_BODY_MAX);
    if (st == LS_OK)
        st = open_program(h, argv);
    start_command_free(argv);
    if (st == LS_OK)
        poller_timer_set(s->loop, &h->timer, ls_now_ms() + GREETING_MS, greeting_timed_out, h);
    else
        starter_fail_host(h, ls_last_error());
}

static void start_more(void *arg)
{
    starter *s = arg;
    int n_starting = 0;

    for (int i = 0; i < s->n; i++)
        n_starting += s->list[i].state == HOST_STARTING;
    for (int i = 0; i < s->n && n_starting < START_WINDOW; i++) {
        starter_host *h = &s->list[i];

        if (h->state != HOST_IDLE || h->timer.is_set)
            continue;
        n_starting++;
        start(h);
    }
}

/* --- for the owner --- */

static ls_status add_frame(starter_host *h, uint32_t type, const void *body, size_t bytes)
{
    uint8_t header[FRAME_HEADER_BYTES];

    wire_put_u32(header, (uint32_t)bytes);
    wire_put_u32(header + 4, type);
    LS_TRY(byte_queue_reserve(&h->out, sizeof(header) + bytes)); /* all of it or nothing */
    LS_TRY(byte_queue_add(&h->out, header, sizeof(header)));
    return bytes > 0 ? byte_queue_add(&h->out, body, bytes) : LS_OK;
}

ls_status starter_launch(starter *s, int host_index, uint32_t type, const void *body, size_t bytes)
{
    starter_host *h = &s->list[host_index];

    if (h->state != HOST_GREETED)
        return ls_fail(LS_EPEER, "%s is disconnected", starter_name_of(h));
    LS_TRY(add_frame(h, type, body, bytes));
    h->state = HOST_LAUNCHED;
    starter_flush(h);
    return LS_OK;
}

ls_status starter_send(starter *s, int host_index, uint32_t type, const void *body, size_t bytes)
{
    starter_host *h = &s->list[host_index];

    if (h->state != HOST_LAUNCHED || h->fd < 0)
        return ls_fail(LS_EPEER, "%s is disconnected", starter_name_of(h));
    LS_TRY(add_frame(h, type, body, bytes));
    starter_flush(h);
    return LS_OK;
}

const char *starter_fix(const starter *s, int host_index)
{
    return s->list[host_index].fix;
}

void starter_restart(starter *s, int host_index)
{
    starter_host *h = &s->list[host_index];

    if (h->state != HOST_ENDED)
        return;
    h->state = HOST_IDLE;
    h->n_tries = 0;
    h->why[0] = 0;
    h->last_line[0] = 0;
    starter_start_soon(s);
}

void starter_dismiss(starter *s, int host_index)
{
    const starter_host *h = &s->list[host_index];

    if (h->fd >= 0)
        (void)shutdown(h->fd, SHUT_WR);
    if (h->state == HOST_STARTING && h->pid > 0)
        kill(h->pid, SIGTERM); /* ssh reads its stdin only once it is connected */
}

void starter_end(starter *s, int host_index, const char *why)
{
    if (s->list[host_index].state != HOST_ENDED)
        starter_fail_host(&s->list[host_index], why);
}

void starter_pause(starter *s, bool pauses)
{
    if (pauses == s->paused)
        return;
    s->paused = pauses;
    for (int i = 0; i < s->n; i++)
        starter_update_channel(&s->list[i]);
}

int starter_count(const starter *s)
{
    int n = 0;

    for (int i = 0; i < s->n; i++)
        n += s->list[i].state != HOST_ENDED;
    return n;
}

bool starter_is_settled(const starter *s)
{
    for (int i = 0; i < s->n; i++)
        if (s->list[i].state == HOST_IDLE || s->list[i].state == HOST_STARTING)
            return false;
    return true;
}

int64_t starter_received_ms(const starter *s)
{
    return s->received_ms;
}

/* --- life --- */

ls_status starter_create(poller *p, const start_options *opt, const hostlist *hosts,
                         const bool *skip, const sigset_t *mask, const starter_events *events,
                         starter **out)
{
    starter *s = ls_calloc(1, sizeof(*s));
    uint64_t seed = 0;

    *out = NULL;
    if (s != NULL)
        s->list = ls_calloc((size_t)hosts->n, sizeof(*s->list));
    if (s == NULL || s->list == NULL) {
        ls_free(s);
        return ls_fail(LS_ENOMEM, "no memory for %d hosts", hosts->n);
    }
    (void)getrandom(&seed, sizeof(seed), 0);
    s->loop = p;
    s->opt = *opt;
    s->hosts = hosts;
    s->mask = *mask;
    s->events = *events;
    ls_rng_seed(&s->jitter, seed);
    s->n = hosts->n;
    s->received_ms = ls_now_ms();
    for (int i = 0; i < hosts->n; i++)
        s->list[i] = (starter_host){.owner = s,
                                    .index = i,
                                    .state = skip[i] ? HOST_ENDED : HOST_IDLE,
                                    .fd = -1,
                                    .err_fd = -1};
    starter_start_soon(s);
    *out = s;
    return LS_OK;
}

/* Agents end their ranks at the end of stdin; later ones are killed. */
static void end_processes(starter *s)
{
    const int64_t deadline_ms = ls_deadline_ms(END_MS);
    int n_left;

    for (int i = 0; i < s->n; i++) {
        starter_close_channel(&s->list[i]);
        starter_close_errors(&s->list[i]);
        if (s->list[i].state == HOST_STARTING && s->list[i].pid > 0)
            kill(s->list[i].pid, SIGTERM);
    }
    do {
        n_left = 0;
        for (int i = 0; i < s->n; i++) {
            starter_host *h = &s->list[i];

            if (h->pid > 0 && ls_deadline_left(deadline_ms) == 0)
                kill(h->pid, SIGKILL);
            if (h->pid > 0 && waitpid(h->pid, NULL, WNOHANG) == h->pid)
                h->pid = 0;
            n_left += h->pid > 0;
        }
        if (n_left > 0)
            (void)poll(NULL, 0, 5);
    } while (n_left > 0);
}

void starter_destroy(starter *s)
{
    if (s == NULL)
        return;
    end_processes(s);
    poller_timer_cancel(&s->start_timer);
    for (int i = 0; i < s->n; i++)
        clear_host(&s->list[i]);
    ls_free(s->list);
    ls_free(s->agent_binary);
    ls_free(s);
}
