/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mesh.c - makes the connections with ranks of other hosts, one state machine per peer.
 *
 * A peer's link gets its stream exactly once; until then at most one outgoing attempt and one
 * candidate per direction exist. native.c drives it, join.c opens it; it calls back through
 * mesh_events only.
 */
#include "comm/backends/native/link/mesh.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "comm/backends/native/link/mesh_streams.h"
#include "net/auth/dial.h"
#include "net/auth/listener.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* In most operations both ranks need each other: the lower one connects first. */
#define HIGHER_RANK_DELAY_MS 3
#define EXPECT_MS            1000
#define REDIAL_MS            20
/* An exchange with all others opens thousands of connections: so many at a time. */
#define DIALS_AT_ONCE 32
#define PACE_MS       5
#define CLOSED_MAX    50 /* connections of one peer that it closed before it sent anything */
/* Checks for peers whose systems do not answer. They count when so many were in time: after a stop
 * of this machine answers are still to come. */
#define CHECK_MS     1000
#define CHECKS_VALID 3

typedef struct mesh_peer mesh_peer;

/* An authenticated connection, at the higher rank: the lower rank selects it by sending. */
typedef struct candidate {
    mesh_peer *owner;
    int fd; /* -1: none */
    poll_watch *watch;
    seal_pair seals;
} candidate;

struct mesh_peer {
    mesh *m; /* NULL: no rank of another host */
    int rank;
    peer_link *link;
    dial *dialing;
    net_address dialed_at; /* of `outgoing`, and of the streams behind it */
    streams *more;         /* connections after the first; NULL: there is one only */
    poll_timer timer;      /* until the next attempt */
    bool is_paced;         /* the timer is that of mesh_connect() */
    candidate outgoing;
    candidate incoming;
    int n_closed;
};

struct mesh {
    const comm_boot *boot;
    mesh_events events;
    poller *loop;
    listener *listener;
    mesh_peer *peers; /* by rank */
    unsigned n_moved;
    int64_t pace_ms; /* when the last of these dials begins, */
    int n_paced;     /* and with it so many */
    poll_timer check;
    int64_t checked_ms;
    int n_checks; /* in time, one after the other */
};

static handshake_claim claim_of(const mesh *m, uint32_t from, uint32_t to)
{
    handshake_claim claim = {.purpose = NET_PURPOSE_DATA,
                             .from = from,
                             .to = to,
                             .generation = m->boot->generation,
                             .security = m->boot->security};

    text_format(claim.job, sizeof(claim.job), "%s", m->boot->job);
    return claim;
}

static bool is_idle(const mesh_peer *c)
{
    return c->link->ops == NULL && !c->link->is_ended;
}

static bool is_lower(const mesh_peer *c)
{
    return c->m->boot->rank < c->rank;
}

// --- giving up ---

static void drop_candidate(candidate *k)
{
    poller_close(&k->watch, &k->fd);
    seal_pair_wipe(&k->seals);
}

static void close_pending(mesh_peer *c)
{
    poller_timer_cancel(&c->timer);
    c->is_paced = false;
    dial_close(c->dialing);
    c->dialing = NULL;
    drop_candidate(&c->outgoing);
    drop_candidate(&c->incoming);
}

static void fail(mesh_peer *c, const char *why)
{
    char text[200];

    (void)text_printable(text, sizeof(text), why); // closing may free what holds `why`
    close_pending(c);
    streams_close_pending(c->more);
    c->m->n_moved++;
    c->link->is_ended = true;
    c->link->is_cut = true;
    if (c->link->ops != NULL)
        c->link->ops->finish(c->link); // lets the peer notice
    c->m->events.ended(c->m->events.self, c->rank, text);
}

// --- several connections ---

static void flush(mesh_peer *c)
{
    c->m->n_moved++;
    c->m->events.flush(c->m->events.self, c->rank);
}

static void on_stream_added(void *self)
{
    flush(self);
}

// Messages that have come before the end count.
static void receive_rest(mesh_peer *c)
{
    while (!c->link->is_ended && link_receive(c->link))
        continue;
}

