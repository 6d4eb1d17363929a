/* SPDX-License-Identifier: Apache-2.0 */
#include "base/unit.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "net/address.h"
#include "net/socket.h"
#include "net/user_door.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define SOON 30000

typedef struct scene {
    poller *loop;
    user_door *door;
    int n_entered;
    int fd; /* of the last */
    char peer[NET_ADDRESS_TEXT_MAX];
    ls_status verdict;
} scene;

static ls_status enter(void *self, int fd, const char *peer)
{
    scene *s = self;

    s->n_entered++;
    file_close(&s->fd);
    if (s->verdict != LS_OK) {
        (void)close(fd);
        return ls_fail(s->verdict, "there is no room");
    }
    s->fd = fd;
    text_format(s->peer, sizeof(s->peer), "%s", peer);
    return LS_OK;
}

static void begin(scene *s)
{
    const user_door_options opt = {.name = "store", .user = geteuid(), .self = s, .enter = enter};

    memset(s, 0, sizeof(*s));
    s->fd = -1;
    assert_ok(poller_create(&s->loop));
    assert_ok(user_door_open(s->loop, &opt, &s->door));
}

static void finish(scene *s)
{
    user_door_close(s->door);
    file_close(&s->fd);
    poller_destroy(s->loop);
}

static net_address address_of(const scene *s)
{
    net_address at;

    assert_ok(net_address_decode("127.0.0.1:0", &at));
    net_address_set_port(&at, user_door_port(s->door));
    return at;
}

static int knock(const scene *s)
{
    const net_address at = address_of(s);
    int fd;

    assert_ok(net_connect(&at, NET_STREAM, ls_deadline_ms(SOON), &fd));
    return fd;
}

static void await_entered(scene *s, int n)
{
    for (int64_t until_ms = ls_deadline_ms(SOON); s->n_entered < n;) {
        assert_true(ls_deadline_left(until_ms) > 0);
        assert_ok(poller_run_once(s->loop, 100));
    }
    assert_int_equal(s->n_entered, n);
}

/* --- tests --- */

static void the_own_user_comes_in_with_a_name(void **state)
{
    scene s;
    int fd;

    LS_UNUSED(state);
    begin(&s);
    assert_true(user_door_port(s.door) > 0);
    fd = knock(&s);
    await_entered(&s, 1);
    assert_true(text_starts(s.peer, "tcp://127.0.0.1:"));
    assert_ok(net_send_all(s.fd, "the client", "hi", 2, ls_deadline_ms(SOON)));
    (void)close(fd);
    finish(&s);
}

static void many_come_in_at_once(void **state)
{
    int fds[150]; /* more than are taken in one round */
    scene s;

    LS_UNUSED(state);
    begin(&s);
    for (int i = 0; i < 150; i++)
        fds[i] = knock(&s);
    await_entered(&s, 150);
    for (int i = 0; i < 150; i++)
        (void)close(fds[i]);
    finish(&s);
}

/* In a child of another user: 0 when the connection is closed without a byte. */
static int be_somebody_else(const scene *s)
{
    const net_address at = address_of(s);
    char byte;
    int fd;

    if (setgid(65534) != 0 || setuid(65534) != 0 ||
        net_connect(&at, NET_STREAM, ls_deadline_ms(SOON), &fd) != LS_OK)
        return 2;
    return net_recv_all(fd, "the door", &byte, 1, ls_deadline_ms(SOON)) == LS_EPEER ? 0 : 1;
}

static void another_user_is_refused(void **state)
{
    int status = 0;
    scene s;
    pid_t pid;

    LS_UNUSED(state);
    if (geteuid() != 0) {
        print_message("only root can be another user\n");
        skip();
    }
    begin(&s);
    pid = fork();
    if (pid == 0)
        _exit(be_somebody_else(&s));
    for (int64_t until_ms = ls_deadline_ms(SOON); waitpid(pid, &status, WNOHANG) == 0;) {
        assert_true(ls_deadline_left(until_ms) > 0);
        assert_ok(poller_run_once(s.loop, 20));
    }
    assert_int_equal(status, 0);
    assert_int_equal(s.n_entered, 0);
    finish(&s);
}

