/* SPDX-License-Identifier: Apache-2.0 */
/* native_local.c - ranks of one host: finding each other, doorbells, and ends. */
#include "base/unit.h"

#include "base/clock.h"
#include "base/core.h"
#include "base/file.h"
#include "base/rng.h"
#include "base/thread.h"
#include "comm/backends/native/memory/local.h"
#include "comm/backends/native/memory/local_internal.h"
#include "comm/backends/native/memory/segment.h"
#include "comm/native_ranks.h"
#include "net/socket.h"

#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#define BELL_ROUNDS   300
#define RANDOM_ROUNDS 20000

static const ranks_kind kinds[] = {AS_THREADS, AS_PROCESSES};

static int join_and_look(const comm_boot *boot, void *arg)
{
    local *l = NULL;

    LS_UNUSED(arg);
    RANK_CHECK(local_join(boot, NULL, &l) == LS_OK);
    RANK_CHECK(local_count(l) == boot->size && local_rank(l) == boot->rank);
    for (int r = 0; r < boot->size; r++) {
        const bool same = boot->records[r].instance == boot->records[boot->rank].instance;

        RANK_CHECK(local_has(l, r) && local_ranks(l)[r] == r);
        RANK_CHECK(local_is_thread(l, r) == (same && r != boot->rank));
    }
    RANK_CHECK(!local_has(l, boot->size) && !local_has(l, -1));
    local_leave(l);
    return 0;
}

static void ranks_of_a_host_find_each_other(void **state)
{
    static const int sizes[] = {1, 2, 3, 5, 8, 17, 33, 64};

    (void)state;
    for (size_t k = 0; k < LS_COUNT_OF(kinds); k++) {
        for (size_t i = 0; i < LS_COUNT_OF(sizes); i++)
            assert_int_equal(ranks_run(kinds[k], sizes[i], join_and_look, NULL), 0);
    }
}

/* Rank 1 is on "another host": no rank listens at its address, and it reaches none. */
static int join_without_one(const comm_boot *boot, void *arg)
{
    boot_record records[4];
    comm_boot own = *boot;
    local *l = NULL;

    LS_UNUSED(arg);
    memcpy(records, boot->records, sizeof(records));
    own.records = records;
    for (int r = 0; r < 4; r++) {
        if (boot->rank == 1 ? r != 1 : r == 1)
            RANK_CHECK(net_address_fresh_unix("test", &records[r].local) == LS_OK);
    }
    RANK_CHECK(local_join(&own, NULL, &l) == LS_OK);
    RANK_CHECK(local_count(l) == (boot->rank == 1 ? 1 : 3));
    for (int r = 0; r < 4; r++)
        RANK_CHECK(local_has(l, r) == ((r == 1) == (boot->rank == 1)));
    local_leave(l);
    return 0;
}

static void unreachable_rank_is_not_local(void **state)
{
    (void)state;
    assert_int_equal(ranks_run(AS_THREADS, 4, join_without_one, NULL), 0);
}

static int join_among_unauthenticated(const comm_boot *boot, void *arg)
{
    const int to = (boot->rank + 1) % boot->size;
    channel_message m = {.type = CHANNEL_HELLO,
                         .a = (uint32_t)(boot->rank + 2) % (uint32_t)boot->size,
                         .b = (uint32_t)to,
                         .c = boot->records[0].instance,
                         .d = 99, // not the number of the boot records
                         .e = boot->generation};
    int fds[12];
    local *l = NULL;
    int blocked;

    LS_UNUSED(arg);
    memcpy(m.job, boot->job, sizeof(m.job));
    for (size_t i = 0; i < LS_COUNT_OF(fds); i++) {
        RANK_CHECK(net_connect(&boot->records[to].local, NET_PACKET, boot->deadline_ms, &fds[i]) ==
                   LS_OK);
        if (i % 3 == 1)
            RANK_CHECK(send(fds[i], "garbage", 7, MSG_NOSIGNAL) == 7);
        if (i % 3 == 2)
            RANK_CHECK(channel_send(fds[i], NULL, &m, -1, &blocked) == LS_OK && blocked == 0);
    }
    RANK_CHECK(local_join(boot, NULL, &l) == LS_OK);
    RANK_CHECK(local_count(l) == boot->size);
    for (size_t i = 0; i < LS_COUNT_OF(fds); i++)
        file_close(&fds[i]);
    local_leave(l);
    return 0;
}

