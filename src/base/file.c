/* SPDX-License-Identifier: Apache-2.0 */
/*
 * file.c - reads whole files, writes files atomically and lists folders; every failure names the
 * path. Used by all layers, for data sets, checkpoints and /proc.
 */
#include "base/file.h"

#include "base/alloc.h"
#include "base/text.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* Fails with the errno of the failed call. */
static ls_status fail_path(const char *path, const char *did)
{
    const int error = errno;

    return ls_fail(error == ENOENT ? LS_ENOTFOUND : LS_EIO, "cannot %s %s: %s", did, path,
                   ls_errno_text(error));
}

static ssize_t read_some(int fd, void *dst, size_t bytes)
{
    ssize_t got;

    do {
        got = read(fd, dst, bytes);
    } while (got < 0 && errno == EINTR);
    return got;
}

static ls_status fail_size(const char *path, size_t max_bytes)
{
    char most[32];

    return ls_fail(LS_EFORMAT, "%s is larger than the %s that are allowed", path,
                   text_bytes(most, sizeof(most), max_bytes));
}

/* Reads to the end of the file. fstat() gives only a hint: files of /proc have size 0. */
static ls_status read_to_end(int fd, const char *path, size_t hint, size_t max_bytes, char **out,
                             size_t *out_bytes)
{
    size_t capacity = hint;
    size_t used = 0;
    char *data = NULL;

    for (;;) {
        // One byte more for the terminator, one to detect the end.
        char *more = ls_realloc(data, capacity + 2, 1);
        ssize_t got = 1;

        if (more == NULL) {
            ls_free(data);
            return ls_fail(LS_ENOMEM, "no memory for %zu bytes of %s", capacity, path);
        }
        data = more;
        while (got > 0 && used <= capacity) {
            got = read_some(fd, data + used, capacity + 1 - used);
            used += got > 0 ? (size_t)got : 0;
        }
        if (got < 0 || used > max_bytes) {
            const ls_status st = got < 0 ? fail_path(path, "read") : fail_size(path, max_bytes);

            ls_free(data);
            return st;
        }
        if (got == 0)
            break;
        capacity = capacity < 2048 ? 4096 : capacity > max_bytes / 2 ? max_bytes : capacity * 2;
    }
    data[used] = '\0';
    *out = data;
    *out_bytes = used;
    return LS_OK;
}

ls_status file_open_regular(const char *path, int *fd, uint64_t *bytes)
{
    struct stat info;
    ls_status st = LS_OK;

    // Without O_NONBLOCK the open of a named pipe would wait for its writer.
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*fd < 0 || fstat(*fd, &info) != 0)
        st = fail_path(path, "open");
    else if (!S_ISREG(info.st_mode))
        st = ls_fail(LS_EIO, "%s is not a regular file", path);
    else
        *bytes = (uint64_t)info.st_size;
    if (st != LS_OK)
        file_close(fd);
    return st;
}

ls_status file_read(const char *path, size_t max_bytes, char **out, size_t *out_bytes)
{
    uint64_t bytes = 0;
    ls_status st;
    int fd;

    if (max_bytes > SIZE_MAX / 4) // larger than any memory; doubling it must not overflow
        max_bytes = SIZE_MAX / 4;
    LS_TRY(file_open_regular(path, &fd, &bytes));
    if (bytes > max_bytes)
        st = fail_size(path, max_bytes);
    else
        st = read_to_end(fd, path, (size_t)bytes, max_bytes, out, out_bytes);
    file_close(&fd);
    return st;
}

static void cut_mark(char *text, size_t *bytes)
{
    const size_t mark = text_bom_bytes(text, *bytes);

    *bytes -= mark;
    memmove(text, text + mark, *bytes + 1);
}

ls_status file_read_text(const char *path, size_t max_bytes, char **out, size_t *out_bytes)
{
    LS_TRY(file_read(path, max_bytes, out, out_bytes));
    cut_mark(*out, out_bytes);
    return LS_OK;
}

ls_status file_read_input(const char *path, size_t max_bytes, char **out, size_t *out_bytes)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    ls_status st;

    if (fd < 0)
        return fail_path(path, "open");
    st = read_to_end(fd, path, 0, max_bytes, out, out_bytes);
    file_close(&fd);
    if (st == LS_OK)
        cut_mark(*out, out_bytes);
    return st;
}

