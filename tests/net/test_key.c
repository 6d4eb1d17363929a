/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_key.c - keys: derivation, key files and their permissions, and keys inherited by memfd or
 * pipe.
 */
#include "base/unit.h"

#include "host/process_marks.h"
#include "base/text.h"
#include "net/key.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static void derived_keys_differ_by_purpose_and_name(void **state)
{
    net_key base;
    net_key made[4];

    LS_UNUSED(state);
    assert_ok(net_key_random(&base));
    assert_ok(net_key_derive(&base, "job", "10.0.0.1:29500", &made[0]));
    assert_ok(net_key_derive(&base, "job", "10.0.0.1:29501", &made[1]));
    assert_ok(net_key_derive(&base, "jo", "b10.0.0.1:29500", &made[2]));
    assert_ok(net_key_derive(&base, "job", "10.0.0.1:29500", &made[3]));
    assert_true(net_key_equal(&made[0], &made[3]));
    assert_false(net_key_equal(&made[0], &made[1]));
    assert_false(net_key_equal(&made[0], &made[2]));
    assert_false(net_key_equal(&made[0], &base));
    net_key_wipe(&base);
    for (int i = 0; i < NET_KEY_BYTES; i++)
        assert_int_equal(base.bytes[i], 0);
}

/* --- files --- */

static char folder[64];

static int make_folder(void **state)
{
    LS_UNUSED(state);
    text_format(folder, sizeof(folder), "/tmp/lockstep-key-XXXXXX");
    if (mkdtemp(folder) == NULL)
        return -1;
    unsetenv(NET_KEY_FILE_ENV);
    return setenv("HOME", folder, 1);
}

static int remove_folder(void **state)
{
    char command[128];

    LS_UNUSED(state);
    text_format(command, sizeof(command), "rm -rf %s", folder);
    return system(command) == 0 ? 0 : -1;
}

static const char *in_folder(const char *name)
{
    static char path[256];

    return text_format(path, sizeof(path), "%s/%s", folder, name);
}

static void write_file(const char *path, const char *content, mode_t mode)
{
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, content, strlen(content)), strlen(content));
    assert_int_equal(fchmod(fd, mode), 0);
    close(fd);
}

static void user_key_is_created_once_with_private_mode(void **state)
{
    net_key first;
    net_key second;
    struct stat facts;

    LS_UNUSED(state);
    assert_ok(net_key_of_user(NULL, &first));
    assert_ok(net_key_of_user(NULL, &second));
    assert_true(net_key_equal(&first, &second));
    assert_string_equal(first.origin, in_folder(NET_KEY_FILE_USER));
    assert_int_equal(stat(in_folder(NET_KEY_FILE_USER), &facts), 0);
    assert_int_equal(facts.st_mode & 0777, 0600);
    assert_int_equal(facts.st_size, 65);
    assert_int_equal(stat(in_folder(".config/lockstep"), &facts), 0);
    assert_int_equal(facts.st_mode & 0077, 0);
}

static void a_named_key_file_must_exist(void **state)
{
    net_key key;
    net_key copy;

    LS_UNUSED(state);
    assert_status(net_key_of_user(in_folder("absent"), &key), LS_ENOTFOUND);
    assert_last_error("absent");
    assert_ok(net_key_random(&key));
    assert_ok(net_key_write_file(in_folder("named"), &key));
    assert_status(net_key_write_file(in_folder("named"), &key), LS_EINVAL);
    assert_ok(net_key_of_user(in_folder("named"), &copy));
    assert_true(net_key_equal(&key, &copy));
    setenv(NET_KEY_FILE_ENV, in_folder("named"), 1);
    memset(&copy, 0, sizeof(copy));
    assert_ok(net_key_of_user(NULL, &copy));
    unsetenv(NET_KEY_FILE_ENV);
    assert_true(net_key_equal(&key, &copy));
}

static void key_files_readable_by_others_are_refused(void **state)
{
    static const mode_t modes[] = {0640, 0604, 0660, 0644, 0620, 0602};
    net_key key;

    LS_UNUSED(state);
    assert_ok(net_key_random(&key));
    assert_ok(net_key_write_file(in_folder("open"), &key));
    for (size_t i = 0; i < LS_COUNT_OF(modes); i++) {
        assert_int_equal(chmod(in_folder("open"), modes[i]), 0);
        assert_status(net_key_read_file(in_folder("open"), &key), LS_EAUTH);
        assert_last_error("chmod 600");
    }
    assert_int_equal(chmod(in_folder("open"), 0400), 0);
    assert_ok(net_key_read_file(in_folder("open"), &key));
}

