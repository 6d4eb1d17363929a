/* SPDX-License-Identifier: Apache-2.0 */
#include "net/dial.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/text.h"
#include "net/socket.h"

#include <errno.h>
#include <poll.h>
#include <unistd.h>

enum {
    ROUND_MS =
        3000, /* for the answers of one round; a network that drops packets must not hold up the next */
    OTHERS_MS = 500, /* for the other addresses, once one has another key */
    PAUSE_FIRST_MS = 20,
    PAUSE_MOST_MS = 500,
    USER_TIMEOUT_MS = 5000,
    REFUSED_MAX = 5 /* rounds in a row, with patience: there is nobody any more */
};

/* One address in one round. */
typedef struct attempt {
    dial *owner;
    net_address to;
    int fd; /* -1: over */
    poll_watch *watch;
    bool connected;
    bool was_refused;
    handshake shake;
} attempt;

struct dial {
    poller *loop;
    dial_options opt;
    attempt tries[DIAL_ADDRESSES_MAX];
    int n_tries;
    poll_timer timer; /* of the next round, the end of this one, or of telling the end */
    int pause_ms;
    bool is_strange; /* all that answered in this round have another key */
    bool is_refused; /* nobody listens at any address */
    int n_refused;   /* rounds in a row of which that was true */
    seal_pair seals; /* of the connection that succeeded */
    ls_status status;
    char trouble[LS_ERROR_BYTES];
};

static void begin_round(void *arg);

static void end_attempt(attempt *t)
{
    poller_unwatch(t->watch);
    t->watch = NULL;
    file_close(&t->fd);
    handshake_wipe(&t->shake);
}

static void end_round(dial *d)
{
    for (int i = 0; i < d->n_tries; i++)
        end_attempt(&d->tries[i]);
    d->n_tries = 0;
}

static void tell_failure(void *arg)
{
    dial *d = arg;

    d->opt.done(d->opt.self, -1, NULL, d->status, d->trouble);
}

static bool is_strange(ls_status st)
{
    return st == LS_EAUTH || st == LS_EMISMATCH || st == LS_EINVAL;
}

/* A key that differs will not become the same, everything else may change. In a list it may be another machine's. */
static bool is_final(const dial *d, ls_status st)
{
    return d->opt.addresses == NULL && is_strange(st);
}

/* What another address of the name says does not hide that the key differs at this one. */
static void note_trouble(dial *d, ls_status st)
{
    if (is_final(d, d->status))
        return;
    d->status = st;
    text_format(d->trouble, sizeof(d->trouble), "%s", ls_last_error());
}

/* Addresses that have not answered at all: a firewall drops what is sent there, or the machine is down. */
static void note_silence(dial *d)
{
    char text[NET_ADDRESS_TEXT_MAX];

    for (int i = 0; i < d->n_tries; i++) {
        const attempt *t = &d->tries[i];

        if (t->fd < 0 || (t->connected && d->opt.accept_timeout_ms > 0))
            continue;
        d->is_strange = false;
        d->is_refused = false;
        note_trouble(d, ls_fail(LS_ETIMEOUT, "cannot connect to %s: timed out",
                                net_address_text(text, sizeof(text), &t->to)));
    }
}

static int64_t at_most(int64_t ms, int64_t limit_ms)
{
    return ms < limit_ms ? ms : limit_ms;
}

/* With patience a round goes on as long as somebody has taken a connection of it. */
static bool keep_connected(dial *d)
{
    bool any = false;

    for (int i = 0; i < d->n_tries; i++) {
        attempt *t = &d->tries[i];

        if (t->fd >= 0 && !t->connected)
            end_attempt(t);
        any = any || t->fd >= 0;
    }
    return any;
}

/* The round has brought nothing. */
static void round_is_over(void *arg)
{
    dial *d = arg;
    const int64_t now_ms = ls_now_ms();

    note_silence(d);
    if (d->opt.accept_timeout_ms > 0 && keep_connected(d))
        return;
    end_round(d);
    d->n_refused = d->is_refused ? d->n_refused + 1 : 0;
    if (is_final(d, d->status) || now_ms >= d->opt.deadline_ms ||
        (d->opt.accept_timeout_ms > 0 && (d->is_strange || d->n_refused == REFUSED_MAX))) {
        poller_timer_set(d->loop, &d->timer, now_ms, tell_failure, d);
        return;
    }
    poller_timer_set(d->loop, &d->timer, at_most(now_ms + d->pause_ms, d->opt.deadline_ms),
                     begin_round, d);
    d->pause_ms = d->pause_ms * 2 < PAUSE_MOST_MS ? d->pause_ms * 2 : PAUSE_MOST_MS;
}

static bool all_are_over(const dial *d)
{
    for (int i = 0; i < d->n_tries; i++)
        if (d->tries[i].fd >= 0)
            return false;
    return true;
}

/* Where the key differs, the others of the round that answer at all get the time to be better: a name may have addresses of
 * machines that are not meant. */
