/* SPDX-License-Identifier: Apache-2.0 */
/*
 * native_segment.c - shared memory of the ranks of one host: bounds, lifetimes, descriptors, and
 * failures.
 */
#include "base/unit.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/file.h"
#include "comm/backends/native/memory/local_internal.h"
#include "comm/backends/native/memory/segment.h"
#include "comm/native_ranks.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#define KEY(n) (SEGMENT_KEY_TEAM | (uint64_t)(n))

static const ranks_kind kinds[] = {AS_THREADS, AS_PROCESSES};

/* What forked ranks share: the steps they have reached, and a reference. */
typedef struct notes {
    atomic_int step[64];
    segment_ref ref;
    uintptr_t address;
} notes;

static int reach(const comm_boot *boot, local *l, notes *n, int step)
{
    const int64_t deadline_ms = ls_deadline_ms(30000);

    atomic_store(&n->step[boot->rank], step);
    for (int r = 0; r < boot->size; r++) {
        while (atomic_load(&n->step[r]) < step && ls_deadline_left(deadline_ms) != 0) {
            if (local_has_events(l))
                local_receive(l);
            poll(NULL, 0, 1);
        }
        RANK_CHECK(atomic_load(&n->step[r]) >= step);
    }
    return 0;
}

/* segment_resolve(), until the memory is mapped. */
static ls_status resolve(local *l, segment_ref ref, size_t bytes, segment_view **view,
                         void **memory)
{
    const int64_t deadline_ms = ls_deadline_ms(30000);

    while (ls_deadline_left(deadline_ms) != 0) {
        const ls_status st = segment_resolve(l, 0, ref, bytes, view, memory);

        if (st != LS_OK || *memory != NULL)
            return st;
        local_receive(l);
    }
    return LS_ETIMEOUT;
}

