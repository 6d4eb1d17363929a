/* SPDX-License-Identifier: Apache-2.0 */
#include "net/memory.h"

#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static ls_status map(net_memory *m, const char *whose)
{
    void *base = mmap(NULL, m->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, m->fd, 0);

    if (base == MAP_FAILED)
        return ls_fail_errno("cannot map %zu bytes of memory shared by %s", m->bytes, whose);
    m->base = base;
    return LS_OK;
}

ls_status net_memory_create(const char *label, size_t bytes, net_memory *out)
{
    int error;
    ls_status st;

    *out = (net_memory){.fd = -1, .bytes = bytes};
    if (bytes == 0 || bytes > (size_t)INT64_MAX)
        return ls_fail(LS_EINVAL, "shared memory '%s' of %zu bytes", label, bytes);
    out->fd = memfd_create(label, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (out->fd < 0)
        return ls_fail_errno("cannot make shared memory '%s'", label);
    do {
        error = posix_fallocate(out->fd, 0, (off_t)bytes);
    } while (error == EINTR);
    if (error != 0) {
        st = ls_fail(LS_ENOMEM, "no %zu bytes for shared memory '%s': %s", bytes, label,
                     ls_errno_text(error));
        goto fail;
    }
    if (fcntl(out->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
        st = ls_fail_errno("cannot seal shared memory '%s'", label);
        goto fail;
    }
    st = map(out, "this process");
    if (st == LS_OK)
        return LS_OK;

fail:
    net_memory_free(out);
    return st;
}

ls_status net_memory_map(int fd, size_t bytes, const char *peer, net_memory *out)
{
    struct stat facts;
    int seals;
    ls_status st;

    *out = (net_memory){.fd = fd, .bytes = bytes};
    if (bytes == 0) {
        st = ls_fail(LS_EINVAL, "no bytes of shared memory to map");
        goto fail;
    }
    if (fstat(fd, &facts) != 0) {
        st = ls_fail_errno("shared memory of %s", peer);
        goto fail;
    }
    seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
        st = ls_fail(LS_EPROTO, "shared memory of %s may shrink", peer);
        goto fail;
    }
    if (facts.st_size < 0 || (uint64_t)facts.st_size < bytes) {
        st = ls_fail(LS_EPROTO, "shared memory of %s has %lld bytes, not %zu", peer,
                     (long long)facts.st_size, bytes);
        goto fail;
    }
    st = map(out, peer);
    if (st == LS_OK)
        return LS_OK;

fail:
    net_memory_free(out);
    return st;
}

void net_memory_close_fd(net_memory *m)
{
    file_close(&m->fd);
}

void net_memory_free(net_memory *m)
{
    // A zeroed struct holds descriptor 0 only by accident: what was made or mapped has bytes.
    if (m->bytes == 0)
        return;
    if (m->base != NULL)
        munmap(m->base, m->bytes);
    file_close(&m->fd);
    *m = (net_memory){.fd = -1};
}
