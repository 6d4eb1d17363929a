/* SPDX-License-Identifier: Apache-2.0 */
#include "net/user_listener.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "net/socket.h"
#include "net/tcp_user.h"

#include <fcntl.h>

#define BACKLOG         4096
#define ACCEPTS_A_ROUND 64
#define NO_FDS_PAUSE_MS 50
#define LOG_PAUSE_MS    1000
#define QUESTIONS_MAX   64
#define ANSWER_MS       5000

/* A connection from another host whose owner is being asked for. */
typedef struct question {
    int fd; /* -1: the slot is free */
    uint32_t number;
    int64_t asked_ms;
    char peer[NET_ADDRESS_TEXT_MAX];
} question;

struct user_listener {
    poller *loop;
    user_listener_options opt;
    int port;
    int listener;
    int spare_fd; /* given up while asking whose a connection is, which takes one */
    poll_watch *watch;
    poll_timer resume; /* accepting again after a pause */
    question questions[QUESTIONS_MAX];
    int n_questions;
    uint32_t last_question;
    poll_timer expiry; /* of the oldest */
    int64_t last_refusal_ms;
};

static void open_spare(user_listener *d)
{
    d->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
}

static ls_status ask_user(user_listener *d, int fd, uid_t *user)
{
    ls_status st;

    file_close(&d->spare_fd);
    st = net_tcp_user(fd, user);
    open_spare(d);
    return st;
}

static ls_status check_user(const user_listener *d, uid_t user)
{
    return user == d->opt.user ? LS_OK : ls_fail(LS_EAUTH, "it belongs to user %u", (unsigned)user);
}

static void log_refusal(user_listener *d, ls_status st)
{
    if (st != LS_OK && st != LS_ENOTFOUND && log_every(&d->last_refusal_ms, LOG_PAUSE_MS))
        ls_log(LS_LOG_WARN, d->opt.name, "refused a connection to port %d: %s", d->port,
               ls_last_error());
}

/* No limit on unacknowledged data: a client that is stopped may continue at any time. */
static void admit(user_listener *d, int fd, const char *peer)
{
    ls_status st = net_set_stream_options(fd, 0);

    if (st != LS_OK)
        file_close(&fd);
    else
        st = d->opt.accepted(d->opt.self, fd, peer);
    log_refusal(d, st);
}

/* --- connections from other hosts --- */

static void on_expiry(void *arg);

static question *oldest_question(user_listener *d)
{
    question *oldest = NULL;

    for (int i = 0; i < QUESTIONS_MAX; i++) {
        question *q = &d->questions[i];

        if (q->fd >= 0 && (oldest == NULL || q->asked_ms < oldest->asked_ms))
            oldest = q;
    }
    return oldest;
}

static void set_expiry(user_listener *d)
{
    const question *oldest = oldest_question(d);

    if (oldest == NULL)
        poller_timer_cancel(&d->expiry);
    else
        poller_timer_set(d->loop, &d->expiry, oldest->asked_ms + ANSWER_MS, on_expiry, d);
}

static void resume_listening(void *listener);

/* Gives the connection to the caller. */
static int end_question(user_listener *d, question *q)
{
    const int fd = q->fd;

    q->fd = -1;
    if (d->n_questions-- == QUESTIONS_MAX && !d->resume.is_set)
        resume_listening(d);
    set_expiry(d);
    return fd;
}

static void on_expiry(void *arg)
{
    user_listener *d = arg;
    question *q = oldest_question(d);
    int fd;

    if (q == NULL)
        return;
    (void)ls_fail(LS_EAUTH, "which user %s belongs to was not answered within %d s", q->peer,
                  ANSWER_MS / 1000);
    fd = end_question(d, q);
    file_close(&fd);
    log_refusal(d, LS_EAUTH);
}

static question *find_question(user_listener *d, uint32_t number)
{
    for (int i = 0; i < QUESTIONS_MAX; i++)
        if (d->questions[i].fd >= 0 && d->questions[i].number == number)
            return &d->questions[i];
    return NULL;
}

void user_listener_answer(user_listener *d, uint32_t question_number, bool is_users)
{
    question *q = find_question(d, question_number);
    char peer[NET_ADDRESS_TEXT_MAX];
    int fd;

    if (q == NULL)
        return;
    text_format(peer, sizeof(peer), "%s", q->peer);
    fd = end_question(d, q);
    if (is_users) {
        admit(d, fd, peer);
        return;
    }
    file_close(&fd);
    log_refusal(d, ls_fail(LS_EAUTH, "%s belongs to no process of this job's user", peer));
}

