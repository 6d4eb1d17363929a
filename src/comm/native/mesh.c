/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/native/mesh.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/text.h"
#include "comm/native/strands.h"
#include "net/dial.h"
#include "net/door.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define GIVE_WAY_MS 3 /* in most operations both need each other: the lower rank calls first */
#define EXPECT_MS   1000
#define AGAIN_MS    20
#define LOST_MAX    50 /* connections of one peer that ended before a word was said */

typedef struct contact contact;

/* A connection that has proved itself, at the higher rank: the first word of the lower one chooses it. */
typedef struct candidate {
    contact *owner;
    int fd; /* -1: none */
    poll_watch *watch;
    seal_pair seals;
} candidate;

/* The way to one peer's connection. */
struct contact {
    mesh *m;
    native_peer *peer;
    dial *call;
    net_address called_at; /* where the call that `ours` is succeeded */
    strands *more;         /* connections behind the first; NULL: there is one only */
    poll_timer timer;      /* until the next call, or until a failure is told */
    candidate ours;        /* we called */
    candidate theirs;
    int n_lost;
};

struct mesh {
    native_state *s;
    const comm_boot *boot;
    poller *loop;
    door *door;
    contact *contacts; /* by rank */
    unsigned n_moved;
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

static bool is_idle(const contact *c)
{
    return c->peer->link->ops == NULL && !c->peer->link->is_ended;
}

static bool is_lower(const contact *c)
{
    return c->m->s->rank < c->peer->rank;
}

// --- the ends of a contact ---

static void drop_candidate(candidate *k)
{
    poller_unwatch(k->watch);
    k->watch = NULL;
    file_close(&k->fd);
    seal_pair_wipe(&k->seals);
}

static void hang_up(contact *c)
{
    poller_timer_cancel(&c->timer);
    dial_close(c->call);
    c->call = NULL;
    drop_candidate(&c->ours);
    drop_candidate(&c->theirs);
}

static void fail(contact *c, const char *why)
{
    native_peer *p = c->peer;

    text_printable(p->unreachable, sizeof(p->unreachable), why); // ending it may end what holds it
    hang_up(c);
    strands_hang_up(c->more);
    c->m->n_moved++;
    p->link->is_ended = true;
    p->link->is_cut = true;
    if (p->link->ops != NULL)
        p->link->ops->finish(p->link); // the peer is to notice
    native_peer_ended(p);
}

// --- several connections ---

static void on_strand_joined(void *self)
{
    contact *c = self;

    c->m->n_moved++;
    (void)link_flush(c->peer->link);
    sleep_update(c->peer->state->sleepers, c->peer);
}

// Who has left in good order needs no more connections, and what it has sent counts.
static void on_strand_failed(void *self, const char *why)
{
    contact *c = self;
    peer_link *l = c->peer->link;

    while (!l->is_ended && link_receive(l))
        continue;
    if (!l->is_ended) {
        fail(c, why);
        return;
    }
    strands_hang_up(c->more);
    c->m->n_moved++;
    native_peer_ended(c->peer);
}

// --- connected ---

// Takes fd.
static ls_status make_link(const contact *c, int fd, const seal_pair *seals)
{
    native_peer *p = c->peer;
    peer_link *fresh;

    LS_TRY(strands_open(c->more, p, fd, seals, &fresh));
    link_take_stream(p->link, fresh);
    ls_log(LS_LOG_DEBUG, "native", "connected with rank %d over tcp, security %s", p->rank,
           net_security_text(seals->out.mode));
    return sleep_watch(p->state->sleepers, p);
}

// This is the connection. Takes fd.
static void adopt(contact *c, int fd, const seal_pair *seals, bool is_ours)
{
    native_peer *p = c->peer;
    const seal_pair own = *seals; // may lie in what hang_up() wipes
    ls_status st;

    hang_up(c);
    st = make_link(c, fd, &own);
    if (st != LS_OK) {
        fail(c, ls_last_error());
        return;
    }
    c->m->n_moved++;
    if (is_lower(c) && !link_has_output(p->link))
        match_greet(p);
    (void)link_flush(p->link);
    sleep_update(p->state->sleepers, p);
    if (c->more != NULL && is_ours)
        strands_call(c->more, &c->called_at);
    else if (c->more != NULL)
        strands_expect(c->more);
}

// --- calling ---

static void on_called(void *self, int fd, const net_address *at, ls_status status, const char *why);

static void begin_call(void *arg)
{
    contact *c = arg;
    const comm_boot *boot = c->m->boot;
    const boot_record *record = &boot->records[c->peer->rank];
    const dial_options opt = {.list = record->addresses,
                              .n_list = record->n_addresses,
                              .key = boot->key,
                              .claim =
                                  claim_of(c->m, (uint32_t)boot->rank, (uint32_t)c->peer->rank),
                              .deadline_ms = ls_deadline_ms(MESH_CONNECT_MS),
                              .patience_ms = MESH_CONNECT_MS,
                              .self = c,
                              .done = on_called};

    if (c->call != NULL || !is_idle(c))
        return;
    if (record->n_addresses == 0)
        fail(c, "it has no address that could be connected to");
    else if (dial_open(c->m->loop, &opt, &c->call) != LS_OK)
        fail(c, "no memory for a connection");
}

static void call_at(contact *c, int64_t due_ms)
{
    if (!c->timer.is_set || c->timer.due_ms > due_ms)
        poller_timer_set(c->m->loop, &c->timer, due_ms, begin_call, c);
}

// A connection ended before the lower rank said anything: it has chosen the other one, or it is gone.
static void lose(candidate *k)
{
    contact *c = k->owner;

    drop_candidate(k);
    if (c->ours.fd >= 0 || c->theirs.fd >= 0 || c->call != NULL)
        return;
    if (++c->n_lost > LOST_MAX)
        fail(c, "it closes every connection");
    else if (link_has_output(c->peer->link) || match_is_hot(c->peer))
        call_at(c, ls_now_ms() + AGAIN_MS);
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
        lose(k);
        return;
    }
    poller_unwatch(k->watch);
    k->watch = NULL;
    k->fd = -1; // adopt()'s now
    adopt(k->owner, fd, &k->seals, k == &k->owner->ours);
}

