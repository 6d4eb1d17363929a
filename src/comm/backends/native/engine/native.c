/* SPDX-License-Identifier: Apache-2.0 */
/*
 * native.c - the native backend as the engine sees it (native_backend_ops): progress, waiting,
 * operations, memory, opening and closing; native_groups.c has the groups. Everything moves in
 * progress() and spin_wait(); works that have ended and broken groups are handed over at their end
 * only (native_complete_works()).
 */
#include "comm/backends/native/native.h"

#include "comm/backends/native/engine/join.h"
#include "comm/backends/native/memory/link_shm.h"
#include "comm/backends/native/memory/segment_map.h"
#include "comm/backends/native/p2p/direct.h"
#include "comm/backends/native/p2p/exec.h"
#include "comm/backends/native/p2p/match.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/core.h"
#include "base/text.h"

#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define PAGE_BYTES       4096
#define SPIN_IDLE        400  /* passes without movement: about 10 us */
#define SPIN_TIGHT       64   /* passes without a pause: less than 1 us */
#define SPIN_EVERYTHING  16   /* passes between checks of all links */
#define SPIN_YIELDS      1024 /* over the number of ranks */
#define SPIN_RANK_YIELDS 8    /* before a rank that shares its core waits on a futex */
#define SPIN_FUTEX_WAITS 20
#define SPIN_PASSES      4000
#define SPIN_NS          (20 * INT64_C(1000000)) /* most operations end long before */
#define YIELD_MOST_RANKS 3                       /* of a core */
#define YIELD_LOST_NS    (1 * INT64_C(1000000))
#define YIELD_PAUSE_NS   (2 * INT64_C(1000000))
#define YIELD_PAUSE_MOST (128 * INT64_C(1000000))
#define SPIN_CHECK       256 /* passes between clock readings where each pass moves something */
#define READY_EVERY      8   /* idle progress() calls between checks of links that owe nothing */
#define CLOSE_STEP_MS    2
#define SEGMENT_MAX      (1U << 20)
#define SEGMENT_DEFAULT  (256U << 10)

const char *native_peer_text(const native_peer *p, char *buf, size_t n)
{
    return p->host == NULL ? text_format(buf, n, "rank %d", p->rank)
                           : text_format(buf, n, "rank %d (%s)", p->rank, p->host);
}

native_group *native_find_group(native_state *s, uint32_t id)
{
    list_for_each (node, &s->groups) {
        native_group *g = list_entry(node, native_group, node);

        if (g->info->id == id)
            return g;
    }
    return NULL;
}

const plan_layout *native_layout(const native_group *g)
{
    return layout_helps(&g->layout) ? &g->layout : NULL;
}

bool native_is_closed(const native_state *s, uint32_t id)
{
    for (size_t i = 0; i < s->n_closed; i++)
        if (s->closed[i] == id)
            return true;
    return false;
}

void native_break(native_group *g, cause_kind kind, int rank, const char *format, ...)
{
    va_list args;

    if (g->is_broken)
        return;
    g->is_broken = true;
    g->has_cause = true;
    g->cause = (job_cause){.kind = kind, .group = g->info->id, .rank = rank};
    va_start(args, format);
    vsnprintf(g->cause.text, sizeof(g->cause.text), format, args);
    va_end(args);
}

void native_break_no_memory(native_group *g)
{
    native_break(g, CAUSE_FAULT, g->state->rank, "rank %d has no memory for a message",
                 g->state->rank);
}

static void add_history(native_group *g, const native_work *w)
{
    const uint64_t sequence = w->work->op.stamp.sequence;

    if (sequence >= g->next_sequence)
        g->next_sequence = sequence + 1;
    g->history[g->next_history] = sequence;
    memcpy(g->history_stamps[g->next_history], w->stamp, STAMP_BYTES);
    g->next_history = (g->next_history + 1) % NATIVE_HISTORY;
}

