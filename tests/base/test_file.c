/* SPDX-License-Identifier: Apache-2.0 */
/* test_file.c - whole reads, atomic writes under kills and races, and folders. */
#include "base/unit.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/rng.h"
#include "base/text.h"
#include "base/thread.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char folder[64];

static int make_folder(void **state)
{
    LS_UNUSED(state);
    (void)text_format(folder, sizeof(folder), "/tmp/ls-file-XXXXXX");
    return mkdtemp(folder) == NULL;
}

static int remove_folder(void **state)
{
    char command[128];

    LS_UNUSED(state);
    (void)text_format(command, sizeof(command), "rm -rf %s", folder);
    return system(command);
}

static const char *in_folder(char path[256], const char *name)
{
    return text_format(path, 256, "%s/%s", folder, name);
}

static void put(const char *path, const void *data, size_t bytes)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);

    assert_true(fd >= 0);
    assert_ok(file_write_all(fd, path, data, bytes));
    file_close(&fd);
    assert_int_equal(fd, -1);
    file_close(&fd);
}

static void a_file_is_read_whole_up_to_the_limit(void **state)
{
    char path[256];
    char data[5000];
    char *out = NULL;
    size_t n = 0;

    LS_UNUSED(state);
    for (size_t i = 0; i < sizeof(data); i++)
        data[i] = (char)(i * 7);
    for (size_t bytes = 0; bytes <= sizeof(data); bytes += 1250) {
        put(in_folder(path, "data"), data, bytes);
        assert_ok(file_read(path, bytes, &out, &n));
        assert_int_equal(n, bytes);
        assert_memory_equal(out, data, bytes);
        assert_int_equal(out[bytes], 0);
        ls_free(out);
    }
    assert_ok(file_read(path, SIZE_MAX, &out, &n));
    assert_int_equal(n, sizeof(data));
    ls_free(out);
    assert_status(file_read(path, sizeof(data) - 1, &out, &n), LS_EFORMAT);
    assert_last_error("/data");
    assert_last_error("4.9 KiB");
}

static void a_text_is_read_without_its_byte_order_mark(void **state)
{
    static const struct {
        const char *text, *expected;
    } cases[] = {{"\xEF\xBB\xBFtext\n", "text\n"},
                 {"\xEF\xBB\xBF", ""},
                 {"\xEF\xBBtext", "\xEF\xBBtext"},
                 {"text\xEF\xBB\xBF", "text\xEF\xBB\xBF"}};
    char path[256];

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(cases); i++) {
        char *out = NULL;
        size_t bytes;

        put(in_folder(path, "text"), cases[i].text, strlen(cases[i].text));
        assert_ok(file_read_text(path, 64, &out, &bytes));
        assert_int_equal(bytes, strlen(cases[i].expected));
        assert_string_equal(out, cases[i].expected);
        ls_free(out);
    }
}

static void named_input_may_be_a_pipe(void **state)
{
    static const char text[] = "\xEF\xBB\xBFnode1\n";
    char path[256];
    char *out = NULL;
    size_t bytes = 0;
    int ends[2];

    LS_UNUSED(state);
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(write(ends[1], text, strlen(text)), strlen(text));
    assert_int_equal(close(ends[1]), 0);
    text_format(path, sizeof(path), "/dev/fd/%d", ends[0]);
    assert_ok(file_read_input(path, 64, &out, &bytes));
    assert_string_equal(out, "node1\n");
    assert_int_equal(close(ends[0]), 0);
    ls_free(out);
    assert_status(file_read_input("/dev/zero", 64, &out, &bytes), LS_EFORMAT);
    assert_status(file_read_input("/", 64, &out, &bytes), LS_EIO);
    assert_status(file_read_input(in_folder(path, "none"), 64, &out, &bytes), LS_ENOTFOUND);
}

static void files_that_lie_about_their_size_are_read_too(void **state)
{
    char *out = NULL;
    size_t n = 0;

    LS_UNUSED(state);
    assert_ok(file_read("/proc/self/status", 1 << 20, &out, &n));
    assert_true(n > 100 && strlen(out) == n);
    assert_true(text_starts(out, "Name:"));
    ls_free(out);
    assert_status(file_read("/proc/self/status", 20, &out, &n), LS_EFORMAT);
}

