/* SPDX-License-Identifier: Apache-2.0 */
/*
 * on_device.c - the collectives of on_device.h. Ranks that are threads share the accelerator and
 * the list of transfers; a transfer belongs to one rank.
 */
#include "comm/on_device.h"

#include "base/map.h"
#include "base/thread.h"
#include "tensor/device.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define GUARD_BYTES 256
#define GUARD_BYTE  0x5A

/* A range of host memory and the block that stands for it on the device, with guards. */
typedef struct mirror {
    unsigned char *host;
    size_t bytes;
    unsigned char *block; /* on the device */
    unsigned char *copy;  /* page-locked, of the block */
} mirror;

/* One operation. src and dst are in one mirror when they overlap, as in place. */
typedef struct transfer {
    list_node node;
    ls_work *work;
    mirror m[2];
    void *src;
    void *dst;
} transfer;

static ls_mutex lock = {PTHREAD_MUTEX_INITIALIZER};
static list_node transfers = {&transfers, &transfers};
static unsigned n_waits;

static ls_device *the_device; // of the process until it ends
static accel *the_accel;
static char why[LS_ERROR_BYTES];

static void open_device(void)
{
    const ls_device_options opt = {.size = sizeof(opt), .name = "cudahost"};
    if (ls_device_open(&opt, &the_device) == LS_OK)
        the_accel = the_device->accel;
    else
        ls_error_save(why);
}

accel *on_device_accel(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    (void)pthread_once(&once, open_device);
    if (the_accel == NULL)
        (void)ls_fail(LS_EUNSUPPORTED, "%s", why);
    return the_accel;
}

ls_status on_device_close(void)
{
    the_accel = NULL;
    return ls_device_close(the_device);
}

static ls_status make_mirror(mirror *m, const void *host, size_t bytes)
{
    accel *a = on_device_accel();
    const size_t all = bytes + 2 * (size_t)GUARD_BYTES;

    if (a == NULL)
        return LS_EUNSUPPORTED;
    m->host = (unsigned char *)(uintptr_t)host;
    m->bytes = bytes;
    m->block = accel_alloc(a, all);
    m->copy = accel_alloc_host(a, all);
    if (m->block == NULL || m->copy == NULL)
        return ls_fail(LS_ENOMEM, "no device memory for a test");
    memset(m->copy, GUARD_BYTE, all);
    memcpy(m->copy + GUARD_BYTES, host, bytes);
    return accel_copy(accel_queue(a, ACCEL_COMPUTE), m->block, m->copy, all, ACCEL_TO_DEVICE);
}

/* The guards are as they were; the host memory gets what the block has. */
static ls_status read_mirror(const mirror *m)
{
    const unsigned char *end = m->copy + GUARD_BYTES + m->bytes;

    for (int i = 0; i < GUARD_BYTES; i++) {
        if (m->copy[i] != GUARD_BYTE || end[i] != GUARD_BYTE)
            return ls_fail(LS_EINTERNAL, "device memory outside the buffer was written");
    }
    memcpy(m->host, m->copy + GUARD_BYTES, m->bytes);
    return LS_OK;
}

static void free_transfer(transfer *t)
{
    accel *a = on_device_accel();

    for (int i = 0; i < 2 && a != NULL; i++) {
        accel_free(a, t->m[i].block);
        accel_free_host(a, t->m[i].copy);
    }
    free(t);
}

/* Takes the transfer. The result is read in `queue`, which must be ordered after the operation; the
 * guards of no data in the queue that wrote them, because nothing else waits for that. */
static ls_status finish(transfer *t, accel_queue_id queue)
{
    accel *a = on_device_accel();
    ls_status st = LS_OK;

    for (int i = 0; i < 2 && st == LS_OK; i++) {
        const accel_queue_id in = t->m[i].bytes == 0 ? ACCEL_COMPUTE : queue;

        if (t->m[i].block != NULL)
            st = accel_copy(accel_queue(a, in), t->m[i].copy, t->m[i].block,
                            t->m[i].bytes + 2 * (size_t)GUARD_BYTES, ACCEL_TO_HOST);
    }
    if (st == LS_OK)
        st = accel_synchronize(a, "tests: the result");
    for (int i = 0; i < 2 && st == LS_OK; i++) {
        if (t->m[i].block != NULL)
            st = read_mirror(&t->m[i]);
    }
    free_transfer(t);
    return st;
}

