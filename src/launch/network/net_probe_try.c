/* SPDX-License-Identifier: Apache-2.0 */
/*
 * net_probe_try.c - the test of one address of one peer. Called by net_probe.c.
 *
 *     CONNECTING -> AUTHENTICATING -> ECHOING -> BURST (small) -> done, or
 *                                                 WAITING -> BURST (large) -> done
 *
 * One time limit covers connecting to the last echo; each burst has its own. A burst whose first
 * packets the peer's kernel never acknowledges, though it acknowledged smaller ones, is a black
 * hole: TCP_INFO shows retransmissions without an answer. A busy or stopped peer still acknowledges
 * packets, so it is not taken for one.
 */
#include "launch/network/net_probe_internal.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "net/socket.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>

#define ECHOES          4
#define SMALL_BURST     ((size_t)64 * 1024)
#define LARGE_BURST     PROBE_BURST_MOST
#define BURSTS          8
#define ENOUGH_MS       150 /* no further burst begins after this time */
#define MEASURE_MS      200 /* a longer burst ends here */
#define TICK_MS         20
#define STALLED_MS      450
#define UNANSWERED      2 /* retransmissions in a row that count as a failure */
#define RETRY_MS        20
#define SENDS_A_ROUND   4
#define COUNTS_A_READ   64
#define USER_TIMEOUT_MS 5000

typedef enum try_state {
    TRY_CONNECTING,
    TRY_AUTHENTICATING,
    TRY_PAUSED, /* the peer closed during the handshake; it may have too many peers */
    TRY_ECHOING,
    TRY_BURST,
    TRY_WAITING
} try_state;

struct probe_try {
    list_node node; /* in net_probe.running or .waiting */
    net_probe *owner;
    const net_peer *peer;
    net_try *result;
    try_state state;
    int fd;
    poll_watch *watch;
    poll_timer timer;
    int64_t deadline_ms; /* until the last echo */
    handshake shake;
    char name[NET_ADDRESS_TEXT_MAX];

    uint8_t out[PROBE_HEADER_BYTES + PROBE_ECHO_BYTES];
    size_t out_bytes;
    size_t out_sent;
    uint8_t in[COUNTS_A_READ * PROBE_COUNT_BYTES];
    size_t in_bytes;

    int n_echoes;
    int64_t sent_ns; /* the last echo */
    int64_t round_trip_ns;

    int n_bursts; /* completed large bursts */
    int64_t measured_ms;
    size_t burst_bytes;
    size_t burst_sent;
    size_t counted; /* bytes that the peer has received */
    int64_t began_ns;
    int64_t counted_ns; /* time of the last count */
};

static void on_event(void *arg, unsigned events);
static void connect_again(void *arg);
static ls_status begin_burst(probe_try *t, size_t bytes);

/* --- ending --- */

static void free_try(probe_try *t)
{
    poller_timer_cancel(&t->timer);
    poller_close(&t->watch, &t->fd);
    handshake_wipe(&t->shake);
    list_remove(&t->node);
    ls_free(t);
}

static void end_try(probe_try *t, net_outcome outcome)
{
    net_probe *p = t->owner;

    t->result->outcome = (uint8_t)outcome;
    p->n_running--;
    free_try(t);
    probe_turn_soon(p);
}

/* The outcome of a failed connection. */
static net_outcome outcome_of_error(int error)
{
    if (error == ECONNREFUSED)
        return NET_REFUSED;
    return error == ETIMEDOUT ? NET_TIMED_OUT : NET_UNREACHABLE;
}

