/* SPDX-License-Identifier: Apache-2.0 */
/*
 * segment.c - this rank's segments in the table of its page, the descriptors that it sends to the
 * peers that ask, and the peers' segments as they are mapped here. Teams, direct.c and
 * ls_comm_alloc() call it.
 *
 * An id is the slot in the table and a number that only grows until it wraps around. So a reference
 * is checked against the slot alone; a mapping is recognised by the serial, which never repeats.
 */
#include "comm/backends/native/memory/segment.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/file.h"
#include "comm/backends/native/memory/local_internal.h"

#include <errno.h>

#define WAIT_MS    100 /* between two calls of check() */
#define NUMBER_MAX (UINT32_MAX / SEGMENTS_MAX)

static int slot_of(uint32_t id)
{
    return (int)(id % SEGMENTS_MAX);
}

/* --- this rank's segments --- */

static segment_entry *own_entry(const local *l, int slot)
{
    return &local_segments_of(l, l->index)[slot];
}

static ls_status find_free_slot(local *l, int *slot)
{
    if (l->page == NULL)
        return ls_fail(LS_EUNSUPPORTED, "no other rank is on this host");
    if (l->own == NULL)
        l->own = ls_calloc(SEGMENTS_MAX, sizeof(*l->own));
    if (l->own == NULL)
        return ls_fail(LS_ENOMEM, "no memory for a table of %d segments", SEGMENTS_MAX);
    for (*slot = 0; *slot < SEGMENTS_MAX; (*slot)++) {
        if (l->own[*slot].map == NULL)
            return LS_OK;
    }
    return ls_fail(LS_ENOMEM, "this rank shares %d segments already", SEGMENTS_MAX);
}

bool segment_can_create(local *l)
{
    char saved[LS_ERROR_BYTES];
    int slot;
    bool can;

    ls_error_save(saved);
    can = find_free_slot(l, &slot) == LS_OK;
    ls_error_restore(saved);
    return can;
}

/* The id comes last: a peer that reads it sees the rest. */
static void publish(local *l, const own_segment *s, uint64_t key)
{
    segment_entry *e = own_entry(l, slot_of(s->id));

    atomic_store_explicit(&e->serial, ++l->last_serial, memory_order_relaxed);
    atomic_store_explicit(&e->key, key, memory_order_relaxed);
    atomic_store_explicit(&e->bytes, s->map->bytes, memory_order_relaxed);
    atomic_store_explicit(&e->token, s->map->token, memory_order_relaxed);
    atomic_store_explicit(&l->page->last_segment, l->last_number, memory_order_relaxed);
    atomic_store_explicit(&e->id, s->id, memory_order_seq_cst);
}

ls_status segment_create(local *l, uint64_t key, size_t bytes, void **memory)
{
    own_segment *s;
    segment_map *map;
    int slot;

    LS_TRY(find_free_slot(l, &slot));
    LS_TRY(segment_map_create(segment_token(), bytes, key == SEGMENT_KEY_NONE, &map));
    l->last_number = l->last_number == NUMBER_MAX - 1 ? 1 : l->last_number + 1;
    s = &l->own[slot];
    *s = (own_segment){.map = map, .id = l->last_number * SEGMENTS_MAX + (uint32_t)slot};
    publish(l, s, key);
    // Peers wait for a key.
    for (int i = 0; key != SEGMENT_KEY_NONE && i < l->count - 1; i++)
        local_notify(l, l->peers[i]);
    *memory = map->base;
    return LS_OK;
}

static own_segment *find_own(const local *l, const void *memory)
{
    for (int i = 0; l->own != NULL && i < SEGMENTS_MAX; i++) {
        if (l->own[i].map != NULL && l->own[i].map->base == memory)
            return &l->own[i];
    }
    return NULL;
}

bool segment_destroy(local *l, const void *memory)
{
    own_segment *s = find_own(l, memory);

    if (s == NULL)
        return false;
    atomic_store_explicit(&own_entry(l, slot_of(s->id))->id, 0, memory_order_seq_cst);
    atomic_fetch_add_explicit(&local_host_of(l)->removals, 1, memory_order_seq_cst);
    segment_map_close_fd(s->map);
    segment_map_release(s->map);
    *s = (own_segment){.map = NULL};
    return true;
}

void segment_close_fd(local *l, const void *memory)
{
    own_segment *s = find_own(l, memory);

    if (s != NULL)
        segment_map_close_fd(s->map);
}

