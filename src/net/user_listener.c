/* SPDX-License-Identifier: Apache-2.0 */
/*
 * user_listener.c - accepts connections and checks their user before it hands them over. At most
 * QUESTIONS_MAX connections from other hosts wait for a reply at a time; further ones wait in the
 * listen queue. PyTorch's store and the agents listen with it.
 */
#include "net/user_listener.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "net/socket.h"
#include "net/tcp_user.h"

#define BACKLOG         4096
#define ACCEPTS_A_ROUND 64
#define LOG_PAUSE_MS    1000
#define QUESTIONS_MAX   64
#define ANSWER_MS       5000

/* A connection from another host whose user is not known yet. */
typedef struct question {
    int fd; /* -1 = a free slot */
    uint32_t number;
    int64_t asked_ms;
    char peer[NET_ADDRESS_TEXT_MAX];
} question;

struct user_listener {
    poller *loop;
    user_listener_options opt;
    int port;
    int listen_fd;
    int spare_fd; /* closed during the lookup of a connection's user, which needs a descriptor */
    poll_watch *watch;
    question questions[QUESTIONS_MAX];
    int n_questions;
    uint32_t last_question;
    poll_timer expiry; /* of the oldest question */
    int64_t last_refusal_ms;
};

static ls_status ask_user(user_listener *l, int fd, uid_t *user)
{
    ls_status st;

    file_close(&l->spare_fd);
    st = net_tcp_user(fd, user);
    net_reserve_fd(&l->spare_fd);
    return st;
}

static void log_refusal(user_listener *l, ls_status st)
{
    if (st != LS_OK && st != LS_ENOTFOUND && log_every(&l->last_refusal_ms, LOG_PAUSE_MS))
        ls_log(LS_LOG_WARN, l->opt.name, "refused a connection to port %d: %s", l->port,
               ls_last_error());
}

/* No limit on unacknowledged data: a stopped client may continue at any time. */
static void hand_over(user_listener *l, int fd, const char *peer)
{
    ls_status st = net_set_stream_options(fd, 0);

    if (st != LS_OK)
        file_close(&fd);
    else
        st = l->opt.accepted(l->opt.self, fd, peer);
    log_refusal(l, st);
}

/* --- connections from other hosts --- */

static void on_expiry(void *arg);

static question *oldest_question(user_listener *l)
{
    question *oldest = NULL;

    for (int i = 0; i < QUESTIONS_MAX; i++) {
        question *q = &l->questions[i];

        if (q->fd >= 0 && (oldest == NULL || q->asked_ms < oldest->asked_ms))
            oldest = q;
    }
    return oldest;
}

static void set_expiry(user_listener *l)
{
    const question *oldest = oldest_question(l);

    if (oldest == NULL)
        poller_timer_cancel(&l->expiry);
    else
        poller_timer_set(l->loop, &l->expiry, oldest->asked_ms + ANSWER_MS, on_expiry, l);
}

/* The caller owns the returned connection. */
static int end_question(user_listener *l, question *q)
{
    const int fd = q->fd;

    q->fd = -1;
    if (l->n_questions-- == QUESTIONS_MAX && poller_change(l->watch, POLL_READ) != LS_OK)
        ls_log(LS_LOG_ERROR, l->opt.name, "cannot listen: %s", ls_last_error());
    set_expiry(l);
    return fd;
}

static void on_expiry(void *arg)
{
    user_listener *l = arg;
    question *q = oldest_question(l);
    int fd;

    if (q == NULL)
        return;
    (void)ls_fail(LS_EAUTH, "which user %s belongs to was not answered within %d s", q->peer,
                  ANSWER_MS / 1000);
    fd = end_question(l, q);
    file_close(&fd);
    log_refusal(l, LS_EAUTH);
}

static question *find_question(user_listener *l, uint32_t number)
{
    for (int i = 0; i < QUESTIONS_MAX; i++)
        if (l->questions[i].fd >= 0 && l->questions[i].number == number)
            return &l->questions[i];
    return NULL;
}

