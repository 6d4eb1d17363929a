/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory.c - the memory of operations: the host's, or that of a device, which only its queue may
 * access. measure.c, watch.c and sweep.c call it.
 */
#include "cli/bench/bench.h"

#include "base/alloc.h"
#include "base/compute/accel.h"
#include "base/file.h"
#include "comm/comm.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define HUGE_BYTES ((size_t)2 << 20)

static ls_status take_device_memory(const bench_memory *m, size_t bytes, void **out)
{
    accel *a = m->queue->accel;
    char need[32];
    char left[32];
    size_t free_bytes;
    size_t total_bytes;

    *out = m->is_registered ? comm_alloc_memory(m->comm, a, bytes) : NULL;
    if (*out == NULL)
        *out = accel_alloc(a, bytes);
    if (*out != NULL)
        return m->is_registered ? comm_add_memory(m->comm, *out, bytes) : LS_OK;
    LS_TRY(accel_memory(a, &free_bytes, &total_bytes));
    return ls_fail(LS_ENOMEM, "out of memory on %s: a buffer needs %s, %s are free: lower -e",
                   a->name, text_bytes(need, sizeof(need), bytes),
                   text_bytes(left, sizeof(left), free_bytes));
}

/* Host memory has huge pages if there are some, for every backend. */
ls_status bench_memory_take(const bench_memory *m, size_t bytes, void **out)
{
    const size_t whole = (bytes + HUGE_BYTES - 1) / HUGE_BYTES * HUGE_BYTES;

    if (m->queue != NULL)
        return take_device_memory(m, bytes, out);
    if (m->is_registered)
        return ls_comm_alloc(m->comm, bytes, out);
    *out = ls_alloc_aligned(HUGE_BYTES, whole);
    if (*out == NULL)
        return ls_fail(LS_ENOMEM, "no memory for %zu bytes", bytes);
    (void)madvise(*out, whole, MADV_HUGEPAGE);
    return LS_OK;
}

void bench_memory_give(const bench_memory *m, void *memory)
{
    if (m->queue != NULL) {
        if (m->is_registered)
            comm_remove_memory(m->comm, memory);
        if (!comm_free_memory(memory))
            accel_free(m->queue->accel, memory);
    } else if (m->is_registered) {
        ls_comm_free(m->comm, memory);
    } else {
        ls_free(memory);
    }
}

ls_status bench_memory_set(const bench_memory *m, void *dst, int byte, size_t bytes)
{
    if (bytes == 0)
        return LS_OK;
    if (m->queue != NULL)
        return accel_fill(m->queue, dst, byte, bytes);
    memset(dst, byte, bytes);
    return LS_OK;
}

ls_status bench_memory_copy(const bench_memory *m, void *dst, const void *src, size_t bytes,
                            bool is_to_host)
{
    LS_TRY(accel_copy(m->queue, dst, src, bytes, is_to_host ? ACCEL_TO_HOST : ACCEL_TO_DEVICE));
    return accel_synchronize(m->queue->accel, "bench: copy of a buffer");
}

/* Resident memory of this process by /proc/self/statm, shared pages included. */
static int64_t resident_bytes(void)
{
    char text[128] = {0};
    const char *number;
    int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);

    if (fd >= 0)
        (void)!read(fd, text, sizeof(text) - 1);
    file_close(&fd);
    number = strchr(text, ' '); // the second number
    return number != NULL ? strtoll(number, NULL, 10) * sysconf(_SC_PAGESIZE) : 0;
}

int64_t bench_memory_used(const ls_queue *queue)
{
    size_t free_bytes;
    size_t total_bytes;

    if (queue == NULL)
        return resident_bytes();
    return accel_memory(queue->accel, &free_bytes, &total_bytes) == LS_OK
               ? (int64_t)(total_bytes - free_bytes)
               : 0;
}