static void silent_and_forged_connections_do_not_disturb_a_join(void **state)
{
    (void)state;
    assert_int_equal(ranks_run(AS_THREADS, 3, join_among_unauthenticated, NULL), 0);
}

static int die_or_notice(const comm_boot *boot, void *arg)
{
    comm_boot own = *boot;
    local *l = NULL;
    ls_status st;

    LS_UNUSED(arg);
    if (boot->rank == 2) {
        // Listens until rank 0 has connected, then exits without an answer.
        int fd;

        while (net_accept(boot->local_fd, &fd) == LS_OK && fd < 0)
            RANK_CHECK(net_wait(boot->local_fd, POLLIN, boot->deadline_ms) == LS_OK);
        return 0;
    }
    // Rank 1 learns it from rank 0. If it comes after rank 0 has given up, it finds no other rank.
    st = local_join(&own, NULL, &l);
    if (st == LS_OK) {
        RANK_CHECK(boot->rank == 1 && local_count(l) == 1);
        local_leave(l);
        return 0;
    }
    RANK_CHECK(st == LS_EPEER);
    RANK_CHECK(strstr(ls_last_error(), "rank 2") != NULL || boot->rank != 0);
    return 0;
}

static void rank_that_dies_while_joining_is_named(void **state)
{
    (void)state;
    assert_int_equal(ranks_run(AS_PROCESSES, 3, die_or_notice, NULL), 0);
}

static int count_open_fds(void)
{
    DIR *folder = opendir("/proc/self/fd");
    int n = 0;

    if (folder == NULL)
        return -1;
    while (file_next_number(folder) >= 0)
        n++;
    closedir(folder);
    return n;
}

static int come_late(const comm_boot *boot, void *arg)
{
    comm_boot own = *boot;
    local *l = NULL;

    LS_UNUSED(arg);
    if (boot->rank == 1) {
        RANK_CHECK(net_wait(boot->local_fd, POLLIN, boot->deadline_ms) == LS_OK);
        // Stays reachable, but sends nothing until the other has given up.
        while (ls_deadline_left(boot->deadline_ms) > 0 && *(volatile int *)arg == 0)
            poll(NULL, 0, 10);
        return 0;
    }
    own.deadline_ms = ls_deadline_ms(400);
    RANK_CHECK(local_join(&own, NULL, &l) == LS_ETIMEOUT);
    RANK_CHECK(strstr(ls_last_error(), "rank 1") != NULL);
    *(volatile int *)arg = 1;
    return 0;
}

/* The engine's check() after the hub has reported a death. */
static ls_status say_dead(void *self)
{
    *(int *)self += 1;
    return ls_fail(LS_EPEER, "rank 1 was killed");
}

static int ask_while_joining(const comm_boot *boot, void *arg)
{
    comm_boot own = *boot;
    int n_asked = 0;
    const comm_host host = {.abi = BACKEND_ABI, .self = &n_asked, .check = say_dead};
    local *l = NULL;

    if (boot->rank == 1) {
        while (ls_deadline_left(boot->deadline_ms) > 0 && *(volatile int *)arg == 0)
            poll(NULL, 0, 10);
        return 0;
    }
    RANK_CHECK(local_join(&own, &host, &l) == LS_EPEER);
    RANK_CHECK(strcmp(ls_last_error(), "rank 1 was killed") == 0 && n_asked > 0);
    *(volatile int *)arg = 1;
    return 0;
}

static void join_checks_while_it_waits_whether_the_job_goes_on(void **state)
{
    (void)state;
    assert_int_equal(ranks_run(AS_PROCESSES, 2, ask_while_joining, ranks_shared(4096)), 0);
}

static void rank_that_does_not_answer_is_named_at_the_deadline(void **state)
{
    (void)state;
    assert_int_equal(ranks_run(AS_PROCESSES, 2, come_late, ranks_shared(4096)), 0);
}