static void attempt_failed(attempt *t, ls_status st)
{
    dial *d = t->owner;
    const bool is_first = is_final(d, st) && !is_final(d, d->status);

    d->is_strange = d->is_strange && is_strange(st);
    d->is_refused = d->is_refused && t->was_refused;
    // Who took the connection and let it go again may be busy, and take the next.
    if (d->opt.accept_timeout_ms > 0 && t->connected)
        d->opt.deadline_ms = ls_deadline_ms(d->opt.accept_timeout_ms);
    note_trouble(d, st);
    end_attempt(t);
    if (all_are_over(d))
        round_is_over(d);
    else if (is_first)
        poller_timer_set(d->loop, &d->timer, at_most(ls_now_ms() + OTHERS_MS, d->opt.deadline_ms),
                         round_is_over, d);
}

static void attempt_succeeded(attempt *t)
{
    dial *d = t->owner;
    const int fd = t->fd;
    const net_address at = t->to;

    t->fd = -1;
    handshake_seals(&t->shake, &d->seals);
    end_round(d);
    poller_timer_cancel(&d->timer);
    d->opt.done(d->opt.self, fd, &at, LS_OK, "");
}

static ls_status begin_proving(attempt *t)
{
    const handshake_claim claim = handshake_claim_for(t->fd, &t->owner->opt.claim);
    const int error = net_connect_result(t->fd);
    char name[NET_ADDRESS_TEXT_MAX];

    t->was_refused = error == ECONNREFUSED;
    if (error != 0)
        return net_connect_failed(&t->to, error);
    t->connected = true;
    LS_TRY(net_set_stream_options(t->fd, USER_TIMEOUT_MS));
    return handshake_client(&t->shake, t->owner->opt.key, &claim,
                            net_address_text(name, sizeof(name), &t->to));
}

static void on_attempt(void *arg, unsigned events)
{
    attempt *t = arg;
    ls_status st = LS_OK;
    short wanted = 0;

    LS_UNUSED(events);
    if (!t->connected)
        st = begin_proving(t);
    if (st == LS_OK)
        st = handshake_step(&t->shake, t->fd, &wanted);
    if (st == LS_OK && t->shake.state == HANDSHAKE_DONE) {
        poller_unwatch(t->watch);
        t->watch = NULL;
        attempt_succeeded(t);
        return;
    }
    if (st == LS_OK)
        st = poller_change(t->watch, wanted == POLLOUT ? POLL_WRITE : POLL_READ);
    if (st != LS_OK)
        attempt_failed(t, st);
}

static ls_status find_addresses(const dial *d, net_address at[DIAL_ADDRESSES_MAX], int *n)
{
    if (d->opt.addresses == NULL)
        return net_address_resolve(d->opt.to, d->opt.default_port, at, DIAL_ADDRESSES_MAX, n);
    *n = d->opt.n_addresses < DIAL_ADDRESSES_MAX ? d->opt.n_addresses : DIAL_ADDRESSES_MAX;
    for (int i = 0; i < *n; i++)
        at[i] = d->opt.addresses[i];
    return LS_OK;
}

static ls_status begin_attempt(attempt *t)
{
    const int error = net_connect_start(&t->to, NET_STREAM, &t->fd);

    t->was_refused = error == ECONNREFUSED;
    if (error != 0 && error != EINPROGRESS)
        return net_connect_failed(&t->to, error);
    return poller_watch(t->owner->loop, t->fd, POLL_WRITE, on_attempt, t, &t->watch);
}

static void begin_round(void *arg)
{
    dial *d = arg;
    net_address at[DIAL_ADDRESSES_MAX];
    int n = 0;
    ls_status st = find_addresses(d, at, &n);

    d->is_strange = st == LS_OK && n > 0;
    d->is_refused = d->is_strange;
    if (st != LS_OK)
        note_trouble(d, st);
    for (int i = 0; i < n; i++) {
        attempt *t = &d->tries[d->n_tries];

        *t = (attempt){.owner = d, .to = at[i], .fd = -1};
        st = begin_attempt(t);
        if (st == LS_OK) {
            d->n_tries++;
        } else {
            d->is_strange = false;
            d->is_refused = d->is_refused && t->was_refused;
            note_trouble(d, st);
            file_close(&t->fd);
        }
    }
    if (d->n_tries == 0)
        round_is_over(d);
    else
        poller_timer_set(d->loop, &d->timer, at_most(ls_now_ms() + ROUND_MS, d->opt.deadline_ms),
                         round_is_over, d);
}

ls_status dial_open(poller *p, const dial_options *opt, dial **out)
{
    dial *d = ls_calloc(1, sizeof(*d));

    *out = NULL;
    if (d == NULL)
        return ls_fail(LS_ENOMEM, "no memory for a connection");
    d->loop = p;
    d->opt = *opt;
    d->pause_ms = PAUSE_FIRST_MS;
    poller_timer_set(p, &d->timer, ls_now_ms(), begin_round, d);
    *out = d;
    return LS_OK;
}

void dial_close(dial *d)
{
    if (d == NULL)
        return;
    poller_timer_cancel(&d->timer);
    end_round(d);
    seal_pair_wipe(&d->seals);
    ls_free(d);
}

void dial_forked(const dial *d)
{
    for (int i = 0; i < d->n_tries; i++)
        if (d->tries[i].fd >= 0)
            close(d->tries[i].fd);
}

const seal_pair *dial_seals(const dial *d)
{
    return &d->seals;
}

const char *dial_last_error(const dial *d)
{
    return d->trouble;
}