static void end_link(mesh_peer *c)
{
    streams_close_pending(c->more);
    c->m->n_moved++;
    c->m->events.ended(c->m->events.self, c->rank, NULL);
}

// A peer that has left in good order needs no more connections.
static void on_stream_failed(void *self, const char *why)
{
    mesh_peer *c = self;

    receive_rest(c);
    if (!c->link->is_ended)
        fail(c, why);
    else
        end_link(c);
}

// --- peers that do not answer ---

static void time_out(mesh_peer *c)
{
    peer_link *l = c->link;

    receive_rest(c);
    if (!l->is_ended) {
        l->is_ended = true;
        l->is_cut = true;
        l->error = ETIMEDOUT;
        l->ops->finish(l);
    }
    end_link(c);
}

static void check_peers(void *arg)
{
    mesh *m = arg;
    const int silence_ms = streams_silence_ms();
    const int64_t now_ms = ls_now_ms();

    m->n_checks = now_ms - m->checked_ms < 2 * CHECK_MS ? m->n_checks + 1 : 0;
    m->checked_ms = now_ms;
    for (int i = 0; i < m->boot->size && m->n_checks >= CHECKS_VALID; i++) {
        mesh_peer *c = &m->peers[i];

        if (c->m != NULL && c->link->ops != NULL && !c->link->is_ended &&
            c->link->ops->is_unanswered(c->link, silence_ms))
            time_out(c);
    }
    poller_timer_set(m->loop, &m->check, now_ms + CHECK_MS, check_peers, m);
}

// --- connected ---

// Takes fd.
static ls_status make_link(const mesh_peer *c, int fd, const seal_pair *seals)
{
    peer_link *fresh;

    LS_TRY(streams_open(c->more, &c->link->sink, fd, seals, &fresh));
    link_take_stream(c->link, fresh);
    ls_log(LS_LOG_DEBUG, "native", "connected with rank %d over tcp, security %s", c->rank,
           net_security_text(seals->out.mode));
    if (!c->m->check.is_set)
        poller_timer_set(c->m->loop, &c->m->check, ls_now_ms() + CHECK_MS, check_peers, c->m);
    return c->m->events.connected(c->m->events.self, c->rank);
}

// This connection is selected. Takes fd.
static void use_connection(mesh_peer *c, int fd, const seal_pair *seals, bool is_outgoing)
{
    const seal_pair own = *seals; // close_pending() wipes those of candidates
    ls_status st;

    close_pending(c);
    st = make_link(c, fd, &own);
    if (st != LS_OK) {
        fail(c, ls_last_error());
        return;
    }
    if (is_lower(c) && !link_has_output(c->link))
        c->m->events.send_empty(c->m->events.self, c->rank);
    flush(c);
    if (c->more != NULL && is_outgoing)
        streams_dial(c->more, &c->dialed_at);
    else if (c->more != NULL)
        streams_accept_pending(c->more);
}

// --- outgoing connections ---

static void on_dialed(void *self, int fd, const net_address *at, ls_status status, const char *why);

static void begin_dial(void *arg)
{
    mesh_peer *c = arg;
    const comm_boot *boot = c->m->boot;
    const boot_record *record = &boot->records[c->rank];
    const dial_options opt = {.addresses = record->addresses,
                              .n_addresses = record->n_addresses,
                              .key = boot->key,
                              .claim = claim_of(c->m, (uint32_t)boot->rank, (uint32_t)c->rank),
                              .deadline_ms = ls_deadline_ms(MESH_CONNECT_MS),
                              .accept_timeout_ms = MESH_CONNECT_MS,
                              .self = c,
                              .done = on_dialed};

    c->is_paced = false;
    if (c->dialing != NULL || !is_idle(c))
        return;
    if (record->n_addresses == 0)
        fail(c, "it has published no TCP address");
    else if (dial_open(c->m->loop, &opt, &c->dialing) != LS_OK)
        fail(c, "no memory for a connection");
}