static native_work *take_work(list_node *free_works)
{
    native_work *w = list_entry(free_works->next, native_work, node);

    list_remove(&w->node);
    return w;
}

native_work *native_new_work(native_group *g, backend_work *work, list_node *free_works,
                             list_node *list)
{
    const comm_host *host = g->state->host;
    native_work *w = list_empty(free_works) ? ls_calloc(1, sizeof(*w)) : take_work(free_works);

    if (w == NULL) {
        host->done(host->self, work, LS_ENOMEM, "no memory for an operation");
        return NULL;
    }
    w->group = g;
    w->work = work;
    w->has_ended = false;
    stamp_encode(&work->op.stamp, w->stamp);
    work->state = w;
    list_append(list, &w->node);
    return w;
}

static void free_works(list_node *list)
{
    while (!list_empty(list)) {
        native_work *w = take_work(list);

        for (int i = 0; i < NATIVE_LANES; i++) {
            plan_free(&w->lanes[i].steps);
            ls_free(w->lanes[i].scratch);
        }
        ls_free(w);
    }
}

void native_end_work(native_work *w)
{
    native_group *g = w->group;

    LS_ASSERT(!w->has_ended);
    w->has_ended = true;
    list_remove(&w->node);
    list_append(&g->state->ended, &w->node);
    if (w->is_direct)
        return;
    add_history(g, w);
    match_check_leftover(w);
}

static void release(native_work *w)
{
    if (w->is_direct)
        direct_release(w);
    else
        exec_release(w);
}

static void report_causes(native_state *s)
{
    bool again = true;

    while (again) {
        again = false;
        list_for_each (node, &s->groups) {
            native_group *g = list_entry(node, native_group, node);
            job_cause cause;

            if (!g->has_cause)
                continue;
            cause = g->cause;
            g->has_cause = false;
            s->host->broken(s->host->self, &cause);
            again = true; // the engine may have changed the list
            break;
        }
    }
}

static void hand_over(native_work *w, ls_status status, const char *text)
{
    native_group *g = w->group;
    const comm_host *host = g->state->host;
    backend_work *work = w->work;

    list_remove(&w->node);
    release(w);
    exec_fill_window(g);
    host->done(host->self, work, status, text);
}

void native_complete_works(native_state *s)
{
    while (!list_empty(&s->ended))
        hand_over(list_entry(s->ended.next, native_work, node), LS_OK, NULL);
    report_causes(s);
}

// --- progress ---

ls_status native_link(native_peer *p)
{
    link_sink sink;

    if (p->link != NULL)
        return LS_OK;
    sink = match_sink(p);
    return link_shm_create(p->state->local, p->rank, &sink, &p->link);
}

void native_on_link_end(native_peer *p)
{
    if (!p->link->is_ended || p->end_handled)
        return;
    p->end_handled = true;
    sleep_unwatch(p->state->sleepers, &p->watch);
    match_peer_gone(p);
}

static bool flush_peer(native_peer *p)
{
    bool moved;

    if (p->link == NULL || !link_has_output(p->link))
        return false;
    moved = link_flush(p->link);
    sleep_update(p->state->sleepers, &p->watch);
    return moved;
}

static bool receive_peer(native_peer *p)
{
    const bool moved = !p->link->is_ended && link_receive(p->link);

    native_on_link_end(p);
    return moved;
}

/* A receive from any source ends with an error when all ranks have ended. */
static bool waits_for_any(const native_state *s)
{
    list_for_each (node, &s->groups) {
        if (!list_empty(&list_entry(node, native_group, node)->receives))
            return true;
    }
    return false;
}

/* The link of a rank of this host that has sent this one its first message. */
static void link_if_begun(native_peer *p)
{
    const native_state *s = p->state;
    char saved[LS_ERROR_BYTES];

    if (p->link != NULL || !p->is_local)
        return;
    if (!link_shm_is_open(s->local, p->rank) &&
        (!link_shm_is_over(s->local, p->rank) || !waits_for_any(s)))
        return;
    ls_error_save(saved);
    if (native_link(p) != LS_OK) // without memory, the next pass tries again
        ls_error_restore(saved);
}

