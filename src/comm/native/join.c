/* SPDX-License-Identifier: Apache-2.0 */
/*
 * join.c - connecting every rank with every other.
 *
 * Ranks of this host are found by local.h and linked through shared memory. To all others a rank connects over TCP if
 * they are lower, and accepts if they are higher: it connects first, lowest rank first, so rank 0 only accepts, and each rank in turn
 * gets through. Whoever is accepted must prove its rank; strangers and silent connections are a bounded number of
 * descriptors and hold nobody up.
 */
#include "comm/native/native.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/text.h"
#include "comm/native/link_shm.h"
#include "net/socket.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#define USER_TIMEOUT_MS 6000 /* a vanished host is noticed after this */
#define PROOF_MS        5000 /* for a connection to prove itself */
#define GUESTS_MAX      64   /* connections that have not proved themselves yet */
#define TRY_MS          3000 /* for one round over a peer's addresses */
#define PAUSE_MS        20
#define LAST_NEWS_MS    200 /* once the hub has news: no good ones come while joining */

typedef struct guest {
    int fd;
    int64_t deadline_ms;
    short events;
    handshake proof;
} guest;

typedef struct joining {
    native_state *s;
    const comm_boot *boot;
    int64_t deadline_ms;
    bool has_news;
    guest *guests;
    int n_guests;
} joining;

// When the job has ended there is no time left; the engine knows the reason and tells it.
static void look_for_news(joining *j)
{
    struct pollfd hub = {.fd = j->boot->control_fd, .events = POLLIN};
    const comm_host *host = j->s->host;

    if (j->has_news || j->boot->control_fd < 0 || poll(&hub, 1, 0) <= 0)
        return;
    if (host->check != NULL && host->check(host->self) == LS_OK)
        return;
    j->has_news = true;
    j->deadline_ms = ls_now_ms();
}

