/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/starter.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/rng.h"
#include "base/text.h"
#include "launch/orders.h"
#include "launch/process.h"
#include "net/socket.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    LINE_MOST = 1024,     /* of a line that is shown */
    NOISE_MOST = 65536,   /* bytes before the greeting */
    TRIES_MOST = 8,       /* of a host whose sshd is too busy */
    PAUSE_FIRST_MS = 200, /* doubled each time */
    GREETING_MS =
        60000, /* from the start to the greeting; ssh itself gives up after 10 s without a connection */
    TAIL_MS = 2000, /* from the first sign of a process's end to the last */
    END_MS = 4000,  /* for agents to end when all is over, before their ssh is killed */
    PIECE_BYTES = 65536,
    TRAVELLER_MOST = 64 << 20
};

typedef enum host_state { IDLE, STARTING, GREETED, ORDERED, ENDED } host_state;

typedef struct host {
    starter *owner;
    int index;
    host_state state;
    int n_tries;
    pid_t pid; /* 0: none, or reaped */
    int wait_status;
    int fd; /* its stdin and stdout; -1: ended */
    int err_fd;
    poll_watch *watch;
    poll_watch *err_watch;
    poll_timer timer; /* until the next try, for the greeting, or for the rest of its end */
    text_buf line;    /* of stderr, being gathered */
    char last_line[LINE_MOST];
    size_t n_noise;
    frame_reader in;
    byte_queue out;
    size_t traveller_left; /* bytes of the travelling agent that still are to be sent */
    bool ending;
    char why[LINE_MOST + 256]; /* it is ended, for this reason of ours; "": for its own */
} host;

struct starter {
    poller *loop;
    start_options opt;
    const hostlist *hosts;
    sigset_t mask;
    starter_events events;
    ls_rng jitter;
    host *list;
    int n;
    poll_timer kick; /* to start more */
    bool paused;
    int64_t heard_ms;
    char *traveller; /* the travelling agent's bytes, read at the first need */
    size_t traveller_bytes;
};

static void start_more(void *arg);

/* Later: whoever asks may be in the middle of a walk over hosts. */
static void start_soon(starter *s)
{
    poller_timer_set(s->loop, &s->kick, ls_now_ms(), start_more, s);
}

static const char *name_of(const host *h)
{
    return h->owner->hosts->hosts[h->index].name;
}

/* --- the process --- */

/* Between fork and exec: plain system calls. A session of its own, so that Ctrl-C and Ctrl-Z of our terminal are ours alone. */
static void become_program(const starter *s, char **argv, int fd, int err_fd, pid_t parent)
{
    static const char missing[] = "cannot run ";
    const char *error;
    struct sigaction standard;

    memset(&standard, 0, sizeof(standard));
    standard.sa_handler = SIG_DFL;
    for (int i = 1; i < 32; i++)
        sigaction(i, &standard, NULL);
    pthread_sigmask(SIG_SETMASK, &s->mask, NULL);
    setsid();
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(126); /* it died before the line above */
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

static void on_host(void *arg, unsigned events);
static void on_error_line(void *arg, unsigned events);

/* What the child holds is given up here, whether it has started or not. */
static ls_status fork_program(host *h, char **argv, int fd, int err_fd)
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

static ls_status open_program(host *h, char **argv)
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
    LS_TRY(poller_watch(p, h->fd, POLL_READ, on_host, h, &h->watch));
    return poller_watch(p, h->err_fd, POLL_READ, on_error_line, h, &h->err_watch);
}

/* --- its end --- */

static void close_channel(host *h)
{
    poller_unwatch(h->watch);
    h->watch = NULL;
    file_close(&h->fd);
}

static void close_errors(host *h)
{
    poller_unwatch(h->err_watch);
    h->err_watch = NULL;
    file_close(&h->err_fd);
}

static void forget(host *h)
{
    close_channel(h);
    close_errors(h);
    poller_timer_cancel(&h->timer);
    frame_reader_free(&h->in);
    byte_queue_free(&h->out);
    text_free(&h->line);
    h->ending = false;
    h->traveller_left = 0;
    h->n_noise = 0;
}

/* What a killed process printed last says nothing about that. */
static bool has_said_why(const host *h)
{
    return h->last_line[0] != 0 && !WIFSIGNALED(h->wait_status);
}

static void write_why(const host *h, char *buf, size_t n)
{
    const start_way way = h->owner->opt.way;
    char end[96];
    char advice[512];

    if (h->why[0] != 0)
        text_format(buf, n, "%s", h->why);
    else if (h->state == ORDERED)
        text_format(buf, n, "%s to it %s%s%s", way == START_SSH ? "ssh" : "srun",
                    process_end_text(end, sizeof(end), h->wait_status), has_said_why(h) ? ": " : "",
                    has_said_why(h) ? h->last_line : "");
    else if (h->last_line[0] != 0)
        text_format(buf, n, "%s (%s)", h->last_line,
                    start_advice(way, name_of(h), h->last_line, advice, sizeof(advice)));
    else
        text_format(buf, n, "%s %s (%s)", way == START_SSH ? "ssh" : "srun",
                    process_end_text(end, sizeof(end), h->wait_status),
                    start_advice(way, name_of(h), "", advice, sizeof(advice)));
}

