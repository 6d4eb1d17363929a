/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_memory_file.c - files in memory as memfds, as deleted files where memfd_create() is refused,
 * and their errors. Linked with --wrap=memfd_create,--wrap=posix_fallocate.
 */
#include "base/unit.h"

#include "base/file.h"
#include "host/memory_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BYTES = 300000 };

static int memfd_error;
static int n_full; /* folders without space */

int __real_memfd_create(const char *name, unsigned flags);
int __wrap_memfd_create(const char *name, unsigned flags);
int __real_posix_fallocate(int fd, off_t at, off_t bytes);
int __wrap_posix_fallocate(int fd, off_t at, off_t bytes);

int __wrap_memfd_create(const char *name, unsigned flags)
{
    if (memfd_error == 0)
        return __real_memfd_create(name, flags);
    errno = memfd_error;
    return -1;
}

int __wrap_posix_fallocate(int fd, off_t at, off_t bytes)
{
    return n_full-- > 0 ? ENOSPC : __real_posix_fallocate(fd, at, bytes);
}

static int set_up(void **state)
{
    LS_UNUSED(state);
    memfd_error = 0;
    n_full = 0;
    return 0;
}

/* Zeros of this size that can be written; returns its facts. */
static struct stat look_at_memory(int fd)
{
    struct stat facts;
    unsigned char *at = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    assert_true(at != MAP_FAILED);
    assert_int_equal(fstat(fd, &facts), 0);
    assert_int_equal(facts.st_size, BYTES);
    assert_int_equal(facts.st_nlink, 0);
    assert_int_equal(at[0] | at[BYTES - 1], 0);
    memset(at, 7, BYTES);
    (void)munmap(at, BYTES);
    assert_true((fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
    return facts;
}

static void memfd_stays_when_it_is_sealed(void **state)
{
    int fd;

    LS_UNUSED(state);
    assert_ok(memory_file_make("test", BYTES, &fd));
    (void)look_at_memory(fd);
    assert_false(memory_file_stays(fd)); // not sealed yet
    assert_ok(memory_file_seal(fd, F_SEAL_SHRINK));
    assert_true(memory_file_stays(fd));
    assert_int_equal(ftruncate(fd, 0), -1);
    file_close(&fd);
}

static void refused_memfd_becomes_an_allocated_file(void **state)
{
    static const int errors[] = {EPERM, ENOSYS, EACCES};

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(errors); i++) {
        struct stat facts;
        int fd;

        memfd_error = errors[i];
        n_full = (int)i; // in /dev/shm; and in TMPDIR
        assert_ok(memory_file_make("test", BYTES, &fd));
        facts = look_at_memory(fd);
        assert_true(facts.st_blocks * 512 >= BYTES);
        assert_int_equal(facts.st_mode & 0777, 0600);
        assert_ok(memory_file_seal(fd, F_SEAL_SHRINK));
        assert_true(memory_file_stays(fd));
        assert_int_equal(fchmod(fd, 0644), 0);
        assert_false(memory_file_stays(fd));
        file_close(&fd);
    }
}

static void missing_space_is_named(void **state)
{
    int fd;

    LS_UNUSED(state);
    memfd_error = EPERM;
    n_full = 3;
    assert_status(memory_file_make("test", BYTES, &fd), LS_ESYSTEM);
    assert_last_error("300000 bytes");
    assert_last_error("memfd_create");
    assert_last_error("/tmp: No space left on device");
    assert_int_equal(fd, -1);
    memfd_error = EMFILE;
    assert_status(memory_file_make("test", BYTES, &fd), LS_ESYSTEM);
    assert_last_error("Too many open files");
}

/* A file that has a name could be opened and cut by others. */
static void file_with_a_name_does_not_stay(void **state)
{
    char path[] = "/tmp/test-memory-file-XXXXXX";
    int fd = mkostemp(path, O_CLOEXEC);

    LS_UNUSED(state);
    assert_true(fd >= 0);
    assert_false(memory_file_stays(fd));
    assert_int_equal(unlink(path), 0);
    file_close(&fd);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(memfd_stays_when_it_is_sealed, set_up),
        cmocka_unit_test_setup(refused_memfd_becomes_an_allocated_file, set_up),
        cmocka_unit_test_setup(missing_space_is_named, set_up),
        cmocka_unit_test_setup(file_with_a_name_does_not_stay, set_up),
    };

    (void)setenv("TMPDIR", "/var/tmp", 1); // NOLINT(concurrency-mt-unsafe): one thread
    return cmocka_run_group_tests_name("memory_file", tests, NULL, NULL);
}
