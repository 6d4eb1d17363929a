/* SPDX-License-Identifier: Apache-2.0 */
/*
 * native_segment.c - shared memory of the ranks of one host: bounds, lifetimes, announcements, and
 * failures.
 */
#include "base/unit.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/file.h"
#include "comm/native/local_internal.h"
#include "comm/native/segment.h"
#include "comm/native_ranks.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#define KEY(n) (SEGMENT_KEY_TEAM | (uint64_t)(n))

static const ranks_kind kinds[] = {AS_THREADS, AS_PROCESSES};

/* What forked ranks share: the steps they have reached, and a reference. */
typedef struct notes {
    atomic_int step[4];
    segment_ref ref;
    uintptr_t address;
} notes;

static int reach(const comm_boot *boot, local *l, notes *n, int step)
{
    const int64_t deadline_ms = ls_deadline_ms(30000);

    atomic_store(&n->step[boot->rank], step);
    for (int r = 0; r < boot->size; r++) {
        while (atomic_load(&n->step[r]) < step && ls_deadline_left(deadline_ms) != 0) {
            local_flush(l);
            poll(NULL, 0, 1);
        }
        RANK_CHECK(atomic_load(&n->step[r]) >= step);
    }
    return 0;
}

static int share_one(const comm_boot *boot, void *arg)
{
    static const size_t sizes[] = {1, 4096, 4097, 1 << 20, (5 << 20) + 4};
    notes *n = arg;
    local *l = NULL;

    RANK_CHECK(local_join(boot, NULL, &l) == LS_OK);
    for (size_t i = 0; i < LS_COUNT_OF(sizes); i++) {
        const size_t bytes = sizes[i];
        segment_view *view = NULL;
        void *memory = NULL;
        unsigned char *at;

        if (boot->rank == 0) {
            RANK_CHECK(segment_create(l, SEGMENT_KEY_NONE, bytes, &memory) == LS_OK);
            RANK_CHECK((uintptr_t)memory % (bytes >= 1 << 20 ? 2 << 20 : 4096) == 0);
            for (size_t k = 0; k < bytes; k++)
                RANK_CHECK(((unsigned char *)memory)[k] == 0);
            ((unsigned char *)memory)[bytes - 1] = 17;
            n->address = (uintptr_t)memory;
            RANK_CHECK(segment_find(l, memory, bytes, &n->ref) && n->ref.offset == 0);
            RANK_CHECK(segment_find(l, (char *)memory + bytes - 1, 1, &n->ref));
            RANK_CHECK(n->ref.offset == bytes - 1);
            RANK_CHECK(!segment_find(l, (char *)memory + 1, bytes, &n->ref) || bytes == 0);
            RANK_CHECK(!segment_find(l, (char *)memory - 1, 1, &n->ref));
        }
        RANK_CHECK(reach(boot, l, n, 3 * (int)i + 1) == 0);
        if (boot->rank != 0) {
            RANK_CHECK(segment_resolve(l, 0, n->ref, 1, &view, &memory) == LS_OK);
            at = memory;
            RANK_CHECK(*at == 17);
            // Threads see it at the owner's address.
            RANK_CHECK(!local_is_thread(l, 0) || n->address + bytes - 1 == (uintptr_t)at);
            segment_release(view);
            RANK_CHECK(segment_resolve(l, 0, n->ref, 2, &view, &memory) == LS_EPROTO);
            n->ref.offset = UINT64_MAX;
            RANK_CHECK(segment_resolve(l, 0, n->ref, 2, &view, &memory) == LS_EPROTO);
            n->ref.id += 100;
            RANK_CHECK(segment_resolve(l, 0, n->ref, 1, &view, &memory) == LS_EPROTO);
            RANK_CHECK(view == NULL && strstr(ls_last_error(), "rank 0") != NULL);
        }
        RANK_CHECK(reach(boot, l, n, 3 * (int)i + 2) == 0);
        if (boot->rank == 0)
            segment_destroy(l, (void *)n->address);
        RANK_CHECK(reach(boot, l, n, 3 * (int)i + 3) == 0);
    }
    local_leave(l);
    return 0;
}

