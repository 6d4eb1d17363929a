/* SPDX-License-Identifier: Apache-2.0 */
/*
 * native_mesh_shim.c - a faulty network: the linker puts the functions below between the code and
 * the system's (-Wl,--wrap); they move a few bytes where many were requested, nothing where there
 * are some, are interrupted, or report a reset.
 */
#include "comm/native_mesh_ranks.h"
#include "comm/native_oracle.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/rng.h"

#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <cmocka.h>
#include <string.h>
#include <sys/socket.h>

ssize_t __real_sendmsg(int fd, const struct msghdr *m, int flags);
ssize_t __real_recvmsg(int fd, struct msghdr *m, int flags);
ssize_t __real_send(int fd, const void *data, size_t bytes, int flags);
ssize_t __real_recv(int fd, void *data, size_t bytes, int flags);
int __real_poll(struct pollfd *fds, nfds_t n, int timeout_ms);
ssize_t __wrap_sendmsg(int fd, const struct msghdr *m, int flags);
ssize_t __wrap_recvmsg(int fd, struct msghdr *m, int flags);
ssize_t __wrap_send(int fd, const void *data, size_t bytes, int flags);
ssize_t __wrap_recv(int fd, void *data, size_t bytes, int flags);
int __wrap_poll(struct pollfd *fds, nfds_t n, int timeout_ms);

/* The faults of one thread's calls. */
typedef struct call_faults {
    bool is_on;
    int reset_in; /* calls until one reports a reset; 0: never */
    bool at_send;
    ls_rng rng;
} call_faults;

static _Thread_local call_faults faults;

// 0: the call goes through, with at most *limit bytes; else errno.
static int draw_fault(size_t *limit)
{
    *limit = SIZE_MAX;
    if (!faults.is_on)
        return 0;
    switch (ls_rng_below(&faults.rng, 6)) {
    case 0:
        return EINTR;
    case 1:
        return EAGAIN;
    case 2:
        *limit = 1;
        return 0;
    case 3:
        *limit = 1 + ls_rng_below(&faults.rng, 200);
        return 0;
    case 4:
        *limit = 1 + ls_rng_below(&faults.rng, 5000);
        return 0;
    default:
        return 0;
    }
}

// Clear links, which the test of resets has, use sendmsg and recvmsg; the others serve handshakes,
// which are repeated.
static int suffer_on_link(size_t *limit, bool is_send)
{
    if (faults.reset_in > 0 && is_send == faults.at_send && --faults.reset_in == 0)
        return is_send ? EPIPE : ECONNRESET;
    return draw_fault(limit);
}

// The pieces of a message cut down to so many bytes.
static struct msghdr shorten(const struct msghdr *m, struct iovec *iov, size_t limit)
{
    struct msghdr less = *m;

    memcpy(iov, m->msg_iov, m->msg_iovlen * sizeof(*iov));
    less.msg_iov = iov;
    for (size_t i = 0; i < m->msg_iovlen; i++) {
        if (iov[i].iov_len > limit)
            iov[i].iov_len = limit;
        limit -= iov[i].iov_len;
    }
    return less;
}

static ssize_t refuse(int error)
{
    errno = error;
    return -1;
}

ssize_t __wrap_sendmsg(int fd, const struct msghdr *m, int flags)
{
    struct iovec iov[32];
    size_t limit;
    const int error = suffer_on_link(&limit, true);
    struct msghdr less;

    if (error != 0)
        return refuse(error);
    less = shorten(m, iov, limit);
    return __real_sendmsg(fd, &less, flags);
}

ssize_t __wrap_recvmsg(int fd, struct msghdr *m, int flags)
{
    struct iovec iov[32];
    size_t limit;
    const int error = suffer_on_link(&limit, false);
    struct msghdr less;

    if (error != 0)
        return refuse(error);
    less = shorten(m, iov, limit);
    return __real_recvmsg(fd, &less, flags);
}

ssize_t __wrap_send(int fd, const void *data, size_t bytes, int flags)
{
    size_t limit;
    const int error = draw_fault(&limit);

    return error != 0 ? refuse(error) : __real_send(fd, data, bytes < limit ? bytes : limit, flags);
}

ssize_t __wrap_recv(int fd, void *data, size_t bytes, int flags)
{
    size_t limit;
    const int error = draw_fault(&limit);

    return error != 0 ? refuse(error) : __real_recv(fd, data, bytes < limit ? bytes : limit, flags);
}

int __wrap_poll(struct pollfd *fds, nfds_t n, int timeout_ms)
{
    if (faults.is_on && ls_rng_below(&faults.rng, 4) == 0)
        return (int)refuse(EINTR);
    return __real_poll(fds, n, timeout_ms);
}

// --- short, late, interrupted ---

static void fill(void *data, size_t count, int rank, uint64_t round)
{
    ls_rng rng;

    ls_rng_seed(&rng, ls_hash3(round, (uint64_t)rank, 5));
    oracle_fill(data, count, LS_F32, &rng);
}

static int sums(mesh_rank *r, size_t count, uint64_t round)
{
    float *src[MESH_RANKS_MAX];
    float *expected = ls_calloc(count, sizeof(float));
    float *dst = ls_calloc(count, sizeof(float));

    MESH_CHECK(expected != NULL && dst != NULL);
    for (int i = 0; i < r->size; i++) {
        src[i] = ls_calloc(count, sizeof(float));
        MESH_CHECK(src[i] != NULL);
        fill(src[i], count, i, round);
    }
    oracle_reduce(expected, (const void *const *)src, 0, r->size, count, LS_F32, LS_SUM, true);
    MESH_CHECK(mesh_do(&r->world, &(coll){.kind = COLL_ALL_REDUCE,
                                          .dtype = LS_F32,
                                          .redop = LS_SUM,
                                          .count = count,
                                          .src = src[r->rank],
                                          .dst = dst}) == LS_OK);
    MESH_CHECK(oracle_differs(dst, expected, count, LS_F32, true) == count);
    for (int i = 0; i < r->size; i++)
        ls_free(src[i]);
    ls_free(expected);
    ls_free(dst);
    return 0;
}

