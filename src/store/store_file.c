/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_file.c - a store in a file that processes of one user share, behind file:// urls: a log of
 * sets and deletions after a header of 16 bytes. A record is u32 bytes of the body, u32 checksum,
 * body = kind u8, u32 key length, key, value.
 *
 * A process locks byte 0 while it reads or appends. Every process that has the file open keeps a
 * shared lock on byte 1. A process that opens the file alone therefore finds the content of a
 * killed job, and empties it; the last process to close the file removes it. The kernel releases
 * the locks of dead processes. The next append cuts off an incomplete record of a killed process.
 */
#include "store/store_ops.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/rng.h"
#include "base/text.h"
#include "net/wire.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define HEADER_BYTES  16
#define RECORD_BYTES  8 /* in front of each body */
#define BODY_MIN      (5 + 1)
#define BODY_MAX      (5 + LS_STORE_KEY_MAX + LS_STORE_VALUE_MAX)
#define FILE_MAX      ((int64_t)1024 * 1024 * 1024)
#define LOCK_MS       30000
#define POLL_MAX_MS   20
#define OPEN_ATTEMPTS 100

static const uint8_t header[HEADER_BYTES] = "LSSTORE1";

typedef enum record_kind { RECORD_SET = 1, RECORD_DELETE = 2 } record_kind;

typedef enum lock_byte { LOCK_CONTENT = 0, LOCK_ALIVE = 1 } lock_byte;

typedef struct file_store {
    ls_store base;
    int fd;
    char path[PATH_MAX];
    kv_table table;
    uint64_t read_to;   /* offset after the last record in the table */
    wire_writer record; /* to be appended next */
} file_store;

static file_store *file_of(ls_store *s)
{
    return (file_store *)(void *)s;
}

/* --- locks --- */

/* An open-file-description lock, which two stores of one process share correctly. False: errno. */
static bool try_lock(int fd, lock_byte which, short type)
{
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = which, .l_len = 1};

    return fcntl(fd, F_OFD_SETLK, &lock) == 0;
}

static ls_status lock_content(int fd, const char *path)
{
    const int64_t deadline_ms = ls_deadline_ms(LOCK_MS);
    int pause_ms = 1;

    while (!try_lock(fd, LOCK_CONTENT, F_WRLCK)) {
        if (errno != EAGAIN && errno != EACCES && errno != EINTR)
            return ls_fail_errno("cannot lock %s", path);
        if (ls_deadline_left(deadline_ms) == 0)
            return ls_fail(LS_ETIMEOUT, "%s has been locked by another process for %d s", path,
                           LOCK_MS / 1000);
        poll(NULL, 0, pause_ms);
        pause_ms = pause_ms < POLL_MAX_MS ? 2 * pause_ms : POLL_MAX_MS;
    }
    return LS_OK;
}

static ls_status unlock_content(const file_store *f, ls_status st)
{
    if (!try_lock(f->fd, LOCK_CONTENT, F_UNLCK) && st == LS_OK)
        return ls_fail_errno("cannot unlock %s", f->path);
    return st;
}

/* --- records --- */

static uint32_t checksum(const uint8_t *body, size_t bytes)
{
    const uint64_t hash = ls_hash_bytes(body, bytes, 0);

    return (uint32_t)(hash ^ hash >> 32);
}

static ls_status bad_record(const file_store *f, uint64_t offset, const char *why)
{
    return ls_fail(LS_EFORMAT, "store %s, offset %" PRIu64 ": %s", f->path, offset, why);
}

static ls_status apply_record(file_store *f, const uint8_t *body, size_t bytes)
{
    wire_reader r = wire_reader_over(body, bytes);
    const uint8_t kind = wire_read_u8(&r);
    kv_bytes key;
    kv_bytes value;

    key.data = wire_read_bytes(&r, LS_STORE_KEY_MAX, &key.bytes);
    value = (kv_bytes){body + r.at, bytes - r.at};
    if (r.failed || key.bytes == 0)
        return bad_record(f, f->read_to, "a record without a key");
    if (kind == RECORD_DELETE && value.bytes == 0) {
        table_delete(&f->table, key);
        return LS_OK;
    }
    if (kind != RECORD_SET)
        return bad_record(f, f->read_to, "a record of unknown kind");
    return ls_context(table_set(&f->table, key, value), "store %s, offset %" PRIu64, f->path,
                      f->read_to);
}

