/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_file.c - the store in a file: processes that die, incomplete records, files that are
 * not stores.
 */
#include "base/unit.h"

#include <lockstep/store.h>

#include "base/text.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char folder[64];
static char path[96];
static char url[112];

static int fresh_path(void **state)
{
    static int n;

    LS_UNUSED(state);
    text_format(path, sizeof(path), "%s/s%d", folder, n++);
    text_format(url, sizeof(url), "file://%s", path);
    return 0;
}

static ls_store *open_store(void)
{
    ls_store *s = NULL;

    assert_ok(ls_store_open(url, NULL, &s));
    return s;
}

static size_t read_all(uint8_t *out, size_t n)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got;

    assert_true(fd >= 0);
    got = read(fd, out, n);
    assert_true(got >= 0);
    close(fd);
    return (size_t)got;
}

static void write_all(const uint8_t *data, size_t n)
{
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, data, n), n);
    close(fd);
}

static void the_last_one_to_close_removes_the_file(void **state)
{
    ls_store *a = open_store();
    ls_store *b = open_store();
    struct stat facts;

    LS_UNUSED(state);
    assert_int_equal(stat(path, &facts), 0);
    assert_int_equal(facts.st_mode & 0777, 0600);
    ls_store_close(a);
    assert_int_equal(stat(path, &facts), 0);
    assert_ok(ls_store_set(b, "k", "v", 1));
    ls_store_close(b);
    assert_int_equal(stat(path, &facts), -1);
}

/* A process that sets a key and is killed with the store open. */
static void die_with_a_key(void)
{
    const pid_t pid = fork();
    int status;

    assert_true(pid >= 0);
    if (pid == 0) {
        ls_store *s = NULL;

        if (ls_store_open(url, NULL, &s) != LS_OK || ls_store_set(s, "old", "job", 3) != LS_OK)
            _exit(1);
        (void)raise(SIGKILL);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status));
}

static void what_a_killed_job_left_is_forgotten(void **state)
{
    ls_store *s;
    struct stat facts;
    int64_t count = -1;

    LS_UNUSED(state);
    die_with_a_key();
    assert_int_equal(stat(path, &facts), 0);
    s = open_store();
    assert_ok(ls_store_count(s, &count));
    assert_int_equal(count, 0);
    die_with_a_key(); // while another process lives, the values of a dead one stay
    assert_ok(ls_store_count(s, &count));
    assert_int_equal(count, 1);
    ls_store_close(s);
}

static void a_half_written_record_is_cut_off(void **state)
{
    ls_store *a = open_store();
    ls_store *b;
    struct stat facts;
    void *value;
    int64_t count;

    LS_UNUSED(state);
    assert_ok(ls_store_set(a, "first", "1", 1));
    assert_int_equal(stat(path, &facts), 0);
    assert_ok(ls_store_set(a, "second", "22222222", 8));
    for (off_t end = facts.st_size + 8 + 5 + 6 + 8 - 1; end >= facts.st_size; end--) {
        assert_int_equal(truncate(path, end), 0);
        b = open_store();
        assert_ok(ls_store_count(b, &count));
        assert_int_equal(count, 1);
        ls_store_close(b);
    }
    b = open_store();
    assert_ok(ls_store_set(b, "third", "3", 1)); // over the incomplete one
    ls_store_close(b);
    b = open_store();
    assert_ok(ls_store_get(b, "third", 0, &value, NULL));
    ls_store_free(value);
    assert_ok(ls_store_count(b, &count));
    assert_int_equal(count, 2);
    ls_store_close(b);
    assert_status(ls_store_count(a, &count), LS_EFORMAT); // it had seen more than there is now
    assert_last_error("shorter");
    ls_store_close(a);
}