void user_listener_answer(user_listener *l, uint32_t question_number, bool is_users)
{
    question *q = find_question(l, question_number);
    char peer[NET_ADDRESS_TEXT_MAX];
    int fd;

    if (q == NULL)
        return;
    text_format(peer, sizeof(peer), "%s", q->peer);
    fd = end_question(l, q);
    if (is_users) {
        hand_over(l, fd, peer);
        return;
    }
    file_close(&fd);
    log_refusal(l, ls_fail(LS_EAUTH, "%s belongs to no process of this job's user", peer));
}

static ls_status ask_other_host(user_listener *l, int fd, const net_address *client,
                                const char *peer)
{
    net_address server;
    question *q = l->questions;

    LS_TRY(net_address_of_socket(fd, &server));
    while (q->fd >= 0) /* the listener pauses while no slot is free */
        q++;
    *q = (question){.fd = fd, .number = ++l->last_question, .asked_ms = ls_now_ms()};
    text_format(q->peer, sizeof(q->peer), "%s", peer);
    if (++l->n_questions == QUESTIONS_MAX && poller_change(l->watch, 0) != LS_OK)
        ls_log(LS_LOG_ERROR, l->opt.name, "%s", ls_last_error());
    set_expiry(l);
    l->opt.ask(l->opt.self, q->number, client, &server);
    return LS_OK;
}

/* --- accepting --- */

static ls_status check_connection(user_listener *l, int fd, char *peer, bool *is_asked)
{
    net_address at;
    uid_t user;
    ls_status st;

    *is_asked = false;
    LS_TRY(net_address_of_peer(fd, &at));
    net_address_text(peer, NET_ADDRESS_TEXT_MAX, &at);
    st = ask_user(l, fd, &user);
    if (st == LS_OK && user != l->opt.user)
        return ls_fail(LS_EAUTH, "the connection belongs to user %u", (unsigned)user);
    if (st != LS_ENOTFOUND || l->opt.ask == NULL)
        return st;
    *is_asked = true;
    return ask_other_host(l, fd, &at, peer);
}

static void take_connection(user_listener *l, int fd)
{
    char peer[NET_ADDRESS_TEXT_MAX];
    bool is_asked;
    const ls_status st = check_connection(l, fd, peer, &is_asked);

    if (st != LS_OK)
        file_close(&fd);
    else if (!is_asked)
        hand_over(l, fd, peer);
    log_refusal(l, st);
}

static void on_listener(void *arg, unsigned events)
{
    user_listener *l = arg;

    LS_UNUSED(events);
    for (int i = 0; i < ACCEPTS_A_ROUND && l->n_questions < QUESTIONS_MAX; i++) {
        const int fd = poller_accept(l->watch, l->opt.name);

        if (fd < 0)
            return;
        take_connection(l, fd);
    }
}

static ls_status listen_at(user_listener *l)
{
    net_address wanted = l->opt.at;
    net_address bound;

    if (net_address_family(&wanted) == NET_NONE)
        LS_TRY(net_address_parse("127.0.0.1", 0, &wanted));
    net_address_set_port(&wanted, l->opt.port);
    LS_TRY(net_listen_in(&wanted, l->opt.ports, 0, NET_STREAM, BACKLOG, &l->listen_fd, &bound));
    l->port = net_address_port(&bound);
    return poller_watch(l->loop, l->listen_fd, POLL_READ, on_listener, l, &l->watch);
}

ls_status user_listener_open(poller *p, const user_listener_options *opt, user_listener **out)
{
    user_listener *l;
    ls_status st;

    *out = NULL;
    LS_TRY(LS_NEW(&l, 1, "for a listener"));
    l->loop = p;
    l->opt = *opt;
    l->listen_fd = -1;
    l->spare_fd = -1;
    for (int i = 0; i < QUESTIONS_MAX; i++)
        l->questions[i].fd = -1;
    net_reserve_fd(&l->spare_fd);
    st = listen_at(l);
    if (st == LS_OK)
        *out = l;
    else
        user_listener_close(l);
    return st;
}

void user_listener_close(user_listener *l)
{
    if (l == NULL)
        return;
    poller_timer_cancel(&l->expiry);
    for (int i = 0; i < QUESTIONS_MAX; i++)
        file_close(&l->questions[i].fd);
    poller_close(&l->watch, &l->listen_fd);
    file_close(&l->spare_fd);
    ls_free(l);
}

int user_listener_port(const user_listener *l)
{
    return l->port;
}
