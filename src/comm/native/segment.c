/* SPDX-License-Identifier: Apache-2.0 */
/*
 * segment.c - this rank's table of segments, its announcements to the peers, and the peers'
 * segments as they are mapped here. Ids only grow, so a table sorted by id is one sorted by age.
 * Links, teams, direct.c and ls_comm_alloc() call it.
 */
#include "comm/native/segment.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "comm/native/local_internal.h"

#include <string.h>

#define FLUSH_MS 20 /* between two attempts to send what a channel did not take */
/* Of one peer, which may replace segments that are still held here. */
#define VIEWS_MAX (2 * SEGMENTS_MAX)

/* --- announcing --- */

static ls_status announce(const own_segment *s, const local_peer *p, bool *sent)
{
    const channel_message m = {.type = CHANNEL_SEGMENT,
                               .a = s->id,
                               .c = s->key,
                               .d = s->map->bytes,
                               .e = p->is_thread ? s->map->token : 0};

    return channel_send(p->fd, &m, s->map->fd, sent);
}

/* A ring has one reader, so only that rank maps it. */
static bool is_for(const own_segment *s, const local_peer *p)
{
    return (s->key & SEGMENT_KINDS) != SEGMENT_KEY_LINK ||
           (s->key & ~SEGMENT_KINDS) == (uint64_t)(unsigned)p->rank;
}

/* Sends the segments that are new to this peer; false when the channel is full. */
static bool send_announcements(const local *l, local_peer *p)
{
    for (int i = 0; i < l->n_own; i++) {
        bool sent = true;

        if (l->own[i].id <= p->announced || !is_for(&l->own[i], p))
            continue;
        // The reading side notices and reports a broken channel.
        if (announce(&l->own[i], p, &sent) == LS_OK && !sent)
            return false;
        p->announced = l->own[i].id;
    }
    p->announced = l->last_id;
    return true;
}

static bool send_removals(const local *l, local_peer *p)
{
    while (p->gone_acked < l->first_removal + (uint64_t)l->n_removed) {
        const channel_message m = {.type = CHANNEL_GONE,
                                   .a = l->removed[p->gone_acked - l->first_removal]};
        bool sent = true;

        if (channel_send(p->fd, &m, -1, &sent) == LS_OK && !sent)
            return false;
        p->gone_acked++;
    }
    return true;
}

/* Closes descriptors that every peer has, and drops removals that every peer knows. */
static void drop_acked(local *l)
{
    uint64_t acked = l->first_removal + (uint64_t)l->n_removed;
    int n;

    l->announced = l->last_id;
    for (int i = 0; i < l->count - 1; i++) {
        if (l->peers[i]->announced < l->announced)
            l->announced = l->peers[i]->announced;
        if (l->peers[i]->gone_acked < acked)
            acked = l->peers[i]->gone_acked;
    }
    for (int i = 0; i < l->n_own; i++) {
        if (l->own[i].id <= l->announced)
            segment_map_close_fd(l->own[i].map);
    }
    n = (int)(acked - l->first_removal);
    l->n_removed -= n;
    l->first_removal = acked;
    memmove(l->removed, l->removed + n, (size_t)l->n_removed * sizeof(*l->removed));
}

void segment_announce_all(local *l)
{
    char saved[LS_ERROR_BYTES];

    ls_error_save(saved);
    l->pending = false;
    for (int i = 0; i < l->count - 1; i++) {
        const bool is_full = !send_announcements(l, l->peers[i]) || !send_removals(l, l->peers[i]);

        atomic_store_explicit(&l->peers[i]->is_full, is_full, memory_order_relaxed);
        l->pending |= is_full;
    }
    drop_acked(l);
    ls_error_restore(saved);
}

/* --- this rank's segments --- */

/* Reserves an entry for one more segment and, later, its removal: destroying cannot fail. */
static ls_status reserve_slot(local *l)
{
    const int capacity = l->capacity == 0 ? 16 : 2 * l->capacity;
    own_segment *own;
    uint32_t *removed;

    if (l->n_own + l->n_removed >= SEGMENTS_MAX)
        return ls_fail(LS_ENOMEM, "this rank shares %d segments already", l->n_own);
    if (l->n_own + l->n_removed < l->capacity)
        return LS_OK;
    own = ls_realloc(l->own, (size_t)capacity, sizeof(*own));
    if (own == NULL)
        return ls_fail(LS_ENOMEM, "no memory for a table of %d segments", capacity);
    l->own = own;
    removed = ls_realloc(l->removed, (size_t)capacity, sizeof(*removed));
    if (removed == NULL)
        return ls_fail(LS_ENOMEM, "no memory for a table of %d segments", capacity);
    l->removed = removed;
    l->capacity = capacity;
    return LS_OK;
}