static void other_peoples_files_stay_untouched(void **state)
{
    static const uint8_t text[] = "Dear diary, today I trained a network";
    uint8_t back[64];
    ls_store *s = NULL;

    LS_UNUSED(state);
    write_all(text, sizeof(text));
    assert_status(ls_store_open(url, NULL, &s), LS_EFORMAT);
    assert_last_error("not a Lockstep store");
    assert_null(s);
    assert_int_equal(read_all(back, sizeof(back)), sizeof(text));
    assert_memory_equal(back, text, sizeof(text));
    assert_int_equal(chmod(path, 0622), 0);
    assert_status(ls_store_open(url, NULL, &s), LS_EAUTH);
    assert_last_error("chmod 600");
    assert_status(ls_store_open("file:///proc/self", NULL, &s), LS_ESYSTEM);
    assert_status(ls_store_open("file:///no/such/folder/x", NULL, &s), LS_ESYSTEM);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(symlink("/etc/passwd", path), 0);
    assert_status(ls_store_open(url, NULL, &s), LS_ESYSTEM);
}

/* Replaces the content while a handle keeps the file alive, then reads it through a second one. */
static ls_status read_content(const uint8_t *data, size_t n)
{
    ls_store *a = open_store();
    ls_store *b = NULL;
    int64_t count;
    ls_status st;

    write_all(data, n);
    st = ls_store_open(url, NULL, &b);
    if (st == LS_OK)
        st = ls_store_count(b, &count);
    ls_store_close(b);
    ls_store_close(a);
    return st;
}

static void every_changed_byte_is_found_or_harmless(void **state)
{
    ls_store *s = open_store();
    uint8_t good[256];
    uint8_t bad[256];
    size_t n;

    LS_UNUSED(state);
    assert_ok(ls_store_set(s, "key", "value", 5));
    assert_ok(ls_store_set(s, "key2", "", 0));
    n = read_all(good, sizeof(good));
    ls_store_close(s);
    assert_true(n > 40 && n < sizeof(good));
    assert_ok(read_content(good, n));
    for (size_t at = 0; at < n; at++) {
        memcpy(bad, good, n);
        bad[at] ^= 0x10;
        // A longer length in front of the last record looks like an incomplete one.
        if (read_content(bad, n) == LS_OK)
            assert_true(at >= 16);
    }
    memset(good + 16, 0xff, 4); // a record of 4 GiB
    assert_status(read_content(good, n), LS_EFORMAT);
    assert_last_error("offset 16");
}

static void processes_count_together(void **state)
{
    enum { N_PROCESSES = 3, N_ADDS = 100 };
    ls_store *s = open_store();
    pid_t pids[N_PROCESSES];
    int64_t sum = 0;

    LS_UNUSED(state);
    for (int i = 0; i < N_PROCESSES; i++) {
        pids[i] = fork();
        assert_true(pids[i] >= 0);
        if (pids[i] == 0) {
            ls_store *mine = NULL;
            ls_status st = ls_store_open(url, NULL, &mine);

            for (int k = 0; k < N_ADDS && st == LS_OK; k++)
                st = ls_store_add(mine, "n", 1, NULL);
            ls_store_close(mine);
            _exit(st == LS_OK ? 0 : 1);
        }
    }
    for (int i = 0; i < N_PROCESSES; i++) {
        int status;

        assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
        assert_int_equal(status, 0);
    }
    assert_ok(ls_store_add(s, "n", 0, &sum));
    assert_int_equal(sum, N_PROCESSES * N_ADDS);
    ls_store_close(s);
}

static int make_folder(void **state)
{
    LS_UNUSED(state);
    text_format(folder, sizeof(folder), "/tmp/lockstep-file-XXXXXX");
    return mkdtemp(folder) == NULL ? -1 : 0;
}

static int remove_folder(void **state)
{
    char command[128];

    LS_UNUSED(state);
    text_format(command, sizeof(command), "rm -rf %s", folder);
    return system(command) == 0 ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(the_last_one_to_close_removes_the_file, fresh_path),
        cmocka_unit_test_setup(what_a_killed_job_left_is_forgotten, fresh_path),
        cmocka_unit_test_setup(a_half_written_record_is_cut_off, fresh_path),
        cmocka_unit_test_setup(other_peoples_files_stay_untouched, fresh_path),
        cmocka_unit_test_setup(every_changed_byte_is_found_or_harmless, fresh_path),
        cmocka_unit_test_setup(processes_count_together, fresh_path),
    };

    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
