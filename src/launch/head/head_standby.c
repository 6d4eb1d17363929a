/* SPDX-License-Identifier: Apache-2.0 */
/*
 * head_standby.c - the head's state as bytes for the other agents, and a head that takes over with
 * it. The nodes of the job connect to that head again; the lost head's is not among them, and a
 * node that does not come in time is lost as well. Called by head.c, head_elastic.c and the agent.
 */
#include "launch/head/head_internal.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "net/socket.h"
#include "store/seat_text.h"

#include <string.h>

enum {
    RANKS_MOST = 4096 /* with some that replace them, their state fits into STANDBY_STATE_MAX */
};

/* What the next head is to expect of a node. */
typedef enum standing {
    STANDING_ENDED, /* its agent ends with the head that it hosts */
    STANDING_LOST,  /* its ranks are lost. Its agent may still come, or be that head's own */
    STANDING_LEFT   /* it comes with its ranks */
} standing;

/* Of a head that has taken over. */
struct head_standby {
    uint64_t *uids;     /* by node: of the agents that elect a head */
    standing *standing; /* by node */
    bool *is_refused;   /* by node: this head takes it in no more */
    int64_t grace_ms;
    poll_timer limit; /* of the nodes' return */
};

/* --- the state --- */

static const head_node *node_of_place(const head *h, int i)
{
    return head_find_node(h, h->places[i].conn);
}

static const uint64_t *voters_of(const head *h)
{
    return h->moved != NULL ? h->moved->uids : h->voters;
}

static bool is_voter(const head *h, uint64_t uid)
{
    for (int i = 0; i < h->n_places; i++)
        if (voters_of(h)[i] == uid)
            return true;
    return false;
}

static int place_of(const head *h, uint64_t uid)
{
    for (int i = 0; i < h->n_places; i++) {
        const head_node *node = node_of_place(h, i);

        if (uid != 0 && node != NULL && node->uid == uid)
            return i;
    }
    return -1;
}

/* The agent that elects a head and has this place, or had it. Where nodes have no numbers, one that
 * was lost may be back in another place; then this is one of those that have none. */
static uint64_t voter_of(const head *h, int i)
{
    const head_node *node = node_of_place(h, i);
    uint64_t uid = voters_of(h)[i];

    if (node != NULL && is_voter(h, node->uid))
        return node->uid;
    for (int at = place_of(h, uid); at >= 0; at = place_of(h, uid))
        uid = voters_of(h)[at];
    return uid;
}

/* Another node in the place of a lost one follows no other head; one that was lost and is back
 * does, and the lost one may. */
static standing standing_of(const head *h, int i)
{
    const head_node *node = node_of_place(h, i);

    if (node == NULL)
        return h->moved != NULL ? h->moved->standing[i] : STANDING_LOST;
    if (node->is_own)
        return STANDING_ENDED;
    return is_voter(h, node->uid) ? STANDING_LEFT : STANDING_LOST;
}

static void write_state(const head *h, wire_writer *w)
{
    const rdzv_options *o = &h->opt.rendezvous;

    wire_write_text(w, h->job);
    wire_write_u32(w, h->generation);
    wire_write_u32(w, (uint32_t)h->places[0].n_restarts);
    wire_write_i64(w, o->grace_ms);
    wire_write_u8(w, h->store != NULL);
    wire_write_u32(w, (uint32_t)h->n_places);
    for (int i = 0; i < h->n_places; i++) {
        const rdzv_place *p = &h->places[i];

        wire_write_u64(w, voter_of(h, i));
        wire_write_u32(w, (uint32_t)p->n_local);
        wire_write_text(w, p->host);
        wire_write_u8(w, (uint8_t)standing_of(h, i));
    }
    head_write_recovery(h, w);
}

ls_status head_propose(const head *h, uint64_t *index)
{
    wire_writer w = {0};
    ls_status st;

    write_state(h, &w);
    st = standby_propose(h->opt.standby, &w, index);
    wire_writer_free(&w);
    return st;
}

/* --- the first head --- */

void head_choose_standby(head *h)
{
    h->has_standby = h->opt.standby != NULL && h->opt.rendezvous.min_ranks > 0 &&
                     h->n_places >= 3 && h->n_places <= SUCCESSION_NODES_MAX &&
                     h->world_size <= RANKS_MOST;
    for (int i = 0; i < h->n_places; i++) {
        const head_node *node = node_of_place(h, i);

        if (node == NULL || (!node->is_own && net_address_family(&node->standby_at) == NET_NONE))
            h->has_standby = false;
    }
}