static void unreadable_file_is_reported(void **state)
{
    char path[256];
    char *out = NULL;
    size_t n = 0;

    LS_UNUSED(state);
    assert_status(file_read(in_folder(path, "absent"), 10, &out, &n), LS_ENOTFOUND);
    assert_last_error("/absent: No such file or directory");
    assert_status(file_read(folder, 10, &out, &n), LS_EIO);
    assert_last_error("not a regular file");
    assert_int_equal(mkfifo(in_folder(path, "pipe"), 0666), 0);
    assert_status(file_read(path, 10, &out, &n), LS_EIO); // and does not wait for a writer
    put(in_folder(path, "data"), "x", 1);
    ls_alloc_fail_at(1);
    assert_status(file_read(path, 10, &out, &n), LS_ENOMEM);
    ls_alloc_fail_at(0);
}

static void a_piece_beyond_the_end_names_the_offset(void **state)
{
    char path[256];
    char got[8] = "";
    int fd;

    LS_UNUSED(state);
    put(in_folder(path, "data"), "0123456789", 10);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_ok(file_pread_all(fd, path, got, 4, 6));
    assert_memory_equal(got, "6789", 4);
    assert_ok(file_pread_all(fd, path, got, 0, 1000));
    assert_status(file_pread_all(fd, path, got, 4, 7), LS_EFORMAT);
    assert_last_error("/data ends at offset 10, 1 bytes too early");
    assert_status(file_pread_all(fd, path, got, 4, UINT64_MAX - 2), LS_EFORMAT);
    assert_status(file_pread_all(fd, path, got, 4, (uint64_t)INT64_MAX - 2), LS_EFORMAT);
    file_close(&fd);
    assert_status(file_pread_all(fd, path, got, 4, 0), LS_EIO);
    assert_last_error("Bad file descriptor");
    assert_status(file_write_all(fd, path, "abc", 3), LS_EIO);
    assert_last_error("after 0 of 3 bytes");
}

static void full_disk_is_reported(void **state)
{
    int fd = open("/dev/full", O_WRONLY | O_CLOEXEC);

    LS_UNUSED(state);
    if (fd < 0)
        skip();
    assert_status(file_write_all(fd, "model.tmp", "abc", 3), LS_EIO);
    assert_string_equal(ls_last_error(),
                        "cannot write model.tmp after 0 of 3 bytes: No space left on device");
    file_close(&fd);
}

typedef struct pipe_writer {
    int fd;
    size_t bytes;
    ls_status st;
    char *data;
} pipe_writer;

static void write_to_pipe(void *arg)
{
    pipe_writer *w = arg;

    w->st = file_write_all(w->fd, "pipe", w->data, w->bytes);
    file_close(&w->fd);
}

/* A non-empty pipe accepts a long write in pieces. */
static void short_writes_are_continued(void **state)
{
    enum { BYTES = 1000003 };
    pipe_writer w = {.bytes = BYTES, .data = ls_calloc(BYTES, 1)};
    char *got = ls_calloc(BYTES + 1, 1);
    ls_thread t;
    size_t used = 0;
    ssize_t n = 1;
    int ends[2];

    LS_UNUSED(state);
    for (size_t i = 0; i < BYTES; i++)
        w.data[i] = (char)(i * 31 >> 3);
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    w.fd = ends[1];
    assert_ok(ls_thread_start(&t, "writer", write_to_pipe, &w));
    while (n > 0) {
        n = read(ends[0], got + used, BYTES + 1 - used);
        used += n > 0 ? (size_t)n : 0;
    }
    ls_thread_join(&t);
    assert_status(w.st, LS_OK);
    assert_int_equal(used, BYTES);
    assert_memory_equal(got, w.data, BYTES);
    file_close(&ends[0]);
    ls_free(w.data);
    ls_free(got);
}

static void expect_content(const char *path, const char *want)
{
    char *out = NULL;
    size_t n = 0;

    assert_ok(file_read(path, 1 << 20, &out, &n));
    assert_string_equal(out, want);
    ls_free(out);
}

static void begin_with(file_atomic *f, const char *path, const char *content)
{
    assert_ok(file_atomic_begin(f, path));
    assert_ok(file_write_all(f->fd, f->tmp, content, strlen(content)));
}