// Takes fd.
static void wait_for_choice(candidate *k, int fd, const seal_pair *seals)
{
    drop_candidate(k);
    k->fd = fd;
    k->seals = *seals;
    if (poller_watch(k->owner->m->loop, fd, POLL_READ, on_candidate, k, &k->watch) != LS_OK)
        lose(k);
}

static void on_called(void *self, int fd, const net_address *at, ls_status status, const char *why)
{
    contact *c = self;
    seal_pair seals = *dial_seals(c->call);

    LS_UNUSED(status);
    if (fd < 0 && c->theirs.fd < 0) {
        fail(c, why);
        return;
    }
    if (fd >= 0)
        c->called_at = *at;
    dial_close(c->call);
    c->call = NULL;
    if (fd >= 0 && is_lower(c))
        adopt(c, fd, &seals, true);
    else if (fd >= 0)
        wait_for_choice(&c->ours, fd, &seals);
    seal_pair_wipe(&seals);
}

// --- being called ---

static void on_enter(void *self, const door_guest *guest)
{
    mesh *m = self;
    const uint32_t from = guest->claim.from;
    contact *c = from < (uint32_t)m->s->size ? &m->contacts[from] : NULL;

    if (c != NULL && c->more != NULL && guest->claim.strand > 0)
        strands_enter(c->more, guest);
    else if (c == NULL || c->m == NULL || !is_idle(c) || guest->claim.strand > 0)
        close(guest->fd);
    else if (is_lower(c))
        adopt(c, guest->fd, &guest->seals, false);
    else
        wait_for_choice(&c->theirs, guest->fd, &guest->seals);
}

