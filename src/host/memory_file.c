/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory_file.c - memfds, or deleted files where the kernel refuses memfds. The job's key, flight
 * recorders, error files and segments use it.
 */
#include "host/memory_file.h"

#include "base/file.h"
#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

// Linux 6.3.
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8U
#endif

static int make_memfd(const char *name)
{
    const unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
    const int fd = memfd_create(name, flags);

    // Where vm.memfd_noexec is 2.
    return fd < 0 && errno == EACCES ? memfd_create(name, flags | MFD_NOEXEC_SEAL) : fd;
}

/* A file without a name from the beginning, or one that is deleted at once. */
static int make_deleted(const char *folder)
{
    char path[4096];
    int fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);

    if (fd >= 0)
        return fd;
    text_format(path, sizeof(path), "%s/lockstep-XXXXXX", folder);
    fd = mkostemp(path, O_CLOEXEC);
    if (fd >= 0)
        (void)unlink(path);
    return fd;
}

static ls_status allocate_in(const char *folder, size_t bytes, int *fd)
{
    int error = 0;

    *fd = make_deleted(folder);
    if (*fd < 0)
        return ls_fail_errno("%s", folder);
    while (bytes > 0 && (error = posix_fallocate(*fd, 0, (off_t)bytes)) == EINTR)
        continue;
    if (error == 0)
        return LS_OK;
    file_close(fd);
    return ls_fail(LS_ESYSTEM, "%s: %s", folder, ls_errno_text(error));
}

static ls_status make_file(size_t bytes, int *fd)
{
    const char *temporary = getenv("TMPDIR"); // NOLINT(concurrency-mt-unsafe): no thread sets it
    const char *const folders[] = {"/dev/shm", temporary, "/tmp"};
    ls_status st = LS_ESYSTEM;

    for (size_t i = 0; i < LS_COUNT_OF(folders) && st != LS_OK; i++) {
        if (folders[i] != NULL && folders[i][0] == '/')
            st = allocate_in(folders[i], bytes, fd);
    }
    return st;
}

ls_status memory_file_make(const char *name, size_t bytes, int *fd)
{
    char kept[LS_ERROR_BYTES];
    ls_status st;

    *fd = make_memfd(name);
    if (*fd >= 0 && ftruncate(*fd, (off_t)bytes) == 0)
        return LS_OK;
    if (*fd >= 0) {
        st = ls_fail_errno("cannot make %zu bytes of shared memory", bytes);
        file_close(fd);
        return st;
    }
    if (errno != EPERM && errno != ENOSYS && errno != EACCES)
        return ls_fail_errno("cannot make %zu bytes of shared memory", bytes);
    ls_error_save(kept);
    st = make_file(bytes, fd);
    if (st == LS_OK)
        ls_error_restore(kept);
    return ls_context(
        st,
        "cannot make %zu bytes of shared memory: memfd_create() is refused (by a "
        "container's filter of system calls?), and no folder takes a file: fix: allow "
        "memfd_create, or more space in /dev/shm or TMPDIR",
        bytes);
}

ls_status memory_file_seal(int fd, int seals)
{
    if (fcntl(fd, F_ADD_SEALS, seals) == 0 || errno == EINVAL || errno == EPERM)
        return LS_OK;
    return ls_fail_errno("cannot seal shared memory");
}

bool memory_file_stays(int fd)
{
    const int seals = fcntl(fd, F_GET_SEALS);
    struct stat facts;

    if (seals >= 0 && (seals & F_SEAL_SHRINK) != 0)
        return true;
    // Files in memory have the seal that forbids seals, others none.
    return (seals < 0 || seals == F_SEAL_SEAL) && fstat(fd, &facts) == 0 &&
           S_ISREG(facts.st_mode) && facts.st_nlink == 0 && facts.st_uid == geteuid() &&
           (facts.st_mode & (S_IRWXG | S_IRWXO)) == 0;
}
