/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dial.c - connects to a listener in rounds. A round starts all addresses at once; the first
 * authenticated connection ends the dial, and all others are closed. Agents, the mesh and the
 * probes of networks call it.
 */
#include "net/auth/dial.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/text.h"
#include "net/socket.h"

#include <errno.h>
#include <poll.h>
#include <unistd.h>

enum {
    ROUND_MS = 3000,    /* of one round; bounds the delay by a network that drops packets */
    REMAINING_MS = 500, /* for the other addresses, once one has a different key */
    PAUSE_FIRST_MS = 20,
    PAUSE_MAX_MS = 500,
    /* Where a listener accepts and has no time for the handshake: so many that it cannot serve all
     * must not come again at once. */
    BUSY_PAUSE_MAX_MS = 4000,
    REFUSED_MAX = 5 /* refused rounds in a row; nothing listens there any more */
};

/* One address in one round. */
typedef struct attempt {
    dial *owner;
    net_address to;
    int fd; /* -1 = ended */
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
    poll_timer timer; /* start of the next round, end of this one, or report of the failure */
    int pause_ms;
    bool is_rejected; /* all peers that replied in this round rejected the key */
    bool is_refused;  /* all addresses refused the connection */
    bool is_busy;     /* one has accepted the connection and closed it */
    int n_refused;    /* rounds in a row with is_refused */
    seal_pair seals;  /* of the successful connection */
    ls_status status;
    char last_error[LS_ERROR_BYTES];
};

static void begin_round(void *arg);

static void end_attempt(attempt *t)
{
    poller_close(&t->watch, &t->fd);
    handshake_wipe(&t->shake);
}

static void end_round(dial *d)
{
    for (int i = 0; i < d->n_tries; i++)
        end_attempt(&d->tries[i]);
    d->n_tries = 0;
}

static void report_failure(void *arg)
{
    dial *d = arg;

    d->opt.done(d->opt.self, -1, NULL, d->status, d->last_error);
}

static bool is_rejection(ls_status st)
{
    return st == LS_EAUTH || st == LS_EMISMATCH || st == LS_EINVAL;
}

/* A different key stays different, all other errors may pass. One of several candidates may be
 * another machine. */
static bool is_final(const dial *d, ls_status st)
{
    return d->opt.addresses == NULL && is_rejection(st);
}

/* A later error of another address does not hide that the key differs at this one. */
static void note_error(dial *d, ls_status st)
{
    if (is_final(d, d->status))
        return;
    d->status = st;
    text_format(d->last_error, sizeof(d->last_error), "%s", ls_last_error());
}

/* Addresses that have not replied at all: a firewall drops the packets, or the machine is down. */
static void note_timeouts(dial *d)
{
    char text[NET_ADDRESS_TEXT_MAX];

    for (int i = 0; i < d->n_tries; i++) {
        const attempt *t = &d->tries[i];

        if (t->fd < 0 || (t->connected && d->opt.accept_timeout_ms > 0))
            continue;
        d->is_rejected = false;
        d->is_refused = false;
        note_error(d, ls_fail(LS_ETIMEOUT, "cannot connect to %s: timed out",
                              net_address_text(text, sizeof(text), &t->to)));
    }
}

static int64_t at_most(int64_t ms, int64_t limit_ms)
{
    return ms < limit_ms ? ms : limit_ms;
}

/* With accept_timeout_ms a round continues as long as one of its connections was accepted. */
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

/* The round has given no connection. */
static void finish_round(void *arg)
{
    dial *d = arg;
    const int64_t now_ms = ls_now_ms();
    int wait_ms;

    note_timeouts(d);
    if (d->opt.accept_timeout_ms > 0 && keep_connected(d))
        return;
    end_round(d);
    d->n_refused = d->is_refused ? d->n_refused + 1 : 0;
    if (is_final(d, d->status) || now_ms >= d->opt.deadline_ms ||
        (d->opt.accept_timeout_ms > 0 && (d->is_rejected || d->n_refused == REFUSED_MAX))) {
        poller_timer_set(d->loop, &d->timer, now_ms, report_failure, d);
        return;
    }
    d->pause_ms = net_retry_pause_ms(d->pause_ms, PAUSE_FIRST_MS,
                                     d->is_busy ? BUSY_PAUSE_MAX_MS : PAUSE_MAX_MS, &wait_ms);
    poller_timer_set(d->loop, &d->timer, at_most(now_ms + wait_ms, d->opt.deadline_ms), begin_round,
                     d);
}

static bool all_ended(const dial *d)
{
    for (int i = 0; i < d->n_tries; i++)
        if (d->tries[i].fd >= 0)
            return false;
    return true;
}

/* After a rejection the other addresses of the round get a little more time: a name may also have
 * addresses of other machines. */
static void attempt_failed(attempt *t, ls_status st)
{
    dial *d = t->owner;
    const bool is_first = is_final(d, st) && !is_final(d, d->status);

    d->is_rejected = d->is_rejected && is_rejection(st);
    d->is_refused = d->is_refused && t->was_refused;
    d->is_busy = d->is_busy || (t->connected && st == LS_EPEER);
    // A listener that accepted the connection and closed it may be busy, and accept the next.
    if (d->opt.accept_timeout_ms > 0 && t->connected)
        d->opt.deadline_ms = ls_deadline_ms(d->opt.accept_timeout_ms);
    note_error(d, st);
    end_attempt(t);
    if (all_ended(d))
        finish_round(d);
    else if (is_first)
        poller_timer_set(d->loop, &d->timer,
                         at_most(ls_now_ms() + REMAINING_MS, d->opt.deadline_ms), finish_round, d);
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

static ls_status begin_handshake(attempt *t)
{
    const handshake_claim claim = handshake_claim_for(t->fd, &t->owner->opt.claim);
    const int error = net_connect_result(t->fd);
    char name[NET_ADDRESS_TEXT_MAX];

    t->was_refused = error == ECONNREFUSED;
    if (error != 0)
        return net_connect_failed(&t->to, error);
    t->connected = true;
    LS_TRY(net_set_stream_options(t->fd, net_silence_ms()));
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
        st = begin_handshake(t);
    if (st == LS_OK)
        st = handshake_step(&t->shake, t->fd, &wanted);
    if (st == LS_OK && t->shake.state == HANDSHAKE_DONE) {
        poller_unwatch(&t->watch);
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

    d->is_rejected = st == LS_OK && n > 0;
    d->is_refused = d->is_rejected;
    d->is_busy = false;
    if (st != LS_OK)
        note_error(d, st);
    for (int i = 0; i < n; i++) {
        attempt *t = &d->tries[d->n_tries];

        *t = (attempt){.owner = d, .to = at[i], .fd = -1};
        st = begin_attempt(t);
        if (st == LS_OK) {
            d->n_tries++;
        } else {
            d->is_rejected = false;
            d->is_refused = d->is_refused && t->was_refused;
            note_error(d, st);
            file_close(&t->fd);
        }
    }
    if (d->n_tries == 0)
        finish_round(d);
    else
        poller_timer_set(d->loop, &d->timer, at_most(ls_now_ms() + ROUND_MS, d->opt.deadline_ms),
                         finish_round, d);
}

ls_status dial_open(poller *p, const dial_options *opt, dial **out)
{
    dial *d;

    *out = NULL;
    LS_TRY(LS_NEW(&d, 1, "for a connection"));
    d->loop = p;
    d->opt = *opt;
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
    return d->last_error;
}
