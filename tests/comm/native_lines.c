/* SPDX-License-Identifier: Apache-2.0 */
/*
 * native_lines.c - follows each cache line of a memory. The sources under test are compiled with
 * -fsanitize=thread, whose functions stand here in the place of its library: each access to memory
 * calls one. Calls of memcpy, copy_shared and reduce_tree are renamed by the compiler's command
 * line. Segments and doorbells are doubles: all ranks are in this thread.
 */
#include "comm/native_lines.h"

#include "base/alloc.h"
#include "comm/backends/native/memory/segment.h"
#include "comm/backends/native/memory/copy.h"
#include "comm/backends/reduce.h"

#include <stdatomic.h>
#include <string.h>

typedef struct line {
    uint32_t holders; /* core complexes with a valid copy */
    uint8_t writer;   /* the last; + 1 */
    uint8_t socket;   /* of it */
} line;

static char *memory;
static size_t n_lines;
static line *lines;
static int cache;
static int socket_now;
static lines_counts counts;

void lines_begin(char *begin, size_t bytes)
{
    memory = begin;
    n_lines = bytes / 64;
    lines = ls_calloc(n_lines, sizeof(*lines));
    LS_ASSERT(lines != NULL);
}

void lines_end(void)
{
    ls_free(lines);
    n_lines = 0;
}

void lines_run_on(int new_cache, int socket)
{
    cache = new_cache;
    socket_now = socket;
}

void lines_clear_counts(void)
{
    counts = (lines_counts){0};
}

lines_counts lines_get_counts(void)
{
    return counts;
}

static void follow(const void *at, size_t bytes, bool writes)
{
    const uintptr_t offset = (uintptr_t)at - (uintptr_t)memory;

    if (bytes == 0)
        return;
    for (size_t i = offset / 64; i <= (offset + bytes - 1) / 64 && i < n_lines; i++) {
        line *l = &lines[i];
        const uint32_t own = UINT32_C(1) << cache;

        if ((l->holders & own) == 0 && l->writer != 0) {
            counts.between_caches += l->writer != cache + 1;
            counts.between_sockets += l->socket != socket_now;
        }
        l->holders = writes ? own : l->holders | own;
        if (writes) {
            l->writer = (uint8_t)(cache + 1);
            l->socket = (uint8_t)socket_now;
        }
    }
}

// --- the compiler's calls ---

#define PLAIN(bytes_)                                                                              \
    void __tsan_read##bytes_(void *at);                                                            \
    void __tsan_write##bytes_(void *at);                                                           \
    void __tsan_unaligned_read##bytes_(void *at);                                                  \
    void __tsan_unaligned_write##bytes_(void *at);                                                 \
    void __tsan_read##bytes_(void *at)                                                             \
    {                                                                                              \
        follow(at, bytes_, false);                                                                 \
    }                                                                                              \
    void __tsan_write##bytes_(void *at)                                                            \
    {                                                                                              \
        follow(at, bytes_, true);                                                                  \
    }                                                                                              \
    void __tsan_unaligned_read##bytes_(void *at)                                                   \
    {                                                                                              \
        follow(at, bytes_, false);                                                                 \
    }                                                                                              \
    void __tsan_unaligned_write##bytes_(void *at)                                                  \
    {                                                                                              \
        follow(at, bytes_, true);                                                                  \
    }

#define ATOMIC(bits_)                                                                              \
    uint##bits_##_t __tsan_atomic##bits_##_load(const uint##bits_##_t *at, int order);             \
    void __tsan_atomic##bits_##_store(uint##bits_##_t *at, uint##bits_##_t value, int order);      \
    uint##bits_##_t __tsan_atomic##bits_##_fetch_add(uint##bits_##_t *at, uint##bits_##_t value,   \
                                                     int order);                                   \
    uint##bits_##_t __tsan_atomic##bits_##_fetch_sub(uint##bits_##_t *at, uint##bits_##_t value,   \
                                                     int order);                                   \
    uint##bits_##_t __tsan_atomic##bits_##_exchange(uint##bits_##_t *at, uint##bits_##_t value,    \
                                                    int order);                                    \
    int __tsan_atomic##bits_##_compare_exchange_weak(                                              \
        uint##bits_##_t *at, uint##bits_##_t *want, uint##bits_##_t value, int order, int failed); \
    uint##bits_##_t __tsan_atomic##bits_##_load(const uint##bits_##_t *at, int order)              \
    {                                                                                              \
        LS_UNUSED(order);                                                                          \
        follow(at, sizeof(*at), false);                                                            \
        return *at;                                                                                \
    }                                                                                              \
    void __tsan_atomic##bits_##_store(uint##bits_##_t *at, uint##bits_##_t value, int order)       \
    {                                                                                              \
        LS_UNUSED(order);                                                                          \
        follow(at, sizeof(*at), true);                                                             \
        *at = value;                                                                               \
    }                                                                                              \
    uint##bits_##_t __tsan_atomic##bits_##_fetch_add(uint##bits_##_t *at, uint##bits_##_t value,   \
                                                     int order)                                    \
    {                                                                                              \
        const uint##bits_##_t old = *at;                                                           \
                                                                                                   \
        __tsan_atomic##bits_##_store(at, old + value, order);                                      \
        return old;                                                                                \
    }                                                                                              \
    uint##bits_##_t __tsan_atomic##bits_##_fetch_sub(uint##bits_##_t *at, uint##bits_##_t value,   \
                                                     int order)                                    \
    {                                                                                              \
        return __tsan_atomic##bits_##_fetch_add(at, -value, order);                                \
    }                                                                                              \
    uint##bits_##_t __tsan_atomic##bits_##_exchange(uint##bits_##_t *at, uint##bits_##_t value,    \
                                                    int order)                                     \
    {                                                                                              \
        const uint##bits_##_t old = *at;                                                           \
                                                                                                   \
        __tsan_atomic##bits_##_store(at, value, order);                                            \
        return old;                                                                                \
    }                                                                                              \
    int __tsan_atomic##bits_##_compare_exchange_weak(uint##bits_##_t *at, uint##bits_##_t *want,   \
                                                     uint##bits_##_t value, int order, int failed) \
    {                                                                                              \
        const uint##bits_##_t old = __tsan_atomic##bits_##_load(at, failed);                       \
        const bool is_equal = old == *want;                                                        \
                                                                                                   \
        *want = old;                                                                               \
        if (is_equal)                                                                              \
            __tsan_atomic##bits_##_store(at, value, order);                                        \
        return is_equal;                                                                           \
    }