/* Reads one record; *more is false when none is whole. */
static ls_status read_record(file_store *f, uint64_t file_bytes, bool *more)
{
    const uint64_t left = file_bytes - f->read_to;
    uint8_t front[RECORD_BYTES];
    uint32_t bytes;
    uint8_t *body;
    ls_status st;

    *more = false;
    if (left < RECORD_BYTES)
        return LS_OK;
    LS_TRY(file_pread_all(f->fd, f->path, front, sizeof(front), f->read_to));
    bytes = wire_get_u32(front);
    if (bytes < BODY_MIN || bytes > BODY_MAX)
        return bad_record(f, f->read_to, "a record of impossible length");
    if (left - RECORD_BYTES < bytes)
        return LS_OK;
    body = ls_realloc(NULL, bytes, 1);
    if (body == NULL)
        return ls_fail(LS_ENOMEM, "no memory for a record of %u bytes", bytes);
    st = file_pread_all(f->fd, f->path, body, bytes, f->read_to + RECORD_BYTES);
    if (st == LS_OK && checksum(body, bytes) != wire_get_u32(front + 4))
        st = bad_record(f, f->read_to, "a record with a wrong checksum");
    if (st == LS_OK)
        st = apply_record(f, body, bytes);
    ls_free(body);
    if (st == LS_OK) {
        f->read_to += RECORD_BYTES + bytes;
        *more = true;
    }
    return st;
}

/* Reads all new records; the content is locked. */
static ls_status catch_up(file_store *f)
{
    struct stat facts;
    bool more = true;

    if (fstat(f->fd, &facts) != 0)
        return ls_fail_errno("store %s", f->path);
    if (facts.st_size < 0 || (uint64_t)facts.st_size < f->read_to)
        return bad_record(f, f->read_to, "the file has become shorter");
    if (facts.st_size > FILE_MAX)
        return bad_record(f, FILE_MAX, "the file is too large");
    while (more)
        LS_TRY(read_record(f, (uint64_t)facts.st_size, &more));
    return LS_OK;
}

/* Appends the change to the file and applies it to the table. */
static ls_status append(file_store *f, record_kind kind, kv_bytes key, kv_bytes value)
{
    wire_writer *w = &f->record;
    ls_status st;

    wire_writer_reset(w);
    wire_write_u32(w, (uint32_t)(5 + key.bytes + value.bytes));
    wire_write_u32(w, 0);
    wire_write_u8(w, (uint8_t)kind);
    wire_write_bytes(w, key.data, key.bytes);
    wire_write_raw(w, value.data, value.bytes);
    LS_TRY(wire_writer_status(w));
    wire_put_u32(w->data + 4, checksum(w->data + RECORD_BYTES, w->bytes - RECORD_BYTES));
    if (f->read_to + w->bytes > (uint64_t)FILE_MAX)
        return ls_fail(LS_ENOMEM, "store %s is full: %" PRIu64 " bytes", f->path, f->read_to);
    if (ftruncate(f->fd, (off_t)f->read_to) != 0 || lseek(f->fd, (off_t)f->read_to, SEEK_SET) < 0)
        return ls_fail_errno("cannot append to %s", f->path);
    st = file_write_all(f->fd, f->path, w->data, w->bytes);
    if (st == LS_OK)
        st = apply_record(f, w->data + RECORD_BYTES, w->bytes - RECORD_BYTES);
    if (st == LS_OK)
        f->read_to += w->bytes;
    else if (ftruncate(f->fd, (off_t)f->read_to) != 0)
        return ls_context(st, "the incomplete record cannot be removed (%s)", ls_errno_text(errno));
    return st;
}

/* --- operations --- */

/* Locks the content and reads new records; on failure it is not locked. */
static ls_status begin(file_store *f)
{
    ls_status st;

    LS_TRY(lock_content(f->fd, f->path));
    st = catch_up(f);
    return st == LS_OK ? st : unlock_content(f, st);
}