// When the next dial may begin: a rank floods neither the network nor its own kernel.
static int64_t next_pace(mesh *m)
{
    const int64_t now_ms = ls_now_ms();

    if (m->pace_ms < now_ms) {
        m->pace_ms = now_ms;
        m->n_paced = 0;
    }
    if (++m->n_paced > DIALS_AT_ONCE) {
        m->pace_ms += PACE_MS;
        m->n_paced = 1;
    }
    return m->pace_ms;
}

static void dial_at(mesh_peer *c, int64_t due_ms)
{
    if (!c->timer.is_set || c->timer.due_ms > due_ms)
        poller_timer_set(c->m->loop, &c->timer, due_ms, begin_dial, c);
}

// The lower rank closed a connection before it sent anything: it uses the other one, or has exited.
static void on_candidate_end(candidate *k)
{
    mesh_peer *c = k->owner;

    drop_candidate(k);
    if (c->outgoing.fd >= 0 || c->incoming.fd >= 0 || c->dialing != NULL)
        return;
    if (++c->n_closed > CLOSED_MAX)
        fail(c, "it closes every connection before it sends anything");
    else if (link_has_output(c->link) || c->m->events.is_expecting(c->m->events.self, c->rank))
        dial_at(c, ls_now_ms() + REDIAL_MS);
}

static void on_candidate(void *arg, unsigned events)
{
    candidate *k = arg;
    const int fd = k->fd;
    char first;
    const ssize_t n = recv(fd, &first, 1, MSG_PEEK | MSG_DONTWAIT);

    LS_UNUSED(events);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        on_candidate_end(k);
        return;
    }
    poller_unwatch(&k->watch);
    k->fd = -1; // use_connection() takes it
    use_connection(k->owner, fd, &k->seals, k == &k->owner->outgoing);
}

// Takes fd.
static void hold_candidate(candidate *k, int fd, const seal_pair *seals)
{
    drop_candidate(k);
    k->fd = fd;
    k->seals = *seals;
    if (poller_watch(k->owner->m->loop, fd, POLL_READ, on_candidate, k, &k->watch) != LS_OK)
        on_candidate_end(k);
}

static void on_dialed(void *self, int fd, const net_address *at, ls_status status, const char *why)
{
    mesh_peer *c = self;
    seal_pair seals = *dial_seals(c->dialing);

    LS_UNUSED(status);
    if (fd < 0 && c->incoming.fd < 0) {
        fail(c, why);
        return;
    }
    if (fd >= 0)
        c->dialed_at = *at;
    dial_close(c->dialing);
    c->dialing = NULL;
    if (fd >= 0 && is_lower(c))
        use_connection(c, fd, &seals, true);
    else if (fd >= 0)
        hold_candidate(&c->outgoing, fd, &seals);
    seal_pair_wipe(&seals);
}

// --- incoming connections ---

static void on_accepted(void *self, const listener_peer *peer)
{
    mesh *m = self;
    const uint32_t from = peer->claim.from;
    mesh_peer *c = from < (uint32_t)m->boot->size ? &m->peers[from] : NULL;

    if (c != NULL && c->more != NULL && peer->claim.stream > 0)
        streams_accept(c->more, peer);
    else if (c == NULL || c->m == NULL || !is_idle(c) || peer->claim.stream > 0)
        close(peer->fd);
    else if (is_lower(c))
        use_connection(c, peer->fd, &peer->seals, false);
    else
        hold_candidate(&c->incoming, peer->fd, &peer->seals);
}

// --- for the owner ---

static bool has_attempt(const mesh_peer *c)
{
    return c->dialing != NULL || c->outgoing.fd >= 0 || c->incoming.fd >= 0;
}

void mesh_connect(mesh *m, int rank)
{
    mesh_peer *c = &m->peers[rank];

    if (is_idle(c) && !has_attempt(c) && !c->is_paced) {
        c->is_paced = true;
        dial_at(c, next_pace(m) + (is_lower(c) ? 0 : HIGHER_RANK_DELAY_MS));
    }
}

