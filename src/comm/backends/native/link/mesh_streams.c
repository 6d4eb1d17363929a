/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mesh_streams.c - makes the connections after the first and adds them to the striped link. Each
 * number from 1 on is added at most once; an unexpected connection is closed. mesh.c calls it.
 */
#include "comm/backends/native/link/mesh_streams.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "comm/backends/native/link/mesh.h"
#include "net/auth/dial.h"
#include "net/socket.h"

#include <unistd.h>

#define LATER_MS 1000 /* than the launcher a rank notices that a host is gone */

/* One connection that the link does not have yet. */
typedef struct extra_stream {
    streams *owner;
    int number;
    dial *dialing;
    int fd; /* came before the link had its first stream; -1: none */
    seal_pair seals;
} extra_stream;

struct streams {
    streams_options opt;
    bool is_caller;
    net_address at;
    extra_stream list[LINK_STREAMS_MAX]; /* by number; [0] is not used */
};

int streams_silence_ms(void)
{
    return net_silence_ms() + LATER_MS;
}

// Takes fd.
static ls_status open_one(const link_sink *sink, int fd, const seal_pair *seals, peer_link **out)
{
    const ls_status st = net_set_link_options(fd, streams_silence_ms());

    if (st != LS_OK) {
        close(fd);
        return st;
    }
    return seals->out.mode == NET_AUTH ? link_tcp_create(fd, sink, out)
                                       : link_sealed_create(fd, seals, sink, out);
}

ls_status streams_open(const streams *all, const link_sink *sink, int fd, const seal_pair *seals,
                       peer_link **out)
{
    peer_link *first;
    ls_status st;

    if (all == NULL)
        return open_one(sink, fd, seals, out);
    LS_TRY(open_one(sink, fd, seals, &first));
    st = link_striped_create(all->opt.n, sink, out);
    if (st != LS_OK) {
        link_destroy(first);
        return st;
    }
    st = link_striped_add(*out, 0, first);
    if (st != LS_OK)
        link_destroy(*out);
    return st;
}

static void fail(const extra_stream *k, const char *why)
{
    const streams_options *opt = &k->owner->opt;
    char text[LS_ERROR_BYTES];

    opt->failed(opt->self, text_format(text, sizeof(text), "connection %d of %d: %s", k->number + 1,
                                       opt->n, why));
}

// Takes fd.
static void add_to_link(const extra_stream *k, int fd, const seal_pair *seals)
{
    const streams_options *opt = &k->owner->opt;
    peer_link *fresh;
    ls_status st = open_one(&opt->link->sink, fd, seals, &fresh);

    if (st == LS_OK)
        st = link_striped_add(opt->link, k->number, fresh);
    if (st == LS_OK)
        opt->added(opt->self);
    else
        fail(k, ls_last_error());
}

// --- outgoing connections ---

static void on_dialed(void *self, int fd, const net_address *at, ls_status status, const char *why)
{
    extra_stream *k = self;
    seal_pair seals = *dial_seals(k->dialing);

    LS_UNUSED(at);
    LS_UNUSED(status);
    if (fd < 0) {
        fail(k, why);
        return;
    }
    dial_close(k->dialing);
    k->dialing = NULL;
    add_to_link(k, fd, &seals);
    seal_pair_wipe(&seals);
}

static ls_status begin_dial(extra_stream *k)
{
    const streams *all = k->owner;
    dial_options opt = {.addresses = &all->at,
                        .n_addresses = 1,
                        .key = all->opt.key,
                        .claim = all->opt.claim,
                        .deadline_ms = ls_deadline_ms(MESH_CONNECT_MS),
                        .accept_timeout_ms = MESH_CONNECT_MS,
                        .self = k,
                        .done = on_dialed};

    opt.claim.stream = (uint8_t)k->number;
    return dial_open(all->opt.loop, &opt, &k->dialing);
}

void streams_dial(streams *all, const net_address *at)
{
    streams_close_pending(all);
    all->is_caller = true;
    all->at = *at;
    for (int i = 1; i < all->opt.n; i++) {
        if (begin_dial(&all->list[i]) != LS_OK) {
            fail(&all->list[i], ls_last_error());
            return;
        }
    }
}

// --- incoming connections ---

void streams_accept_pending(streams *all)
{
    for (int i = 1; i < all->opt.n; i++) {
        extra_stream *k = &all->list[i];
        const int fd = k->fd;

        k->fd = -1;
        if (fd >= 0)
            add_to_link(k, fd, &k->seals);
        seal_pair_wipe(&k->seals);
    }
}

static bool is_expected(const streams *all, int number)
{
    const peer_link *l = all->opt.link;

    if (number < 1 || number >= all->opt.n || all->is_caller || l->is_ended)
        return false;
    return l->ops == NULL ? all->list[number].fd < 0 : !link_striped_has(l, number);
}

void streams_accept(streams *all, const listener_peer *peer)
{
    const int number = peer->claim.stream;
    extra_stream *k = &all->list[number < LINK_STREAMS_MAX ? number : 0];

    if (!is_expected(all, number)) {
        ls_log(LS_LOG_DEBUG, "native", "closed connection %d of rank %d, which is not expected",
               number + 1, all->opt.rank);
        close(peer->fd);
    } else if (all->opt.link->ops != NULL) {
        add_to_link(k, peer->fd, &peer->seals);
    } else {
        k->fd = peer->fd;
        k->seals = peer->seals;
    }
}

// --- life ---

ls_status streams_create(const streams_options *opt, streams **out)
{
    streams *all;

    LS_ASSERT(opt->n >= 2 && opt->n <= LINK_STREAMS_MAX);
    LS_TRY(LS_NEW(&all, 1, "for connections with rank %d", opt->rank));
    all->opt = *opt;
    for (int i = 0; i < LINK_STREAMS_MAX; i++)
        all->list[i] = (extra_stream){.owner = all, .number = i, .fd = -1};
    *out = all;
    return LS_OK;
}

void streams_close_pending(streams *all)
{
    for (int i = 1; all != NULL && i < all->opt.n; i++) {
        extra_stream *k = &all->list[i];

        dial_close(k->dialing);
        k->dialing = NULL;
        file_close(&k->fd);
        seal_pair_wipe(&k->seals);
    }
}

void streams_destroy(streams *all)
{
    streams_close_pending(all);
    ls_free(all);
}

void streams_forked(const streams *all)
{
    for (int i = 1; all != NULL && i < all->opt.n; i++) {
        if (all->list[i].dialing != NULL)
            dial_forked(all->list[i].dialing);
        if (all->list[i].fd >= 0)
            close(all->list[i].fd);
    }
}