static ls_status ask_other_host(user_listener *d, int fd, const net_address *client,
                                const char *peer)
{
    net_address server;
    question *q = d->questions;

    LS_TRY(net_address_of_socket(fd, &server));
    while (q->fd >= 0) /* the listener pauses while none is free */
        q++;
    *q = (question){.fd = fd, .number = ++d->last_question, .asked_ms = ls_now_ms()};
    text_format(q->peer, sizeof(q->peer), "%s", peer);
    if (++d->n_questions == QUESTIONS_MAX && poller_change(d->watch, 0) != LS_OK)
        ls_log(LS_LOG_ERROR, d->opt.name, "%s", ls_last_error());
    set_expiry(d);
    d->opt.ask(d->opt.self, q->number, client, &server);
    return LS_OK;
}

/* --- accepting --- */

static ls_status check_connection(user_listener *d, int fd, char *peer, bool *is_asked)
{
    net_address at;
    uid_t user;
    ls_status st;

    *is_asked = false;
    LS_TRY(net_address_of_peer(fd, &at));
    net_address_text(peer, NET_ADDRESS_TEXT_MAX, &at);
    st = ask_user(d, fd, &user);
    if (st == LS_OK)
        return check_user(d, user);
    if (st != LS_ENOTFOUND || d->opt.ask == NULL)
        return st;
    *is_asked = true;
    return ask_other_host(d, fd, &at, peer);
}

static void take_connection(user_listener *d, int fd)
{
    char peer[NET_ADDRESS_TEXT_MAX];
    bool is_asked;
    const ls_status st = check_connection(d, fd, peer, &is_asked);

    if (st != LS_OK)
        file_close(&fd);
    else if (!is_asked)
        admit(d, fd, peer);
    log_refusal(d, st);
}

static void resume_listening(void *arg)
{
    user_listener *d = arg;

    if (d->n_questions < QUESTIONS_MAX && poller_change(d->watch, POLL_READ) != LS_OK)
        ls_log(LS_LOG_ERROR, d->opt.name, "cannot listen any more: %s", ls_last_error());
}

/* Descriptors have run out. Who connects meanwhile waits in the listen queue. */
static void pause_listening(user_listener *d)
{
    if (log_every(&d->last_refusal_ms, LOG_PAUSE_MS))
        ls_log(LS_LOG_ERROR, d->opt.name, "connections cannot be taken for now: %s",
               ls_last_error());
    if (poller_change(d->watch, 0) == LS_OK)
        poller_timer_set(d->loop, &d->resume, ls_now_ms() + NO_FDS_PAUSE_MS, resume_listening, d);
}

static void on_listener(void *arg, unsigned events)
{
    user_listener *d = arg;
    int fd = 0;

    LS_UNUSED(events);
    for (int i = 0; i < ACCEPTS_A_ROUND && fd >= 0 && d->n_questions < QUESTIONS_MAX; i++) {
        if (net_accept(d->listener, &fd) != LS_OK) {
            pause_listening(d);
            return;
        }
        if (fd >= 0)
            take_connection(d, fd);
    }
}

static ls_status listen_at(user_listener *d)
{
    net_address wanted = d->opt.at;
    net_address bound;

    if (net_address_family(&wanted) == NET_NONE)
        LS_TRY(net_address_parse("127.0.0.1", 0, &wanted));
    net_address_set_port(&wanted, d->opt.port);
    LS_TRY(net_listen_in(&wanted, d->opt.ports, 0, NET_STREAM, BACKLOG, &d->listener, &bound));
    d->port = net_address_port(&bound);
    return poller_watch(d->loop, d->listener, POLL_READ, on_listener, d, &d->watch);
}

ls_status user_listener_open(poller *p, const user_listener_options *opt, user_listener **out)
{
    user_listener *d = ls_calloc(1, sizeof(*d));
    ls_status st;

    *out = NULL;
    if (d == NULL)
        return ls_fail(LS_ENOMEM, "no memory for a listener");
    d->loop = p;
    d->opt = *opt;
    d->listener = -1;
    for (int i = 0; i < QUESTIONS_MAX; i++)
        d->questions[i].fd = -1;
    open_spare(d);
    st = listen_at(d);
    if (st != LS_OK) {
        user_listener_close(d);
        return st;
    }
    *out = d;
    return LS_OK;
}

void user_listener_close(user_listener *d)
{
    if (d == NULL)
        return;
    poller_timer_cancel(&d->resume);
    poller_timer_cancel(&d->expiry);
    for (int i = 0; i < QUESTIONS_MAX; i++)
        file_close(&d->questions[i].fd);
    poller_unwatch(d->watch);
    file_close(&d->listener);
    file_close(&d->spare_fd);
    ls_free(d);
}

int user_listener_port(const user_listener *d)
{
    return d->port;
}