ls_status segment_create(local *l, uint64_t key, size_t bytes, void **memory)
{
    own_segment *s;
    segment_map *map;

    if (l->last_id == UINT32_MAX)
        return ls_fail(LS_ENOMEM, "this rank has shared too many segments");
    LS_TRY(reserve_slot(l));
    LS_TRY(segment_map_create(segment_token(), bytes, key == SEGMENT_KEY_NONE, &map));
    s = &l->own[l->n_own++];
    *s = (own_segment){.map = map, .key = key, .id = ++l->last_id};
    segment_announce_all(l);
    *memory = map->base;
    return LS_OK;
}

void segment_destroy(local *l, void *memory)
{
    for (int i = 0; i < l->n_own; i++) {
        if (l->own[i].map->base != memory)
            continue;
        l->removed[l->n_removed++] = l->own[i].id;
        segment_map_release(l->own[i].map);
        l->n_own--;
        memmove(&l->own[i], &l->own[i + 1], (size_t)(l->n_own - i) * sizeof(*l->own));
        segment_announce_all(l);
        return;
    }
    if (memory != NULL)
        ls_log(LS_LOG_ERROR, "comm", "freed memory is not a segment of this rank");
}

segment_map *segment_keep(const local *l, const void *memory)
{
    for (int i = 0; i < l->n_own; i++) {
        if (l->own[i].map->base == memory)
            return segment_map_share(l->own[i].map->token);
    }
    return NULL;
}

static bool holds(const own_segment *s, const void *memory, size_t bytes)
{
    const uintptr_t base = (uintptr_t)s->map->base;
    const uintptr_t at = (uintptr_t)memory;

    return at >= base && at - base <= s->map->bytes && bytes <= s->map->bytes - (at - base);
}

bool segment_find(local *l, const void *memory, size_t bytes, segment_ref *ref)
{
    int i = l->hint;

    if (i >= l->n_own || !holds(&l->own[i], memory, bytes)) {
        for (i = 0; i < l->n_own && !holds(&l->own[i], memory, bytes); i++)
            continue;
    }
    if (i == l->n_own || l->own[i].id > l->announced)
        return false;
    l->hint = i;
    ref->id = l->own[i].id;
    ref->offset = (uint64_t)((const char *)memory - (const char *)l->own[i].map->base);
    return true;
}

/* --- the peers' segments --- */