static void links_folders_and_pipes_are_refused_as_key_files(void **state)
{
    net_key key;
    char target[256];

    LS_UNUSED(state);
    assert_ok(net_key_random(&key));
    assert_ok(net_key_write_file(in_folder("real"), &key));
    text_format(target, sizeof(target), "%s", in_folder("real"));
    assert_status(net_key_write_file(target, &key), LS_EINVAL);
    assert_last_error("exists already");
    assert_int_equal(symlink(target, in_folder("link")), 0);
    assert_status(net_key_read_file(in_folder("link"), &key), LS_EAUTH);
    assert_last_error("symbolic link");
    assert_status(net_key_read_file(folder, &key), LS_EAUTH);
    assert_int_equal(mkfifo(in_folder("pipe"), 0600), 0);
    assert_status(net_key_read_file(in_folder("pipe"), &key),
                  LS_EAUTH); // and does not wait for a writer
}

static void invalid_key_file_content_is_refused(void **state)
{
    static const char digits[] = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
    char text[200];
    net_key key;

    LS_UNUSED(state);
    for (size_t n = 0; n <= 64; n++) {
        text_format(text, sizeof(text), "%.*s", (int)n, digits);
        write_file(in_folder("content"), text, 0600);
        assert_int_equal(net_key_read_file(in_folder("content"), &key),
                         n == 64 ? LS_OK : LS_EFORMAT);
    }
    text_format(text, sizeof(text), "%s\n", digits);
    write_file(in_folder("content"), text, 0600);
    assert_ok(net_key_read_file(in_folder("content"), &key));
    text_format(text, sizeof(text), "\xEF\xBB\xBF%s\r\n", digits); // as an editor leaves it
    write_file(in_folder("content"), text, 0600);
    assert_ok(net_key_read_file(in_folder("content"), &key));
    text_format(text, sizeof(text), "\xEF\xBB\xBF%s\r\n0", digits);
    write_file(in_folder("content"), text, 0600);
    assert_status(net_key_read_file(in_folder("content"), &key), LS_EFORMAT);
    text_format(text, sizeof(text), "%s\n\n", digits);
    write_file(in_folder("content"), text, 0600);
    assert_status(net_key_read_file(in_folder("content"), &key), LS_EFORMAT);
    text_format(text, sizeof(text), "%s", digits);
    text[10] = 'g';
    write_file(in_folder("content"), text, 0600);
    assert_status(net_key_read_file(in_folder("content"), &key), LS_EFORMAT);
    assert_last_error("content");
    for (int i = 0; i < NET_KEY_BYTES; i++)
        assert_int_equal(key.bytes[i], 0);
}

/* --- by descriptor --- */

static void set_fd(int fd)
{
    char text[16];

    setenv(NET_KEY_FD_ENV, text_format(text, sizeof(text), "%d", fd), 1);
}

/* Forked children keep the descriptor: its name shows the agent. */
static void the_memfd_names_its_maker(void **state)
{
    char path[64];
    char link[256];
    char wanted[256];
    char maker[PROCESS_ID_TEXT_MAX];
    process_id self;
    net_key key;
    ssize_t n;
    int fd;

    LS_UNUSED(state);
    assert_ok(net_key_random(&key));
    assert_ok(net_key_to_fd(&key, &fd));
    assert_ok(process_id_self(&self));
    text_format(wanted, sizeof(wanted), "/memfd:%s%s (deleted)", PROCESS_KEY_NAME,
                process_id_text(maker, sizeof(maker), &self));
    text_format(path, sizeof(path), "/proc/self/fd/%d", fd);
    n = readlink(path, link, sizeof(link) - 1);
    assert_true(n > 0);
    link[n] = 0;
    assert_string_equal(link, wanted);
    close(fd);
}