segment_map *segment_keep(const local *l, const void *memory)
{
    own_segment *s = find_own(l, memory);

    return s == NULL ? NULL : segment_map_share(s->map->token);
}

static bool holds(const own_segment *s, const void *memory, size_t bytes)
{
    uintptr_t base;
    const uintptr_t at = (uintptr_t)memory;

    if (s->map == NULL)
        return false;
    base = (uintptr_t)s->map->base;
    return at >= base && at - base <= s->map->bytes && bytes <= s->map->bytes - (at - base);
}

bool segment_find(local *l, const void *memory, size_t bytes, segment_ref *ref)
{
    int i = l->hint;

    if (l->own == NULL)
        return false;
    if (!holds(&l->own[i], memory, bytes)) {
        for (i = 0; i < SEGMENTS_MAX && !holds(&l->own[i], memory, bytes); i++)
            continue;
    }
    if (i == SEGMENTS_MAX)
        return false;
    l->hint = i;
    ref->id = l->own[i].id;
    ref->offset = (uint64_t)((const char *)memory - (const char *)l->own[i].map->base);
    return true;
}

/* --- descriptors for peers --- */

/* False: the mailbox did not take it. */
static bool answer(local *l, const local_peer *p, uint32_t id)
{
    own_segment *s = l->own == NULL ? NULL : &l->own[slot_of(id)];
    const bool is_live = s != NULL && s->map != NULL && s->id == id && s->map->fd >= 0;
    channel_message m = {
        .type = CHANNEL_SEGMENT, .a = id, .b = (uint32_t)l->rank, .e = local_host_of(l)->secret};
    int blocked = 0;

    if (is_live) {
        m.c = atomic_load_explicit(&own_entry(l, slot_of(id))->serial, memory_order_relaxed);
        m.d = s->map->bytes;
    }
    // A peer that has ended needs no answer.
    if (channel_send(l->mailbox, &p->page->mailbox, &m, is_live ? s->map->fd : -1, &blocked) ==
            LS_OK &&
        blocked != 0)
        return false;
    if (is_live && ++s->n_sent == l->count - 1)
        segment_map_close_fd(s->map);
    return true;
}

void segment_serve(local *l)
{
    _Atomic uint64_t *requests = local_requests_of(l, l->index);

    l->has_unsent = false;
    for (int i = 0; i < l->count - 1; i++) {
        local_peer *p = l->peers[i];
        uint64_t request = atomic_load_explicit(&requests[p->index], memory_order_seq_cst);

        if (request == 0)
            continue;
        if (!answer(l, p, (uint32_t)request)) {
            l->has_unsent = true;
            continue;
        }
        // The peer may ask again as soon as it has the answer.
        (void)atomic_compare_exchange_strong_explicit(&requests[p->index], &request, 0,
                                                      memory_order_seq_cst, memory_order_relaxed);
        // A rank that does not sleep has no descriptor to watch.
        local_notify(l, p);
    }
}

/* Asks the owner, unless this rank waits for others already. */
static void ask(local *l, local_peer *p, uint32_t id)
{
    const int most = l->count < LOCAL_REQUESTS_MAX ? LOCAL_REQUESTS_MAX / l->count : 1;

    if (p->requested != 0 || l->n_requested >= most)
        return;
    p->requested = id;
    l->n_requested++;
    atomic_store_explicit(&local_requests_of(l, p->index)[l->index],
                          (uint64_t)++l->last_request << 32 | id, memory_order_seq_cst);
    local_notify(l, p);
}

/* --- the peers' segments --- */

/* A consistent copy of a slot of the peer's table; false: another segment, or none, is there. */
static bool read_entry(const local *l, const local_peer *p, uint32_t id, segment_entry *out)
{
    segment_entry *e = &local_segments_of(l, p->index)[slot_of(id)];

    if (id == 0 || atomic_load_explicit(&e->id, memory_order_seq_cst) != id)
        return false;
    out->id = id;
    out->serial = atomic_load_explicit(&e->serial, memory_order_acquire);
    out->key = atomic_load_explicit(&e->key, memory_order_acquire);
    out->bytes = atomic_load_explicit(&e->bytes, memory_order_acquire);
    out->token = atomic_load_explicit(&e->token, memory_order_acquire);
    return atomic_load_explicit(&e->id, memory_order_seq_cst) == id;
}