static bool receive_expected(native_state *s)
{
    bool moved = false;

    for (int i = 0; i < s->size; i++) {
        native_peer *p = &s->peers[i];

        link_if_begun(p);
        if (p->link != NULL && (p->is_local || match_is_expecting(p)))
            moved |= receive_peer(p);
    }
    return moved;
}

// Links from which nothing is awaited may still hold unexpected messages, or have ended.
static bool receive_ready(native_state *s)
{
    sleep_link *ready[32];
    const bool is_due =
        s->mesh != NULL && mesh_due_ms(s->mesh) != INT64_MAX && mesh_due_ms(s->mesh) <= ls_now_ms();
    bool is_mesh_ready;
    bool moved = false;
    int n;

    if (!is_due && !sleep_links_ready(s->sleepers) && ++s->idle_calls % READY_EVERY != 0)
        return false;
    n = sleep_ready(s->sleepers, ready, (int)LS_COUNT_OF(ready), &is_mesh_ready);
    if (is_mesh_ready || is_due)
        moved |= mesh_progress(s->mesh);
    for (int i = 0; i < n; i++) {
        native_peer *p = list_entry(ready[i], native_peer, watch);

        moved |= flush_peer(p);
        moved |= receive_peer(p);
    }
    return moved;
}

static bool flush_all(native_state *s)
{
    bool moved = false;

    for (int i = 0; i < s->size; i++)
        moved |= flush_peer(&s->peers[i]);
    return moved;
}

static bool progress_teams(native_state *s)
{
    bool moved = false;

    list_for_each (node, &s->groups) {
        native_group *g = list_entry(node, native_group, node);

        if (g->team != NULL && team_busy(g->team))
            moved |= team_progress(g->team);
    }
    return moved;
}

/* True: call it again before this thread sleeps. */
static bool receive_channels(native_state *s)
{
    bool has_more;
    int rank;

    if (s->local == NULL)
        return false;
    if (!sleep_locals_ready(s->sleepers) && !local_has_events(s->local))
        return false;
    has_more = local_receive(s->local);
    while (local_next_ended(s->local, &rank))
        if (s->peers[rank].link != NULL)
            link_shm_peer_ended(s->peers[rank].link);
    return has_more;
}

/* When there is something to do without any event. */
static int64_t due_ms(const native_state *s)
{
    const int64_t mesh_ms = s->mesh == NULL ? INT64_MAX : mesh_due_ms(s->mesh);
    const int64_t local_ms = s->local == NULL ? INT64_MAX : local_due_ms(s->local);

    return mesh_ms < local_ms ? mesh_ms : local_ms;
}

static bool native_progress(native_state *s)
{
    bool moved;

    sleep_begin_progress(s->sleepers);
    moved = receive_channels(s);
    moved |= receive_expected(s);
    moved |= exec_run(s);
    moved |= direct_progress(s);
    moved |= flush_all(s);
    moved |= progress_teams(s);
    if (!moved) {
        moved = receive_ready(s);
        moved |= exec_run(s);
    }
    moved |= !list_empty(&s->ended);
    native_complete_works(s);
    moved |= exec_run(s);
    sleep_end_progress(s->sleepers, moved, due_ms(s));
    return moved;
}

/* Whether this peer's link may hold something that the group waits for, or is cheap to check. */
static bool may_have_message(const native_group *g, native_peer *p)
{
    link_if_begun(p);
    return p->link != NULL && (p->is_local || match_is_expecting(p) || !list_empty(&g->receives));
}