static void peers_access_a_segment_within_its_bounds(void **state)
{
    (void)state;
    for (size_t k = 0; k < LS_COUNT_OF(kinds); k++)
        assert_int_equal(ranks_run(kinds[k], 2, share_one, ranks_shared(sizeof(notes))), 0);
}

static int destroy_while_held(const comm_boot *boot, void *arg)
{
    notes *n = arg;
    segment_view *view = NULL;
    void *memory = NULL;
    local *l = NULL;

    RANK_CHECK(local_join(boot, NULL, &l) == LS_OK);
    if (boot->rank == 0) {
        RANK_CHECK(segment_create(l, KEY(1), 8192, &memory) == LS_OK);
        memset(memory, 42, 8192);
        RANK_CHECK(segment_find(l, memory, 8192, &n->ref));
    }
    RANK_CHECK(reach(boot, l, n, 1) == 0);
    if (boot->rank != 0)
        RANK_CHECK(segment_resolve(l, 0, n->ref, 8192, &view, &memory) == LS_OK);
    RANK_CHECK(reach(boot, l, n, 2) == 0);
    if (boot->rank == 0)
        segment_destroy(l, memory);
    RANK_CHECK(reach(boot, l, n, 3) == 0);
    if (boot->rank != 0) {
        local_receive(l);
        // Still mapped, as long as it is held; then gone for good.
        for (int i = 0; i < 8192; i++)
            RANK_CHECK(((char *)memory)[i] == 42);
        RANK_CHECK(local_find_peer(l, 0)->n_views == 2);
        segment_release(view);
        RANK_CHECK(local_find_peer(l, 0)->n_views == 1);
        RANK_CHECK(segment_resolve(l, 0, n->ref, 1, &view, &memory) == LS_EPEER);
        RANK_CHECK(segment_wait(l, 0, KEY(1), 1, ls_deadline_ms(20), &view, &memory) ==
                   LS_ETIMEOUT);
    }
    RANK_CHECK(reach(boot, l, n, 4) == 0);
    local_leave(l);
    return 0;
}

static void held_segment_outlives_its_destruction(void **state)
{
    (void)state;
    for (size_t k = 0; k < LS_COUNT_OF(kinds); k++)
        assert_int_equal(ranks_run(kinds[k], 2, destroy_while_held, ranks_shared(sizeof(notes))),
                         0);
}

/* Far more announcements than a channel takes, to a peer that does not read. */
static int announce_many(const comm_boot *boot, void *arg)
{
    enum { MANY = 1500 };
    notes *n = arg;
    segment_view *view = NULL;
    void *memory = NULL;
    void *first = NULL;
    segment_ref ref;
    local *l = NULL;

    RANK_CHECK(local_join(boot, NULL, &l) == LS_OK);
    if (boot->rank == 0) {
        for (int i = 0; i < MANY; i++) {
            RANK_CHECK(segment_create(l, KEY(i), 64, &memory) == LS_OK);
            *(int *)memory = i;
            first = i == 0 ? memory : first;
        }
        // A segment that is not announced yet has no reference.
        RANK_CHECK(l->pending && segment_find(l, first, 64, &ref));
        RANK_CHECK(!segment_find(l, memory, 64, &ref));
    }
    RANK_CHECK(reach(boot, l, n, 1) == 0);
    if (boot->rank == 0) {
        while (l->pending) {
            local_flush(l);
            poll(NULL, 0, 1);
        }
        RANK_CHECK(segment_find(l, memory, 64, &ref));
    } else {
        for (int i = MANY - 1; i >= 0; i -= 100) {
            RANK_CHECK(segment_wait(l, 0, KEY(i), 64, ls_deadline_ms(30000), &view, &memory) ==
                       LS_OK);
            RANK_CHECK(*(int *)memory == i);
            segment_release(view);
        }
    }
    RANK_CHECK(reach(boot, l, n, 2) == 0);
    local_leave(l);
    return 0;
}

