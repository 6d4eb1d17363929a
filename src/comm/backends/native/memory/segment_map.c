/* SPDX-License-Identifier: Apache-2.0 */
/*
 * segment_map.c - creates, maps and shares files in memory (memory_file.h). A memfd is sealed
 * against shrinking before any peer gets it, and a received file is checked for that, so no access
 * beyond its end can fault.
 * segment.c calls it.
 */
#include "comm/backends/native/memory/segment_map.h"

#include "base/alloc.h"
#include "base/file.h"
#include "base/thread.h"
#include "host/memory_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAGE_BYTES ((size_t)4096)
#define HUGE_BYTES ((size_t)2 << 20)
#define HUGE_FROM  (HUGE_BYTES / 2) /* smaller segments would waste most of a huge page */

// Linux 5.14 and 6.1; older headers lack them and older kernels refuse them.
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

static ls_mutex list_lock = {PTHREAD_MUTEX_INITIALIZER};
static list_node all = {&all, &all}; // segment_map.node, under list_lock
static atomic_uint_fast64_t last_token;

uint64_t segment_token(void)
{
    return atomic_fetch_add_explicit(&last_token, 1, memory_order_relaxed) + 1;
}

/* Reserves addresses aligned for huge pages, then maps the memory there. */
static ls_status map_aligned(segment_map *m, int fd, const char *owner)
{
    const size_t alignment = m->is_huge ? HUGE_BYTES : PAGE_BYTES;
    const size_t reserved = m->mapped + alignment - PAGE_BYTES;
    char *at = mmap(NULL, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    char *aligned;
    size_t before;

    if (at == MAP_FAILED)
        return ls_fail_errno("no addresses for %zu bytes shared by %s", m->bytes, owner);
    before = (alignment - (uintptr_t)at % alignment) % alignment;
    aligned = at + before;
    if (mmap(aligned, m->mapped, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) ==
        MAP_FAILED) {
        const ls_status st = ls_fail_errno("cannot map %zu bytes shared by %s", m->bytes, owner);

        munmap(at, reserved);
        return st;
    }
    if (before > 0)
        munmap(at, before);
    if (reserved - before - m->mapped > 0)
        munmap(aligned + m->mapped, reserved - before - m->mapped);
    m->base = aligned;
    // Only a hint: shmem_enabled may be "never".
    if (m->is_huge)
        (void)madvise(m->base, m->mapped, MADV_HUGEPAGE);
    return LS_OK;
}

static ls_status new_map(size_t bytes, bool is_bulk, segment_map **out)
{
    const bool is_huge = is_bulk && bytes >= HUGE_FROM;
    const size_t alignment = is_huge ? HUGE_BYTES : PAGE_BYTES;
    segment_map *m;

    if (bytes == 0 || bytes > SIZE_MAX / 4)
        return ls_fail(LS_EINVAL, "a segment of %zu bytes", bytes);
    LS_TRY(LS_NEW(&m, 1, "to describe a segment"));
    m->bytes = bytes;
    m->is_huge = is_huge;
    m->mapped = (bytes + alignment - 1) / alignment * alignment;
    m->fd = -1;
    m->users = 1;
    list_init(&m->node);
    *out = m;
    return LS_OK;
}

static void destroy(segment_map *m)
{
    if (m->base != NULL)
        munmap(m->base, m->mapped);
    file_close(&m->fd);
    ls_free(m);
}

static ls_status note_file(segment_map *m, int fd, off_t *bytes)
{
    struct stat facts;

    if (fstat(fd, &facts) != 0)
        return ls_fail_errno("shared memory");
    m->device = facts.st_dev;
    m->file = facts.st_ino;
    *bytes = facts.st_size;
    return LS_OK;
}

static ls_status make_shared(segment_map *m)
{
    off_t bytes = 0;

    LS_TRY(memory_file_make("lockstep", m->mapped, &m->fd));
    LS_TRY(note_file(m, m->fd, &bytes));
    // A peer must not shrink it while others use it.
    return memory_file_seal(m->fd, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
}

/*
 * Allocates all pages now: otherwise the first touch allocates them, and missing memory then kills
 * the process. Huge pages as far as the kernel has some: where shmem_enabled is "never", it still
 * makes one of a range in which one small page exists.
 */
static ls_status populate(const segment_map *m)
{
    char *base = m->base;

    for (size_t at = 0; m->is_huge && at < m->mapped; at += HUGE_BYTES)
        (void)madvise(base + at, PAGE_BYTES, MADV_POPULATE_WRITE);
    if (m->is_huge)
        (void)madvise(base, m->mapped, MADV_COLLAPSE);
    if (madvise(base, m->mapped, MADV_POPULATE_WRITE) != 0 && errno == ENOMEM)
        return ls_fail(LS_ENOMEM, "no %zu bytes of shared memory", m->bytes);
    return LS_OK;
}

ls_status segment_map_create(uint64_t token, size_t bytes, bool is_bulk, segment_map **out)
{
    segment_map *m = NULL;
    ls_status st;

    LS_TRY(new_map(bytes, is_bulk, &m));
    st = make_shared(m);
    if (st == LS_OK)
        st = map_aligned(m, m->fd, "this rank");
    if (st == LS_OK && is_bulk)
        st = populate(m);
    if (st != LS_OK) {
        destroy(m);
        return st;
    }
    m->token = token;
    ls_mutex_lock(&list_lock);
    list_append(&all, &m->node);
    ls_mutex_unlock(&list_lock);
    *out = m;
    return LS_OK;
}

segment_map *segment_map_share(uint64_t token)
{
    segment_map *found = NULL;

    ls_mutex_lock(&list_lock);
    list_for_each (it, &all) {
        segment_map *m = list_entry(it, segment_map, node);

        if (m->token == token) {
            m->users++;
            found = m;
            break;
        }
    }
    ls_mutex_unlock(&list_lock);
    return found;
}

/* A received file must be as long as announced and must stay so. */
static ls_status check_file(int fd, segment_map *m, int peer)
{
    off_t bytes = 0;

    LS_TRY(ls_context(note_file(m, fd, &bytes), "rank %d", peer));
    if (!memory_file_stays(fd))
        return ls_fail(LS_EPROTO, "shared memory of rank %d may shrink", peer);
    if (bytes < 0 || (uint64_t)bytes < m->mapped)
        return ls_fail(LS_EPROTO, "shared memory of rank %d has %lld bytes, not %zu", peer,
                       (long long)bytes, m->mapped);
    return LS_OK;
}

/* The mapping of the same file, one user more; NULL: there is none as long. */
static segment_map *find_file(const segment_map *m)
{
    list_for_each (it, &all) {
        segment_map *other = list_entry(it, segment_map, node);

        if (other->file == m->file && other->device == m->device && other->mapped >= m->mapped) {
            other->users++;
            return other;
        }
    }
    return NULL;
}

/* Lists the new mapping, unless the file is mapped already: then *out is that one. */
static ls_status map_once(segment_map *m, int fd, segment_map **out)
{
    ls_status st = LS_OK;

    ls_mutex_lock(&list_lock);
    *out = find_file(m);
    if (*out == NULL)
        st = map_aligned(m, fd, "a peer");
    if (*out == NULL && st == LS_OK) {
        list_append(&all, &m->node);
        *out = m;
    }
    ls_mutex_unlock(&list_lock);
    return st;
}

ls_status segment_map_attach(int fd, size_t bytes, bool is_bulk, int peer, segment_map **out)
{
    segment_map *m = NULL;
    segment_map *found = NULL;
    ls_status st = new_map(bytes, is_bulk, &m);

    if (st == LS_OK)
        st = check_file(fd, m, peer);
    if (st == LS_OK)
        st = map_once(m, fd, &found);
    file_close(&fd);
    if (m != NULL && found != m)
        destroy(m);
    if (st == LS_OK)
        *out = found;
    return st;
}

void segment_map_close_fd(segment_map *m)
{
    file_close(&m->fd);
}

void segment_map_release(segment_map *m)
{
    bool last;

    if (m == NULL)
        return;
    ls_mutex_lock(&list_lock);
    last = --m->users == 0;
    if (last)
        list_remove(&m->node);
    ls_mutex_unlock(&list_lock);
    if (last)
        destroy(m);
}
