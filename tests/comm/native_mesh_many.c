/* SPDX-License-Identifier: Apache-2.0 */
/* native_mesh_many.c - many ranks, and connections that are made when they are needed. */
#include "comm/native_mesh_ranks.h"
#include "comm/native_oracle.h"

#include "base/alloc.h"
#include "base/clock.h"

#include <dirent.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define MANY 64

typedef struct census {
    atomic_int n_ready;
    atomic_int n_counted;
    int n_connections; /* their ends: both ranks are in this process */
    int n_descriptors;
} census;

static void count_descriptors(census *c)
{
    DIR *d = opendir("/proc/self/fd");

    c->n_connections = 0;
    c->n_descriptors = 0;
    for (const struct dirent *e = readdir(d); e != NULL; e = readdir(d)) {
        struct sockaddr_storage at;
        socklen_t bytes = sizeof(at);
        const int fd = (int)strtol(e->d_name, NULL, 10);

        c->n_descriptors += e->d_name[0] != '.';
        c->n_connections += e->d_name[0] != '.' &&
                            getpeername(fd, (struct sockaddr *)&at, &bytes) == 0 &&
                            at.ss_family == AF_INET;
    }
    (void)closedir(d);
}

// Waits until all have arrived, and counts in between. Both ends of a connection are here: with an
// odd number one rank has still to close its end of an attempt that another one has dropped.
static void take_census(mesh_rank *r, census *c)
{
    atomic_fetch_add(&c->n_ready, 1);
    mesh_drive_until(r, &c->n_ready, r->size);
    if (r->rank == 0) {
        for (count_descriptors(c); c->n_connections % 2 != 0; count_descriptors(c))
            (void)native_backend_ops.progress(r->state);
        atomic_fetch_add(&c->n_counted, 1);
    }
    mesh_drive_until(r, &c->n_counted, 1);
}

static int sums(mesh_rank *r, size_t count)
{
    float *data = ls_calloc(count, sizeof(*data));
    const int n = r->size;

    MESH_CHECK(data != NULL);
    for (size_t i = 0; i < count; i++)
        data[i] = (float)(r->rank + (int)(i % 7));
    MESH_CHECK(mesh_do(&r->world, &(coll){.kind = COLL_ALL_REDUCE,
                                          .dtype = LS_F32,
                                          .redop = LS_SUM,
                                          .count = count,
                                          .src = data,
                                          .dst = data}) == LS_OK);
    for (size_t i = 0; i < count; i++)
        MESH_CHECK(data[i] == (float)(n * (n - 1) / 2 + n * (int)(i % 7)));
    MESH_CHECK(mesh_do(&r->world, &(coll){.kind = COLL_BROADCAST,
                                          .dtype = LS_F32,
                                          .count = count,
                                          .src = data,
                                          .dst = data}) == LS_OK);
    ls_free(data);
    return 0;
}

static int few_connections(mesh_rank *r, void *arg)
{
    MESH_CHECK(mesh_do(&r->world, &(coll){.kind = COLL_BARRIER}) == LS_OK);
    MESH_CHECK(sums(r, 2) == 0);
    MESH_CHECK(sums(r, 5000) == 0);
    MESH_CHECK(sums(r, 100000) == 0);
    take_census(r, arg);
    MESH_CHECK(mesh_do(&r->world, &(coll){.kind = COLL_BARRIER}) == LS_OK);
    return 0;
}

static bool can_open(rlim_t n)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return false;
    if (limit.rlim_cur < n)
        limit.rlim_cur = n < limit.rlim_max ? n : limit.rlim_max;
    return setrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur >= n;
}

// As threads of one process all 64 ranks share one table of descriptors.
static void sixty_four_ranks_hold_few_connections_each(void **state)
{
    census c = {0};
    const mesh_job job = {
        .size = MANY, .transport = "tcp", .segment_bytes = 16384, .fn = few_connections, .arg = &c};

    LS_UNUSED(state);
    if (!can_open(4096)) {
        fprintf(stderr, "skipped: not so many descriptors\n");
        skip();
    }
    assert_int_equal(mesh_run(&job), 0);
    printf("%d ranks: %.1f connections, %.1f descriptors a rank\n", MANY,
           (double)c.n_connections / MANY, (double)c.n_descriptors / MANY);
    assert_true(c.n_connections > 0);
    assert_true(c.n_connections <= 11 * MANY); // to the ranks 1, 2, 4, 8, 16 and 32 away
    assert_true(c.n_descriptors <= c.n_connections + 8 * MANY);
}

