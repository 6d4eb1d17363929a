/* SPDX-License-Identifier: Apache-2.0 */
/*
 * head_networks.c - selects the network of a roster with several nodes, between welcome and ready:
 * the head collects the addresses of each node, sends each node the peers to probe, collects the
 * results and sends each node its selected network (net_choice.h). Called by head_nodes.c.
 */
#include "launch/head/head_internal.h"

#include "base/alloc.h"
#include "base/log.h"

#include <string.h>

static void send_to_node(head *h, int k, node_message type, const wire_writer *w)
{
    head_node *node = head_find_node(h, h->places[k].conn);

    if (node != NULL)
        head_send(node, type, w);
}

static void begin_message(const head *h, wire_writer *w)
{
    *w = (wire_writer){0};
    wire_write_u32(w, h->generation);
}

/* --- the result --- */

static void send_picks(head *h)
{
    for (int k = 0; k < h->n_places; k++) {
        wire_writer w;

        begin_message(h, &w);
        net_pick_write(&w, &h->choice.picks[k]);
        send_to_node(h, k, NODE_NETWORK, &w);
        wire_writer_free(&w);
    }
}

static void choose(head *h)
{
    net_choice_free(&h->choice);
    if (net_choose(h->offers, h->reports, h->n_places, h->opt.net, &h->choice) == LS_OK) {
        ls_log(LS_LOG_INFO, "head", "%s", text_str(&h->choice.text));
        send_picks(h);
        return;
    }
    if (h->choice.text.length > 0)
        head_broadcast_note(h, text_str(&h->choice.text));
    head_fail_generation(h, ls_last_error());
}

/* --- probing --- */

static ls_status send_probe(head *h, int k)
{
    int peers[NET_PEERS_MAX];
    const int n = net_peers_of(k, h->offers, h->n_places, peers);
    wire_writer w;
    ls_status st;

    begin_message(h, &w);
    wire_write_u32(&w, (uint32_t)n);
    for (int i = 0; i < n; i++) {
        const net_peer peer = {.node = peers[i],
                               .measure = net_peer_is_next(k, peers[i], h->n_places),
                               .offer = h->offers[peers[i]]};

        net_peer_write(&w, &peer);
    }
    st = wire_writer_status(&w);
    if (st == LS_OK)
        send_to_node(h, k, NODE_PROBE, &w);
    wire_writer_free(&w);
    return st;
}

static bool same_address(const net_interface *a, const net_interface *b)
{
    net_address x = a->address;
    net_address y = b->address;

    net_address_set_port(&x, 0);
    net_address_set_port(&y, 0);
    return net_address_equal(&x, &y) && text_equal(a->name, b->name);
}

static bool same_offer(const net_offer *a, const net_offer *b)
{
    if (a->machine != b->machine || a->n != b->n)
        return false;
    for (int i = 0; i < a->n; i++)
        if (!same_address(&a->at[i], &b->at[i]))
            return false;
    return true;
}

/* The same nodes as in the last probed roster, so that a restart need not probe again. */
static bool is_unchanged(const head *h)
{
    bool same = h->choice.picks != NULL && h->choice.n_nodes == h->n_places;

    for (int k = 0; same && k < h->n_places; k++)
        same = same_offer(&h->offers[k], &h->probed_offers[k]);
    return same;
}

static ls_status save_offers(head *h)
{
    ls_free(h->probed_offers);
    LS_TRY(LS_NEW(&h->probed_offers, (size_t)h->n_places, "for the addresses of %d nodes",
                  h->n_places));
    memcpy(h->probed_offers, h->offers, (size_t)h->n_places * sizeof(*h->offers));
    return LS_OK;
}

static void begin_probing(head *h)
{
    ls_status st;

    if (is_unchanged(h)) {
        send_picks(h);
        return;
    }
    net_choice_free(&h->choice);
    st = save_offers(h);
    for (int k = 0; st == LS_OK && k < h->n_places; k++)
        st = send_probe(h, k);
    if (st != LS_OK)
        head_fail_generation(h, ls_last_error());
}