static void free_view(segment_view *v)
{
    segment_map_release(v->map);
    ls_free(v);
}

static void drop_view(segment_view *v)
{
    v->owner->views[slot_of(v->id)] = NULL;
    v->is_gone = true;
    if (v->holds == 0)
        free_view(v);
}

static void sweep_peer(const local *l, local_peer *p)
{
    segment_entry e;

    for (int i = 0; p->views != NULL && i < SEGMENTS_MAX; i++) {
        segment_view *v = p->views[i];

        if (v != NULL && (!read_entry(l, p, v->id, &e) || e.serial != v->serial))
            drop_view(v);
    }
}

void segment_sweep(local *l)
{
    for (int i = 0; i < l->count - 1; i++)
        sweep_peer(l, l->peers[i]);
}

/* Takes the map (NULL: it cannot be mapped here). LS_ENOMEM. */
static ls_status add_view(local_peer *p, const segment_entry *e, segment_map *map)
{
    segment_view *v = ls_calloc(1, sizeof(*v));

    if (p->views == NULL)
        p->views = ls_calloc(SEGMENTS_MAX, sizeof(segment_view *));
    if (v == NULL || p->views == NULL) {
        segment_map_release(map);
        ls_free(v);
        return ls_fail(LS_ENOMEM, "no memory for a segment of rank %d", p->rank);
    }
    if (p->views[slot_of(e->id)] != NULL)
        drop_view(p->views[slot_of(e->id)]);
    *v = (segment_view){.owner = p, .map = map, .serial = e->serial, .id = e->id};
    p->views[slot_of(e->id)] = v;
    return LS_OK;
}

void segment_on_message(local *l, const channel_message *m, int fd)
{
    local_peer *p = m->b <= INT32_MAX ? local_find_peer(l, (int)m->b) : NULL;
    segment_map *map = NULL;
    segment_entry e;

    if (p == NULL || p->requested == 0 || p->requested != m->a) {
        file_close(&fd);
        return;
    }
    p->requested = 0;
    l->n_requested--;
    if (!read_entry(l, p, m->a, &e) || (fd >= 0 && (e.serial != m->c || m->d > SIZE_MAX))) {
        file_close(&fd);
        return;
    }
    if (fd >= 0 &&
        segment_map_attach(fd, (size_t)m->d, e.key == SEGMENT_KEY_NONE, p->rank, &map) != LS_OK)
        map = NULL;
    (void)!add_view(p, &e, map); // without memory, the next segment_resolve() asks again
}

static ls_status hold_view(segment_view *v, uint64_t offset, size_t bytes, segment_view **view,
                           void **memory)
{
    const int peer = v->owner->rank;

    if (v->map == NULL)
        return ls_fail(LS_ENOMEM, "segment %u of rank %d could not be mapped here", v->id, peer);
    if (offset > v->map->bytes || bytes > v->map->bytes - (size_t)offset)
        return ls_fail(LS_EPROTO,
                       "rank %d names %zu bytes at %llu of its segment %u, which has %zu", peer,
                       bytes, (unsigned long long)offset, v->id, v->map->bytes);
    v->holds++;
    *view = v;
    *memory = (char *)v->map->base + offset;
    return LS_OK;
}

static ls_status resolve_own(const local *l, segment_ref ref, size_t bytes, void **memory)
{
    const own_segment *s = l->own == NULL ? NULL : &l->own[slot_of(ref.id)];

    if (s == NULL || s->map == NULL || s->id != ref.id || ref.offset > s->map->bytes ||
        bytes > s->map->bytes - ref.offset)
        return ls_fail(LS_EPROTO, "segment %u is not this rank's", ref.id);
    *memory = (char *)s->map->base + ref.offset;
    return LS_OK;
}

static ls_status fail_unknown(const local_peer *p, uint32_t id)
{
    if (id / SEGMENTS_MAX > atomic_load_explicit(&p->page->last_segment, memory_order_seq_cst))
        return ls_fail(LS_EPROTO, "rank %d names its segment %u, which it never had", p->rank, id);
    return ls_fail(LS_EPEER, "rank %d has freed its segment %u", p->rank, id);
}

/* Threads of this process share the owner's mapping without asking. */
static ls_status share_with_thread(local_peer *p, const segment_entry *e)
{
    segment_map *map = segment_map_share(e->token);

    return map == NULL ? fail_unknown(p, e->id) : add_view(p, e, map);
}