static ls_status file_set(ls_store *s, kv_bytes key, kv_bytes value)
{
    file_store *f = file_of(s);

    LS_TRY(begin(f));
    return unlock_content(f, append(f, RECORD_SET, key, value));
}

static ls_status file_wait(ls_store *s, const kv_bytes *keys, int n, int64_t deadline_ms)
{
    file_store *f = file_of(s);
    int pause_ms = 1;
    int missing;

    for (;;) {
        const int left = ls_deadline_left(deadline_ms);

        LS_TRY(begin(f));
        LS_TRY(unlock_content(f, LS_OK));
        if (store_has_all(&f->table, keys, n, &missing))
            return LS_OK;
        if (left == 0)
            return store_missing(&f->table, keys, n);
        poll(NULL, 0, left > 0 && left < pause_ms ? left : pause_ms);
        pause_ms = pause_ms < POLL_MAX_MS ? 2 * pause_ms : POLL_MAX_MS;
    }
}

static ls_status file_get(ls_store *s, kv_bytes key, int64_t deadline_ms, void **out, size_t *bytes)
{
    file_store *f = file_of(s);
    kv_bytes value = {0};

    LS_TRY(file_wait(s, &key, 1, deadline_ms));
    table_get(&f->table, key, &value);
    return store_copy_value(value, out, bytes);
}

static ls_status file_add(ls_store *s, kv_bytes key, int64_t delta, int64_t *out)
{
    file_store *f = file_of(s);
    char digits[TABLE_NUMBER_BYTES];
    ls_status st;

    LS_TRY(begin(f));
    st = table_sum(&f->table, key, delta, out, digits);
    if (st == LS_OK)
        st = append(f, RECORD_SET, key, (kv_bytes){(const uint8_t *)digits, strlen(digits)});
    return unlock_content(f, st);
}

static ls_status file_compare_set(ls_store *s, kv_bytes key, kv_bytes expected, kv_bytes desired,
                                  bool *swapped)
{
    file_store *f = file_of(s);
    ls_status st = LS_OK;

    LS_TRY(begin(f));
    *swapped = table_has_value(&f->table, key, expected);
    if (*swapped)
        st = append(f, RECORD_SET, key, desired);
    return unlock_content(f, st);
}

static ls_status file_check(ls_store *s, const kv_bytes *keys, int n, bool *all_exist)
{
    file_store *f = file_of(s);
    int missing;

    LS_TRY(begin(f));
    *all_exist = store_has_all(&f->table, keys, n, &missing);
    return unlock_content(f, LS_OK);
}

static ls_status file_remove(ls_store *s, kv_bytes key, bool *existed)
{
    file_store *f = file_of(s);
    kv_bytes value;
    ls_status st = LS_OK;

    LS_TRY(begin(f));
    *existed = table_get(&f->table, key, &value);
    if (*existed)
        st = append(f, RECORD_DELETE, key, (kv_bytes){NULL, 0});
    return unlock_content(f, st);
}

static ls_status file_count(ls_store *s, int64_t *out)
{
    file_store *f = file_of(s);

    LS_TRY(begin(f));
    *out = (int64_t)table_count(&f->table);
    return unlock_content(f, LS_OK);
}

/* --- opening and closing --- */

/* False when the path is gone or names a newer file. */
static bool is_at_path(const file_store *f)
{
    struct stat open_file;
    struct stat at_path;

    return fstat(f->fd, &open_file) == 0 && stat(f->path, &at_path) == 0 &&
           open_file.st_dev == at_path.st_dev && open_file.st_ino == at_path.st_ino;
}

static void file_destroy(ls_store *s)
{
    file_store *f = file_of(s);

    // Under the content lock, so that no process opens the file between the check and the removal.
    if (f->fd >= 0 && lock_content(f->fd, f->path) == LS_OK && is_at_path(f) &&
        try_lock(f->fd, LOCK_ALIVE, F_WRLCK))
        unlink(f->path);
    file_close(&f->fd);
    table_free(&f->table);
    wire_writer_free(&f->record);
    ls_free(f);
}