ls_status file_pread_all(int fd, const char *path, void *dst, size_t bytes, uint64_t offset)
{
    char *p = dst;

    if (bytes > INT64_MAX || offset > INT64_MAX - bytes)
        return ls_fail(LS_EFORMAT, "%s: no file has %zu bytes at offset %" PRIu64, path, bytes,
                       offset);
    while (bytes > 0) {
        const ssize_t got = pread(fd, p, bytes, (off_t)offset);

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return ls_fail(LS_EIO, "cannot read %s at offset %" PRIu64 ": %s", path, offset,
                           ls_errno_text(errno));
        if (got == 0)
            return ls_fail(LS_EFORMAT, "%s ends at offset %" PRIu64 ", %zu bytes too early", path,
                           offset, bytes);
        p += got;
        bytes -= (size_t)got;
        offset += (uint64_t)got;
    }
    return LS_OK;
}

ls_status file_write_all(int fd, const char *path, const void *src, size_t bytes)
{
    const char *p = src;
    size_t done = 0;

    while (done < bytes) {
        const ssize_t put = write(fd, p + done, bytes - done);

        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return ls_fail(LS_EIO, "cannot write %s after %zu of %zu bytes: %s", path, done, bytes,
                           ls_errno_text(errno));
        done += (size_t)put;
    }
    return LS_OK;
}

/* Whether `path` still names the file of `fd`. */
static bool is_at_path(int fd, const char *path)
{
    struct stat by_fd;
    struct stat by_path;

    return fstat(fd, &by_fd) == 0 && lstat(path, &by_path) == 0 && by_fd.st_dev == by_path.st_dev &&
           by_fd.st_ino == by_path.st_ino;
}

/* Locks the file against other writers of the path; the lock of a killed process ends with it. A
 * file system without locks relies on the caller's order. *is_held is false when another writer has
 * renamed or removed the file between open and lock. */
static ls_status lock_tmp(const file_atomic *f, bool *is_held)
{
    if (flock(f->fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        return ls_fail(LS_EIO, "%s is being written by another process", f->path);
    *is_held = is_at_path(f->fd, f->tmp);
    return LS_OK;
}

/* Removes the f->tmp of a killed process of this user, and nothing else. */
static ls_status remove_stale(file_atomic *f)
{
    struct stat info;
    bool is_held = false;
    ls_status st = LS_OK;

    // Without O_NONBLOCK the open of a named pipe would wait for its writer.
    f->fd = open(f->tmp, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC | O_NOFOLLOW);
    if (f->fd < 0)
        return errno == ENOENT ? LS_OK : fail_path(f->tmp, "open the leftover file");
    if (fstat(f->fd, &info) != 0)
        st = fail_path(f->tmp, "examine");
    else if (!S_ISREG(info.st_mode) || info.st_uid != geteuid())
        st = ls_fail(LS_EIO,
                     "cannot create %s: what is there is not a regular file of this user; "
                     "remove it",
                     f->tmp);
    else
        st = lock_tmp(f, &is_held);
    if (st == LS_OK && is_held && unlink(f->tmp) != 0)
        st = fail_path(f->tmp, "remove");
    file_close(&f->fd);
    return st;
}

/* Creates and locks f->tmp as a new file: mode and owner are this process's. */
static ls_status open_tmp(file_atomic *f)
{
    bool is_held = false;

    while (!is_held) {
        ls_status st;

        f->fd = open(f->tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
        if (f->fd < 0 && errno != EEXIST)
            return fail_path(f->tmp, "create");
        st = f->fd >= 0 ? lock_tmp(f, &is_held) : remove_stale(f);
        if (!is_held)
            file_close(&f->fd);
        LS_TRY(st);
    }
    return LS_OK;
}

ls_status file_atomic_begin(file_atomic *f, const char *path)
{
    f->fd = -1;
    if (strlen(path) >= sizeof(f->path))
        return ls_fail(LS_EINVAL, "a path of %zu bytes is too long", strlen(path));
    (void)text_format(f->path, sizeof(f->path), "%s", path);
    (void)text_format(f->tmp, sizeof(f->tmp), "%s.tmp", path);
    return open_tmp(f);
}

ls_status file_atomic_probe(const char *path)
{
    struct stat info;
    file_atomic f;

    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode))
        return ls_fail(LS_EIO, "cannot write %s: %s", path, ls_errno_text(EISDIR));
    LS_TRY(file_atomic_begin(&f, path));
    file_atomic_cancel(&f);
    return LS_OK;
}

/* A rename is durable only after an fsync of its folder. */
static ls_status sync_folder(const char *path)
{
    char folder[4096];
    char *slash;
    int fd;
    ls_status st = LS_OK;

    (void)text_format(folder, sizeof(folder), "%s", path);
    slash = strrchr(folder, '/');
    if (slash == NULL)
        (void)text_format(folder, sizeof(folder), ".");
    else
        slash[slash == folder ? 1 : 0] = '\0';
    fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return fail_path(folder, "open");
    if (fsync(fd) != 0 && errno != EINVAL) // EINVAL: this file system does not sync folders
        st = fail_path(folder, "sync");
    file_close(&fd);
    return st;
}

ls_status file_atomic_commit(file_atomic *f)
{
    ls_status st = LS_OK;

    LS_ASSERT(f->fd >= 0);
    if (fsync(f->fd) != 0)
        st = fail_path(f->tmp, "sync");
    else if (rename(f->tmp, f->path) != 0)
        st = ls_fail(LS_EIO, "cannot rename %s to %s: %s", f->tmp, f->path, ls_errno_text(errno));
    if (st != LS_OK) {
        file_atomic_cancel(f);
        return st;
    }
    // a forked child may hold a copy of the descriptor and so of the lock
    (void)flock(f->fd, LOCK_UN);
    file_close(&f->fd);
    return sync_folder(f->path);
}

void file_atomic_cancel(file_atomic *f)
{
    if (f->fd < 0)
        return;
    (void)unlink(f->tmp);
    (void)flock(f->fd, LOCK_UN);
    file_close(&f->fd);
}

ls_status file_replace(const char *path, const void *data, size_t bytes)
{
    file_atomic f;
    ls_status st;

    LS_TRY(file_atomic_begin(&f, path));
    st = file_write_all(f.fd, f.tmp, data, bytes);
    if (st == LS_OK)
        return file_atomic_commit(&f);
    file_atomic_cancel(&f);
    return st;
}

void file_close(int *fd)
{
    if (*fd >= 0)
        (void)close(*fd);
    *fd = -1;
}

ssize_t file_read_fd(int fd, void *dst, size_t bytes)
{
    size_t done = 0;
    ssize_t got = 1;

    while (done < bytes && got > 0) {
        got = read_some(fd, (char *)dst + done, bytes - done);
        done += got > 0 ? (size_t)got : 0;
    }
    return got < 0 ? -1 : (ssize_t)done;
}

ssize_t file_read_start(const char *path, char *buf, size_t n)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got;

    if (fd < 0)
        return -1;
    got = file_read_fd(fd, buf, n - 1);
    file_close(&fd);
    buf[got > 0 ? got : 0] = 0;
    return got;
}

