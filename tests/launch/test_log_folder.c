/* SPDX-License-Identifier: Apache-2.0 */
/* The folder of log files: layout, permissions, names and links. */
#include "base/unit.h"

#include "base/alloc.h"
#include "base/file.h"
#include "base/text.h"
#include "launch/output/log_folder.h"

#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static char home[64]; /* of each test */

static int open_home(void **state)
{
    LS_UNUSED(state);
    text_format(home, sizeof(home), "/tmp/lockstep-test-XXXXXX");
    return mkdtemp(home) == NULL;
}

static int remove_one(const char *path, const struct stat *info, int type, struct FTW *place)
{
    LS_UNUSED(info);
    LS_UNUSED(type);
    LS_UNUSED(place);
    return remove(path);
}

static int remove_home(void **state)
{
    LS_UNUSED(state);
    return nftw(home, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

static const char *inside(const char *name)
{
    static char path[512];

    return text_format(path, sizeof(path), "%s/%s", home, name);
}

static mode_t mode_of(const char *path)
{
    struct stat info;

    assert_int_equal(lstat(path, &info), 0);
    return info.st_mode & 07777;
}

static void layout_is_torchruns_and_private(void **state)
{
    log_folder f;
    char path[5000];
    int fd;

    LS_UNUSED(state);
    assert_ok(log_folder_create(inside("a/b//c"), "run7", &f));
    assert_true(text_starts(f.path, inside("a/b/c/run7_")));
    assert_int_equal(strlen(f.path), strlen(inside("a/b/c/run7_")) + 8);
    assert_ok(log_folder_add_rank(&f, 0, 12));
    assert_ok(log_folder_create_file(&f, 0, 12, "stdout.log", &fd));
    assert_int_equal(fcntl(fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    file_close(&fd);
    assert_int_equal(mode_of(inside("a")), 0700);
    assert_int_equal(mode_of(f.path), 0700);
    log_folder_path(&f, 0, 12, NULL, path, sizeof(path));
    assert_true(text_starts(path, f.path) && text_equal(path + strlen(f.path), "/attempt_0/12"));
    assert_int_equal(mode_of(path), 0700);
    log_folder_path(&f, 0, 12, "stdout.log", path, sizeof(path));
    assert_int_equal(mode_of(path), 0600);
    log_folder_close(&f);
}

/* A machine that was lost starts ranks in the same generation again. */
static void a_file_is_continued(void **state)
{
    char path[5000];
    char *bytes;
    size_t n;
    log_folder f;
    int fd;

    LS_UNUSED(state);
    assert_ok(log_folder_create(home, "run", &f));
    for (int i = 0; i < 2; i++) {
        assert_ok(log_folder_add_rank(&f, 0, 0));
        assert_ok(log_folder_create_file(&f, 0, 0, "stdout.log", &fd));
        assert_ok(file_write_all(fd, "stdout.log", "line\n", 5));
        file_close(&fd);
    }
    log_folder_path(&f, 0, 0, "stdout.log", path, sizeof(path));
    assert_ok(file_read(path, 100, &bytes, &n));
    assert_string_equal(bytes, "line\nline\n");
    ls_free(bytes);
    log_folder_close(&f);
}

static void two_jobs_of_one_name_have_two_folders(void **state)
{
    log_folder a, b;

    LS_UNUSED(state);
    assert_ok(log_folder_create(home, "run", &a));
    assert_ok(log_folder_create(home, "run", &b));
    assert_string_not_equal(a.path, b.path);
    log_folder_close(&a);
    log_folder_close(&b);
}

static void run_id_cannot_name_another_folder(void **state)
{
    static const struct {
        const char *id;
        const char *name;
    } cases[] = {{"../../etc", "_._.._etc_"},
                 {"a/b c\x1b", "a_b_c__"},
                 {"..", "_._"},
                 {"", "job_"},
                 {".hidden", "_hidden_"},
                 {"ok-1.2_x", "ok-1.2_x_"},
                 {"caf\xc3\xa9", "caf___"}};

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(cases); i++) {
        log_folder f;

        assert_ok(log_folder_create(home, cases[i].id, &f));
        if (!text_starts(f.path, inside(cases[i].name)))
            fail_msg("%s gives %s", cases[i].id, f.path);
        assert_null(strchr(f.path + strlen(home) + 1, '/'));
        log_folder_close(&f);
    }
}

static void a_long_run_id_is_cut(void **state)
{
    static char id[5000];
    log_folder f;

    LS_UNUSED(state);
    memset(id, 'r', sizeof(id) - 1);
    assert_ok(log_folder_create(home, id, &f));
    assert_true(strlen(f.path) < strlen(home) + 130);
    log_folder_close(&f);
}

static void links_are_not_followed(void **state)
{
    log_folder f;
    char path[5000];
    int fd;

    LS_UNUSED(state);
    assert_ok(log_folder_create(home, "run", &f));
    assert_ok(log_folder_add_rank(&f, 0, 0));
    log_folder_path(&f, 0, 0, "stdout.log", path, sizeof(path));
    assert_int_equal(symlink(inside("elsewhere"), path), 0);
    assert_status(log_folder_create_file(&f, 0, 0, "stdout.log", &fd), LS_EIO);
    assert_int_not_equal(access(inside("elsewhere"), F_OK), 0);
    log_folder_path(&f, 0, 0, "error.json", path, sizeof(path));
    assert_int_equal(symlink("/etc/passwd", path), 0);
    assert_status(log_folder_open_file(&f, 0, 0, "error.json", &fd), LS_EIO);
    log_folder_close(&f);
}

static void a_named_pipe_does_not_block(void **state)
{
    log_folder f;
    char path[5000];
    int fd;

    LS_UNUSED(state);
    assert_ok(log_folder_create(home, "run", &f));
    assert_ok(log_folder_add_rank(&f, 3, 0));
    assert_status(log_folder_open_file(&f, 3, 0, "error.json", &fd), LS_ENOTFOUND);
    log_folder_path(&f, 3, 0, "error.json", path, sizeof(path));
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_ok(log_folder_open_file(&f, 3, 0, "error.json", &fd));
    file_close(&fd);
    assert_status(log_folder_create_file(&f, 3, 0, "error.json", &fd), LS_EIO);
    log_folder_close(&f);
}

static void error_names_the_path(void **state)
{
    static char name[5000];
    log_folder f;
    int fd = open(inside("file"), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

    LS_UNUSED(state);
    file_close(&fd);
    assert_status(log_folder_create(inside("file/below"), "run", &f), LS_EIO);
    assert_last_error(inside("file/below"));
    assert_status(log_folder_create(inside("file"), "run", &f), LS_EIO);
    assert_status(log_folder_create("", "run", &f), LS_EINVAL);
    memset(name, 'n', sizeof(name) - 1);
    assert_status(log_folder_create(name, "run", &f), LS_EINVAL);
    assert_int_equal(f.fd, -1);
}

static void without_a_name_it_is_in_tmpdir(void **state)
{
    log_folder f;

    LS_UNUSED(state);
    assert_int_equal(setenv("TMPDIR", home, 1), 0);
    assert_ok(log_folder_create(NULL, "run", &f));
    assert_true(text_starts(f.path, inside("lockstep_run_")));
    log_folder_close(&f);
    assert_int_equal(setenv("TMPDIR", inside("absent"), 1), 0);
    assert_status(log_folder_create(NULL, "run", &f), LS_EIO);
    assert_last_error("absent");
    assert_int_equal(unsetenv("TMPDIR"), 0);
}

#define test(name) cmocka_unit_test_setup_teardown(name, open_home, remove_home)

int main(void)
{
    const struct CMUnitTest tests[] = {
        test(layout_is_torchruns_and_private),
        test(a_file_is_continued),
        test(two_jobs_of_one_name_have_two_folders),
        test(run_id_cannot_name_another_folder),
        test(a_long_run_id_is_cut),
        test(links_are_not_followed),
        test(a_named_pipe_does_not_block),
        test(error_names_the_path),
        test(without_a_name_it_is_in_tmpdir),
    };

    return cmocka_run_group_tests_name("launch log_folder", tests, NULL, NULL);
}