void head_begin_standby(head *h)
{
    standby_group g = {
        .generation = h->generation, .n_nodes = h->n_places, .silence_ms = h->silence_ms};
    net_address *at;
    uint64_t index;
    ls_status st;

    if (!h->has_standby || h->standby_begun || rdzv_phase_now(h->machine) != RDZV_RUN)
        return;
    ls_free(h->voters);
    at = ls_calloc((size_t)h->n_places, sizeof(*at));
    h->voters = ls_calloc((size_t)h->n_places, sizeof(*h->voters));
    for (int i = 0; at != NULL && h->voters != NULL && i < h->n_places; i++) {
        const head_node *node = node_of_place(h, i);

        h->voters[i] = node != NULL ? node->uid : 0;
        if (node != NULL && node->is_own)
            g.self = g.head = i;
        else if (node != NULL)
            at[i] = node->standby_at;
    }
    g.addresses = at;
    st = at != NULL && h->voters != NULL
             ? standby_begin(h->opt.standby, &g)
             : ls_fail(LS_ENOMEM, "no memory for %d addresses", h->n_places);
    ls_free(at);
    if (st == LS_OK)
        st = head_propose(h, &index);
    h->standby_begun = st != LS_ENOMEM; // else it is tried again: the others wait for this head
    if (st == LS_OK) {
        h->proposed = h->generation;
        return;
    }
    ls_log(LS_LOG_WARN, "head", "the job has no standby head: %s", ls_last_error());
    standby_end(h->opt.standby);
    h->proposed = 0;
}

bool head_can_move(const head *h)
{
    int n_others = 0;

    if (h->proposed == 0 || h->proposed != h->generation)
        return false;
    for (int i = 0; i < h->n_places; i++) {
        const head_node *node = node_of_place(h, i);

        n_others += node != NULL && standing_of(h, i) == STANDING_LEFT;
        if (node != NULL && node->is_own && !head_can_spare(h, &h->places[i]))
            return false;
    }
    return n_others > h->n_places / 2;
}

/* --- streams of ranks --- */

static ls_status connect_here(const net_address *at, int *fd)
{
    const int error = net_connect_start(at, NET_STREAM, fd);

    return error == 0 ? LS_OK : net_connect_failed(at, error);
}

ls_status head_open_hub_stream(void *arg, int *fd)
{
    const head_node *node = arg;
    const head *h = node->owner;

    if (h->hub == NULL || node->place == NULL)
        return ls_fail(LS_ENOTFOUND, "there is no hub for this node");
    return connect_here(&h->hub_unix, fd);
}

ls_status head_open_member_stream(void *arg, int *fd)
{
    const head_node *node = arg;
    const net_address *at = head_members_at(node->owner);

    if (at == NULL || node->place == NULL)
        return ls_fail(LS_ENOTFOUND, "there is no store of members for this node");
    return connect_here(at, fd);
}

/* --- a head that takes over --- */

static ls_status read_places(head *h, wire_reader *r)
{
    const uint32_t generation = h->generation;
    const uint32_t n_restarts = wire_read_u32(r);
    uint32_t n;

    h->opt.rendezvous.grace_ms = wire_read_i64(r);
    h->opt.hosts_store = wire_read_u8(r) != 0;
    n = wire_read_u32(r);
    if (r->failed || n < 3 || n > SUCCESSION_NODES_MAX || n_restarts > INT32_MAX ||
        h->opt.rendezvous.grace_ms < 0 || h->opt.rendezvous.grace_ms > NODE_GRACE_MAX_MS)
        return ls_fail(LS_EPROTO, "the state of a head: malformed at byte %zu", r->at);
    h->n_places = (int)n;
    h->places = ls_calloc(n, sizeof(*h->places));
    h->ends = ls_calloc(n, sizeof(*h->ends));
    h->losses = ls_calloc(n, sizeof(*h->losses));
    h->moved->uids = ls_calloc(n, sizeof(*h->moved->uids));
    h->moved->standing = ls_calloc(n, sizeof(*h->moved->standing));
    h->moved->is_refused = ls_calloc(n, sizeof(*h->moved->is_refused));
    if (h->places == NULL || h->ends == NULL || h->losses == NULL || h->moved->uids == NULL ||
        h->moved->standing == NULL || h->moved->is_refused == NULL)
        return ls_fail(LS_ENOMEM, "no memory for %u nodes", n);
    for (int i = 0; i < h->n_places; i++) {
        rdzv_place *p = &h->places[i];
        uint32_t n_local;
        uint8_t expected;

        h->moved->uids[i] = wire_read_u64(r);
        n_local = wire_read_u32(r);
        wire_read_text(r, p->host, sizeof(p->host));
        text_printable(p->host, sizeof(p->host), p->host);
        expected = wire_read_u8(r);
        if (r->failed || n_local < 1 || n_local > RDZV_LOCAL_MAX || expected > STANDING_LEFT)
            return ls_fail(LS_EPROTO, "the state of a head: malformed at byte %zu", r->at);
        h->moved->standing[i] = (standing)expected;
        p->conn = (uint64_t)i + 1;
        p->generation = generation;
        p->n_restarts = (int)n_restarts;
        p->node = i;
        p->n_nodes = h->n_places;
        p->rank_base = h->world_size;
        p->n_local = (int)n_local;
        h->world_size += p->n_local;
    }
    if ((size_t)h->world_size > r->bytes - r->at) // each has a member
        return ls_fail(LS_EPROTO, "the state of a head: too short for %d ranks", h->world_size);
    for (int i = 0; i < h->n_places; i++)
        h->places[i].world_size = h->world_size;
    h->last_id = n;
    return LS_OK;
}