/* Waits, asleep, until the counter reaches `want`. */
static int sleep_until(const comm_boot *boot, local *l, atomic_uint *counter, unsigned want)
{
    for (;;) {
        struct pollfd fds[LOCAL_FDS_MAX];
        unsigned now;

        local_prepare_sleep(l);
        now = atomic_load_explicit(counter, memory_order_seq_cst);
        if (now < want && !local_has_events(l))
            RANK_CHECK(poll(fds, (nfds_t)local_poll_fds(l, fds), 20000) > 0);
        local_end_sleep(l);
        if (now >= want)
            return 0;
        local_receive(l);
    }
}

static int ring_back_and_forth(const comm_boot *boot, void *arg)
{
    atomic_uint *counters = arg; // 64 apart
    local *l = NULL;

    RANK_CHECK(local_join(boot, NULL, &l) == LS_OK);
    for (unsigned i = 1; i <= BELL_ROUNDS; i++) {
        if (boot->rank == 1)
            RANK_CHECK(sleep_until(boot, l, &counters[0], i) == 0);
        atomic_store_explicit(&counters[boot->rank * 64], i, memory_order_seq_cst);
        local_ring(l, 1 - boot->rank);
        if (boot->rank == 0)
            RANK_CHECK(sleep_until(boot, l, &counters[64], i) == 0);
    }
    local_leave(l);
    return 0;
}

static void no_doorbell_is_lost(void **state)
{
    (void)state;
    for (size_t k = 0; k < LS_COUNT_OF(kinds); k++)
        assert_int_equal(ranks_run(kinds[k], 2, ring_back_and_forth, ranks_shared(4096)), 0);
}

/* `place`: of the processors that this process may use. */
static bool run_on(const cpu_set_t *allowed, int place)
{
    cpu_set_t one;
    int cpu = -1;

    for (int seen = -1; seen < place;) {
        cpu++;
        seen += CPU_ISSET(cpu, allowed) ? 1 : 0;
    }
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    return sched_setaffinity(0, sizeof(one), &one) == 0 && sched_getcpu() == cpu;
}

/* Returns when all ranks have called it `n` times. */
static int meet(const comm_boot *boot, atomic_uint *counter, unsigned n)
{
    atomic_fetch_add(counter, 1);
    while (atomic_load(counter) < n * (unsigned)boot->size) {
        RANK_CHECK(ls_deadline_left(boot->deadline_ms) > 0);
        sched_yield();
    }
    return 0;
}

static int wait_on_processors(const comm_boot *boot, void *arg)
{
    atomic_uint *counter = arg;
    cpu_set_t allowed;
    local *l = NULL;

    RANK_CHECK(sched_getaffinity(0, sizeof(allowed), &allowed) == 0);
    RANK_CHECK(local_join(boot, NULL, &l) == LS_OK);
    RANK_CHECK(run_on(&allowed, 0));
    RANK_CHECK(meet(boot, counter, 1) == 0);
    RANK_CHECK(boot->rank == 1 || !local_shares_processor(l)); // the other one is not known yet
    RANK_CHECK(meet(boot, counter, 2) == 0);
    RANK_CHECK(boot->rank == 0 || local_shares_processor(l));
    RANK_CHECK(meet(boot, counter, 3) == 0);
    RANK_CHECK(local_shares_processor(l));
    RANK_CHECK(meet(boot, counter, 4) == 0);
    if (CPU_COUNT(&allowed) > 1) {
        RANK_CHECK(run_on(&allowed, boot->rank));
        RANK_CHECK(boot->rank == 0 || !local_shares_processor(l));
        RANK_CHECK(meet(boot, counter, 5) == 0);
        RANK_CHECK(!local_shares_processor(l));
    }
    local_leave(l);
    return sched_setaffinity(0, sizeof(allowed), &allowed);
}

static void ranks_on_one_processor_are_noticed(void **state)
{
    (void)state;
    for (size_t k = 0; k < LS_COUNT_OF(kinds); k++)
        assert_int_equal(ranks_run(kinds[k], 2, wait_on_processors, ranks_shared(4096)), 0);
}