static int pass_on(mesh_rank *r, size_t bytes)
{
    const int next = (r->rank + 1) % r->size;
    const int last = (r->rank + r->size - 1) % r->size;
    uint8_t *src = ls_calloc(1, bytes);
    uint8_t *dst = ls_calloc(1, bytes);
    mesh_work out = {0};

    MESH_CHECK(src != NULL && dst != NULL);
    for (size_t i = 0; i < bytes; i++)
        src[i] = (uint8_t)(i * 7 + (size_t)r->rank + i / 251);
    mesh_start(
        &r->world, &out,
        &(coll){.kind = COLL_SEND, .dtype = LS_U8, .count = bytes, .root = next, .src = src});
    MESH_CHECK(
        mesh_do(
            &r->world,
            &(coll){.kind = COLL_RECV, .dtype = LS_U8, .count = bytes, .root = last, .dst = dst}) ==
        LS_OK);
    MESH_CHECK(mesh_wait(&out) == LS_OK);
    for (size_t i = 0; i < bytes; i++)
        MESH_CHECK(dst[i] == (uint8_t)(i * 7 + (size_t)last + i / 251));
    ls_free(src);
    ls_free(dst);
    return 0;
}

static int go_on(mesh_rank *r, void *arg)
{
    static const size_t counts[] = {1, 37, 3000, 30000};

    faults.is_on = true;
    ls_rng_seed(&faults.rng, *(const uint64_t *)arg * 100 + (uint64_t)r->rank);
    for (size_t i = 0; i < LS_COUNT_OF(counts); i++) {
        MESH_CHECK(sums(r, counts[i], i) == 0);
        MESH_CHECK(pass_on(r, counts[i]) == 0);
    }
    MESH_CHECK(mesh_do(&r->world, &(coll){.kind = COLL_BARRIER}) == LS_OK);
    faults.is_on = false;
    return 0;
}

static void data_is_right_whatever_the_calls_move(void **state)
{
    static const net_security modes[][3] = {{NET_AUTH, NET_AUTH, NET_AUTH},
                                            {NET_MAC, NET_MAC, NET_MAC},
                                            {NET_ENCRYPT, NET_ENCRYPT, NET_ENCRYPT}};

    LS_UNUSED(state);
    for (uint64_t seed = 0; seed < 2; seed++) {
        for (size_t m = 0; m < LS_COUNT_OF(modes); m++) {
            const mesh_job job = {.size = seed % 2 == 0 ? 2 : 3,
                                  .transport = "tcp",
                                  .segment_bytes = 8192,
                                  .fn = go_on,
                                  .arg = &seed,
                                  .modes = modes[m]};

            assert_int_equal(mesh_run(&job), 0);
        }
    }
}

// --- resets ---

typedef struct breakage {
    int at;
    bool at_send;
    atomic_int n_over;
} breakage;

static int break_off(mesh_rank *r, void *arg)
{
    enum { COUNT = 30000 };
    breakage *b = arg;
    const char *other = r->rank == 0 ? "rank 1" : "rank 0";
    float *data = ls_calloc(COUNT, sizeof(float));
    const int64_t started_ms = ls_now_ms();
    ls_status st = LS_OK;

    MESH_CHECK(data != NULL);
    MESH_CHECK(mesh_do(&r->world, &(coll){.kind = COLL_BARRIER}) == LS_OK);
    faults.at_send = b->at_send;
    faults.reset_in = r->rank == 0 ? b->at : 0;
    for (int i = 0; i < 1000 && st == LS_OK; i++) {
        for (int k = 0; k < COUNT; k++)
            data[k] = (float)(r->rank + k % 5);
        st = mesh_do(&r->world, &(coll){.kind = COLL_ALL_REDUCE,
                                        .dtype = LS_F32,
                                        .redop = LS_SUM,
                                        .count = COUNT,
                                        .src = data,
                                        .dst = data});
        for (int k = 0; k < COUNT && st == LS_OK; k++)
            MESH_CHECK(data[k] == (float)(1 + 2 * (k % 5)));
    }
    faults.reset_in = 0;
    MESH_CHECK(st == LS_EPEER);
    MESH_CHECK(strstr(r->world.cause.text, other) != NULL);
    MESH_CHECK(strstr(r->world.cause.text, "all_reduce") != NULL);
    MESH_CHECK(ls_now_ms() - started_ms < 20000);
    // For ever.
    MESH_CHECK(mesh_do(&r->world, &(coll){.kind = COLL_BARRIER}) == LS_EPEER);
    ls_free(data);
    // The engine of one rank would notify the other; here each finds out by itself, from an end
    // that stays until it has.
    if (r->rank == 0) {
        mesh_close_group(&r->world);
        native_backend_ops.close(r->state, 1000);
        r->state = NULL;
    }
    return 0;
}

static void reset_is_reported_with_the_lost_peer(void **state)
{
    static const int at[] = {1, 2, 3, 7, 20, 51};

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(at); i++) {
        for (int send = 0; send < 2; send++) {
            breakage b = {.at = at[i], .at_send = send != 0};
            const mesh_job job = {
                .size = 2, .transport = "tcp", .segment_bytes = 8192, .fn = break_off, .arg = &b};

            assert_int_equal(mesh_run(&job), 0);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(data_is_right_whatever_the_calls_move),
        cmocka_unit_test(reset_is_reported_with_the_lost_peer),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