static segment_view *find_view(const local_peer *p, const segment_entry *e)
{
    segment_view *v = p->views == NULL ? NULL : p->views[slot_of(e->id)];

    return v != NULL && v->serial == e->serial ? v : NULL;
}

ls_status segment_resolve(local *l, int peer, segment_ref ref, size_t bytes, segment_view **view,
                          void **memory)
{
    local_peer *p = local_find_peer(l, peer);
    segment_view *v;
    segment_entry e;

    *view = NULL;
    *memory = NULL;
    if (peer == l->rank)
        return resolve_own(l, ref, bytes, memory);
    if (p == NULL)
        return ls_fail(LS_EPROTO, "rank %d is not on this host", peer);
    if (!read_entry(l, p, ref.id, &e))
        return fail_unknown(p, ref.id);
    if (p->is_thread && find_view(p, &e) == NULL)
        LS_TRY(share_with_thread(p, &e));
    v = find_view(p, &e);
    if (v != NULL)
        return hold_view(v, ref.offset, bytes, view, memory);
    if (atomic_load_explicit(&p->ended, memory_order_relaxed))
        return fail_unknown(p, ref.id);
    ask(l, p, ref.id);
    return LS_OK;
}

/* The id of the newest segment with this key, 0: none. */
static uint32_t find_key(const local *l, const local_peer *p, uint64_t key)
{
    const segment_entry *all = local_segments_of(l, p->index);
    uint32_t found = 0;
    uint64_t serial = 0;
    segment_entry e;

    for (int i = 0; i < SEGMENTS_MAX; i++) {
        const uint32_t id = atomic_load_explicit(&all[i].id, memory_order_seq_cst);

        if (id == 0 || slot_of(id) != i || !read_entry(l, p, id, &e) || e.key != key ||
            e.serial <= serial)
            continue;
        found = id;
        serial = e.serial;
    }
    return found;
}

static void sleep_for_events(local *l, int64_t deadline_ms)
{
    struct pollfd fds[LOCAL_FDS_MAX];
    const int left = ls_deadline_left(deadline_ms);
    int most = left < 0 || left > WAIT_MS ? WAIT_MS : left;

    // This wait handles neither of them.
    if (l->has_unsent || l->n_unreported > 0)
        most = 1;
    local_prepare_sleep(l);
    if (!local_has_events(l) || most == 1)
        (void)poll(fds, (nfds_t)local_poll_fds(l, fds), most);
    local_end_sleep(l);
    (void)local_receive(l);
}

ls_status segment_wait(local *l, int peer, uint64_t key, size_t bytes, int64_t deadline_ms,
                       segment_view **view, void **memory)
{
    const local_peer *p = local_find_peer(l, peer);

    if (p == NULL)
        return ls_fail(LS_EPROTO, "rank %d is not on this host", peer);
    for (;;) {
        const segment_ref ref = {.id = find_key(l, p, key)};

        *memory = NULL;
        if (ref.id != 0) {
            const ls_status st = segment_resolve(l, peer, ref, bytes, view, memory);

            // Freed meanwhile: there may be another.
            if (st != LS_EPEER && (st != LS_OK || *memory != NULL))
                return st;
        }
        if (atomic_load_explicit(&p->ended, memory_order_relaxed))
            return ls_fail(LS_EPEER, "rank %d ended before it had shared its memory", peer);
        if (ls_deadline_left(deadline_ms) == 0)
            return ls_fail(LS_ETIMEOUT, "rank %d has not shared its memory in time", peer);
        LS_TRY(local_check(l));
        sleep_for_events(l, deadline_ms);
    }
}

void segment_release(segment_view *view)
{
    if (view == NULL)
        return;
    view->holds--;
    if (view->is_gone && view->holds == 0)
        free_view(view);
}

/* --- the end --- */

void segment_free_views(local_peer *p)
{
    for (int i = 0; p->views != NULL && i < SEGMENTS_MAX; i++) {
        if (p->views[i] != NULL)
            free_view(p->views[i]);
    }
    ls_free(p->views);
}

void segment_free_own(local *l)
{
    for (int i = 0; l->own != NULL && i < SEGMENTS_MAX; i++)
        segment_map_release(l->own[i].map);
    ls_free(l->own);
}