static const store_ops file_ops = {
    .close = file_destroy,
    .set = file_set,
    .get = file_get,
    .add = file_add,
    .compare_set = file_compare_set,
    .wait = file_wait,
    .check = file_check,
    .remove = file_remove,
    .count = file_count,
};

static ls_status check_owner(const file_store *f)
{
    struct stat facts;

    if (fstat(f->fd, &facts) != 0)
        return ls_fail_errno("store %s", f->path);
    if (!S_ISREG(facts.st_mode))
        return ls_fail(LS_EINVAL, "store %s is not a regular file", f->path);
    if (facts.st_uid != geteuid())
        return ls_fail(LS_EAUTH, "store %s belongs to user %u, not to %u", f->path,
                       (unsigned)facts.st_uid, (unsigned)geteuid());
    if ((facts.st_mode & 022) != 0)
        return ls_fail(LS_EAUTH, "store %s can be written by others (mode %03o): chmod 600 %s",
                       f->path, (unsigned)facts.st_mode & 0777U, f->path);
    return LS_OK;
}

/* A file with another content stays as it is. */
static ls_status check_header(const file_store *f, bool *is_whole)
{
    uint8_t found[HEADER_BYTES];
    const ssize_t n = pread(f->fd, found, sizeof(found), 0);

    if (n < 0)
        return ls_fail_errno("store %s", f->path);
    if (memcmp(found, header, (size_t)n) != 0)
        return bad_record(f, 0, "not a Lockstep store");
    *is_whole = n == HEADER_BYTES;
    return LS_OK;
}

/* With the content locked: empties the file of a dead job, and takes the shared lock. */
static ls_status enter(file_store *f)
{
    const bool is_alone = try_lock(f->fd, LOCK_ALIVE, F_WRLCK);
    bool is_whole = false;

    LS_TRY(check_header(f, &is_whole));
    if (is_alone || !is_whole) {
        if (ftruncate(f->fd, 0) != 0 || lseek(f->fd, 0, SEEK_SET) != 0)
            return ls_fail_errno("cannot empty %s", f->path);
        LS_TRY(file_write_all(f->fd, f->path, header, sizeof(header)));
    }
    if (!try_lock(f->fd, LOCK_ALIVE, F_RDLCK))
        return ls_fail_errno("cannot lock %s", f->path);
    f->read_to = HEADER_BYTES;
    return LS_OK;
}

/* *is_gone: the last user removed the file between our open and our lock. */
static ls_status open_once(file_store *f, bool *is_gone)
{
    ls_status st;

    *is_gone = false;
    f->fd = open(f->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0600);
    if (f->fd < 0)
        return ls_fail_errno("cannot open store %s", f->path);
    st = check_owner(f);
    if (st == LS_OK)
        st = lock_content(f->fd, f->path);
    if (st == LS_OK && !is_at_path(f))
        *is_gone = true;
    else if (st == LS_OK)
        st = unlock_content(f, enter(f));
    if (st != LS_OK || *is_gone)
        file_close(&f->fd);
    return st;
}

ls_status store_file_open(const char *path, ls_store **out)
{
    file_store *f;
    bool is_gone = true;
    ls_status st = LS_OK;

    if (path[0] == 0 || strlen(path) >= sizeof(f->path))
        return ls_fail(LS_EINVAL, "store 'file://%.100s': a path of %zu bytes", path, strlen(path));
    LS_TRY(LS_NEW(&f, 1, "for a store"));
    f->base.ops = &file_ops;
    f->fd = -1;
    text_format(f->path, sizeof(f->path), "%s", path);
    text_format(f->base.url, sizeof(f->base.url), "file://%s", path);
    for (int i = 0; i < OPEN_ATTEMPTS && is_gone && st == LS_OK; i++)
        st = open_once(f, &is_gone);
    if (st == LS_OK && is_gone)
        st = ls_fail(LS_EIO, "store %s is removed each time it is opened", f->path);
    if (st != LS_OK) {
        file_destroy(&f->base);
        return st;
    }
    *out = &f->base;
    return LS_OK;
}