void mesh_expect(mesh *m, int rank)
{
    mesh_peer *c = m == NULL ? NULL : &m->peers[rank];

    if (c != NULL && c->m != NULL && is_idle(c) && !has_attempt(c))
        dial_at(c, ls_now_ms() + EXPECT_MS);
}

bool mesh_progress(mesh *m)
{
    const unsigned before = m->n_moved;

    if (poller_run_once(m->loop, 0) != LS_OK)
        ls_log(LS_LOG_ERROR, "native", "connections with other hosts: %s", ls_last_error());
    return m->n_moved != before;
}

int mesh_fd(const mesh *m)
{
    return poller_fd(m->loop);
}

int64_t mesh_due_ms(const mesh *m)
{
    return poller_due_ms(m->loop);
}

static ls_status open_listener(mesh *m, int listen_fd)
{
    const comm_boot *boot = m->boot;
    const listener_options opt = {.name = "native",
                                  .key = boot->key,
                                  .insecure = boot->key == NULL,
                                  .expected = claim_of(m, 0, (uint32_t)boot->rank),
                                  .self = m,
                                  .accepted = on_accepted};
    ls_status st = poller_create(&m->loop);

    if (st == LS_OK)
        st = listener_create(m->loop, &opt, &m->listener);
    if (st != LS_OK) {
        close(listen_fd);
        return st;
    }
    return listener_listen_take(m->listener, listen_fd);
}

static ls_status make_streams(mesh_peer *c)
{
    const comm_boot *boot = c->m->boot;

    if (boot->connections <= 1)
        return LS_OK;
    return streams_create(
        &(streams_options){.n = boot->connections,
                           .loop = c->m->loop,
                           .key = boot->key,
                           .claim = claim_of(c->m, (uint32_t)boot->rank, (uint32_t)c->rank),
                           .rank = c->rank,
                           .link = c->link,
                           .self = c,
                           .added = on_stream_added,
                           .failed = on_stream_failed},
        &c->more);
}

ls_status mesh_add_peer(mesh *m, int rank, peer_link *link)
{
    mesh_peer *c = &m->peers[rank];

    *c = (mesh_peer){.m = m, .rank = rank, .link = link};
    c->outgoing = (candidate){.owner = c, .fd = -1};
    c->incoming = c->outgoing;
    return make_streams(c);
}

ls_status mesh_open(const comm_boot *boot, const mesh_events *events, mesh **out)
{
    mesh *m = ls_calloc(1, sizeof(*m));
    ls_status st;

    *out = NULL;
    if (m != NULL)
        m->peers = ls_calloc((size_t)boot->size, sizeof(*m->peers));
    if (m == NULL || m->peers == NULL) {
        ls_free(m);
        close(boot->listen_fd);
        return ls_fail(LS_ENOMEM, "no memory for connections with %d ranks", boot->size);
    }
    m->boot = boot;
    m->events = *events;
    st = open_listener(m, boot->listen_fd);
    if (st != LS_OK) {
        mesh_close(m);
        return st;
    }
    *out = m;
    return LS_OK;
}

void mesh_close(mesh *m)
{
    if (m == NULL)
        return;
    for (int i = 0; i < m->boot->size; i++) {
        if (m->peers[i].m == NULL)
            continue;
        close_pending(&m->peers[i]);
        streams_destroy(m->peers[i].more);
    }
    listener_destroy(m->listener);
    poller_destroy(m->loop);
    ls_free(m->peers);
    ls_free(m);
}

void mesh_forked(const mesh *m)
{
    for (int i = 0; i < m->boot->size; i++) {
        const mesh_peer *c = &m->peers[i];

        if (c->m == NULL)
            continue;
        if (c->dialing != NULL)
            dial_forked(c->dialing);
        if (c->outgoing.fd >= 0)
            close(c->outgoing.fd);
        if (c->incoming.fd >= 0)
            close(c->incoming.fd);
        streams_forked(c->more);
    }
    listener_forked(m->listener);
    poller_forked(m->loop);
}