static void an_atomic_file_appears_at_its_commit(void **state)
{
    char path[256];
    file_atomic f;

    LS_UNUSED(state);
    begin_with(&f, in_folder(path, "model"), "first");
    assert_int_equal(access(path, F_OK), -1);
    assert_ok(file_atomic_commit(&f));
    expect_content(path, "first");
    file_atomic_cancel(&f); // harmless after the commit
    expect_content(path, "first");
    begin_with(&f, path, "second");
    expect_content(path, "first");
    file_atomic_cancel(&f);
    expect_content(path, "first");
    assert_int_equal(access(f.tmp, F_OK), -1);
}

static void a_left_over_tmp_is_overwritten(void **state)
{
    char path[256];
    file_atomic f;

    LS_UNUSED(state);
    put(in_folder(path, "model.tmp"), "something longer that a killed writer left", 42);
    begin_with(&f, in_folder(path, "model"), "new");
    assert_ok(file_atomic_commit(&f));
    expect_content(path, "new");
}

static mode_t mode_of(const char *path)
{
    struct stat info;

    return stat(path, &info) == 0 ? info.st_mode & 07777 : 0;
}

static void a_replaced_tmp_has_the_mode_of_the_umask(void **state)
{
    const mode_t old = umask(027);
    char path[256];
    char tmp[256];
    file_atomic f;

    LS_UNUSED(state);
    put(in_folder(tmp, "mode.tmp"), "left", 4);
    assert_int_equal(chmod(tmp, 0777), 0);
    begin_with(&f, in_folder(path, "mode"), "new");
    assert_ok(file_atomic_commit(&f));
    assert_int_equal(mode_of(path), 0640);
    (void)umask(old);
}

/* A writer that waits for a reader of the pipe ends in the test's timeout. */
static void a_named_pipe_at_the_tmp_is_refused(void **state)
{
    char path[256];
    char tmp[256];
    file_atomic f;

    LS_UNUSED(state);
    assert_int_equal(mkfifo(in_folder(tmp, "pipe.tmp"), 0666), 0);
    assert_int_equal(file_atomic_begin(&f, in_folder(path, "pipe")), LS_EIO);
    assert_non_null(strstr(ls_last_error(), tmp));
    assert_non_null(strstr(ls_last_error(), "not a regular file of this user"));
    assert_int_equal(access(tmp, F_OK), 0);
}

static void a_tmp_of_another_user_is_refused(void **state)
{
    char path[256];
    char tmp[256];
    file_atomic f;

    LS_UNUSED(state);
    if (geteuid() != 0)
        skip();
    put(in_folder(tmp, "theirs.tmp"), "theirs", 6);
    assert_int_equal(chown(tmp, 4711, 4711), 0);
    assert_int_equal(file_atomic_begin(&f, in_folder(path, "theirs")), LS_EIO);
    assert_non_null(strstr(ls_last_error(), "not a regular file of this user"));
    expect_content(tmp, "theirs");
}

static void a_probe_finds_what_cannot_be_written_and_leaves_nothing(void **state)
{
    char path[256];
    char tmp[256];

    LS_UNUSED(state);
    assert_ok(file_atomic_probe(in_folder(path, "new")));
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(access(in_folder(tmp, "new.tmp"), F_OK), -1);
    put(path, "old", 3);
    assert_ok(file_atomic_probe(path));
    expect_content(path, "old");
    assert_int_equal(file_atomic_probe(folder), LS_EIO);
    assert_non_null(strstr(ls_last_error(), folder));
    assert_int_equal(file_atomic_probe(in_folder(path, "absent/new")), LS_ENOTFOUND);
    assert_non_null(strstr(ls_last_error(), path));
}

static void a_failed_commit_leaves_the_old_file(void **state)
{
    char path[256];
    char inner[256];
    file_atomic f;

    LS_UNUSED(state);
    // A folder with content cannot be replaced by a file.
    assert_int_equal(mkdir(in_folder(path, "model"), 0777), 0);
    put(in_folder(inner, "model/old"), "old", 3);
    begin_with(&f, path, "new");
    assert_status(file_atomic_commit(&f), LS_EIO);
    assert_last_error("cannot rename");
    expect_content(inner, "old");
    assert_int_equal(access(f.tmp, F_OK), -1);
    file_atomic_cancel(&f);
}