static void announcements_wait_for_a_slow_reader_without_blocking(void **state)
{
    (void)state;
    assert_int_equal(ranks_run(AS_PROCESSES, 2, announce_many, ranks_shared(sizeof(notes))), 0);
    assert_int_equal(ranks_run(AS_THREADS, 2, announce_many, ranks_shared(sizeof(notes))), 0);
}

/* Many segments in turn; neither tables nor descriptors nor mappings pile up. */
static int churn(const comm_boot *boot, void *arg)
{
    notes *n = arg;
    void *memory[8] = {NULL};
    segment_view *view = NULL;
    void *seen = NULL;
    local *l = NULL;

    RANK_CHECK(local_join(boot, NULL, &l) == LS_OK);
    for (int i = 0; i < 3000; i++) {
        void **m = &memory[i % 8];

        segment_destroy(l, *m);
        RANK_CHECK(segment_create(l, KEY(i), 4096, m) == LS_OK);
        local_receive(l);
    }
    RANK_CHECK(l->n_own == 9 && l->capacity <= 4096);
    RANK_CHECK(reach(boot, l, n, 1) == 0);
    local_receive(l);
    for (int r = 0; r < boot->size; r++) {
        if (r == boot->rank)
            continue;
        RANK_CHECK(segment_wait(l, r, KEY(2999), 4096, ls_deadline_ms(30000), &view, &seen) ==
                   LS_OK);
        segment_release(view);
    }
    RANK_CHECK(reach(boot, l, n, 2) == 0);
    for (int i = 0; i < boot->size - 1; i++) {
        const int64_t deadline_ms = ls_deadline_ms(30000);

        while (l->peers[i]->n_views != 9 && ls_deadline_left(deadline_ms) != 0) {
            local_receive(l);
            poll(NULL, 0, 1);
        }
        RANK_CHECK(l->peers[i]->n_views == 9);
    }
    RANK_CHECK(reach(boot, l, n, 3) == 0);
    for (int i = 0; i < 8; i++)
        segment_destroy(l, memory[i]);
    local_leave(l);
    return 0;
}

static void created_and_destroyed_segments_leave_nothing(void **state)
{
    (void)state;
    assert_int_equal(ranks_run(AS_PROCESSES, 3, churn, ranks_shared(sizeof(notes))), 0);
    assert_int_equal(ranks_run(AS_THREADS, 3, churn, ranks_shared(sizeof(notes))), 0);
}

static int fill_table(const comm_boot *boot, void *arg)
{
    void *memory = NULL;
    void *last = NULL;
    local *l = NULL;
    int n = 0;

    LS_UNUSED(arg);
    RANK_CHECK(local_join(boot, NULL, &l) == LS_OK);
    while (segment_create(l, KEY(0), 4096, &memory) == LS_OK) {
        last = memory;
        n++;
    }
    RANK_CHECK(n == SEGMENTS_MAX - 1);
    segment_destroy(l, last);
    RANK_CHECK(segment_create(l, KEY(0), 4096, &memory) == LS_OK);
    RANK_CHECK(segment_create(l, KEY(0), 0, &memory) != LS_OK);
    local_leave(l);
    return 0;
}

static void full_table_refuses_and_recovers(void **state)
{
    (void)state;
    assert_int_equal(ranks_run(AS_PROCESSES, 1, fill_table, NULL), 0);
}