/* --- files that are not overwritten --- */

bool file_exists(const char *path)
{
    struct stat info;

    return lstat(path, &info) == 0;
}

const char *file_earlier_word(int i, char word[FILE_EARLIER_WORD_BYTES])
{
    return i == 1 ? text_format(word, FILE_EARLIER_WORD_BYTES, "earlier")
                  : text_format(word, FILE_EARLIER_WORD_BYTES, "earlier%d", i);
}

/* The length of PATH without the extension of its name. */
static size_t stem_length(const char *path)
{
    const char *slash = strrchr(path, '/');
    const char *name = slash == NULL ? path : slash + 1;
    const char *dot = strrchr(name, '.');

    return dot == NULL || dot == name ? strlen(path) : (size_t)(dot - path);
}

ls_status file_keep_earlier(const char *path, char renamed[FILE_EARLIER_BYTES])
{
    const size_t stem = stem_length(path);
    char word[FILE_EARLIER_WORD_BYTES];
    struct stat info;
    int i = 1;

    renamed[0] = 0;
    if (stat(path, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size == 0)
        return LS_OK;
    if (strlen(path) + FILE_EARLIER_WORD_BYTES > FILE_EARLIER_BYTES)
        return ls_fail(LS_EINVAL, "the path %.100s... is too long", path);
    do
        text_format(renamed, FILE_EARLIER_BYTES, "%.*s.%s%s", (int)stem, path,
                    file_earlier_word(i++, word), path + stem);
    while (file_exists(renamed));
    return rename(path, renamed) == 0 ? LS_OK
                                      : ls_fail_errno("cannot rename %s to %s", path, renamed);
}

const struct dirent *file_next_entry(DIR *folder)
{
    return readdir(folder); // NOLINT(concurrency-mt-unsafe): one thread reads a stream
}

int file_next_number(DIR *folder)
{
    const struct dirent *entry;

    while ((entry = file_next_entry(folder)) != NULL)
        if (isdigit((unsigned char)entry->d_name[0]))
            return (int)strtol(entry->d_name, NULL, 10);
    return -1;
}