static bool overlap(const unsigned char *a, size_t a_bytes, const unsigned char *b, size_t b_bytes)
{
    return a != NULL && b != NULL && a < b + b_bytes && b < a + a_bytes;
}

static ls_status mirror_both(transfer *t, const unsigned char *src, size_t src_bytes,
                             const unsigned char *dst, size_t dst_bytes)
{
    const unsigned char *first = src < dst ? src : dst;
    const unsigned char *src_end = src + src_bytes, *dst_end = dst + dst_bytes;

    if (overlap(src, src_bytes, dst, dst_bytes)) {
        LS_TRY(make_mirror(&t->m[0], first,
                           (size_t)((src_end > dst_end ? src_end : dst_end) - first)));
        t->src = t->m[0].block + GUARD_BYTES + (src - first);
        t->dst = t->m[0].block + GUARD_BYTES + (dst - first);
        return LS_OK;
    }
    if (src != NULL) {
        LS_TRY(make_mirror(&t->m[0], src, src_bytes));
        t->src = t->m[0].block + GUARD_BYTES;
    }
    if (dst != NULL) {
        LS_TRY(make_mirror(&t->m[1], dst, dst_bytes));
        t->dst = t->m[1].block + GUARD_BYTES;
    }
    return LS_OK;
}

static ls_status begin(const void *src, size_t n_src, const void *dst, size_t n_dst, ls_dtype type,
                       transfer **out)
{
    const size_t size = ls_dtype_size(type);
    ls_status st;

    *out = calloc(1, sizeof(**out));
    if (*out == NULL)
        return ls_fail(LS_ENOMEM, "no memory for a test");
    list_init(&(*out)->node);
    st = mirror_both(*out, src, n_src * size, dst, n_dst * size);
    if (st != LS_OK)
        free_transfer(*out);
    return st;
}

/* After the call, which gave `st`: waits for its end, or keeps the transfer until the wait. */
static ls_status end(transfer *t, ls_status st, ls_work **out)
{
    if (st != LS_OK) {
        free_transfer(t);
        return st;
    }
    if (out == NULL)
        return finish(t, ACCEL_COPY);
    t->work = *out;
    ls_mutex_lock(&lock);
    list_append(&transfers, &t->node);
    ls_mutex_unlock(&lock);
    return LS_OK;
}

ls_status on_device_wait(ls_work *work)
{
    transfer *t = NULL;
    bool in_queue;
    ls_status st;

    ls_mutex_lock(&lock);
    list_for_each (it, &transfers) {
        if (list_entry(it, transfer, node)->work == work)
            t = list_entry(it, transfer, node);
    }
    if (t != NULL)
        list_remove(&t->node);
    in_queue = n_waits++ % 2 == 0;
    ls_mutex_unlock(&lock);
    if (t == NULL)
        return ls_work_wait(work);
    if (in_queue)
        st = ls_work_wait_on(work, accel_queue(on_device_accel(), ACCEL_COMPUTE));
    else
        st = ls_work_wait(work);
    if (st == LS_OK)
        return finish(t, in_queue ? ACCEL_COMPUTE : ACCEL_COPY);
    free_transfer(t);
    return st;
}

static size_t sum(const size_t *counts, ls_comm *comm)
{
    size_t all = 0;

    for (int r = 0; r < ls_comm_size(comm); r++)
        all += counts[r];
    return all;
}

/* begin(), the call with the pointers t->src and t->dst, and end(). */
#define MOVED(src, n_src, dst, n_dst, type, call)                                                  \
    do {                                                                                           \
        transfer *t = NULL;                                                                        \
                                                                                                   \
        LS_TRY(begin((src), (n_src), (dst), (n_dst), (type), &t));                                 \
        return end(t, (call), out);                                                                \
    } while (0)

ls_status on_device_all_reduce(ls_comm *comm, const void *src, void *dst, size_t count,
                               ls_dtype type, ls_reduce_op op, ls_work **out)
{
    MOVED(src, count, dst, count, type, ls_all_reduce(comm, t->src, t->dst, count, type, op, out));
}

ls_status on_device_average(ls_comm *comm, void *data, size_t count, ls_dtype type, double divisor,
                            ls_work **out)
{
    MOVED(NULL, 0, data, count, type, comm_average(comm, t->dst, count, type, divisor, out));
}