/* False announcements: longer than their memory, memory that may shrink, an id twice, no memory. */
static int lie(const comm_boot *boot, void *arg)
{
    channel_message m = {.type = CHANNEL_SEGMENT, .a = 50, .d = 1 << 20};
    notes *n = arg;
    segment_view *view = NULL;
    void *memory = NULL;
    local *l = NULL;
    bool sent;

    RANK_CHECK(local_join(boot, NULL, &l) == LS_OK);
    if (boot->rank == 1) {
        const int to = local_find_peer(l, 0)->fd;
        int fd = memfd_create("short", MFD_CLOEXEC | MFD_ALLOW_SEALING);

        RANK_CHECK(fd >= 0 && ftruncate(fd, 4096) == 0);
        RANK_CHECK(channel_send(to, &m, fd, &sent) == LS_OK && sent); // may shrink
        RANK_CHECK(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
        m.a = 51;
        RANK_CHECK(channel_send(to, &m, fd, &sent) == LS_OK && sent); // 4096 are not 1 MiB
        m.a = 52;
        RANK_CHECK(channel_send(to, &m, -1, &sent) == LS_OK && sent); // no descriptor
        m.a = 53;
        m.d = UINT64_MAX;
        RANK_CHECK(channel_send(to, &m, fd, &sent) == LS_OK && sent);
        m.a = 54;
        m.d = 4096;
        RANK_CHECK(channel_send(to, &m, fd, &sent) == LS_OK && sent); // a correct one
        file_close(&fd);
    }
    RANK_CHECK(reach(boot, l, n, 1) == 0);
    for (uint32_t id = 50; id < 54 && boot->rank == 0; id++) {
        const segment_ref ref = {.id = id};

        RANK_CHECK(segment_resolve(l, 1, ref, 1, &view, &memory) == LS_ENOMEM && view == NULL);
    }
    if (boot->rank == 0) {
        const segment_ref ref = {.id = 54};
        int rank = -1;

        RANK_CHECK(segment_resolve(l, 1, ref, 4096, &view, &memory) == LS_OK);
        segment_release(view);
        RANK_CHECK(!local_next_ended(l, &rank));
    }
    RANK_CHECK(reach(boot, l, n, 2) == 0);
    if (boot->rank == 1)
        RANK_CHECK(channel_send(local_find_peer(l, 0)->fd, &m, -1, &sent) == LS_OK && sent);
    RANK_CHECK(reach(boot, l, n, 3) == 0);
    if (boot->rank == 0) {
        int rank = -1;

        // The same id again: nothing further of this peer is accepted.
        local_receive(l);
        RANK_CHECK(local_next_ended(l, &rank) && rank == 1);
    }
    RANK_CHECK(reach(boot, l, n, 4) == 0);
    local_leave(l);
    return 0;
}

static void false_announcements_are_refused(void **state)
{
    (void)state;
    assert_int_equal(ranks_run(AS_PROCESSES, 2, lie, ranks_shared(sizeof(notes))), 0);
}

/* Every allocation in turn fails once: nothing leaks and nothing hangs. */
static int run_out_of_memory(const comm_boot *boot, void *arg)
{
    const uint64_t at = *(const uint64_t *)arg;
    comm_boot own = *boot;
    void *memory = NULL;
    local *l = NULL;
    ls_status st;

    own.deadline_ms = ls_deadline_ms(20000);
    ls_alloc_fail_at(boot->rank == 0 ? at : 0);
    st = local_join(&own, NULL, &l);
    if (st == LS_OK)
        st = segment_create(l, KEY(1), 4096, &memory);
    ls_alloc_fail_at(0);
    RANK_CHECK(st == LS_OK || st == LS_ENOMEM || boot->rank != 0);
    // The other rank notices the end of the channel, or has joined.
    RANK_CHECK(st == LS_OK || st == LS_EPEER || boot->rank == 0);
    local_leave(l);
    return 0;
}

static void joining_without_memory_fails_cleanly(void **state)
{
    (void)state;
    for (uint64_t at = 1; at <= 16; at++)
        assert_int_equal(ranks_run(AS_PROCESSES, 2, run_out_of_memory, &at), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(peers_access_a_segment_within_its_bounds),
        cmocka_unit_test(held_segment_outlives_its_destruction),
        cmocka_unit_test(announcements_wait_for_a_slow_reader_without_blocking),
        cmocka_unit_test(created_and_destroyed_segments_leave_nothing),
        cmocka_unit_test(full_table_refuses_and_recovers),
        cmocka_unit_test(false_announcements_are_refused),
        cmocka_unit_test(joining_without_memory_fails_cleanly),
    };

    return cmocka_run_group_tests_name("native segment", tests, NULL, NULL);
}