/* Index of the first view with an id of at least `id`. */
static int view_index(const local_peer *p, uint32_t id)
{
    int low = 0;
    int high = p->n_views;

    while (low < high) {
        const int middle = low + (high - low) / 2;

        if (p->views[middle]->id < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static segment_view *find_view(const local_peer *p, uint32_t id)
{
    const int i = view_index(p, id);

    return i < p->n_views && p->views[i]->id == id ? p->views[i] : NULL;
}

static void drop_view(segment_view *v)
{
    local_peer *p = v->owner;
    const int i = view_index(p, v->id);

    p->n_views--;
    memmove(&p->views[i], &p->views[i + 1], (size_t)(p->n_views - i) * sizeof(segment_view *));
    segment_map_release(v->map);
    ls_free(v);
}

static ls_status reserve_view(local_peer *p)
{
    const int capacity = p->views_capacity == 0 ? 16 : 2 * p->views_capacity;
    segment_view **views;

    if (p->n_views == VIEWS_MAX)
        return ls_fail(LS_EPROTO, "rank %d shares over %d segments", p->rank, VIEWS_MAX);
    if (p->n_views < p->views_capacity)
        return LS_OK;
    views = ls_realloc(p->views, (size_t)capacity, sizeof(segment_view *));
    if (views == NULL)
        return ls_fail(LS_ENOMEM, "no memory for the segments of rank %d", p->rank);
    p->views = views;
    p->views_capacity = capacity;
    return LS_OK;
}

/* Maps an announced segment; NULL when this process cannot. Takes fd. */
static segment_map *map_announced(const local_peer *p, const channel_message *m, int fd)
{
    segment_map *map = NULL;

    if (m->e != 0 && p->is_thread)
        map = segment_map_share(m->e);
    if (map != NULL) {
        file_close(&fd);
        return map;
    }
    // Of another process, or of a thread that has destroyed it since.
    if (fd < 0 || m->d > SIZE_MAX ||
        segment_map_attach(fd, (size_t)m->d, m->c == SEGMENT_KEY_NONE, p->rank, &map) != LS_OK)
        return NULL;
    return map;
}

ls_status segment_on_announced(local_peer *p, const channel_message *m, int fd)
{
    segment_view *v = NULL;
    ls_status st = reserve_view(p);

    if (st == LS_OK && m->a <= p->last_id)
        st = ls_fail(LS_EPROTO, "rank %d announced segment %u after %u", p->rank, m->a, p->last_id);
    if (st == LS_OK) {
        v = ls_calloc(1, sizeof(*v));
        if (v == NULL)
            st = ls_fail(LS_ENOMEM, "no memory for a segment of rank %d", p->rank);
    }
    if (st != LS_OK) {
        file_close(&fd);
        return st;
    }
    *v = (segment_view){.owner = p, .map = map_announced(p, m, fd), .key = m->c, .id = m->a};
    p->views[p->n_views++] = v;
    p->last_id = m->a;
    return LS_OK;
}

ls_status segment_on_removed(local_peer *p, uint32_t id)
{
    segment_view *v = find_view(p, id);

    // A segment destroyed before its announcement is not known here.
    if (v == NULL)
        return LS_OK;
    v->gone = true;
    if (v->holds == 0)
        drop_view(v);
    return LS_OK;
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
    for (int i = 0; i < l->n_own; i++) {
        const segment_map *map = l->own[i].map;

        if (l->own[i].id == ref.id && ref.offset <= map->bytes &&
            bytes <= map->bytes - ref.offset) {
            *memory = (char *)map->base + ref.offset;
            return LS_OK;
        }
    }
    return ls_fail(LS_EPROTO, "segment %u is not this rank's", ref.id);
}

ls_status segment_resolve(local *l, int peer, segment_ref ref, size_t bytes, segment_view **view,
                          void **memory)
{
    local_peer *p = local_find_peer(l, peer);
    segment_view *v;
    bool more = true;

    *view = NULL;
    if (peer == l->rank)
        return resolve_own(l, ref, bytes, memory);
    if (p == NULL)
        return ls_fail(LS_EPROTO, "rank %d is not on this host", peer);
    v = find_view(p, ref.id);
    while (v == NULL && more) {
        more = local_read_peer(p);
        v = find_view(p, ref.id);
    }
    if (v == NULL &&
        (ref.id <= p->last_id || atomic_load_explicit(&p->ended, memory_order_relaxed)))
        return ls_fail(LS_EPEER, "rank %d has freed its segment %u", peer, ref.id);
    if (v == NULL)
        return ls_fail(LS_EPROTO, "rank %d names its segment %u, which it has not announced", peer,
                       ref.id);
    return hold_view(v, ref.offset, bytes, view, memory);
}

/* The newest segment with this key. */
static segment_view *find_key(const local_peer *p, uint64_t key)
{
    for (int i = p->n_views - 1; i >= 0; i--) {
        if (p->views[i]->key == key && !p->views[i]->gone)
            return p->views[i];
    }
    return NULL;
}

static void wait_for_channel(const local_peer *p, int64_t deadline_ms)
{
    struct pollfd fd = {.fd = p->fd, .events = POLLIN};
    const int left = ls_deadline_left(deadline_ms);

    // Other channels may have announcements to flush meanwhile, and check() must be called.
    (void)poll(&fd, 1, left < 0 || left > FLUSH_MS ? FLUSH_MS : left);
}

ls_status segment_wait(local *l, int peer, uint64_t key, size_t bytes, int64_t deadline_ms,
                       segment_view **view, void **memory)
{
    local_peer *p = local_find_peer(l, peer);

    if (p == NULL)
        return ls_fail(LS_EPROTO, "rank %d is not on this host", peer);
    for (;;) {
        segment_view *v = find_key(p, key);

        if (v != NULL)
            return hold_view(v, 0, bytes, view, memory);
        if (atomic_load_explicit(&p->ended, memory_order_relaxed))
            return ls_fail(p->end_status, "rank %d has not shared its memory: %s", peer,
                           p->end_text);
        if (ls_deadline_left(deadline_ms) == 0)
            return ls_fail(LS_ETIMEOUT, "rank %d has not shared its memory in time", peer);
        LS_TRY(local_check(l));
        wait_for_channel(p, deadline_ms);
        // Of all peers: while descriptors wait here, their senders may be unable to send others.
        local_receive(l);
    }
}

void segment_release(segment_view *view)
{
    if (view == NULL)
        return;
    view->holds--;
    if (view->gone && view->holds == 0)
        drop_view(view);
}

/* --- the end --- */

void segment_free_views(local_peer *p)
{
    for (int i = 0; i < p->n_views; i++) {
        segment_map_release(p->views[i]->map);
        ls_free(p->views[i]);
    }
    ls_free(p->views);
}

void segment_free_own(local *l)
{
    for (int i = 0; i < l->n_own; i++)
        segment_map_release(l->own[i].map);
    ls_free(l->own);
    ls_free(l->removed);
}