/* --- nodes that take the place of lost ones --- */

/* The listeners for tests are closed by then. */
static void choose_late(head *h, head_node *node)
{
    net_pick pick;
    wire_writer w;

    if (net_choose_late(&h->choice, h->offers, node->place->node, &pick) != LS_OK) {
        head_send_text(node, NODE_REJECT, ls_last_error());
        frame_link_finish(&node->link);
        return;
    }
    begin_message(h, &w);
    net_pick_write(&w, &pick);
    head_send_free(node, NODE_NETWORK, &w);
}

/* --- messages --- */

/* Reads the generation; false when the message is about an earlier one. */
static bool is_current(const head_node *node, wire_reader *r)
{
    const uint32_t generation = wire_read_u32(r);

    return r->failed || (generation == node->owner->generation && node->place != NULL &&
                         node->owner->offers != NULL);
}

ls_status head_handle_offer(head_node *node, const frame *f)
{
    head *h = node->owner;
    wire_reader r = wire_reader_over(f->body, f->bytes);
    net_offer offer = {0};
    int k;

    if (!is_current(node, &r))
        return LS_OK;
    net_offer_read(&r, &offer);
    LS_TRY(wire_reader_end(&r, "a node's addresses"));
    k = node->place->node;
    if (h->has_offer[k])
        return ls_fail(LS_EPROTO, "a node's addresses came twice");
    h->offers[k] = offer;
    h->has_offer[k] = true;
    if (node->place->is_late)
        choose_late(h, node);
    else if (++h->n_offers == h->n_places)
        begin_probing(h);
    return LS_OK;
}

ls_status head_handle_probed(head_node *node, const frame *f)
{
    head *h = node->owner;
    wire_reader r = wire_reader_over(f->body, f->bytes);
    net_report report = {0};
    ls_status st;
    int k;

    if (!is_current(node, &r))
        return LS_OK;
    net_report_read(&r, &report);
    st = wire_reader_end(&r, "a node's probe results");
    k = st == LS_OK ? node->place->node : 0;
    if (st == LS_OK && (h->n_offers < h->n_places || h->has_report[k]))
        st = ls_fail(LS_EPROTO, "unexpected probe results of a node");
    if (st != LS_OK) {
        net_report_free(&report);
        return st;
    }
    h->reports[k] = report;
    h->has_report[k] = true;
    if (++h->n_reports == h->n_places)
        choose(h);
    return LS_OK;
}

/* --- life --- */

ls_status head_open_networks(head *h)
{
    const size_t n = (size_t)h->n_places;

    if (n == 1)
        return LS_OK;
    h->offers = ls_calloc(n, sizeof(*h->offers));
    h->reports = ls_calloc(n, sizeof(*h->reports));
    h->has_offer = ls_calloc(n, sizeof(*h->has_offer));
    h->has_report = ls_calloc(n, sizeof(*h->has_report));
    if (h->offers != NULL && h->reports != NULL && h->has_offer != NULL && h->has_report != NULL)
        return LS_OK;
    head_close_networks(h);
    return ls_fail(LS_ENOMEM, "no memory for the addresses of %zu nodes", n);
}

void head_close_networks(head *h)
{
    for (int k = 0; h->reports != NULL && k < h->n_places; k++)
        net_report_free(&h->reports[k]);
    ls_free(h->offers);
    ls_free(h->reports);
    ls_free(h->has_offer);
    ls_free(h->has_report);
    h->offers = NULL;
    h->reports = NULL;
    h->has_offer = NULL;
    h->has_report = NULL;
    h->n_offers = 0;
    h->n_reports = 0;
}

void head_free_networks(head *h)
{
    head_close_networks(h);
    net_choice_free(&h->choice);
    ls_free(h->probed_offers);
    h->probed_offers = NULL;
}