static void whoever_has_gone_already_harms_nobody(void **state)
{
    scene s;
    int fd;

    LS_UNUSED(state);
    begin(&s);
    for (int i = 0; i < 20; i++)
        (void)close(knock(&s));
    fd = knock(&s);
    for (int64_t until_ms = ls_deadline_ms(SOON);
         ls_deadline_left(until_ms) > 0 && s.n_entered == 0;)
        assert_ok(poller_run_once(s.loop, 100));
    assert_true(s.n_entered >= 1);
    (void)close(fd);
    finish(&s);
}

static void without_descriptors_a_client_waits_and_then_comes_in(void **state)
{
    struct rlimit before;
    struct rlimit few;
    scene s;
    int fd;
    int n_turns = 0;

    LS_UNUSED(state);
    begin(&s);
    fd = knock(&s);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    few = before;
    few.rlim_cur = 3; /* fewer than are open */
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    for (int64_t until_ms = ls_deadline_ms(300); ls_deadline_left(until_ms) > 0; n_turns++)
        assert_ok(poller_run_once(s.loop, ls_deadline_left(until_ms)));
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(s.n_entered, 0);
    assert_true(n_turns < 50); /* it waits between its attempts */
    await_entered(&s, 1);
    (void)close(fd);
    finish(&s);
}

static void whose_connection_it_is_can_be_asked_with_the_last_descriptor(void **state)
{
    struct rlimit before;
    struct rlimit few;
    scene s;
    int next;
    int fd;

    LS_UNUSED(state);
    begin(&s);
    fd = knock(&s);
    next = dup(fd);
    (void)close(next);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    few = before;
    few.rlim_cur = (rlim_t)next + 1; /* room for the connection, not for a question about it */
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    await_entered(&s, 1);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    (void)close(fd);
    finish(&s);
}

static void a_guest_for_whom_there_is_no_room_is_no_end(void **state)
{
    scene s;
    int fd;

    LS_UNUSED(state);
    begin(&s);
    s.verdict = LS_ENOMEM;
    (void)close(knock(&s));
    fd = knock(&s);
    for (int64_t until_ms = ls_deadline_ms(SOON);
         ls_deadline_left(until_ms) > 0 && s.n_entered == 0;)
        assert_ok(poller_run_once(s.loop, 100));
    s.verdict = LS_OK;
    (void)close(fd);
    s.n_entered = 0;
    fd = knock(&s);
    while (s.fd < 0)
        assert_ok(poller_run_once(s.loop, SOON));
    (void)close(fd);
    finish(&s);
}

static void a_port_that_is_taken_is_named(void **state)
{
    user_door_options opt = {.name = "store", .user = geteuid(), .enter = enter};
    user_door *second;
    char port[16];
    scene s;

    LS_UNUSED(state);
    begin(&s);
    opt.self = &s;
    opt.port = user_door_port(s.door);
    assert_int_equal(user_door_open(s.loop, &opt, &second), LS_ESYSTEM);
    assert_null(second);
    text_format(port, sizeof(port), "127.0.0.1:%d", opt.port);
    assert_told(port);
    user_door_close(NULL);
    finish(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_own_user_comes_in_with_a_name),
        cmocka_unit_test(many_come_in_at_once),
        cmocka_unit_test(another_user_is_refused),
        cmocka_unit_test(whoever_has_gone_already_harms_nobody),
        cmocka_unit_test(without_descriptors_a_client_waits_and_then_comes_in),
        cmocka_unit_test(whose_connection_it_is_can_be_asked_with_the_last_descriptor),
        cmocka_unit_test(a_guest_for_whom_there_is_no_room_is_no_end),
        cmocka_unit_test(a_port_that_is_taken_is_named),
    };

    if (log_configure("error") != LS_OK)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