static int64_t earlier(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static handshake_claim claim_of(const comm_boot *boot, uint32_t from, uint32_t to)
{
    handshake_claim claim = {.purpose = NET_PURPOSE_DATA,
                             .from = from,
                             .to = to,
                             .generation = boot->generation,
                             .security = boot->security};

    text_format(claim.job, sizeof(claim.job), "%s", boot->job);
    return claim;
}

// Makes the link; takes fd.
static ls_status adopt(native_state *s, int rank, int fd, const seal_pair *seals)
{
    native_peer *p = &s->peers[rank];
    const link_sink sink = match_sink(p);
    ls_status st = net_set_stream_options(fd, USER_TIMEOUT_MS);

    if (st != LS_OK) {
        close(fd);
        return st;
    }
    LS_TRY(seals->out.mode == NET_AUTH ? link_tcp_create(fd, &sink, &p->link)
                                       : link_sealed_create(fd, seals, &sink, &p->link));
    ls_log(LS_LOG_DEBUG, "native", "connected with rank %d over tcp, security %s", rank,
           net_security_text(seals->out.mode));
    return sleep_watch(s->sleepers, p);
}

// --- connecting ---

static ls_status prove(joining *j, int fd, int rank, seal_pair *seals)
{
    const comm_boot *boot = j->boot;
    const handshake_claim claim = claim_of(boot, (uint32_t)boot->rank, (uint32_t)rank);
    const int64_t until = ls_deadline_ms(PROOF_MS);
    char name[32];
    handshake h;
    ls_status st;
    short events = 0;

    text_format(name, sizeof(name), "rank %d", rank);
    LS_TRY(handshake_client(&h, boot->key, &claim, name));
    for (;;) {
        struct pollfd fds = {.fd = fd};

        st = handshake_step(&h, fd, &events);
        if (st != LS_OK || h.state == HANDSHAKE_DONE)
            break;
        look_for_news(j);
        fds.events = events;
        if (ls_deadline_left(earlier(until, j->deadline_ms)) == 0) {
            st = ls_fail(LS_ETIMEOUT, "rank %d did not answer", rank);
            break;
        }
        (void)poll(&fds, 1, PAUSE_MS);
    }
    if (st == LS_OK)
        handshake_seals(&h, seals);
    handshake_wipe(&h);
    return st;
}

// One round over the candidates. Addresses may belong to somebody else (two hosts with the same bridge address), so one whose
// other end does not know the job is passed over.
static ls_status connect_round(joining *j, int rank)
{
    const boot_record *record = &j->boot->records[rank];
    net_address left[BOOT_ADDRESSES_MAX];
    int n = record->n_addresses;
    seal_pair seals;
    ls_status st = LS_OK;

    memcpy(left, record->addresses, sizeof(left));
    if (n == 0)
        return ls_fail(LS_EUNSUPPORTED, "rank %d (%s) has no address that could be connected to",
                       rank, record->host);
    while (n > 0) {
        int fd = -1;
        int which = 0;

        st = net_connect_any(left, n, earlier(ls_deadline_ms(TRY_MS), j->deadline_ms), &fd, &which);
        if (st != LS_OK)
            return st;
        st = prove(j, fd, rank, &seals);
        if (st == LS_OK) {
            st = adopt(j->s, rank, fd, &seals);
            seal_pair_wipe(&seals);
            return st;
        }
        close(fd);
        left[which] = left[--n];
    }
    return st;
}

static ls_status connect_to(joining *j, int rank)
{
    struct pollfd nothing = {.fd = -1};
    ls_status st;

    for (;;) {
        st = connect_round(j, rank);
        if (st == LS_OK || st == LS_EAUTH || st == LS_EMISMATCH || st == LS_EUNSUPPORTED ||
            st == LS_ENOMEM)
            break;
        look_for_news(j);
        if (ls_deadline_left(j->deadline_ms) == 0)
            break;
        (void)poll(&nothing, 1, PAUSE_MS);
    }
    return ls_context(st, "rank %d (%s)", rank, j->boot->records[rank].host);
}

// --- accepting ---

static void dismiss(joining *j, int i)
{
    handshake_wipe(&j->guests[i].proof);
    j->guests[i] = j->guests[--j->n_guests];
}

static void admit(joining *j, int fd)
{
    const handshake_claim expected = claim_of(j->boot, 0, (uint32_t)j->boot->rank);
    guest *g;

    if (j->n_guests == GUESTS_MAX) { // the oldest had its time
        close(j->guests[0].fd);
        handshake_wipe(&j->guests[0].proof);
        memmove(j->guests, j->guests + 1, (size_t)(--j->n_guests) * sizeof(*j->guests));
    }
    g = &j->guests[j->n_guests];
    g->fd = fd;
    g->deadline_ms = ls_deadline_ms(PROOF_MS);
    g->events = POLLIN;
    if (handshake_server(&g->proof, j->boot->key, &expected, "a rank") != LS_OK) {
        close(fd);
        return;
    }
    j->n_guests++;
}

// A guest who has proved to be rank `from`. Takes fd.
static ls_status welcome(joining *j, int fd, const handshake *proof)
{
    const uint32_t from = proof->peer.from;
    seal_pair seals;
    ls_status st;

    if (from >= (uint32_t)j->s->size || (int)from <= j->s->rank || j->s->peers[from].link != NULL) {
        close(fd);
        return LS_OK;
    }
    handshake_seals(proof, &seals);
    st = adopt(j->s, (int)from, fd, &seals);
    seal_pair_wipe(&seals);
    return st;
}

static ls_status serve_guests(joining *j)
{
    for (int i = j->n_guests - 1; i >= 0; i--) {
        guest *g = &j->guests[i];
        const int fd = g->fd;
        const ls_status st = handshake_step(&g->proof, fd, &g->events);

        if (st == LS_OK && g->proof.state == HANDSHAKE_DONE) {
            const ls_status welcomed = welcome(j, fd, &g->proof);

            dismiss(j, i);
            LS_TRY(welcomed);
        } else if (st != LS_OK || ls_deadline_left(g->deadline_ms) == 0) {
            dismiss(j, i);
            close(fd);
        }
    }
    return LS_OK;
}

static ls_status accept_waiting(joining *j)
{
    for (int n = 0; n < GUESTS_MAX; n++) {
        int fd = -1;

        if (net_accept(j->boot->listen_fd, &fd) != LS_OK) {
            // Out of descriptors: the guests' are given back when their time is up.
            return errno == EMFILE || errno == ENFILE ? LS_OK : LS_ESYSTEM;
        }
        if (fd < 0)
            return LS_OK;
        admit(j, fd);
    }
    return LS_OK;
}

static bool is_missing(const native_state *s, int rank)
{
    return rank != s->rank && s->peers[rank].link == NULL;
}

static int missing_above(const native_state *s)
{
    int n = 0;

    for (int rank = s->rank + 1; rank < s->size; rank++)
        n += is_missing(s, rank);
    return n;
}

static ls_status name_missing(const joining *j)
{
    text_buf ranks = {0};
    ls_status st;

    for (int rank = j->s->rank + 1; rank < j->s->size; rank++)
        if (is_missing(j->s, rank))
            text_append(&ranks, "%s%d (%s)", ranks.length == 0 ? "" : ", ", rank,
                        j->boot->records[rank].host);
    st = ls_fail(j->has_news ? LS_EPEER : LS_ETIMEOUT, "no connection from rank %s",
                 text_str(&ranks));
    text_free(&ranks);
    return st;
}

static void wait_for_guests(const joining *j)
{
    struct pollfd fds[GUESTS_MAX + 2];
    int n = 2;

    fds[0] = (struct pollfd){.fd = j->boot->listen_fd, .events = POLLIN};
    fds[1] = (struct pollfd){.fd = j->has_news ? -1 : j->boot->control_fd, .events = POLLIN};
    for (int i = 0; i < j->n_guests; i++)
        fds[n++] = (struct pollfd){.fd = j->guests[i].fd, .events = j->guests[i].events};
    (void)poll(fds, (nfds_t)n,
               (int)earlier(ls_deadline_left(j->deadline_ms) < 0 ? PROOF_MS
                                                                 : ls_deadline_left(j->deadline_ms),
                            PROOF_MS));
}

static ls_status accept_all(joining *j)
{
    if (missing_above(j->s) == 0)
        return LS_OK;
    if (j->boot->listen_fd < 0)
        return ls_fail(LS_EUNSUPPORTED, "rank %d has no listener for ranks of other hosts",
                       j->s->rank);
    j->guests = ls_calloc(GUESTS_MAX, sizeof(*j->guests));
    if (j->guests == NULL)
        return ls_fail(LS_ENOMEM, "no memory for connections");
    while (missing_above(j->s) > 0) {
        look_for_news(j);
        if (ls_deadline_left(j->deadline_ms) == 0)
            return name_missing(j);
        LS_TRY(accept_waiting(j));
        LS_TRY(serve_guests(j));
        if (missing_above(j->s) > 0)
            wait_for_guests(j);
    }
    return LS_OK;
}

static void see_guests_off(joining *j)
{
    while (j->n_guests > 0) {
        close(j->guests[j->n_guests - 1].fd);
        dismiss(j, j->n_guests - 1);
    }
    ls_free(j->guests);
}

static ls_status join_tcp(joining *j)
{
    for (int rank = 0; rank < j->s->rank; rank++)
        if (is_missing(j->s, rank))
            LS_TRY(connect_to(j, rank));
    return accept_all(j);
}

// --- ranks of this host ---

static ls_status join_local(joining *j)
{
    native_state *s = j->s;

    LS_TRY(local_join(j->boot, &s->local));
    for (int rank = 0; rank < s->size; rank++) {
        const link_sink sink = match_sink(&s->peers[rank]);

        if (rank == s->rank || !local_has(s->local, rank))
            continue;
        LS_TRY(link_shm_create(s->local, rank, &sink, &s->peers[rank].link));
        s->peers[rank].is_local = true;
    }
    for (int rank = 0; rank < s->size; rank++)
        if (s->peers[rank].is_local)
            LS_TRY(link_shm_attach(s->peers[rank].link, j->deadline_ms));
    return LS_OK;
}

void native_local_ended(native_peer *p)
{
    if (p->is_local)
        link_shm_peer_ended(p->link);
}

static ls_status check_all_local(const native_state *s, const comm_boot *boot)
{
    for (int rank = 0; rank < s->size; rank++)
        if (is_missing(s, rank))
            return ls_fail(LS_EUNSUPPORTED,
                           "transport shm was asked for, but rank %d (%s) is not on this host",
                           rank, boot->records[rank].host);
    return LS_OK;
}

ls_status native_join(native_state *s, const comm_boot *boot)
{
    joining j = {.s = s, .boot = boot, .deadline_ms = boot->deadline_ms};
    ls_status st = LS_OK;

    if (!s->is_tcp_only)
        st = join_local(&j);
    else if (boot->local_fd >= 0)
        close(boot->local_fd);
    if (st == LS_OK)
        st = text_equal(boot->transport, "shm") ? check_all_local(s, boot) : join_tcp(&j);
    see_guests_off(&j);
    if (boot->listen_fd >= 0)
        close(boot->listen_fd);
    return st;
}