static bool receive_group(native_group *g)
{
    bool moved = false;

    for (int i = 0; i < g->info->size; i++) {
        if (may_have_message(g, g->peers[i]))
            moved |= receive_peer(g->peers[i]);
    }
    return moved;
}

/* Moves the group's messages; has_received: some have come already. True when something moved. */
static bool spin_links(native_group *g, bool has_received)
{
    native_state *s = g->state;
    bool moved = has_received;

    moved |= exec_run(s);
    for (int i = 0; i < g->info->size; i++)
        moved |= flush_peer(g->peers[i]);
    if (moved) {
        (void)s->host->now_ns(s->host->self);
        native_complete_works(s);
    }
    return moved;
}

/* The one message that the group waits for, from a known rank; NULL: there are more, or others. */
static transfer *expected_message(const native_group *g)
{
    list_node *first = g->receives.next;
    transfer *t;

    if (!list_empty(&g->works) || first == &g->receives || first->next != &g->receives)
        return NULL;
    t = list_entry(first, transfer, node);
    return t->peer == NULL ? NULL : t;
}

/* Checks for the one expected message; now and then all links. */
static bool spin_messages(native_group *g, int pass)
{
    transfer *t = pass % SPIN_EVERYTHING == 0 ? NULL : expected_message(g);

    if (t == NULL)
        return spin_links(g, receive_group(g));
    if (t->bytes > LINK_POST_BYTES) // no post can be it
        return may_have_message(g, t->peer) && receive_peer(t->peer) && spin_links(g, true);
    if (!direct_try_receive(t))
        return false;
    native_complete_works(g->state);
    return true;
}

static bool has_links_pending(const native_group *g)
{
    return !list_empty(&g->directs) || !list_empty(&g->works);
}

/* Whether SPIN_NS have passed since the first call, at which *until_ns is 0. */
static bool spin_time_is_over(const native_group *g, int64_t *until_ns)
{
    const comm_host *host = g->state->host;
    const int64_t now_ns = host->now_ns(host->self);

    if (*until_ns == 0)
        *until_ns = now_ns + SPIN_NS;
    return now_ns >= *until_ns;
}

/* Lets the other ranks of this core run, which is quicker than a futex while they are few and need
 * it for microseconds. If another program has got the core, ranks wait on futexes for a while. */
static bool yield_to_ranks(native_state *s)
{
    const comm_host *host = s->host;
    int64_t begin_ns;
    int64_t end_ns;

    if (s->ranks_per_core > YIELD_MOST_RANKS)
        return false;
    begin_ns = host->now_ns(host->self);
    if (begin_ns < s->yields_from_ns)
        return false;
    (void)sched_yield();
    end_ns = host->now_ns(host->self);
    if (end_ns - begin_ns > YIELD_LOST_NS) {
        const bool is_soon = begin_ns - s->yields_from_ns <= s->yield_pause_ns;

        s->yield_pause_ns = !is_soon                               ? YIELD_PAUSE_NS
                            : s->yield_pause_ns < YIELD_PAUSE_MOST ? 2 * s->yield_pause_ns
                                                                   : YIELD_PAUSE_MOST;
        s->yields_from_ns = end_ns + s->yield_pause_ns;
    }
    return true;
}

/* Pauses shortly. False: the caller has waited long enough. */
static bool pause_spin(native_group *g, core_use use, int idle, int64_t *until_ns)
{
    const int yields = 1 + SPIN_YIELDS / g->info->size;
    local *host = g->state->local;

    if (use != CORE_OF_RANKS) {
        // The scheduler may put ranks on one core, although there are others.
        if (use == CORE_CONTENDED && idle == SPIN_TIGHT && host != NULL &&
            local_shares_processor(host))
            return false;
        if (idle > SPIN_TIGHT)
            core_relax();
        // Reading the clock takes as long as a short pause.
        return idle < SPIN_IDLE && !spin_time_is_over(g, until_ns);
    }
    if (g->team != NULL && team_busy(g->team) &&
        ((idle <= SPIN_RANK_YIELDS && yield_to_ranks(g->state)) || team_futex_wait(g->team)))
        return idle < SPIN_RANK_YIELDS + SPIN_FUTEX_WAITS && !spin_time_is_over(g, until_ns);
    (void)sched_yield();
    // Works whose messages came during the pause end at this time, not earlier.
    return idle < yields && !spin_time_is_over(g, until_ns);
}