static void path_of_the_user_key_is_returned(void **state)
{
    char path[256];

    LS_UNUSED(state);
    setenv("HOME", "/home/alice", 1);
    unsetenv(NET_KEY_FILE_ENV);
    assert_ok(net_key_user_path(path, sizeof(path)));
    assert_string_equal(path, "/home/alice/.config/lockstep/key");
    assert_status(net_key_user_path(path, 20), LS_EINVAL);
    setenv(NET_KEY_FILE_ENV, "/tmp/key", 1);
    assert_ok(net_key_user_path(path, sizeof(path)));
    assert_string_equal(path, "/tmp/key");
    unsetenv(NET_KEY_FILE_ENV);
}

static void a_memfd_can_be_inherited_again_and_again(void **state)
{
    net_key key;
    net_key got;
    bool found = true;
    int fd;

    LS_UNUSED(state);
    unsetenv(NET_KEY_FD_ENV);
    assert_ok(net_key_inherit(&got, &found));
    assert_false(found);
    assert_ok(net_key_random(&key));
    assert_ok(net_key_to_fd(&key, &fd));
    assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC);
    assert_int_equal(fcntl(fd, F_SETFD, 0), 0);
    set_fd(fd);
    for (int i = 0; i < 3; i++) {
        memset(&got, 0, sizeof(got));
        assert_ok(net_key_inherit(&got, &found));
        assert_true(found);
        assert_true(net_key_equal(&key, &got));
        assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC); // its own children do not inherit it
    }
    assert_int_equal(pwrite(fd, "x", 1, 0), -1); // and it is read-only
    close(fd);
    unsetenv(NET_KEY_FD_ENV);
}

static void a_pipe_is_read_once_and_closed(void **state)
{
    uint8_t content[8 + NET_KEY_BYTES] = "LSKEY01\n";
    net_key got;
    bool found;
    int fds[2];

    LS_UNUSED(state);
    memset(content + 8, 9, NET_KEY_BYTES);
    assert_int_equal(pipe(fds), 0);
    assert_int_equal(write(fds[1], content, sizeof(content)), sizeof(content));
    set_fd(fds[0]);
    assert_ok(net_key_inherit(&got, &found));
    assert_true(found);
    assert_int_equal(got.bytes[31], 9);
    assert_int_equal(fcntl(fds[0], F_GETFD), -1);
    assert_status(net_key_inherit(&got, &found), LS_EAUTH);
    assert_last_error("is not open");
    close(fds[1]);
    unsetenv(NET_KEY_FD_ENV);
}

static void a_descriptor_without_a_key_is_refused_and_left_alone(void **state)
{
    net_key got;
    bool found;
    int fds[2];
    const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);

    LS_UNUSED(state);
    assert_int_equal(pipe(fds), 0);
    assert_int_equal(write(fds[1], "too short", 9), 9);
    close(fds[1]);
    set_fd(fds[0]);
    assert_status(net_key_inherit(&got, &found), LS_EAUTH);
    assert_false(found);
    set_fd(null);
    assert_status(net_key_inherit(&got, &found), LS_EAUTH);
    assert_last_error("is not the descriptor of a key");
    setenv(NET_KEY_FD_ENV, "3x", 1);
    assert_status(net_key_inherit(&got, &found), LS_EINVAL);
    setenv(NET_KEY_FD_ENV, "-1", 1);
    assert_status(net_key_inherit(&got, &found), LS_EINVAL);
    close(fds[0]);
    set_fd(fds[0]);
    assert_status(net_key_inherit(&got, &found), LS_EAUTH);
    assert_last_error("is not open: a program between the agent and this one has closed it");
    unsetenv(NET_KEY_FD_ENV);
    close(null);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(derived_keys_differ_by_purpose_and_name),
        cmocka_unit_test(user_key_is_created_once_with_private_mode),
        cmocka_unit_test(a_named_key_file_must_exist),
        cmocka_unit_test(key_files_readable_by_others_are_refused),
        cmocka_unit_test(links_folders_and_pipes_are_refused_as_key_files),
        cmocka_unit_test(invalid_key_file_content_is_refused),
        cmocka_unit_test(the_memfd_names_its_maker),
        cmocka_unit_test(path_of_the_user_key_is_returned),
        cmocka_unit_test(a_memfd_can_be_inherited_again_and_again),
        cmocka_unit_test(a_pipe_is_read_once_and_closed),
        cmocka_unit_test(a_descriptor_without_a_key_is_refused_and_left_alone),
    };

    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