static void try_again(void *arg)
{
    const host *h = arg;

    start_soon(h->owner);
}

/* Several tries at once came to an sshd that takes few: spread them. */
static bool retry(host *h)
{
    int64_t pause_ms = PAUSE_FIRST_MS;

    if (h->state != STARTING || h->why[0] != 0 || h->n_tries >= TRIES_MOST ||
        !start_may_retry(h->last_line))
        return false;
    pause_ms <<= h->n_tries - 1;
    pause_ms += (int64_t)(ls_rng_next(&h->owner->jitter) % (uint64_t)pause_ms);
    forget(h);
    h->state = IDLE;
    h->last_line[0] = 0;
    poller_timer_set(h->owner->loop, &h->timer, ls_now_ms() + pause_ms, try_again, h);
    return true;
}

static void take_error_lines(host *h);

/* The process is reaped, and what it wrote is read. */
static void finish(host *h)
{
    const bool was_ordered = h->state == ORDERED;
    char why[LINE_MOST + 1024];

    if (h->err_fd >= 0)
        take_error_lines(h);
    start_soon(h->owner);
    if (retry(h))
        return;
    write_why(h, why, sizeof(why));
    forget(h);
    h->state = ENDED;
    h->owner->events.ended(h->owner->events.self, h->index, was_ordered, why);
}

static void end_is_late(void *arg)
{
    host *h = arg;
    const int64_t heard_ms = h->owner->heard_ms;

    if (h->fd >= 0 && (h->owner->paused || ls_now_ms() - heard_ms < TAIL_MS)) {
        poller_timer_set(h->owner->loop, &h->timer, ls_now_ms() + TAIL_MS, end_is_late, h);
        return; /* what it sent last is still being read */
    }
    if (h->pid > 0) {
        kill(h->pid, SIGKILL);
        (void)waitpid(h->pid, &h->wait_status, 0);
        h->pid = 0;
    }
    finish(h);
}

/* The process ends, its stdout, or its stderr; the others follow soon, or what holds them is no part of it. */
static void end_begins(host *h)
{
    if (h->pid == 0 && h->fd < 0) {
        finish(h);
        return;
    }
    if (h->ending)
        return;
    h->ending = true;
    poller_timer_set(h->owner->loop, &h->timer, ls_now_ms() + TAIL_MS, end_is_late, h);
}

static void give_up(host *h, const char *why)
{
    if (h->why[0] == 0)
        text_format(h->why, sizeof(h->why), "%s", why);
    close_channel(h);
    if (h->pid > 0)
        kill(h->pid, SIGTERM);
    end_begins(h);
}

static void greeting_is_late(void *arg)
{
    give_up(arg, "it did not answer within 60 s");
}

void starter_reap(starter *s)
{
    for (int i = 0; i < s->n; i++) {
        host *h = &s->list[i];

        if (h->pid <= 0 || waitpid(h->pid, &h->wait_status, WNOHANG) != h->pid)
            continue;
        h->pid = 0;
        end_begins(h);
    }
}

/* --- what it prints on stderr --- */

static void finish_line(host *h)
{
    char shown[LINE_MOST];

    text_printable(shown, sizeof(shown), text_str(&h->line));
    text_free(&h->line);
    if (shown[strspn(shown, " ?")] == 0)
        return; /* empty, or a lone '\r' */
    text_format(h->last_line, sizeof(h->last_line), "%s", shown);
    if (h->state == GREETED || h->state == ORDERED)
        h->owner->events.line(h->owner->events.self, h->index, shown);
}

static void gather_lines(host *h, const char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (bytes[i] == '\n' || h->line.length >= LINE_MOST - 1)
            finish_line(h);
        if (bytes[i] != '\n' && bytes[i] != '\r')
            text_append_bytes(&h->line, &bytes[i], 1);
    }
}

static void take_error_lines(host *h)
{
    char bytes[4096];
    ssize_t n;

    do {
        n = read(h->err_fd, bytes, sizeof(bytes));
        if (n > 0)
            gather_lines(h, bytes, (size_t)n);
    } while (n > 0 || (n < 0 && errno == EINTR));
    if (n < 0 && errno == EAGAIN && !h->ending)
        return;
    if (h->line.length > 0)
        finish_line(h);
    close_errors(h);
}