/* Bounded in time, because the control connection is not read meanwhile: passes may copy much, and
 * other processes may use the core. */
static void native_spin_wait(native_group *g, core_use use, const backend_counter *others)
{
    int64_t until_ns = 0;
    int idle = 0;

    for (int pass = 1; pass <= SPIN_PASSES; pass++) {
        const bool is_team = g->team != NULL && team_busy(g->team);

        if ((!is_team && !has_links_pending(g)) || g->is_broken ||
            (pass % SPIN_CHECK == 0 && spin_time_is_over(g, &until_ns)))
            return;
        if (is_team ? team_progress(g->team) : spin_messages(g, pass)) {
            idle = 0;
            continue;
        }
        if (atomic_load_explicit(others, memory_order_relaxed) != 0 ||
            !pause_spin(g, use, ++idle, &until_ns))
            return;
    }
}

// What a member of another host has sent comes before its notice, that it has left, or the link's
// end.
static bool native_is_arriving(const native_group *g, int member)
{
    const native_peer *p = g->peers[member];
    uint64_t unused;

    if (p->link == NULL || p->link->ops == NULL || p->link->is_ended)
        return false;
    return p->is_local ? link_is_arriving(p->link) : !match_has_left(g, p, &unused);
}

// The end of a member without shared memory shows in its link.
static bool native_is_gone(const native_group *g, int member, bool for_messages)
{
    uint64_t next_sequence;

    if (g->team != NULL)
        return team_is_gone(g->team, member, for_messages);
    if (!match_has_left(g, g->peers[member], &next_sequence))
        return false;
    return for_messages ||
           (!list_empty(&g->works) &&
            list_entry(g->works.next, native_work, node)->work->op.stamp.sequence >= next_sequence);
}

static void native_wait(native_state *s, int timeout_ms)
{
    sleep_wait(s->sleepers, timeout_ms);
}

static void native_wake(native_state *s)
{
    sleep_wake(s->sleepers);
}

// --- operations ---

static void native_start(native_group *g, backend_work *work)
{
    native_state *s = g->state;

    if (g->team != NULL && team_supports(&work->op)) {
        team_start(g->team, work);
        return;
    }
    if (coll_is_message(work->op.kind))
        direct_start(g, work);
    else
        exec_start(g, work);
    (void)exec_run(s);
    (void)flush_all(s);
    native_complete_works(s);
}

static void end_list(list_node *list, ls_status status, const char *text)
{
    while (!list_empty(list))
        hand_over(list_entry(list->next, native_work, node), status, text);
}

/* Works of the group that have ended in this pass, and are complete. */
static void end_complete(const native_group *g)
{
    list_node *ended = &g->state->ended;
    list_node *at = ended->next;

    while (at != ended) {
        native_work *w = list_entry(at, native_work, node);

        at = at->next;
        if (w->group == g)
            hand_over(w, LS_OK, NULL);
    }
}

static void native_abort_group(native_group *g, ls_status status, const char *text)
{
    g->is_broken = true;
    g->has_cause = false;
    match_cancel(g);
    if (g->team != NULL)
        team_abort(g->team, status, text);
    end_complete(g);
    end_list(&g->works, status, text);
    end_list(&g->directs, status, text);
}

static const char *native_transport(native_group *g)
{
    int n_local = 0;

    for (int i = 0; i < g->info->size; i++)
        if (g->peers[i]->is_local)
            n_local++;
    if (n_local == 0)
        return "tcp";
    return n_local == g->info->size - 1 ? "shm" : "shm+tcp";
}

