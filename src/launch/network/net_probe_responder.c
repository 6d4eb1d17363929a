/* SPDX-License-Identifier: Apache-2.0 */
/*
 * net_probe_responder.c - answers the tests of other nodes: echoes, and counts of received burst
 * bytes. Peers have authenticated; their cost is bounded all the same. Called by the listener of
 * net_probe.c.
 */
#include "launch/network/net_probe_internal.h"

#include "base/alloc.h"
#include "base/file.h"
#include "net/socket.h"

#include <string.h>

#define RESPONDERS_MAX 2048
#define READS_A_ROUND  4

struct probe_responder {
    list_node node;
    net_probe *owner;
    int fd;
    poll_watch *watch;
    char peer[LISTENER_PEER_TEXT];
    uint8_t in[PROBE_HEADER_BYTES + PROBE_ECHO_BYTES];
    size_t in_bytes;
    uint32_t burst_left;
    uint32_t counted;  /* received bytes of this burst */
    uint32_t reported; /* the last count that was sent */
    uint8_t out[PROBE_ECHO_BYTES];
    size_t out_bytes;
    size_t out_sent;
};

static void close_responder(probe_responder *g)
{
    poller_close(&g->watch, &g->fd);
    if (!list_empty(&g->node)) {
        list_remove(&g->node);
        g->owner->n_responders--;
    }
    ls_free(g);
}

static ls_status flush(probe_responder *g)
{
    size_t moved;

    LS_TRY(net_send_some(g->fd, g->peer, g->out + g->out_sent, g->out_bytes - g->out_sent, &moved));
    g->out_sent += moved;
    if (g->out_sent == g->out_bytes)
        g->out_bytes = g->out_sent = 0;
    return LS_OK;
}

/* Sends pending output, then the newest count; counts that the socket did not take are skipped. */
static ls_status send_count(probe_responder *g)
{
    if (g->out_bytes > 0)
        LS_TRY(flush(g));
    if (g->out_bytes == 0 && g->reported != g->counted) {
        wire_put_u32(g->out, g->counted);
        g->out_bytes = PROBE_COUNT_BYTES;
        g->reported = g->counted;
        LS_TRY(flush(g));
    }
    return poller_change(g->watch, g->out_bytes > 0 ? POLL_READ | POLL_WRITE : POLL_READ);
}

static ls_status take_burst(probe_responder *g, bool *moved_any)
{
    size_t want = PROBE_PIECE_BYTES;
    size_t moved;

    if (want > g->burst_left)
        want = g->burst_left;
    LS_TRY(net_recv_some(g->fd, g->peer, g->owner->sink, want, &moved));
    g->burst_left -= (uint32_t)moved;
    g->counted += (uint32_t)moved;
    *moved_any = moved > 0;
    return send_count(g);
}

static ls_status take_request(probe_responder *g)
{
    const uint32_t what = wire_get_u32(g->in);
    const uint32_t bytes = wire_get_u32(g->in + 4);

    if (what == PROBE_BURST && bytes >= 1 && bytes <= PROBE_BURST_MOST) {
        g->burst_left = bytes;
        g->counted = g->reported = 0;
        g->in_bytes = 0;
        return LS_OK;
    }
    if (what != PROBE_ECHO || bytes != PROBE_ECHO_BYTES || g->out_bytes > 0)
        return ls_fail(LS_EPROTO, "%s sent an unknown request", g->peer);
    if (g->in_bytes < sizeof(g->in))
        return LS_OK;
    memcpy(g->out, g->in + PROBE_HEADER_BYTES, PROBE_ECHO_BYTES);
    g->out_bytes = PROBE_ECHO_BYTES;
    g->in_bytes = 0;
    return send_count(g);
}

static ls_status read_request(probe_responder *g, bool *moved_any)
{
    const size_t need = g->in_bytes < PROBE_HEADER_BYTES ? PROBE_HEADER_BYTES : sizeof(g->in);
    size_t moved;

    LS_TRY(net_recv_some(g->fd, g->peer, g->in + g->in_bytes, need - g->in_bytes, &moved));
    g->in_bytes += moved;
    *moved_any = moved > 0;
    return g->in_bytes == need ? take_request(g) : LS_OK;
}

/* Reads a few times in each round, so that a burst does not block the loop. */
static ls_status serve(probe_responder *g)
{
    bool moved = true;

    for (int i = 0; i < READS_A_ROUND && moved; i++) {
        if (g->burst_left > 0)
            LS_TRY(take_burst(g, &moved));
        else
            LS_TRY(read_request(g, &moved));
    }
    return LS_OK;
}

static void on_event(void *arg, unsigned events)
{
    probe_responder *g = arg;
    ls_status st = LS_OK;

    if ((events & POLL_WRITE) != 0)
        st = send_count(g);
    if (st == LS_OK && (events & (POLL_READ | POLL_BROKEN)) != 0)
        st = serve(g);
    if (st != LS_OK) // the peer has finished, or failed
        close_responder(g);
}

void probe_responder_start(void *probe, const listener_peer *peer)
{
    net_probe *p = probe;
    probe_responder *g = p->n_responders >= RESPONDERS_MAX ? NULL : ls_calloc(1, sizeof(*g));

    if (g == NULL) {
        int fd = peer->fd;

        file_close(&fd);
        return;
    }
    g->owner = p;
    g->fd = peer->fd;
    memcpy(g->peer, peer->name, sizeof(g->peer));
    list_append(&p->responders, &g->node);
    p->n_responders++;
    if (poller_watch(p->opt.loop, g->fd, POLL_READ, on_event, g, &g->watch) != LS_OK)
        close_responder(g);
}

void probe_responders_close(net_probe *p)
{
    while (!list_empty(&p->responders))
        close_responder(list_entry(p->responders.next, probe_responder, node));
}