static int no_connection(mesh_rank *r, void *arg)
{
    take_census(r, arg);
    return 0;
}

static void ranks_without_messages_are_not_connected(void **state)
{
    census c = {0};
    const mesh_job job = {.size = 8, .transport = "tcp", .fn = no_connection, .arg = &c};

    LS_UNUSED(state);
    assert_int_equal(mesh_run(&job), 0);
    assert_int_equal(c.n_connections, 0);
}

static int exchange_with_all(mesh_rank *r, void *arg)
{
    int32_t out[MANY];
    int32_t in[MANY] = {0};

    for (int i = 0; i < r->size; i++)
        out[i] = r->rank * 1000 + i;
    MESH_CHECK(
        mesh_do(
            &r->world,
            &(coll){.kind = COLL_ALL_TO_ALL, .dtype = LS_I32, .count = 1, .src = out, .dst = in}) ==
        LS_OK);
    for (int i = 0; i < r->size; i++)
        MESH_CHECK(in[i] == i * 1000 + r->rank);
    take_census(r, arg);
    return 0;
}

// 2016 pairs, of which each makes one connection.
static void ranks_that_exchange_with_all_have_one_connection_a_pair(void **state)
{
    census c = {0};
    const mesh_job job = {
        .size = MANY, .transport = "tcp", .connections = 1, .fn = exchange_with_all, .arg = &c};

    LS_UNUSED(state);
    if (!can_open(10000)) {
        fprintf(stderr, "skipped: not so many descriptors\n");
        skip();
    }
    assert_int_equal(mesh_run(&job), 0);
    assert_in_range(c.n_connections, MANY * (MANY - 1), MANY * (MANY - 1));
}

// --- crossing attempts ---

typedef struct crossing {
    atomic_int n_ready;
    unsigned late_us[2];
} crossing;

static int cross(mesh_rank *r, void *arg)
{
    crossing *now = arg;
    uint64_t mine = (uint64_t)r->rank + 10;
    uint64_t theirs = 0;
    mesh_work out = {0};
    mesh_work in = {0};

    atomic_fetch_add(&now->n_ready, 1);
    while (atomic_load(&now->n_ready) < 2)
        continue;
    if (now->late_us[r->rank] > 0)
        (void)usleep(now->late_us[r->rank]);
    mesh_start(
        &r->world, &out,
        &(coll){.kind = COLL_SEND, .dtype = LS_I64, .count = 1, .root = 1 - r->rank, .src = &mine});
    mesh_start(
        &r->world, &in,
        &(coll){
            .kind = COLL_RECV, .dtype = LS_I64, .count = 1, .root = 1 - r->rank, .dst = &theirs});
    MESH_CHECK(mesh_wait(&out) == LS_OK);
    MESH_CHECK(mesh_wait(&in) == LS_OK);
    MESH_CHECK(theirs == (uint64_t)(1 - r->rank) + 10);
    MESH_CHECK(mesh_do(&r->world, &(coll){.kind = COLL_BARRIER}) == LS_OK);
    return 0;
}

// The higher rank waits for 3 ms: around that time both connect at once.
static void crossing_attempts_end_in_one_connection(void **state)
{
    static const unsigned late_us[] = {0, 2000, 2700, 3000, 3200, 3500, 5000};

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(late_us); i++) {
        for (int lower = 0; lower < 2; lower++) {
            for (int again = 0; again < 6; again++) {
                crossing now = {0};
                const mesh_job job = {.size = 2, .transport = "tcp", .fn = cross, .arg = &now};

                now.late_us[lower] = late_us[i] + (unsigned)again * 40;
                assert_int_equal(mesh_run(&job), 0);
            }
        }
    }
}