/* Rank 0 changes the counter at random times, also while rank 1 empties its mailbox: it rings then,
 * too, since a second thread of rank 1 is about to sleep all the time. */
static int ring_at_random_times(const comm_boot *boot, void *arg)
{
    atomic_uint *counters = arg; // 64 apart
    ls_rng rng;
    local *l = NULL;

    RANK_CHECK(local_join(boot, NULL, &l) == LS_OK);
    ls_rng_seed(&rng, 1);
    if (boot->rank == 1)
        local_prepare_sleep(l);
    for (unsigned i = 1; i <= RANDOM_ROUNDS; i++) {
        if (boot->rank == 1) {
            RANK_CHECK(sleep_until(boot, l, &counters[0], i) == 0);
            atomic_store_explicit(&counters[64], i, memory_order_seq_cst);
            continue;
        }
        // At most two ahead: rank 1 soon has to sleep.
        while (atomic_load_explicit(&counters[64], memory_order_seq_cst) + 2 < i) {
            RANK_CHECK(ls_deadline_left(boot->deadline_ms) > 0);
            sched_yield();
        }
        for (uint64_t n = ls_rng_next(&rng) % 4096; n > 0; n--)
            core_relax();
        atomic_store_explicit(&counters[0], i, memory_order_seq_cst);
        local_ring(l, 1);
    }
    local_leave(l);
    return 0;
}

static void no_doorbell_is_lost_while_a_mailbox_is_emptied(void **state)
{
    (void)state;
    for (size_t k = 0; k < LS_COUNT_OF(kinds); k++)
        assert_int_equal(ranks_run(kinds[k], 2, ring_at_random_times, ranks_shared(4096)), 0);
}

static int leave_or_see_it(const comm_boot *boot, void *arg)
{
    struct pollfd fds[LOCAL_FDS_MAX];
    local *l = NULL;
    int rank = -1;

    LS_UNUSED(arg);
    RANK_CHECK(local_join(boot, NULL, &l) == LS_OK);
    if (boot->rank == 1)
        _exit(0); // as if killed: no local_leave
    while (rank != 1) {
        if (local_next_ended(l, &rank))
            continue;
        RANK_CHECK(poll(fds, (nfds_t)local_poll_fds(l, fds), 20000) > 0);
        local_receive(l);
    }
    // The end is reported once, and its descriptor no longer keeps poll() awake.
    while (local_next_ended(l, &rank))
        RANK_CHECK(rank != 1);
    RANK_CHECK(!local_has_events(l) && poll(fds, (nfds_t)local_poll_fds(l, fds), 0) == 0);
    local_ring(l, 1);
    local_leave(l);
    return 0;
}

static void end_of_a_peer_is_reported_once(void **state)
{
    (void)state;
    assert_int_equal(ranks_run(AS_PROCESSES, 3, leave_or_see_it, NULL), 0);
}

static int await_end(const comm_boot *boot, local *l, int want)
{
    const int64_t deadline_ms = ls_deadline_ms(30000);
    int rank = -1;

    while (rank != want) {
        struct pollfd fds[LOCAL_FDS_MAX];

        if (local_next_ended(l, &rank))
            continue;
        RANK_CHECK(ls_deadline_left(deadline_ms) != 0);
        (void)poll(fds, (nfds_t)local_poll_fds(l, fds), 10);
        local_receive(l);
    }
    return 0;
}

/* Rank 0 leaves, and rank 2 is killed after rank 1 has seen that. */
static int outlive_leader(const comm_boot *boot, void *arg)
{
    atomic_uint *counter = arg;
    local *l = NULL;

    RANK_CHECK(local_join(boot, NULL, &l) == LS_OK);
    if (boot->rank == 1) {
        RANK_CHECK(await_end(boot, l, 0) == 0);
        local_receive(l);
        RANK_CHECK(!local_has_ended(l, 2));
        atomic_store(counter, 1);
        local_ring(l, 2);
        RANK_CHECK(await_end(boot, l, 2) == 0);
    } else if (boot->rank == 2) {
        RANK_CHECK(sleep_until(boot, l, counter, 1) == 0);
        _exit(0); // as if killed: no local_leave
    }
    local_leave(l);
    return 0;
}

