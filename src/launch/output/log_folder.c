/* SPDX-License-Identifier: Apache-2.0 */
/*
 * log_folder.c - creates the folder of a job's log files and opens files in it. All names below the
 * random folder are opened relative to its descriptor and without following links. Called by the
 * agent.
 */
#include "launch/output/log_folder.h"

#include "base/file.h"
#include "base/text.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NAME_TRIES = 16, RUN_ID_MOST = 100, RELATIVE_MOST = 128 };

static ls_status fail_make(const char *path)
{
    return ls_fail(LS_EIO, "cannot make the folder %s: %s", path, ls_errno_text(errno));
}

/* Creates DIR and its missing parents. */
static ls_status make_parents(const char *dir)
{
    char path[PATH_MAX];
    const size_t n = strlen(dir);

    if (n == 0 || n >= sizeof(path))
        return ls_fail(LS_EINVAL, "a log folder's name has 1 to %zu bytes, not %zu",
                       sizeof(path) - 1, n);
    for (size_t i = 1; i <= n; i++) {
        if (dir[i] != '/' && dir[i] != 0)
            continue;
        text_format(path, sizeof(path), "%.*s", (int)i, dir);
        if (mkdir(path, 0700) != 0 && errno != EEXIST)
            return fail_make(path);
    }
    return LS_OK;
}

/* A run id may contain any character; a file name may not. */
static void name_run(char *buf, size_t n, const char *prefix, const char *run_id)
{
    size_t length;

    text_format(buf, n, "%s%.*s", prefix, RUN_ID_MOST, run_id);
    length = strlen(buf);
    for (size_t i = 0; i < length; i++)
        if (!isalnum((unsigned char)buf[i]) && strchr("-_.", buf[i]) == NULL)
            buf[i] = '_';
    if (length == 0)
        text_format(buf, n, "job");
    else if (buf[0] == '.')
        buf[0] = '_'; /* or the log folder would be hidden */
}

static ls_status random_letters(char letters[9])
{
    static const char alphabet[] = "abcdefghijklmnopqrstuvwxyz234567";
    unsigned char bytes[8];

    if (getrandom(bytes, sizeof(bytes), 0) != (ssize_t)sizeof(bytes))
        return ls_fail_errno("random bytes for a folder's name");
    for (size_t i = 0; i < sizeof(bytes); i++)
        letters[i] = alphabet[bytes[i] % 32];
    letters[8] = 0;
    return LS_OK;
}

/* Creates a new folder in out->path and appends its name to that path. */
static ls_status make_new(const char *name, log_folder *out)
{
    const size_t n = strlen(out->path);
    char letters[9];

    for (int i = 0; i < NAME_TRIES; i++) {
        LS_TRY(random_letters(letters));
        if (n + strlen(name) + sizeof(letters) + 2 > sizeof(out->path))
            return ls_fail(LS_EINVAL, "the path of the log folder %s is too long", out->path);
        text_format(out->path + n, sizeof(out->path) - n, "/%s_%s", name, letters);
        if (mkdir(out->path, 0700) == 0)
            break;
        if (errno != EEXIST)
            return fail_make(out->path);
    }
    out->fd = open(out->path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (out->fd < 0)
        return ls_fail(LS_EIO, "cannot open the folder %s: %s", out->path, ls_errno_text(errno));
    return LS_OK;
}

ls_status log_folder_create(const char *dir, const char *run_id, log_folder *out)
{
    const char *temporary = getenv("TMPDIR"); // NOLINT(concurrency-mt-unsafe): one thread
    char name[RUN_ID_MOST + 16];
    char whole[PATH_MAX];

    out->fd = -1;
    if (temporary == NULL || *temporary == 0)
        temporary = "/tmp";
    name_run(name, sizeof(name), dir == NULL ? "lockstep_" : "", run_id);
    if (dir != NULL)
        LS_TRY(make_parents(dir));
    if (realpath(dir != NULL ? dir : temporary, whole) == NULL)
        return ls_fail(LS_EIO, "cannot find the folder %s: %s", dir != NULL ? dir : temporary,
                       ls_errno_text(errno));
    text_format(out->path, sizeof(out->path), "%s", whole);
    return make_new(name, out);
}

void log_folder_close(log_folder *f)
{
    file_close(&f->fd);
}

/* --- the folder of a rank --- */

static const char *relative(char *buf, unsigned attempt, int local_rank, const char *file)
{
    if (local_rank == LOG_FOLDER_ALL_RANKS)
        return text_format(buf, RELATIVE_MOST, "attempt_%u%s%s", attempt, file == NULL ? "" : "/",
                           file == NULL ? "" : file);
    return text_format(buf, RELATIVE_MOST, "attempt_%u/%d%s%s", attempt, local_rank,
                       file == NULL ? "" : "/", file == NULL ? "" : file);
}

static ls_status make_inside(const log_folder *f, const char *name)
{
    if (mkdirat(f->fd, name, 0700) != 0 && errno != EEXIST)
        return ls_fail(LS_EIO, "cannot make the folder %s/%s: %s", f->path, name,
                       ls_errno_text(errno));
    return LS_OK;
}

ls_status log_folder_add_rank(const log_folder *f, unsigned attempt, int local_rank)
{
    char name[RELATIVE_MOST];

    text_format(name, sizeof(name), "attempt_%u", attempt);
    LS_TRY(make_inside(f, name));
    return make_inside(f, relative(name, attempt, local_rank, NULL));
}

const char *log_folder_path(const log_folder *f, unsigned attempt, int local_rank, const char *file,
                            char *buf, size_t n)
{
    char name[RELATIVE_MOST];

    return text_format(buf, n, "%s/%s", f->path, relative(name, attempt, local_rank, file));
}

static ls_status open_inside(const log_folder *f, const char *name, int flags, int *fd)
{
    *fd = openat(f->fd, name, flags | O_NOFOLLOW | O_CLOEXEC | O_NOCTTY, 0600);
    if (*fd < 0)
        return ls_fail(errno == ENOENT ? LS_ENOTFOUND : LS_EIO, "cannot open %s/%s: %s", f->path,
                       name, ls_errno_text(errno));
    return LS_OK;
}

ls_status log_folder_create_file(const log_folder *f, unsigned attempt, int local_rank,
                                 const char *file, int *fd)
{
    char name[RELATIVE_MOST];

    return open_inside(f, relative(name, attempt, local_rank, file),
                       O_WRONLY | O_CREAT | O_APPEND | O_NONBLOCK, fd);
}

ls_status log_folder_open_file(const log_folder *f, unsigned attempt, int local_rank,
                               const char *file, int *fd)
{
    char name[RELATIVE_MOST];

    return open_inside(f, relative(name, attempt, local_rank, file), O_RDONLY | O_NONBLOCK, fd);
}