/* Rank 1 computes for a while and calls nothing, longer than an unauthenticated peer may take. */
static int be_away(mesh_rank *r, void *arg)
{
    uint8_t byte = 7;
    const coll op = {.kind = r->rank == 0 ? COLL_SEND : COLL_RECV,
                     .dtype = LS_U8,
                     .count = 1,
                     .root = 1 - r->rank,
                     .src = &byte,
                     .dst = &byte};

    LS_UNUSED(arg);
    if (r->rank == 1) {
        byte = 0;
        (void)usleep(1500000);
    }
    MESH_CHECK(mesh_do(&r->world, &op) == LS_OK);
    MESH_CHECK(byte == 7);
    return 0;
}

static void busy_rank_is_awaited(void **state)
{
    const mesh_job job = {.size = 2, .transport = "tcp", .fn = be_away};

    LS_UNUSED(state);
    assert_int_equal(mesh_run(&job), 0);
}

/* Rank 1 has left without having been connected. */
static int look_for_the_gone(mesh_rank *r, void *arg)
{
    atomic_int *has_gone = arg;
    uint8_t byte = 7;
    const coll op = {.kind = COLL_SEND, .dtype = LS_U8, .count = 1, .root = 1, .src = &byte};
    const int64_t started_ms = ls_now_ms();

    if (r->rank == 1) {
        mesh_close_group(&r->world);
        native_backend_ops.close(r->state, 0);
        r->state = NULL;
        atomic_store(has_gone, 1);
        return 0;
    }
    mesh_drive_until(r, has_gone, 1);
    MESH_CHECK(mesh_do(&r->world, &op) == LS_EPEER);
    MESH_CHECK(r->world.cause.rank == 1);
    MESH_CHECK(strstr(r->world.cause.text, "rank 1 (here) cannot be reached for send") != NULL);
    MESH_CHECK(strstr(r->world.cause.text, "refused") != NULL);
    MESH_CHECK(ls_now_ms() - started_ms < 20000);
    return 0;
}

static void unreachable_rank_is_named(void **state)
{
    atomic_int has_gone = 0;
    const mesh_job job = {.size = 2, .transport = "tcp", .fn = look_for_the_gone, .arg = &has_gone};

    LS_UNUSED(state);
    assert_int_equal(mesh_run(&job), 0);
}

// --- more than 2^31 ---

static int huge_sum(mesh_rank *r, void *arg)
{
    const size_t count = ((size_t)1 << 31) + 1;
    int8_t *data = ls_calloc(count, 1);

    LS_UNUSED(arg);
    MESH_CHECK(data != NULL);
    for (size_t i = 0; i < count; i++)
        data[i] = (int8_t)(i % 61 + (size_t)r->rank);
    MESH_CHECK(mesh_do(&r->world, &(coll){.kind = COLL_ALL_REDUCE,
                                          .dtype = LS_I8,
                                          .redop = LS_SUM,
                                          .count = count,
                                          .src = data,
                                          .dst = data}) == LS_OK);
    for (size_t i = 0; i < count; i++)
        MESH_CHECK(data[i] == (int8_t)(2 * (i % 61) + 1));
    ls_free(data);
    return 0;
}

static void operation_moves_more_elements_than_an_int_counts(void **state)
{
    static const char *const transports[] = {"tcp", "auto"};

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(transports); i++) {
        const mesh_job job = {.size = 2, .transport = transports[i], .fn = huge_sum};

        assert_int_equal(mesh_run(&job), 0);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest huge[] = {
        cmocka_unit_test(operation_moves_more_elements_than_an_int_counts),
    };
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sixty_four_ranks_hold_few_connections_each),
        cmocka_unit_test(ranks_without_messages_are_not_connected),
        cmocka_unit_test(ranks_that_exchange_with_all_have_one_connection_a_pair),
        cmocka_unit_test(crossing_attempts_end_in_one_connection),
        cmocka_unit_test(busy_rank_is_awaited),
        cmocka_unit_test(unreachable_rank_is_named),
    };

    LS_UNUSED(argv);
    return argc > 1 ? cmocka_run_group_tests(huge, NULL, NULL)
                    : cmocka_run_group_tests(tests, NULL, NULL);
}