static void end_of_a_peer_is_noticed_after_that_of_the_leader(void **state)
{
    (void)state;
    assert_int_equal(ranks_run(AS_PROCESSES, 3, outlive_leader, ranks_shared(4096)), 0);
}

/* Rank 1 leaves a child, which lives until rank 0 has seen rank 1's end. */
static int fork_and_leave(const comm_boot *boot, void *arg)
{
    atomic_int *was_seen = arg;
    const int64_t deadline_ms = ls_deadline_ms(20000);
    struct pollfd fds[LOCAL_FDS_MAX];
    local *l = NULL;
    int rank = -1;

    RANK_CHECK(local_join(boot, NULL, &l) == LS_OK);
    if (boot->rank == 1) {
        if (fork() == 0) {
            local_forked(l);
            while (atomic_load(was_seen) == 0 && ls_deadline_left(deadline_ms) != 0)
                poll(NULL, 0, 2);
        }
        _exit(0);
    }
    while (!local_next_ended(l, &rank)) {
        RANK_CHECK(poll(fds, (nfds_t)local_poll_fds(l, fds), 10000) > 0);
        local_receive(l);
    }
    atomic_store(was_seen, 1);
    local_leave(l);
    return 0;
}

static void forked_child_does_not_hide_the_end_of_its_parent(void **state)
{
    (void)state;
    assert_int_equal(ranks_run(AS_PROCESSES, 2, fork_and_leave, ranks_shared(4096)), 0);
}

/* Closing with messages that it has not read resets the connection for the other end, which must
 * not lose messages by that. */
static void messages_of_a_peer_that_left_still_arrive(void **state)
{
    const channel_message go = {.type = CHANNEL_GO};
    const channel_message region = {.type = CHANNEL_REGION, .a = 7};
    channel_message m;
    int fds[2], with_fd, blocked;
    bool got;

    (void)state;
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
    assert_int_equal(channel_send(fds[0], NULL, &go, -1, &blocked), LS_OK);
    assert_int_equal(channel_send(fds[1], NULL, &region, fds[1], &blocked), LS_OK);
    assert_int_equal(blocked, 0);
    file_close(&fds[1]); // without reading GO
    assert_int_equal(channel_receive(fds[0], &m, &with_fd, &got), LS_OK);
    assert_true(got);
    assert_int_equal(m.type, CHANNEL_REGION);
    assert_int_equal(m.a, 7);
    assert_true(with_fd >= 0);
    file_close(&with_fd);
    assert_int_equal(channel_receive(fds[0], &m, &with_fd, &got), LS_EPEER);
    file_close(&fds[0]);
}

/* Bytes of a process's mailbox that are not from its job change nothing, and doorbells still
 * arrive. */
static int flood_and_ring(const comm_boot *boot, void *arg)
{
    channel_message m = {.type = CHANNEL_SEGMENT, .a = SEGMENTS_MAX, .b = 0};
    atomic_uint *counter = arg;
    local *l = NULL;
    int blocked = 0;

    RANK_CHECK(local_join(boot, NULL, &l) == LS_OK);
    if (boot->rank == 1) {
        const net_address *to = &local_find_peer(l, 0)->page->mailbox;
        int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

        RANK_CHECK(fd >= 0);
        // Until the mailbox is full.
        for (int i = 0; i < 10000 && blocked == 0; i++)
            RANK_CHECK(channel_send(fd, to, &m, i % 2 == 0 ? fd : -1, &blocked) == LS_OK);
        atomic_store(counter, 1);
        local_ring(l, 0);
        file_close(&fd);
    } else {
        RANK_CHECK(sleep_until(boot, l, counter, 1) == 0);
        RANK_CHECK(!local_has_ended(l, 1) || atomic_load(counter) == 1);
    }
    local_leave(l);
    return 0;
}

static void foreign_datagrams_do_not_disturb_a_rank(void **state)
{
    (void)state;
    assert_int_equal(ranks_run(AS_PROCESSES, 2, flood_and_ring, ranks_shared(4096)), 0);
}