PLAIN(1)
PLAIN(2)
PLAIN(4)
PLAIN(8)
PLAIN(16)
ATOMIC(32)
ATOMIC(64)

void __tsan_init(void);
void __tsan_func_entry(void *caller);
void __tsan_func_exit(void);
void __tsan_read_range(void *at, size_t bytes);
void __tsan_write_range(void *at, size_t bytes);

void __tsan_init(void)
{
}

void __tsan_func_entry(void *caller)
{
    LS_UNUSED(caller);
}

void __tsan_func_exit(void)
{
}

void __tsan_read_range(void *at, size_t bytes)
{
    follow(at, bytes, false);
}

void __tsan_write_range(void *at, size_t bytes)
{
    follow(at, bytes, true);
}

// --- what the sources call in the place of memcpy(), copy_shared() and reduce_tree() ---

void *lines_memcpy(void *to, const void *from, size_t bytes);
void lines_copy_shared(copy_way *way, void *to, const void *from, size_t bytes);
void lines_reduce_tree(void *to, const reduce_operand *operands, int n_operands, size_t count,
                       ls_dtype type, ls_reduce_op op, bool final, double divisor);

void *lines_memcpy(void *to, const void *from, size_t bytes)
{
    follow(from, bytes, false);
    follow(to, bytes, true);
    return memmove(to, from, bytes); // all ranks have the same dst
}

void lines_copy_shared(copy_way *way, void *to, const void *from, size_t bytes)
{
    LS_UNUSED(way);
    (void)lines_memcpy(to, from, bytes);
}

void lines_reduce_tree(void *to, const reduce_operand *operands, int n_operands, size_t count,
                       ls_dtype type, ls_reduce_op op, bool final, double divisor)
{
    const size_t bytes = count * ls_dtype_size(type); // partial results of f32 are as wide

    for (int i = 0; i < n_operands; i++)
        follow(operands[i].data, bytes, false);
    follow(to, bytes, true);
    reduce_tree(to, operands, n_operands, count, type, op, final, divisor);
}

// --- doubles ---

void local_ring(local *l, int peer)
{
    LS_UNUSED(l);
    LS_UNUSED(peer);
}

void local_prepare_sleep(local *l)
{
    LS_UNUSED(l);
}

void local_end_sleep(local *l)
{
    LS_UNUSED(l);
}

int local_poll_fds(const local *l, struct pollfd fds[LOCAL_FDS_MAX])
{
    LS_UNUSED(l);
    LS_UNUSED(fds);
    return 0;
}

bool local_has_events(const local *l)
{
    LS_UNUSED(l);
    return false;
}

bool local_receive(local *l)
{
    LS_UNUSED(l);
    return false;
}

bool local_has_ended(const local *l, int peer)
{
    LS_UNUSED(l);
    LS_UNUSED(peer);
    return false;
}

ls_status local_check(const local *l)
{
    LS_UNUSED(l);
    return LS_OK;
}

bool local_is_thread(const local *l, int rank)
{
    LS_UNUSED(l);
    LS_UNUSED(rank);
    return true;
}

ls_status segment_create(local *l, uint64_t key, size_t bytes, void **out)
{
    LS_UNUSED(l);
    LS_UNUSED(key);
    LS_ASSERT(bytes == n_lines * 64);
    *out = memory;
    return LS_OK;
}

ls_status segment_wait(local *l, int peer, uint64_t key, size_t bytes, int64_t deadline_ms,
                       segment_view **view, void **out)
{
    LS_UNUSED(peer);
    LS_UNUSED(deadline_ms);
    *view = NULL;
    return segment_create(l, key, bytes, out);
}

bool segment_find(local *l, const void *from, size_t bytes, segment_ref *ref)
{
    LS_UNUSED(l);
    LS_UNUSED(from);
    LS_UNUSED(bytes);
    LS_UNUSED(ref);
    return false;
}

ls_status segment_resolve(local *l, int peer, segment_ref ref, size_t bytes, segment_view **view,
                          void **out)
{
    LS_UNUSED(l);
    LS_UNUSED(peer);
    LS_UNUSED(ref);
    LS_UNUSED(bytes);
    LS_UNUSED(view);
    LS_UNUSED(out);
    return ls_fail(LS_EINTERNAL, "no segments here");
}

void segment_release(segment_view *view)
{
    LS_UNUSED(view);
}

void segment_close_fd(local *l, const void *at)
{
    LS_UNUSED(l);
    LS_UNUSED(at);
}

bool segment_destroy(local *l, const void *at)
{
    LS_UNUSED(l);
    LS_UNUSED(at);
    return true;
}