/* Discards unsent data at close(). */
static void drop_unsent(const probe_try *t)
{
    const struct linger now = {.l_onoff = 1};

    (void)setsockopt(t->fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
}

static void wait_for_turn(probe_try *t)
{
    net_probe *p = t->owner;

    poller_timer_cancel(&t->timer);
    poller_unwatch(&t->watch);
    t->state = TRY_WAITING;
    t->result->outcome = NET_OK;
    list_remove(&t->node);
    list_append(&p->waiting, &t->node);
    p->n_running--;
    probe_turn_soon(p);
}

/* --- the burst --- */

/* Counted bytes over time, without the round trip of the last count. */
static uint64_t bandwidth(const probe_try *t)
{
    int64_t took_ns = t->counted_ns - t->began_ns;

    if (took_ns > 2 * t->round_trip_ns)
        took_ns -= t->round_trip_ns;
    return (uint64_t)((double)t->counted * 1e9 / (double)(took_ns < 1 ? 1 : took_ns));
}

/* The best of a few bursts counts, because other load only slows them down. */
static void end_burst(probe_try *t)
{
    const bool is_whole = t->counted == t->burst_bytes;

    if (!is_whole)
        drop_unsent(t);
    if (t->burst_bytes == SMALL_BURST && is_whole && t->peer->measure) {
        wait_for_turn(t);
        return;
    }
    if (t->burst_bytes == LARGE_BURST) {
        const uint64_t now = bandwidth(t);

        if (now > t->result->bytes_per_s)
            t->result->bytes_per_s = now;
        if (is_whole && ++t->n_bursts < BURSTS && ls_now_ms() < t->measured_ms) {
            if (begin_burst(t, LARGE_BURST) != LS_OK)
                end_try(t, NET_BROKEN);
            return;
        }
    }
    end_try(t, NET_OK);
}

/*
 * Retransmissions in a row without an answer. Packets that this host's own device rejects count as
 * probes; a peer with a full buffer answers those.
 */
static int unanswered(const probe_try *t)
{
    struct tcp_info info = {0};
    socklen_t bytes = sizeof(info);

    if (getsockopt(t->fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0)
        return 0;
    return info.tcpi_retransmits + info.tcpi_probes;
}

static void burst_tick(void *arg)
{
    probe_try *t = arg;
    const int64_t now_ns = ls_now_ns();
    const int64_t since_ms = (now_ns - t->began_ns) / 1000000;
    const int64_t still_ms = (now_ns - (t->counted_ns > 0 ? t->counted_ns : t->began_ns)) / 1000000;
    const bool is_over = since_ms >= t->owner->opt.limit_ms;

    if (still_ms >= STALLED_MS && unanswered(t) >= (is_over ? 1 : UNANSWERED)) {
        drop_unsent(t);
        end_try(t, NET_BLACK_HOLE);
    } else if (is_over && t->counted == 0) {
        drop_unsent(t);
        end_try(t, NET_TIMED_OUT);
    } else if (is_over ||
               (t->burst_bytes == LARGE_BURST && since_ms >= MEASURE_MS && t->counted > 0)) {
        end_burst(t);
    } else {
        poller_timer_set(t->owner->opt.loop, &t->timer, ls_now_ms() + TICK_MS, burst_tick, t);
    }
}

static void put_header(probe_try *t, uint32_t what, size_t bytes)
{
    wire_put_u32(t->out, what);
    wire_put_u32(t->out + 4, (uint32_t)bytes);
    t->out_bytes = PROBE_HEADER_BYTES;
    t->out_sent = 0;
}

static ls_status begin_burst(probe_try *t, size_t bytes)
{
    t->state = TRY_BURST;
    t->burst_bytes = bytes;
    t->burst_sent = 0;
    t->counted = 0;
    t->in_bytes = 0;
    t->began_ns = ls_now_ns();
    t->counted_ns = 0;
    put_header(t, PROBE_BURST, bytes);
    poller_timer_set(t->owner->opt.loop, &t->timer, ls_now_ms() + TICK_MS, burst_tick, t);
    return poller_change(t->watch, POLL_READ | POLL_WRITE);
}

static ls_status send_out(probe_try *t)
{
    size_t moved;

    LS_TRY(net_send_some(t->fd, t->name, t->out + t->out_sent, t->out_bytes - t->out_sent, &moved));
    t->out_sent += moved;
    return LS_OK;
}

static ls_status send_burst(probe_try *t)
{
    LS_TRY(send_out(t));
    for (int i = 0; i < SENDS_A_ROUND && t->out_sent == t->out_bytes; i++) {
        size_t want = t->burst_bytes - t->burst_sent;
        size_t moved;

        if (want > PROBE_PIECE_BYTES)
            want = PROBE_PIECE_BYTES;
        if (want == 0)
            return poller_change(t->watch, POLL_READ);
        LS_TRY(net_send_some(t->fd, t->name, t->owner->piece, want, &moved));
        t->burst_sent += moved;
        if (moved < want)
            break;
    }
    return LS_OK;
}

/* Reads counts of the peer; *ended when the burst is complete. */
static ls_status take_counts(probe_try *t, bool *ended)
{
    size_t whole;
    size_t moved;

    LS_TRY(net_recv_some(t->fd, t->name, t->in + t->in_bytes, sizeof(t->in) - t->in_bytes, &moved));
    t->in_bytes += moved;
    whole = t->in_bytes - t->in_bytes % PROBE_COUNT_BYTES;
    for (size_t at = 0; at < whole; at += PROBE_COUNT_BYTES) {
        const size_t count = wire_get_u32(t->in + at);

        if (count <= t->counted || count > t->burst_bytes)
            return ls_fail(LS_EPROTO, "%s sent a wrong byte count", t->name);
        t->counted = count;
        t->counted_ns = ls_now_ns();
    }
    memmove(t->in, t->in + whole, t->in_bytes - whole);
    t->in_bytes -= whole;
    *ended = t->counted == t->burst_bytes;
    return LS_OK;
}

static ls_status burst_event(probe_try *t, unsigned events, bool *ended)
{
    if ((events & POLL_WRITE) != 0)
        LS_TRY(send_burst(t));
    if ((events & (POLL_READ | POLL_BROKEN)) != 0)
        LS_TRY(take_counts(t, ended));
    return LS_OK;
}

/* --- echoes --- */

static ls_status begin_echo(probe_try *t)
{
    t->state = TRY_ECHOING;
    put_header(t, PROBE_ECHO, PROBE_ECHO_BYTES);
    memset(t->out + PROBE_HEADER_BYTES, 'a' + t->n_echoes, PROBE_ECHO_BYTES);
    t->out_bytes = sizeof(t->out);
    t->in_bytes = 0;
    t->sent_ns = ls_now_ns();
    LS_TRY(send_out(t));
    return poller_change(t->watch, t->out_sent < t->out_bytes ? POLL_READ | POLL_WRITE : POLL_READ);
}

static ls_status echo_event(probe_try *t, unsigned events)
{
    int64_t took_ns;
    size_t moved;

    if ((events & POLL_WRITE) != 0) {
        LS_TRY(send_out(t));
        if (t->out_sent == t->out_bytes)
            LS_TRY(poller_change(t->watch, POLL_READ));
    }
    if ((events & (POLL_READ | POLL_BROKEN)) == 0)
        return LS_OK;
    LS_TRY(
        net_recv_some(t->fd, t->name, t->in + t->in_bytes, PROBE_ECHO_BYTES - t->in_bytes, &moved));
    t->in_bytes += moved;
    if (t->in_bytes < PROBE_ECHO_BYTES)
        return LS_OK;
    if (memcmp(t->in, t->out + PROBE_HEADER_BYTES, PROBE_ECHO_BYTES) != 0)
        return ls_fail(LS_EPROTO, "%s returned a different echo", t->name);
    took_ns = ls_now_ns() - t->sent_ns;
    if (t->n_echoes == 0 || took_ns < t->round_trip_ns)
        t->round_trip_ns = took_ns;
    if (++t->n_echoes < ECHOES)
        return begin_echo(t);
    t->result->round_trip_us = (uint32_t)((t->round_trip_ns + 999) / 1000);
    return begin_burst(t, SMALL_BURST);
}

/* --- connection and handshake --- */

static void on_timeout(void *arg)
{
    probe_try *t = arg;

    end_try(t, NET_TIMED_OUT);
}

/* The source address that the kernel has chosen, as an index of the offer. */
static int8_t local_address(const probe_try *t)
{
    const net_offer *offer = &t->owner->offer;
    net_address own;

    if (net_address_of_socket(t->fd, &own) != LS_OK)
        return -1;
    for (int i = 0; i < offer->n; i++) {
        net_address at = offer->at[i].address;

        net_address_set_port(&at, net_address_port(&own));
        if (net_address_equal(&at, &own))
            return (int8_t)i;
    }
    return -1;
}

static ls_status begin_handshake(probe_try *t)
{
    const net_probe_options *opt = &t->owner->opt;
    handshake_claim claim = {.purpose = NET_PURPOSE_PROBE,
                             .from = (uint32_t)opt->node,
                             .to = (uint32_t)t->peer->node,
                             .generation = opt->generation};

    memcpy(claim.job, t->owner->job, sizeof(claim.job));
    LS_TRY(net_set_stream_options(t->fd, USER_TIMEOUT_MS));
    t->result->local = local_address(t);
    t->state = TRY_AUTHENTICATING;
    return handshake_client(&t->shake, opt->key, &claim, t->name);
}

/*
 * A peer with too many connections closes some of them before the handshake; later it may accept.
 */
static void pause_try(probe_try *t)
{
    const int64_t again_ms = ls_now_ms() + RETRY_MS;

    if (again_ms >= t->deadline_ms) {
        end_try(t, NET_BROKEN);
        return;
    }
    poller_close(&t->watch, &t->fd);
    t->state = TRY_PAUSED;
    poller_timer_set(t->owner->opt.loop, &t->timer, again_ms, connect_again, t);
}

static void step_handshake(probe_try *t)
{
    short wants;
    ls_status st = handshake_step(&t->shake, t->fd, &wants);

    if (st == LS_OK && t->shake.state == HANDSHAKE_DONE)
        st = begin_echo(t);
    else if (st == LS_OK)
        st = poller_change(t->watch, wants == POLLOUT ? POLL_WRITE : POLL_READ);
    if (st == LS_EPEER)
        pause_try(t);
    else if (st == LS_EMISMATCH)
        end_try(t, NET_WRONG_NODE);
    else if (st == LS_EAUTH)
        end_try(t, NET_OTHER_KEY);
    else if (st != LS_OK)
        end_try(t, NET_BROKEN);
}

static void connect_ended(probe_try *t)
{
    const int error = net_connect_result(t->fd);

    if (error != 0)
        end_try(t, outcome_of_error(error));
    else if (begin_handshake(t) != LS_OK)
        end_try(t, NET_BROKEN);
    else
        step_handshake(t);
}

/* Opens the connection and watches it; 0, or an errno. */
static int connect_try(probe_try *t)
{
    int error;

    t->state = TRY_CONNECTING;
    error = net_connect_start(&t->peer->offer.at[t->result->address].address, NET_STREAM, &t->fd);
    if (error != 0 && error != EINPROGRESS)
        return error;
    if (poller_watch(t->owner->opt.loop, t->fd, POLL_WRITE, on_event, t, &t->watch) != LS_OK)
        return ENOMEM;
    poller_timer_set(t->owner->opt.loop, &t->timer, t->deadline_ms, on_timeout, t);
    return 0;
}

static void connect_again(void *arg)
{
    probe_try *t = arg;
    const int error = connect_try(t);

    if (error != 0)
        end_try(t, outcome_of_error(error));
}

static void on_event(void *arg, unsigned events)
{
    probe_try *t = arg;
    ls_status st = LS_OK;
    bool ended = false;

    if (t->state == TRY_CONNECTING) {
        connect_ended(t);
        return;
    }
    if (t->state == TRY_AUTHENTICATING) {
        step_handshake(t);
        return;
    }
    if (t->state == TRY_ECHOING)
        st = echo_event(t, events);
    else
        st = burst_event(t, events, &ended);
    if (st != LS_OK)
        end_try(t, NET_BROKEN);
    else if (ended)
        end_burst(t);
}

bool probe_try_start(net_probe *p, net_try *result, const net_peer *peer)
{
    probe_try *t = ls_calloc(1, sizeof(*t));
    int error;

    if (t == NULL)
        return false;
    t->owner = p;
    t->peer = peer;
    t->result = result;
    t->fd = -1;
    t->deadline_ms = ls_deadline_ms(p->opt.limit_ms);
    net_address_text(t->name, sizeof(t->name), &peer->offer.at[result->address].address);
    list_append(&p->running, &t->node);
    p->n_running++;
    error = connect_try(t);
    if (error == EMFILE || error == ENFILE || error == ENOMEM) {
        p->n_running--;
        free_try(t);
        return false;
    }
    if (error != 0)
        end_try(t, outcome_of_error(error));
    return true;
}

probe_try *probe_first_waiting(net_probe *p)
{
    return list_empty(&p->waiting) ? NULL : list_entry(p->waiting.next, probe_try, node);
}

void probe_try_measure(probe_try *t)
{
    net_probe *p = t->owner;

    list_remove(&t->node);
    list_append(&p->running, &t->node);
    p->n_running++;
    t->measured_ms = ls_deadline_ms(ENOUGH_MS);
    if (poller_watch(p->opt.loop, t->fd, POLL_READ, on_event, t, &t->watch) != LS_OK ||
        begin_burst(t, LARGE_BURST) != LS_OK)
        end_try(t, NET_BROKEN);
}

void probe_tries_close(net_probe *p)
{
    while (!list_empty(&p->running))
        free_try(list_entry(p->running.next, probe_try, node));
    while (!list_empty(&p->waiting))
        free_try(list_entry(p->waiting.next, probe_try, node));
    p->n_running = 0;
}