// --- memory ---

static ls_status native_alloc(native_state *s, size_t bytes, void **out)
{
    // Beyond that number, memory is only this rank's: slower, but not refused.
    if (s->local != NULL && segment_can_create(s->local))
        return segment_create(s->local, SEGMENT_KEY_NONE, bytes, out);
    *out = ls_alloc_aligned(PAGE_BYTES, bytes);
    if (*out == NULL)
        return ls_fail(LS_ENOMEM, "no memory for %zu bytes", bytes);
    memset(*out, 0, bytes);
    return LS_OK;
}

static void native_free(native_state *s, void *memory)
{
    if (s->local == NULL || !segment_destroy(s->local, memory))
        ls_free(memory);
}

static void release_map(void *kept)
{
    segment_map_release(kept);
}

static void *native_keep(native_state *s, void *memory, void (**release)(void *kept))
{
    segment_map *map = s->local == NULL ? NULL : segment_keep(s->local, memory);

    *release = map == NULL ? ls_free : release_map;
    return map == NULL ? memory : map;
}

// --- life ---

static bool is_delivered(native_state *s)
{
    bool all = true;

    for (int i = 0; i < s->size; i++) {
        peer_link *l = s->peers[i].link;

        if (l == NULL || l->is_cut || l->is_ended)
            continue;
        (void)flush_peer(&s->peers[i]);
        (void)link_receive(l); // close() with buffered bytes would discard what is not sent yet
        if (link_has_output(l) && !l->is_cut && !l->is_ended)
            all = false;
    }
    return all;
}

static bool is_acknowledged(native_state *s)
{
    bool all = true;

    for (int i = 0; i < s->size; i++) {
        peer_link *l = s->peers[i].link;

        if (l == NULL || l->is_ended)
            continue;
        (void)link_receive(l);
        if (!l->is_ended && !l->is_cut && !link_is_delivered(l))
            all = false;
    }
    return all;
}

static void wait_until(native_state *s, bool (*is_so)(native_state *), int64_t deadline_ms)
{
    while (!is_so(s) && ls_deadline_left(deadline_ms) != 0) {
        struct pollfd nothing = {.fd = -1};

        if (s->mesh != NULL)
            (void)mesh_progress(s->mesh);
        (void)poll(&nothing, 1, CLOSE_STEP_MS);
    }
}

void native_destroy(native_state *s)
{
    mesh_close(s->mesh);
    while (!list_empty(&s->unexpected))
        match_free_unexpected(list_entry(s->unexpected.next, unexpected_message, node));
    for (int i = 0; i < s->size; i++) {
        match_free(&s->peers[i]);
        link_destroy(s->peers[i].link);
        ls_free(s->peers[i].unreachable);
        ls_free(s->peers[i].ways);
    }
    message_pool_destroy(&s->pool);
    free_works(&s->free_collectives);
    free_works(&s->free_directs);
    local_leave(s->local);
    sleep_destroy(s->sleepers);
    algorithm_table_free(s->algorithms);
    ls_free(s->closed);
    ls_free(s->host_names);
    ls_free(s->peers);
    ls_free(s);
}

/* Sends what is queued, then finishes the links and reads until the peers' systems have
 * everything. */
static void native_close(native_state *s, int64_t timeout_ms)
{
    const int64_t deadline_ms = ls_deadline_ms(timeout_ms);

    LS_ASSERT(list_empty(&s->groups));
    wait_until(s, is_delivered, deadline_ms);
    for (int i = 0; i < s->size; i++) {
        const native_peer *p = &s->peers[i];

        if (p->link != NULL && p->link->ops != NULL)
            p->link->ops->finish(p->link);
        else if (p->link == NULL && p->is_local)
            link_shm_finish_unused(s->local, p->rank);
    }
    wait_until(s, is_acknowledged, deadline_ms);
    native_destroy(s);
}