static void on_error_line(void *arg, unsigned events)
{
    LS_UNUSED(events);
    take_error_lines(arg);
}

/* --- what is sent to it --- */

static void mind_channel(host *h)
{
    const bool wants_write = byte_queue_held(&h->out) > 0 || h->traveller_left > 0;
    const bool wants_read = !h->owner->paused;

    if (h->watch != NULL && poller_change(h->watch, (wants_read ? POLL_READ : 0u) |
                                                        (wants_write ? POLL_WRITE : 0u)) != LS_OK)
        give_up(h, ls_last_error());
}

static ls_status send_traveller(host *h)
{
    const starter *s = h->owner;

    while (h->traveller_left > 0) {
        size_t moved;

        LS_TRY(net_send_some(h->fd, name_of(h),
                             s->traveller + s->traveller_bytes - h->traveller_left,
                             h->traveller_left, &moved));
        if (moved == 0)
            return LS_OK;
        h->traveller_left -= moved;
    }
    return LS_OK;
}

static void flush(host *h)
{
    ls_status st = byte_queue_flush(&h->out, h->fd, name_of(h));

    if (st == LS_OK && byte_queue_held(&h->out) == 0)
        st = send_traveller(h);
    if (st == LS_OK) {
        mind_channel(h);
        return;
    }
    close_channel(h); /* its own words say why */
    end_begins(h);
}

/* --- before the greeting: lines --- */

static ls_status read_traveller(starter *s)
{
    char path[4096];

    if (s->traveller != NULL)
        return LS_OK;
    LS_TRY(start_find_traveller(path, sizeof(path)));
    return file_read(path, TRAVELLER_MOST, &s->traveller, &s->traveller_bytes);
}

/* Lockstep is not there. */
static void send_agent(host *h, const char *machine)
{
    starter *s = h->owner;
    struct utsname own;
    char text[256];

    (void)uname(&own);
    if (!text_equal(machine, own.machine)) {
        text_format(text, sizeof(text),
                    "Lockstep %s is not there, and cannot be sent: it is a %.32s, this is a %s; "
                    "install it there",
                    ls_version(), machine, own.machine);
        give_up(h, text);
        return;
    }
    if (read_traveller(s) != LS_OK) {
        text_format(text, sizeof(text), "Lockstep %s is not there: install it (%.128s)",
                    ls_version(), ls_last_error());
        give_up(h, text);
        return;
    }
    text_format(text, sizeof(text), "%zu\n", s->traveller_bytes);
    if (byte_queue_add(&h->out, text, strlen(text)) != LS_OK) {
        give_up(h, ls_last_error());
        return;
    }
    h->traveller_left = s->traveller_bytes;
    flush(h);
}

static void take_greeting(host *h, const char *version, int cores)
{
    char why[192];

    if (!text_equal(version, ls_version())) {
        text_format(why, sizeof(why), "it has Lockstep %.64s, and this is %s: install the same",
                    version, ls_version());
        give_up(h, why);
        return;
    }
    h->state = GREETED;
    poller_timer_cancel(&h->timer);
    start_soon(h->owner);
    h->owner->events.greeted(h->owner->events.self, h->index, cores);
}

static void take_first_line(host *h, const char *line)
{
    char version[64];
    int cores;

    if (orders_read_greeting(line, version, sizeof(version), &cores)) {
        take_greeting(h, version, cores);
    } else if (text_starts(line, START_WANTED " ")) {
        send_agent(h, line + strlen(START_WANTED " "));
    } else if (line[0] != 0) {
        h->owner->events.line(h->owner->events.self, h->index, line);
    }
}

/* What a login shell prints comes first. */
static void take_lines(host *h)
{
    byte_queue *q = &h->in.in;
    char line[LINE_MOST];

    while (h->state == STARTING && h->fd >= 0) {
        const uint8_t *begin = q->data + q->start;
        const size_t held = byte_queue_held(q);
        const uint8_t *end = held > 0 ? memchr(begin, '\n', held) : NULL;
        const size_t n = end != NULL ? (size_t)(end - begin) : held;

        if (h->n_noise + n > NOISE_MOST) {
            give_up(h, "its login shell prints more than 64 KiB");
            return;
        }
        if (end == NULL)
            return;
        text_format(line, sizeof(line), "%.*s", (int)n, (const char *)begin);
        text_printable(line, sizeof(line), line);
        h->n_noise += n + 1;
        q->start += n + 1;
        take_first_line(h, line);
    }
}

/* --- after it: frames --- */

static void take_frames(host *h)
{
    bool have = true;
    ls_status st = LS_OK;
    frame f;

    while (st == LS_OK && have && h->state == ORDERED && h->fd >= 0) {
        st = frame_reader_next(&h->in, &f, &have);
        if (st == LS_OK && have)
            st = h->owner->events.message(h->owner->events.self, h->index, &f);
    }
    if (st != LS_OK)
        give_up(h, ls_last_error());
}