static void unwritable_paths_are_reported(void **state)
{
    char path[256];
    char other[256];
    char huge[5000];
    file_atomic f;

    LS_UNUSED(state);
    assert_status(file_atomic_begin(&f, in_folder(path, "no/such/folder")), LS_ENOTFOUND);
    assert_last_error("/no/such/folder.tmp");
    file_atomic_cancel(&f);
    memset(huge, 'x', sizeof(huge) - 1);
    huge[sizeof(huge) - 1] = '\0';
    assert_status(file_atomic_begin(&f, huge), LS_EINVAL);
    file_atomic_cancel(&f);
    // A link at the name of the .tmp must not redirect the writer.
    put(in_folder(other, "precious"), "precious", 8);
    assert_int_equal(symlink(other, in_folder(path, "model.tmp")), 0);
    assert_status(file_atomic_begin(&f, in_folder(path, "model")), LS_EIO);
    expect_content(other, "precious");
}

static void two_writers_of_one_path_do_not_mix(void **state)
{
    char path[256];
    static file_atomic first; // two are more than a frame may hold
    static file_atomic second;

    LS_UNUSED(state);
    begin_with(&first, in_folder(path, "model"), "first");
    assert_status(file_atomic_begin(&second, path), LS_EIO);
    assert_last_error("is being written by another process");
    file_atomic_cancel(&second);
    assert_ok(file_atomic_commit(&first));
    begin_with(&second, path, "second");
    assert_ok(file_atomic_commit(&second));
    expect_content(path, "second");
}

/* A version of the file: its number, and a length and a byte derived from it. */
#define VERSION_BYTES(v) (64 + (size_t)((v)*7919 % 60000))

static bool write_version(const char *path, uint32_t version)
{
    static char data[64 + 60000];
    const size_t bytes = VERSION_BYTES(version);
    file_atomic f;

    memset(data, (int)('a' + version % 26), bytes);
    memcpy(data, &version, sizeof(version));
    if (file_atomic_begin(&f, path) != LS_OK)
        return false;
    // in pieces, so that a kill leaves a partial file
    for (size_t at = 0; at < bytes; at += 4096) {
        const size_t piece = bytes - at < 4096 ? bytes - at : 4096;

        if (file_write_all(f.fd, f.tmp, data + at, piece) != LS_OK) {
            file_atomic_cancel(&f);
            return false;
        }
    }
    return file_atomic_commit(&f) == LS_OK;
}

/* The version of a whole file; fails the test when it is incomplete. */
static uint32_t read_version(const char *path)
{
    char *data = NULL;
    size_t bytes = 0;
    uint32_t version;

    assert_ok(file_read(path, 1 << 20, &data, &bytes));
    assert_true(bytes >= 64);
    memcpy(&version, data, sizeof(version));
    assert_int_equal(bytes, VERSION_BYTES(version));
    for (size_t i = sizeof(version); i < bytes; i++)
        assert_int_equal(data[i], 'a' + version % 26);
    ls_free(data);
    return version;
}

static void write_until_killed(const char *path, uint32_t version, int started_fd)
{
    struct rlimit no_core = {0, 0};

    (void)setrlimit(RLIMIT_CORE, &no_core);
    if (write(started_fd, "", 1) != 1)
        _exit(2);
    while (write_version(path, ++version)) {
    }
    _exit(1);
}

static void a_killed_writer_leaves_the_old_or_the_new_file(void **state)
{
    enum { ROUNDS = 150 };
    const uint64_t seed = 11;
    char path[256];
    char tmp[256];
    uint32_t version = 1;
    int n_left = 0;
    ls_rng rng;

    LS_UNUSED(state);
    ls_rng_seed(&rng, seed);
    assert_true(write_version(in_folder(path, "model"), version));
    (void)in_folder(tmp, "model.tmp");
    for (int round = 0; round < ROUNDS; round++) {
        int ends[2];
        int status = 0;
        char byte;
        pid_t child;
        uint32_t now;

        assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
        child = fork();
        if (child == 0)
            write_until_killed(path, version, ends[1]);
        assert_int_equal(read(ends[0], &byte, 1), 1);
        // the fault: a kill at a random moment
        (void)usleep((useconds_t)ls_rng_below(&rng, 3000));
        assert_int_equal(kill(child, SIGKILL), 0);
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        file_close(&ends[0]);
        file_close(&ends[1]);

        now = read_version(path);
        assert_true(now >= version);
        version = now;
        n_left += access(tmp, F_OK) == 0;
    }
    print_message("seed %u: %d kills, %u commits, %d times a .tmp was left\n", (unsigned)seed,
                  ROUNDS, version, n_left);
    assert_true(n_left > 0);
    assert_true(write_version(path, version + 1));
    assert_int_equal(read_version(path), version + 1);
    assert_int_equal(access(tmp, F_OK), -1);
}