static int count_views(const local *l, int rank)
{
    const local_peer *p = local_find_peer(l, rank);
    int n = 0;

    for (int i = 0; p->views != NULL && i < SEGMENTS_MAX; i++)
        n += p->views[i] != NULL;
    return n;
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
            RANK_CHECK(resolve(l, n->ref, 1, &view, &memory) == LS_OK);
            at = memory;
            RANK_CHECK(*at == 17);
            // Threads see it at the owner's address.
            RANK_CHECK(!local_is_thread(l, 0) || n->address + bytes - 1 == (uintptr_t)at);
            segment_release(view);
            RANK_CHECK(segment_resolve(l, 0, n->ref, 2, &view, &memory) == LS_EPROTO);
            n->ref.offset = UINT64_MAX;
            RANK_CHECK(segment_resolve(l, 0, n->ref, 2, &view, &memory) == LS_EPROTO);
            n->ref.id += 100 * SEGMENTS_MAX;
            RANK_CHECK(segment_resolve(l, 0, n->ref, 1, &view, &memory) == LS_EPROTO);
            RANK_CHECK(view == NULL && strstr(ls_last_error(), "rank 0") != NULL);
        }
        RANK_CHECK(reach(boot, l, n, 3 * (int)i + 2) == 0);
        if (boot->rank == 0)
            RANK_CHECK(segment_destroy(l, (void *)n->address));
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
        RANK_CHECK(resolve(l, n->ref, 8192, &view, &memory) == LS_OK);
    RANK_CHECK(reach(boot, l, n, 2) == 0);
    if (boot->rank == 0)
        RANK_CHECK(segment_destroy(l, memory) && !segment_destroy(l, memory));
    RANK_CHECK(reach(boot, l, n, 3) == 0);
    if (boot->rank != 0) {
        local_receive(l);
        // Still mapped, as long as it is held; then gone for good.
        for (int i = 0; i < 8192; i++)
            RANK_CHECK(((char *)memory)[i] == 42);
        RANK_CHECK(count_views(l, 0) == 0 && view->is_gone && view->holds == 1);
        segment_release(view);
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

/* A rank whose peers do nothing creates and destroys segments for ever. */
static int churn_alone(const comm_boot *boot, void *arg)
{
    enum { MANY = 20000 };
    notes *n = arg;
    void *memory = NULL;
    local *l = NULL;

    RANK_CHECK(local_join(boot, NULL, &l) == LS_OK);
    for (int i = 0; i < MANY && boot->rank == 0; i++) {
        RANK_CHECK(segment_create(l, SEGMENT_KEY_NONE, 4096, &memory) == LS_OK);
        RANK_CHECK(segment_destroy(l, memory));
    }
    RANK_CHECK(reach(boot, l, n, 1) == 0);
    local_leave(l);
    return 0;
}

static void removals_need_no_peer_that_reads(void **state)
{
    (void)state;
    assert_int_equal(ranks_run(AS_PROCESSES, 3, churn_alone, ranks_shared(sizeof(notes))), 0);
}

/* Many segments in turn, each used by a peer: its mappings do not pile up. */
static int churn(const comm_boot *boot, void *arg)
{
    notes *n = arg;
    void *memory = NULL;
    segment_view *view = NULL;
    local *l = NULL;

    RANK_CHECK(local_join(boot, NULL, &l) == LS_OK);
    for (int i = 0; i < 300; i++) {
        if (boot->rank == 0) {
            RANK_CHECK(segment_create(l, KEY(i), 4096, &memory) == LS_OK);
            *(int *)memory = i;
        }
        RANK_CHECK(reach(boot, l, n, 3 * i + 1) == 0);
        if (boot->rank != 0) {
            RANK_CHECK(segment_wait(l, 0, KEY(i), 4096, ls_deadline_ms(30000), &view, &memory) ==
                       LS_OK);
            RANK_CHECK(*(int *)memory == i);
            segment_release(view);
        }
        RANK_CHECK(reach(boot, l, n, 3 * i + 2) == 0);
        if (boot->rank == 0)
            RANK_CHECK(segment_destroy(l, memory));
        RANK_CHECK(reach(boot, l, n, 3 * i + 3) == 0);
        local_receive(l);
        RANK_CHECK(boot->rank == 0 || count_views(l, 0) == 0);
    }
    local_leave(l);
    return 0;
}

static void created_and_destroyed_segments_leave_nothing(void **state)
{
    (void)state;
    assert_int_equal(ranks_run(AS_PROCESSES, 3, churn, ranks_shared(sizeof(notes))), 0);
    assert_int_equal(ranks_run(AS_THREADS, 3, churn, ranks_shared(sizeof(notes))), 0);
}

/* Every rank maps a segment of every other at the same time. */
static int map_all(const comm_boot *boot, void *arg)
{
    notes *n = arg;
    segment_view *view = NULL;
    void *memory = NULL;
    local *l = NULL;

    RANK_CHECK(local_join(boot, NULL, &l) == LS_OK);
    RANK_CHECK(segment_create(l, KEY(7), 4096, &memory) == LS_OK);
    *(int *)memory = boot->rank;
    RANK_CHECK(reach(boot, l, n, 1) == 0);
    for (int k = 1; k < boot->size; k++) {
        const int peer = (boot->rank + k) % boot->size;

        RANK_CHECK(segment_wait(l, peer, KEY(7), 4096, ls_deadline_ms(60000), &view, &memory) ==
                   LS_OK);
        RANK_CHECK(*(int *)memory == peer);
        segment_release(view);
    }
    // The last of all peers to have mapped this rank's segment lets it close the descriptor.
    RANK_CHECK(reach(boot, l, n, 2) == 0);
    RANK_CHECK(l->own[0].map->fd == -1 || local_is_thread(l, (boot->rank + 1) % boot->size));
    local_leave(l);
    return 0;
}

static void many_ranks_map_each_other_with_few_descriptors_in_flight(void **state)
{
    (void)state;
    assert_int_equal(ranks_run(AS_PROCESSES, 33, map_all, ranks_shared(sizeof(notes))), 0);
    assert_int_equal(ranks_run(AS_THREADS, 17, map_all, ranks_shared(sizeof(notes))), 0);
}

/* The numbers in ids wrap around; a mapping of an old segment with the same id is not used. */
static int wrap_numbers(const comm_boot *boot, void *arg)
{
    notes *n = arg;
    segment_view *view = NULL;
    void *memory = NULL;
    local *l = NULL;

    RANK_CHECK(local_join(boot, NULL, &l) == LS_OK);
    for (int i = 0; i < 6; i++) {
        // Twice the same three numbers, of which the middle one is the last.
        if (i % 3 == 0)
            l->last_number = UINT32_MAX / SEGMENTS_MAX - 3;
        if (boot->rank == 0) {
            RANK_CHECK(segment_create(l, SEGMENT_KEY_NONE, 4096, &memory) == LS_OK);
            *(int *)memory = i;
            RANK_CHECK(segment_find(l, memory, 4096, &n->ref) && n->ref.id >= SEGMENTS_MAX);
        }
        RANK_CHECK(reach(boot, l, n, 3 * i + 1) == 0);
        if (boot->rank != 0) {
            RANK_CHECK(resolve(l, n->ref, 4096, &view, &memory) == LS_OK);
            RANK_CHECK(*(int *)memory == i);
            segment_release(view);
        }
        RANK_CHECK(reach(boot, l, n, 3 * i + 2) == 0);
        if (boot->rank == 0)
            RANK_CHECK(segment_destroy(l, memory));
        atomic_store(&n->step[boot->rank], 3 * i + 3); // rank 1 does not receive the removal
        while (atomic_load(&n->step[1 - boot->rank]) < 3 * i + 3)
            poll(NULL, 0, 1);
    }
    local_leave(l);
    return 0;
}

static void numbers_of_segments_wrap_around(void **state)
{
    (void)state;
    assert_int_equal(ranks_run(AS_PROCESSES, 2, wrap_numbers, ranks_shared(sizeof(notes))), 0);
    assert_int_equal(ranks_run(AS_THREADS, 2, wrap_numbers, ranks_shared(sizeof(notes))), 0);
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
    RANK_CHECK(n == SEGMENTS_MAX && !segment_can_create(l));
    RANK_CHECK(segment_destroy(l, last) && segment_can_create(l));
    RANK_CHECK(segment_create(l, KEY(0), 4096, &memory) == LS_OK);
    RANK_CHECK(segment_create(l, KEY(0), 0, &memory) != LS_OK);
    local_leave(l);
    return 0;
}

static void full_table_refuses_and_recovers(void **state)
{
    (void)state;
    assert_int_equal(ranks_run(AS_PROCESSES, 2, fill_table, NULL), 0);
}

/* Rank 0 asks rank 1 for a segment and gets `fd` instead, from rank 1 itself. */
static int answer_falsely(const comm_boot *boot, local *l, notes *n, int step, int fd)
{
    const segment_ref ref = {.id = n->ref.id};
    segment_view *view = NULL;
    void *memory = NULL;

    if (boot->rank == 0) {
        RANK_CHECK(segment_resolve(l, 1, ref, 1, &view, &memory) == LS_OK && memory == NULL);
        atomic_store(&n->step[0], step);
        while (atomic_load(&n->step[1]) < step)
            poll(NULL, 0, 1);
        local_receive(l);
        RANK_CHECK(segment_resolve(l, 1, ref, 1, &view, &memory) == LS_ENOMEM && view == NULL);
    } else {
        const channel_message m = {.type = CHANNEL_SEGMENT,
                                   .a = ref.id,
                                   .b = 1,
                                   .c = (uint64_t)step / 2, // the serial
                                   .d = 1 << 20,
                                   .e = local_host_of(l)->secret};
        int blocked;

        while (atomic_load(&n->step[0]) < step)
            poll(NULL, 0, 1);
        RANK_CHECK(channel_send(l->mailbox, &local_find_peer(l, 0)->page->mailbox, &m, fd,
                                &blocked) == LS_OK &&
                   blocked == 0);
        atomic_store(&n->step[1], step);
    }
    return 0;
}

/* Descriptors that do not hold what they should: memory that may shrink, shorter memory, none. */
static int lie(const comm_boot *boot, void *arg)
{
    notes *n = arg;
    local *l = NULL;
    int fd = memfd_create("short", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    RANK_CHECK(fd >= 0 && ftruncate(fd, 4096) == 0);
    RANK_CHECK(local_join(boot, NULL, &l) == LS_OK);
    for (int i = 0; i < 3; i++) {
        void *memory = NULL;

        if (boot->rank == 1) {
            RANK_CHECK(segment_create(l, SEGMENT_KEY_NONE, 1 << 20, &memory) == LS_OK);
            RANK_CHECK(segment_find(l, memory, 1, &n->ref));
        }
        if (i == 1)
            RANK_CHECK(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
        atomic_store(&n->step[boot->rank], 2 * i + 1);
        while (atomic_load(&n->step[1 - boot->rank]) < 2 * i + 1)
            poll(NULL, 0, 1);
        RANK_CHECK(answer_falsely(boot, l, n, 2 * i + 2, i == 2 ? -1 : fd) == 0);
    }
    file_close(&fd);
    local_leave(l);
    return 0;
}

static void false_descriptors_are_refused(void **state)
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
    if (st == LS_OK && local_count(l) > 1)
        st = segment_create(l, KEY(1), 4096, &memory);
    ls_alloc_fail_at(0);
    RANK_CHECK(st == LS_OK || st == LS_ENOMEM || boot->rank != 0);
    // The other rank notices the end, has joined, or has come too late to see this one.
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
        cmocka_unit_test(removals_need_no_peer_that_reads),
        cmocka_unit_test(many_ranks_map_each_other_with_few_descriptors_in_flight),
        cmocka_unit_test(created_and_destroyed_segments_leave_nothing),
        cmocka_unit_test(numbers_of_segments_wrap_around),
        cmocka_unit_test(full_table_refuses_and_recovers),
        cmocka_unit_test(false_descriptors_are_refused),
        cmocka_unit_test(joining_without_memory_fails_cleanly),
    };

    return cmocka_run_group_tests_name("native segment", tests, NULL, NULL);
}
