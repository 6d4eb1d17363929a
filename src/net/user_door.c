/* SPDX-License-Identifier: Apache-2.0 */
#include "net/user_door.h"

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

struct user_door {
    poller *loop;
    user_door_options opt;
    int port;
    int listener;
    int spare_fd; /* given up while asking whose a connection is, which takes one */
    poll_watch *watch;
    poll_timer resume; /* accepting again after a pause */
    int64_t last_refusal_ms;
};

static void open_spare(user_door *d)
{
    d->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
}

static ls_status ask_user(user_door *d, int fd, uid_t *user)
{
    ls_status st;

    file_close(&d->spare_fd);
    st = net_tcp_user(fd, user);
    open_spare(d);
    return st;
}

/* Whose it is. No limit on unacknowledged data: a client that is stopped may go on whenever it likes. */
static ls_status check_stranger(user_door *d, int fd, char *peer, size_t n)
{
    net_address at;
    uid_t user;

    LS_TRY(ask_user(d, fd, &user));
    if (user != d->opt.user)
        return ls_fail(LS_EAUTH, "it belongs to user %u", (unsigned)user);
    LS_TRY(net_address_of_peer(fd, &at));
    net_address_text(peer, n, &at);
    return net_set_stream_options(fd, 0);
}

static void let_in(user_door *d, int fd)
{
    char peer[NET_ADDRESS_TEXT_MAX];
    ls_status st = check_stranger(d, fd, peer, sizeof(peer));

    if (st != LS_OK)
        file_close(&fd);
    else
        st = d->opt.enter(d->opt.self, fd, peer);
    if (st != LS_OK && st != LS_ENOTFOUND && log_every(&d->last_refusal_ms, LOG_PAUSE_MS))
        ls_log(LS_LOG_WARN, d->opt.name, "refused a connection to port %d: %s", d->port,
               ls_last_error());
}

static void resume_listening(void *arg)
{
    user_door *d = arg;

    if (poller_change(d->watch, POLL_READ) != LS_OK)
        ls_log(LS_LOG_ERROR, d->opt.name, "cannot listen any more: %s", ls_last_error());
}

/* Descriptors have run out. Who connects meanwhile waits in the listen queue. */
static void pause_listening(user_door *d)
{
    if (log_every(&d->last_refusal_ms, LOG_PAUSE_MS))
        ls_log(LS_LOG_ERROR, d->opt.name, "connections cannot be taken for now: %s",
               ls_last_error());
    if (poller_change(d->watch, 0) == LS_OK)
        poller_timer_set(d->loop, &d->resume, ls_now_ms() + NO_FDS_PAUSE_MS, resume_listening, d);
}

static void on_listener(void *arg, unsigned events)
{
    user_door *d = arg;
    int fd = 0;

    LS_UNUSED(events);
    for (int i = 0; i < ACCEPTS_A_ROUND && fd >= 0; i++) {
        if (net_accept(d->listener, &fd) != LS_OK) {
            pause_listening(d);
            return;
        }
        if (fd >= 0)
            let_in(d, fd);
    }
}

static ls_status listen_at(user_door *d, int port)
{
    net_address wanted;
    net_address bound;

    LS_TRY(net_address_parse("127.0.0.1", 0, &wanted));
    net_address_set_port(&wanted, port);
    LS_TRY(net_listen(&wanted, NET_STREAM, BACKLOG, &d->listener, &bound));
    d->port = net_address_port(&bound);
    return poller_watch(d->loop, d->listener, POLL_READ, on_listener, d, &d->watch);
}

ls_status user_door_open(poller *p, const user_door_options *opt, user_door **out)
{
    user_door *d = ls_calloc(1, sizeof(*d));
    ls_status st;

    *out = NULL;
    if (d == NULL)
        return ls_fail(LS_ENOMEM, "no memory for a listener");
    d->loop = p;
    d->opt = *opt;
    d->listener = -1;
    open_spare(d);
    st = listen_at(d, opt->port);
    if (st != LS_OK) {
        user_door_close(d);
        return st;
    }
    *out = d;
    return LS_OK;
}

void user_door_close(user_door *d)
{
    if (d == NULL)
        return;
    poller_timer_cancel(&d->resume);
    poller_unwatch(d->watch);
    file_close(&d->listener);
    file_close(&d->spare_fd);
    ls_free(d);
}

int user_door_port(const user_door *d)
{
    return d->port;
}