typedef struct racer {
    const char *path;
    uint32_t first;
    int n_written;
} racer;

static bool write_small(const char *path, uint32_t number)
{
    char text[4096];
    file_atomic f;

    memset(text, (int)('a' + number % 26), sizeof(text));
    if (file_atomic_begin(&f, path) != LS_OK)
        return false;
    for (int i = 0; i < 4; i++) {
        if (file_write_all(f.fd, f.tmp, text, sizeof(text)) != LS_OK)
            return false;
    }
    return file_atomic_commit(&f) == LS_OK;
}

static void race(void *arg)
{
    racer *r = arg;

    for (uint32_t i = 0; i < 60; i++)
        r->n_written += write_small(r->path, r->first + i);
}

/* Racing writers may be refused, but the file is always the whole content of one writer. */
static void racing_writers_never_mix_their_content(void **state)
{
    enum { WRITERS = 3 };
    char path[256];
    racer racers[WRITERS];
    ls_thread threads[WRITERS];
    int n_written = 0;

    LS_UNUSED(state);
    assert_true(write_small(in_folder(path, "model"), 0));
    for (int i = 0; i < WRITERS; i++) {
        racers[i] = (racer){path, (uint32_t)i * 7, 0};
        assert_ok(ls_thread_start(&threads[i], "racer", race, &racers[i]));
    }
    for (int look = 0; look < 300; look++) {
        char *data = NULL;
        size_t bytes = 0;

        assert_ok(file_read(path, 1 << 20, &data, &bytes));
        assert_int_equal(bytes, 4 * 4096);
        for (size_t i = 1; i < bytes; i++)
            assert_int_equal(data[i], data[0]);
        ls_free(data);
    }
    for (int i = 0; i < WRITERS; i++) {
        ls_thread_join(&threads[i]);
        n_written += racers[i].n_written;
    }
    assert_true(n_written > 0);
}

static void a_folder_of_descriptors_is_listed_by_number(void **state)
{
    DIR *fds = opendir("/proc/self/fd");
    bool has_own = false;
    int fd;

    LS_UNUSED(state);
    assert_non_null(fds);
    while ((fd = file_next_number(fds)) >= 0)
        has_own |= fd == dirfd(fds);
    assert_true(has_own);
    assert_int_equal(file_next_number(fds), -1);
    (void)closedir(fds);
}

static void the_start_of_a_file_is_read_and_terminated(void **state)
{
    char start[8];

    LS_UNUSED(state);
    assert_int_equal(file_read_start("/proc/self/maps", start, sizeof(start)), 7);
    assert_int_equal(strlen(start), 7);
    assert_int_equal(file_read_start("/proc/self/nothing", start, sizeof(start)), -1);
}

int main(void)
{
#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, make_folder, remove_folder)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_folder_of_descriptors_is_listed_by_number),
        cmocka_unit_test(the_start_of_a_file_is_read_and_terminated),
        IN_FOLDER(a_file_is_read_whole_up_to_the_limit),
        IN_FOLDER(a_text_is_read_without_its_byte_order_mark),
        IN_FOLDER(named_input_may_be_a_pipe),
        IN_FOLDER(files_that_lie_about_their_size_are_read_too),
        IN_FOLDER(unreadable_file_is_reported),
        IN_FOLDER(a_piece_beyond_the_end_names_the_offset),
        cmocka_unit_test(full_disk_is_reported),
        IN_FOLDER(short_writes_are_continued),
        IN_FOLDER(an_atomic_file_appears_at_its_commit),
        IN_FOLDER(a_left_over_tmp_is_overwritten),
        IN_FOLDER(a_replaced_tmp_has_the_mode_of_the_umask),
        IN_FOLDER(a_named_pipe_at_the_tmp_is_refused),
        IN_FOLDER(a_tmp_of_another_user_is_refused),
        IN_FOLDER(a_probe_finds_what_cannot_be_written_and_leaves_nothing),
        IN_FOLDER(a_failed_commit_leaves_the_old_file),
        IN_FOLDER(unwritable_paths_are_reported),
        IN_FOLDER(two_writers_of_one_path_do_not_mix),
        IN_FOLDER(a_killed_writer_leaves_the_old_or_the_new_file),
        IN_FOLDER(racing_writers_never_mix_their_content),
    };

    return cmocka_run_group_tests_name("file", tests, NULL, NULL);
}
