/* SPDX-License-Identifier: Apache-2.0 */
/* call.c - runs a row's operation; measure.c times these calls. */
#include "cli/bench/bench.h"

#include "base/clock.h"
#include "base/compute/accel.h"
#include "comm/comm.h"

#include <string.h>

/* An operation that is one call. */
static ls_status issue(ls_comm *comm, const bench_case *c, const bench_buffers *b, ls_work **out)
{
    coll_call call = {.kind = bench_collective(c->kind),
                      .dtype = c->type,
                      .redop = c->redop,
                      .root = c->root,
                      .src = b->src,
                      .dst = b->dst,
                      .count = c->count};

    if (c->kind == BENCH_ALL_TO_ALL_V) {
        call.count = 0;
        call.src_counts = b->src_counts;
        call.dst_counts = b->dst_counts;
    }
    return comm_call(comm, &call, out);
}

static ls_status exchange(ls_comm *comm, const void *src, int to, void *dst, int from, size_t count,
                          ls_dtype type)
{
    ls_work *receive;
    ls_status sent;
    ls_status received;

    LS_TRY(ls_recv(comm, dst, count, type, from, 0, &receive));
    sent = ls_send(comm, src, count, type, to, 0, NULL);
    received = ls_work_wait(receive);
    return sent == LS_OK ? received : sent;
}

/* In the memory of an accelerator, whose later operations wait for the copy, or of the host. */
static ls_status copy(void *dst, const void *src, size_t bytes)
{
    accel *a = accel_of(dst);

    if (a != NULL)
        return accel_copy(accel_queue(a, ACCEL_COMPUTE), dst, src, bytes, ACCEL_ON_DEVICE);
    memcpy(dst, src, bytes);
    return LS_OK;
}

/* After exchange k each rank holds the parts of the 2^(k+1) ranks whose numbers differ from its own
 * only in the lowest k + 1 bits. */
static ls_status hypercube(ls_comm *comm, const bench_case *c, const bench_buffers *b)
{
    const size_t bytes = c->count * ls_dtype_size(c->type);
    const int rank = ls_comm_rank(comm);
    char *own = (char *)b->dst + (size_t)rank * bytes;

    if (b->src != own && bytes > 0)
        LS_TRY(copy(own, b->src, bytes));
    for (int held = 1; held < c->n; held *= 2) {
        const int peer = rank ^ held;
        char *ours = (char *)b->dst + (size_t)(rank & ~(held - 1)) * bytes;
        char *theirs = (char *)b->dst + (size_t)(peer & ~(held - 1)) * bytes;

        LS_TRY(exchange(comm, ours, peer, theirs, peer, (size_t)held * c->count, c->type));
    }
    return LS_OK;
}

/* Runs the operation and waits. */
static ls_status call_once(ls_comm *comm, const bench_case *c, const bench_buffers *b)
{
    const int rank = ls_comm_rank(comm);

    if (c->kind == BENCH_SEND_RECV)
        return exchange(comm, b->src, (rank + 1) % c->n, b->dst, (rank + c->n - 1) % c->n, c->count,
                        c->type);
    return c->kind == BENCH_HYPERCUBE ? hypercube(comm, c, b) : issue(comm, c, b, NULL);
}

/* Starts the operation and appends its one or two works. Each exchange of a hypercube needs the
 * exchange before it, so the hypercube has ended when this returns. */
static ls_status start(ls_comm *comm, const bench_case *c, const bench_buffers *b, ls_work **works,
                       int *n)
{
    const int rank = ls_comm_rank(comm);

    if (c->kind == BENCH_HYPERCUBE)
        return hypercube(comm, c, b);
    if (c->kind != BENCH_SEND_RECV) {
        LS_TRY(issue(comm, c, b, &works[*n]));
        (*n)++;
        return LS_OK;
    }
    LS_TRY(ls_recv(comm, b->dst, c->count, c->type, (rank + c->n - 1) % c->n, 0, &works[*n]));
    (*n)++;
    LS_TRY(ls_send(comm, b->src, c->count, c->type, (rank + 1) % c->n, 0, &works[*n]));
    (*n)++;
    return LS_OK;
}

ls_status bench_call(ls_comm *comm, const bench_case *c, const bench_buffers *buffers,
                     int64_t times, ls_queue *queue, int64_t *issue_ns)
{
    ls_work *works[2 * BENCH_AGGREGATE_MAX];
    const int64_t start_ns = issue_ns != NULL ? ls_now_ns() : 0;
    ls_status st = LS_OK;
    int n = 0;

    if (times == 1 && queue == NULL && issue_ns == NULL)
        return call_once(comm, c, buffers);
    for (int64_t i = 0; i < times && st == LS_OK; i++)
        st = start(comm, c, buffers, works, &n);
    if (issue_ns != NULL)
        *issue_ns += ls_now_ns() - start_ns;
    for (int i = 0; i < n; i++) {
        const ls_status one =
            queue == NULL ? ls_work_wait(works[i]) : ls_work_wait_on(works[i], queue);
        st = st == LS_OK ? one : st;
    }
    return st;
}