// In a forked child: peers must see the end of their links when the parent ends, not the child.
static void native_forked(native_state *s)
{
    for (int i = 0; i < s->size; i++)
        if (s->peers[i].link != NULL)
            link_forked(s->peers[i].link);
    if (s->mesh != NULL)
        mesh_forked(s->mesh);
    if (s->local != NULL)
        local_forked(s->local);
    sleep_forked(s->sleepers);
}

static void init_lists(native_state *s)
{
    list_init(&s->groups);
    list_init(&s->runnable);
    list_init(&s->ended);
    list_init(&s->unexpected);
    list_init(&s->free_collectives);
    list_init(&s->free_directs);
    message_pool_init(&s->pool);
    for (int i = 0; i < s->size; i++) {
        s->peers[i].state = s;
        s->peers[i].rank = i;
        if (s->host->received != NULL)
            s->peers[i].received = s->host->received(s->host->self, i);
        match_init(&s->peers[i]);
    }
}

ls_status native_create(const comm_boot *boot, const comm_host *host, native_state **out)
{
    native_state *s = ls_calloc(1, sizeof(*s));
    ls_status st;

    if (s != NULL)
        s->peers = ls_calloc((size_t)boot->size, sizeof(*s->peers));
    if (s == NULL || s->peers == NULL) {
        ls_free(s);
        return ls_fail(LS_ENOMEM, "no memory for %d peers", boot->size);
    }
    s->host = host;
    s->rank = boot->rank;
    s->size = boot->size;
    s->ranks_per_core = boot->ranks_per_core;
    s->place = boot->place;
    s->is_tcp_only = strcmp(boot->transport, "tcp") == 0;
    s->segment_bytes = boot->segment_bytes == 0 ? SEGMENT_DEFAULT : boot->segment_bytes;
    if (s->segment_bytes > SEGMENT_MAX)
        s->segment_bytes = SEGMENT_MAX;
    init_lists(s);
    st = sleep_create(boot->control_fd, &s->sleepers);
    if (st == LS_OK)
        st = algorithm_table_create(boot->algorithms == NULL ? "" : boot->algorithms,
                                    &s->algorithms);
    if (st != LS_OK) {
        native_destroy(s);
        return st;
    }
    *out = s;
    return LS_OK;
}

static ls_status native_open(const comm_boot *boot, const comm_host *host, native_state **out)
{
    native_state *s;
    ls_status st = native_create(boot, host, &s);

    if (st != LS_OK) {
        if (boot->local_fd >= 0)
            close(boot->local_fd);
        if (boot->listen_fd >= 0)
            close(boot->listen_fd);
        return st;
    }
    st = native_join(s, boot);
    if (st == LS_OK)
        st = native_exchange_hosts(s, boot);
    if (st != LS_OK) {
        native_destroy(s);
        return st;
    }
    *out = s;
    return LS_OK;
}

static int native_probe(const backend_need *need)
{
    if (strcmp(need->name, "auto") != 0 && strcmp(need->name, "native") != 0) {
        (void)ls_fail(LS_EUNSUPPORTED, "the native backend is not called \"%s\"", need->name);
        return 0;
    }
    return 10;
}

const backend_ops native_backend_ops = {
    .abi = BACKEND_ABI,
    .name = "native",
    .compares_calls = true,
    .probe = native_probe,
    .open = native_open,
    .open_group = native_open_group,
    .close_group = native_close_group,
    .start = native_start,
    .progress = native_progress,
    .spin_wait = native_spin_wait,
    .is_arriving = native_is_arriving,
    .is_gone = native_is_gone,
    .wait = native_wait,
    .wake = native_wake,
    .abort_group = native_abort_group,
    .alloc = native_alloc,
    .free = native_free,
    .keep = native_keep,
    .transport = native_transport,
    .close = native_close,
    .forked = native_forked,
};