ls_status on_device_reduce(ls_comm *comm, const void *src, void *dst, size_t count, ls_dtype type,
                           ls_reduce_op op, int root, ls_work **out)
{
    MOVED(src, count, dst, count, type,
          ls_reduce(comm, t->src, t->dst, count, type, op, root, out));
}

ls_status on_device_broadcast(ls_comm *comm, const void *src, void *dst, size_t count,
                              ls_dtype type, int root, ls_work **out)
{
    MOVED(src, count, dst, count, type, ls_broadcast(comm, t->src, t->dst, count, type, root, out));
}

ls_status on_device_all_gather(ls_comm *comm, const void *src, void *dst, size_t count,
                               ls_dtype type, ls_work **out)
{
    MOVED(src, count, dst, count * (size_t)ls_comm_size(comm), type,
          ls_all_gather(comm, t->src, t->dst, count, type, out));
}

ls_status on_device_gather(ls_comm *comm, const void *src, void *dst, size_t count, ls_dtype type,
                           int root, ls_work **out)
{
    MOVED(src, count, dst, count * (size_t)ls_comm_size(comm), type,
          ls_gather(comm, t->src, t->dst, count, type, root, out));
}

ls_status on_device_scatter(ls_comm *comm, const void *src, void *dst, size_t count, ls_dtype type,
                            int root, ls_work **out)
{
    MOVED(src, count * (size_t)ls_comm_size(comm), dst, count, type,
          ls_scatter(comm, t->src, t->dst, count, type, root, out));
}

ls_status on_device_reduce_scatter(ls_comm *comm, const void *src, void *dst, size_t count,
                                   ls_dtype type, ls_reduce_op op, ls_work **out)
{
    MOVED(src, count * (size_t)ls_comm_size(comm), dst, count, type,
          ls_reduce_scatter(comm, t->src, t->dst, count, type, op, out));
}

ls_status on_device_all_to_all(ls_comm *comm, const void *src, void *dst, size_t count,
                               ls_dtype type, ls_work **out)
{
    const size_t all = count * (size_t)ls_comm_size(comm);

    MOVED(src, all, dst, all, type, ls_all_to_all(comm, t->src, t->dst, count, type, out));
}

ls_status on_device_all_gather_v(ls_comm *comm, const void *src, void *dst, const size_t *counts,
                                 ls_dtype type, ls_work **out)
{
    MOVED(src, counts[ls_comm_rank(comm)], dst, sum(counts, comm), type,
          ls_all_gather_v(comm, t->src, t->dst, counts, type, out));
}

ls_status on_device_gather_v(ls_comm *comm, const void *src, void *dst, const size_t *counts,
                             ls_dtype type, int root, ls_work **out)
{
    MOVED(src, counts[ls_comm_rank(comm)], dst, sum(counts, comm), type,
          ls_gather_v(comm, t->src, t->dst, counts, type, root, out));
}

ls_status on_device_scatter_v(ls_comm *comm, const void *src, void *dst, const size_t *counts,
                              ls_dtype type, int root, ls_work **out)
{
    MOVED(src, sum(counts, comm), dst, counts[ls_comm_rank(comm)], type,
          ls_scatter_v(comm, t->src, t->dst, counts, type, root, out));
}

ls_status on_device_reduce_scatter_v(ls_comm *comm, const void *src, void *dst,
                                     const size_t *counts, ls_dtype type, ls_reduce_op op,
                                     ls_work **out)
{
    MOVED(src, sum(counts, comm), dst, counts[ls_comm_rank(comm)], type,
          ls_reduce_scatter_v(comm, t->src, t->dst, counts, type, op, out));
}

ls_status on_device_all_to_all_v(ls_comm *comm, const void *src, const size_t *src_counts,
                                 void *dst, const size_t *dst_counts, ls_dtype type, ls_work **out)
{
    MOVED(src, sum(src_counts, comm), dst, sum(dst_counts, comm), type,
          ls_all_to_all_v(comm, t->src, src_counts, t->dst, dst_counts, type, out));
}

ls_status on_device_send(ls_comm *comm, const void *src, size_t count, ls_dtype type, int peer,
                         int tag, ls_work **out)
{
    MOVED(src, count, NULL, 0, type, ls_send(comm, t->src, count, type, peer, tag, out));
}

ls_status on_device_recv(ls_comm *comm, void *dst, size_t count, ls_dtype type, int peer, int tag,
                         ls_work **out)
{
    MOVED(NULL, 0, dst, count, type, ls_recv(comm, t->dst, count, type, peer, tag, out));
}