// --- the rest ---

void mesh_need(native_peer *p)
{
    contact *c = &p->state->mesh->contacts[p->rank];

    if (!is_idle(c) || c->call != NULL || c->ours.fd >= 0 || c->theirs.fd >= 0)
        return;
    call_at(c, is_lower(c) ? 0 : ls_now_ms() + GIVE_WAY_MS);
}

void mesh_expect(native_peer *p)
{
    mesh *m = p->state->mesh;
    contact *c = m == NULL ? NULL : &m->contacts[p->rank];

    if (c == NULL || c->m == NULL || !is_idle(c) || c->call != NULL || c->ours.fd >= 0 ||
        c->theirs.fd >= 0)
        return;
    call_at(c, ls_now_ms() + EXPECT_MS);
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

static ls_status open_door(mesh *m, int listen_fd)
{
    const comm_boot *boot = m->boot;
    const door_options opt = {.name = "native",
                              .key = boot->key,
                              .insecure = boot->key == NULL,
                              .expected = claim_of(m, 0, (uint32_t)boot->rank),
                              .self = m,
                              .enter = on_enter};
    ls_status st = poller_create(&m->loop);

    if (st == LS_OK)
        st = door_create(m->loop, &opt, &m->door);
    if (st != LS_OK) {
        close(listen_fd);
        return st;
    }
    return door_listen_take(m->door, listen_fd);
}

static ls_status make_strands(contact *c)
{
    const comm_boot *boot = c->m->boot;

    if (boot->connections <= 1)
        return LS_OK;
    return strands_create(
        &(strands_options){.n = boot->connections,
                           .loop = c->m->loop,
                           .key = boot->key,
                           .claim = claim_of(c->m, (uint32_t)boot->rank, (uint32_t)c->peer->rank),
                           .peer = c->peer,
                           .self = c,
                           .joined = on_strand_joined,
                           .failed = on_strand_failed},
        &c->more);
}

static ls_status make_contacts(mesh *m)
{
    native_state *s = m->s;

    for (int i = 0; i < s->size; i++) {
        contact *c = &m->contacts[i];

        if (i == s->rank || s->peers[i].is_local)
            continue;
        *c = (contact){.m = m, .peer = &s->peers[i]};
        c->ours = (candidate){.owner = c, .fd = -1};
        c->theirs = c->ours;
        LS_TRY(make_strands(c));
    }
    return LS_OK;
}

ls_status mesh_open(native_state *s, const comm_boot *boot, mesh **out)
{
    mesh *m = ls_calloc(1, sizeof(*m));
    ls_status st;

    *out = NULL;
    if (m != NULL)
        m->contacts = ls_calloc((size_t)s->size, sizeof(*m->contacts));
    if (m == NULL || m->contacts == NULL) {
        ls_free(m);
        close(boot->listen_fd);
        return ls_fail(LS_ENOMEM, "no memory for connections with %d ranks", s->size);
    }
    m->s = s;
    m->boot = boot;
    st = open_door(m, boot->listen_fd);
    if (st == LS_OK)
        st = make_contacts(m);
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
    for (int i = 0; i < m->s->size; i++) {
        if (m->contacts[i].m == NULL)
            continue;
        hang_up(&m->contacts[i]);
        strands_destroy(m->contacts[i].more);
    }
    door_destroy(m->door);
    poller_destroy(m->loop);
    ls_free(m->contacts);
    ls_free(m);
}

void mesh_forked(const mesh *m)
{
    for (int i = 0; i < m->s->size; i++) {
        const contact *c = &m->contacts[i];

        if (c->m == NULL)
            continue;
        if (c->call != NULL)
            dial_forked(c->call);
        if (c->ours.fd >= 0)
            close(c->ours.fd);
        if (c->theirs.fd >= 0)
            close(c->theirs.fd);
        strands_forked(c->more);
    }
    door_forked(m->door);
    poller_forked(m->loop);
}