/* Sends two descriptors with one datagram. */
static ssize_t send_two(int fd, const net_address *to)
{
    net_address address = *to;
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(2 * sizeof(int))];
    } space = {.bytes = {0}};
    char data[] = {'x'};
    struct iovec piece = {.iov_base = data, .iov_len = sizeof(data)};
    struct msghdr packet = {.msg_name = &address.socket,
                            .msg_namelen = address.bytes,
                            .msg_iov = &piece,
                            .msg_iovlen = 1,
                            .msg_control = space.bytes,
                            .msg_controllen = sizeof(space.bytes)};
    const int both[] = {fd, fd};
    struct cmsghdr *c = CMSG_FIRSTHDR(&packet);

    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(both));
    memcpy(CMSG_DATA(c), both, sizeof(both));
    return sendmsg(fd, &packet, MSG_NOSIGNAL);
}

static int send_or_count(const comm_boot *boot, void *arg)
{
    atomic_uint *counter = arg;
    local *l = NULL;

    RANK_CHECK(local_join(boot, NULL, &l) == LS_OK);
    if (boot->rank == 1) {
        int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);

        RANK_CHECK(fd >= 0 && send_two(fd, &local_find_peer(l, 0)->page->mailbox) == 1);
        file_close(&fd);
        atomic_store(counter, 1);
        local_ring(l, 0);
        RANK_CHECK(sleep_until(boot, l, counter, 2) == 0);
    } else {
        const int before = count_open_fds();

        RANK_CHECK(sleep_until(boot, l, counter, 1) == 0);
        RANK_CHECK(count_open_fds() == before);
        atomic_store(counter, 2);
        local_ring(l, 1);
    }
    local_leave(l);
    return 0;
}

static void descriptors_of_foreign_datagrams_are_closed(void **state)
{
    (void)state;
    assert_int_equal(ranks_run(AS_PROCESSES, 2, send_or_count, ranks_shared(4096)), 0);
}

/* Each rank maps one memory and has descriptors whose number does not depend on that of ranks, but
 * for rank 0's connections. */
static int count_descriptors(const comm_boot *boot, void *arg)
{
    const int before = count_open_fds();
    local *l = NULL;
    int own;

    LS_UNUSED(arg);
    RANK_CHECK(local_join(boot, NULL, &l) == LS_OK);
    own = count_open_fds() - before + 1; // boot->local_fd was closed
    RANK_CHECK(own == (boot->rank == 0 ? boot->size + 1 : 3));
    local_leave(l);
    RANK_CHECK(count_open_fds() == before - 1);
    return 0;
}

static void rank_needs_a_fixed_number_of_descriptors(void **state)
{
    (void)state;
    assert_int_equal(ranks_run(AS_PROCESSES, 33, count_descriptors, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_of_a_host_find_each_other),
        cmocka_unit_test(unreachable_rank_is_not_local),
        cmocka_unit_test(silent_and_forged_connections_do_not_disturb_a_join),
        cmocka_unit_test(rank_that_dies_while_joining_is_named),
        cmocka_unit_test(join_checks_while_it_waits_whether_the_job_goes_on),
        cmocka_unit_test(rank_that_does_not_answer_is_named_at_the_deadline),
        cmocka_unit_test(no_doorbell_is_lost),
        cmocka_unit_test(ranks_on_one_processor_are_noticed),
        cmocka_unit_test(no_doorbell_is_lost_while_a_mailbox_is_emptied),
        cmocka_unit_test(end_of_a_peer_is_reported_once),
        cmocka_unit_test(end_of_a_peer_is_noticed_after_that_of_the_leader),
        cmocka_unit_test(forked_child_does_not_hide_the_end_of_its_parent),
        cmocka_unit_test(messages_of_a_peer_that_left_still_arrive),
        cmocka_unit_test(foreign_datagrams_do_not_disturb_a_rank),
        cmocka_unit_test(descriptors_of_foreign_datagrams_are_closed),
        cmocka_unit_test(rank_needs_a_fixed_number_of_descriptors),
    };

    return cmocka_run_group_tests_name("native local", tests, NULL, NULL);
}