static ls_status restore(head *h, wire_reader *r)
{
    LS_TRY(LS_NEW(&h->moved, 1, "for a head that takes over"));
    wire_read_text(r, h->job, sizeof(h->job));
    h->generation = wire_read_u32(r);
    LS_TRY(read_places(h, r));
    LS_TRY(head_job_key(&h->key, h->job, &h->job_key));
    h->has_standby = h->standby_begun = true;
    h->proposed = h->generation;
    LS_TRY(head_read_recovery(h, r));
    LS_TRY(wire_reader_end(r, "the state of a head"));
    LS_TRY(rdzv_resume(&h->opt.rendezvous, h->places, h->n_places, ls_now_ms(), &h->machine));
    if (h->opt.hosts_store)
        LS_TRY(c10d_store_create_closed(h->loop, &h->store));
    LS_TRY(head_open_next_hub(h, head_count_seats(h)));
    head_check_stopped_ranks(h);
    return LS_OK;
}

ls_status head_take_over(poller *p, const head_options *opt, const void *state, size_t bytes,
                         head **out)
{
    wire_reader r = wire_reader_over(state, bytes);
    ls_status st;

    LS_TRY(head_allocate(p, opt, out));
    st = restore(*out, &r);
    if (st != LS_OK) {
        head_destroy(*out);
        *out = NULL;
    }
    return st;
}

/* Its ranks are lost, and it does not come to this head any more. */
static void lose_place(head *h, int i, const char *why)
{
    rdzv_event gone = {
        .kind = RDZV_GONE, .conn = h->places[i].conn, .last_seen_ms = ls_now_ms(), .text = why};

    h->moved->is_refused[i] = true;
    head_recover_place(h, &h->places[i], &gone);
    head_event(h, &gone);
}

static void return_is_over(void *arg)
{
    head *h = arg;

    for (int i = 0; i < h->n_places; i++) {
        if (h->moved->is_refused[i] || node_of_place(h, i) != NULL)
            continue;
        h->moved->standing[i] = STANDING_LOST;
        lose_place(h, i, "it has not come to the new head");
    }
}

/* A node that the lost head has counted as lost may be connected to this one, or be this one: if it
 * were refused, its vote would be missing. */
void head_begin_again(head *h)
{
    static const char why[] = "the head of the job was there, or it was lost before";

    head_move_members(h, "the head of the job is lost");
    for (int i = 0; i < h->n_places; i++) {
        rdzv_event gone = {.text = why};

        if (h->moved->standing[i] == STANDING_ENDED)
            lose_place(h, i, why);
        else if (h->moved->standing[i] == STANDING_LOST)
            head_recover_place(h, &h->places[i], &gone);
    }
    poller_timer_set(h->loop, &h->moved->limit, ls_now_ms() + h->silence_ms, return_is_over, h);
}

void head_forget_node(const head_node *node)
{
    struct head_standby *m = node->owner->moved;

    if (m == NULL || node->place == NULL)
        return;
    m->standing[node->place->node] = STANDING_LOST;
    m->is_refused[node->place->node] = true;
}

ls_status head_return(head_node *node, const rdzv_hello *hello)
{
    head *h = node->owner;

    for (int i = 0; i < h->n_places; i++) {
        if (hello->uid == 0 || h->moved->uids[i] != hello->uid || h->moved->is_refused[i] ||
            node_of_place(h, i) != NULL)
            continue;
        poller_timer_cancel(&node->hello_limit);
        node->id = h->places[i].conn;
        node->uid = hello->uid;
        node->number = i;
        node->place = &h->places[i];
        node->states = ls_calloc((size_t)node->place->n_local + 1, 1);
        if (rdzv_phase_now(h->machine) != RDZV_RUN)
            head_send(node, NODE_KILL, NULL); // the job ends
        return LS_OK;
    }
    head_send_text(node, NODE_REJECT,
                   "the head of this job was lost, and another node hosts it: no node may join");
    frame_link_finish(&node->link);
    return LS_OK;
}

void head_close_moved(head *h)
{
    if (h->moved == NULL)
        return;
    poller_timer_cancel(&h->moved->limit);
    ls_free(h->moved->uids);
    ls_free(h->moved->standing);
    ls_free(h->moved->is_refused);
    ls_free(h->moved);
    h->moved = NULL;
}