static void receive(host *h)
{
    size_t moved;
    const ls_status st = frame_reader_fill(&h->in, h->fd, name_of(h), &moved);

    if (moved > 0)
        h->owner->heard_ms = ls_now_ms();
    if (h->state == STARTING)
        take_lines(h);
    if (h->state == ORDERED)
        take_frames(h);
    if (st != LS_OK && h->fd >= 0) {
        close_channel(h);
        end_begins(h);
    }
}

static void on_host(void *arg, unsigned events)
{
    host *h = arg;

    if ((events & POLL_WRITE) != 0)
        flush(h);
    if (h->fd >= 0 && (events & (POLL_READ | POLL_BROKEN)) != 0)
        receive(h);
}

/* --- starting --- */

static void start(host *h)
{
    starter *s = h->owner;
    char **argv;
    ls_status st = start_command_make(&s->opt, name_of(h), &argv);

    h->state = STARTING;
    h->n_tries++;
    h->wait_status = 0;
    frame_reader_init(&h->in, FAR_BODY_MAX);
    if (st == LS_OK)
        st = open_program(h, argv);
    start_command_free(argv);
    if (st == LS_OK)
        poller_timer_set(s->loop, &h->timer, ls_now_ms() + GREETING_MS, greeting_is_late, h);
    else
        give_up(h, ls_last_error());
}

static void start_more(void *arg)
{
    starter *s = arg;
    int n_starting = 0;

    for (int i = 0; i < s->n; i++)
        n_starting += s->list[i].state == STARTING;
    for (int i = 0; i < s->n && n_starting < START_WINDOW; i++) {
        host *h = &s->list[i];

        if (h->state != IDLE || h->timer.is_set)
            continue;
        n_starting++;
        start(h);
    }
}

/* --- for the owner --- */

ls_status starter_order(starter *s, int host_index, const void *body, size_t bytes)
{
    host *h = &s->list[host_index];
    uint8_t header[FRAME_HEADER_BYTES];

    if (h->state != GREETED)
        return ls_fail(LS_EPEER, "%s has gone", name_of(h));
    wire_put_u32(header, (uint32_t)bytes);
    wire_put_u32(header + 4, FAR_ORDERS);
    LS_TRY(byte_queue_add(&h->out, header, sizeof(header)));
    LS_TRY(byte_queue_add(&h->out, body, bytes));
    h->state = ORDERED;
    flush(h);
    return LS_OK;
}

void starter_restart(starter *s, int host_index)
{
    host *h = &s->list[host_index];

    if (h->state != ENDED)
        return;
    h->state = IDLE;
    h->n_tries = 0;
    h->why[0] = 0;
    h->last_line[0] = 0;
    start_soon(s);
}

void starter_dismiss(starter *s, int host_index)
{
    if (s->list[host_index].fd >= 0)
        (void)shutdown(s->list[host_index].fd, SHUT_WR);
}

void starter_pause(starter *s, bool pauses)
{
    if (pauses == s->paused)
        return;
    s->paused = pauses;
    for (int i = 0; i < s->n; i++)
        mind_channel(&s->list[i]);
}

int starter_count(const starter *s)
{
    int n = 0;

    for (int i = 0; i < s->n; i++)
        n += s->list[i].state != ENDED;
    return n;
}

bool starter_is_settled(const starter *s)
{
    for (int i = 0; i < s->n; i++)
        if (s->list[i].state == IDLE || s->list[i].state == STARTING)
            return false;
    return true;
}

int64_t starter_heard_ms(const starter *s)
{
    return s->heard_ms;
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
    s->heard_ms = ls_now_ms();
    for (int i = 0; i < hosts->n; i++)
        s->list[i] =
            (host){.owner = s, .index = i, .state = skip[i] ? ENDED : IDLE, .fd = -1, .err_fd = -1};
    start_soon(s);
    *out = s;
    return LS_OK;
}

/* Their agents end their ranks when stdin ends; what does not end by then is not waited for. */
static void end_processes(starter *s)
{
    const int64_t deadline_ms = ls_deadline_ms(END_MS);
    int n_left;

    for (int i = 0; i < s->n; i++) {
        close_channel(&s->list[i]);
        close_errors(&s->list[i]);
        if (s->list[i].state == STARTING && s->list[i].pid > 0)
            kill(s->list[i].pid, SIGTERM);
    }
    do {
        n_left = 0;
        for (int i = 0; i < s->n; i++) {
            host *h = &s->list[i];

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
    poller_timer_cancel(&s->kick);
    for (int i = 0; i < s->n; i++)
        forget(&s->list[i]);
    ls_free(s->list);
    ls_free(s->traveller);
    ls_free(s);
}
