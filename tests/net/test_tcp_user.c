/* SPDX-License-Identifier: Apache-2.0 */
/* test_tcp_user.c - the user at the other end of a TCP connection of this host, by both sources. */
#include "base/unit.h"

#include "base/clock.h"
#include "net/socket.h"
#include "net/tcp_user.h"

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#define SOON 10000

typedef ls_status (*source_fn)(int fd, uid_t *uid);
static const source_fn sources[] = {net_tcp_user, net_tcp_user_from_proc};

static int listen_at(const char *where, net_address *at)
{
    net_address any;
    int fd;

    assert_ok(net_address_decode(where, &any));
    assert_ok(net_listen(&any, NET_STREAM, 8, &fd, at));
    return fd;
}

static int listen_here(net_address *at)
{
    return listen_at("tcp://127.0.0.1:0", at);
}

static int accept_one(int listener)
{
    int fd;

    assert_ok(net_wait(listener, POLLIN, ls_deadline_ms(SOON)));
    assert_ok(net_accept(listener, &fd));
    assert_true(fd >= 0);
    return fd;
}

static void connection_of_this_process_belongs_to_this_user(void **state)
{
    net_address at;
    const int listener = listen_here(&at);
    int client;
    int server;

    LS_UNUSED(state);
    assert_ok(net_connect(&at, NET_STREAM, ls_deadline_ms(SOON), &client));
    server = accept_one(listener);
    for (size_t i = 0; i < LS_COUNT_OF(sources); i++) {
        uid_t uid = (uid_t)-1;

        assert_ok(sources[i](server, &uid));
        assert_int_equal(uid, geteuid());
    }
    close(client);
    close(server);
    close(listener);
}

static void ipv6_connection_of_this_process_belongs_to_this_user(void **state)
{
    net_address at;
    net_address client_at;
    uid_t uid = (uid_t)-1;
    int listener;
    int client;
    int server;

    LS_UNUSED(state);
    if (access("/proc/net/if_inet6", F_OK) != 0) {
        print_message("this kernel has no IPv6\n");
        skip();
    }
    listener = listen_at("tcp://[::1]:0", &at);
    assert_ok(net_connect(&at, NET_STREAM, ls_deadline_ms(SOON), &client));
    server = accept_one(listener);
    for (size_t i = 0; i < LS_COUNT_OF(sources); i++) {
        uid = (uid_t)-1;
        assert_ok(sources[i](server, &uid));
        assert_int_equal(uid, geteuid());
    }
    /* The same by its addresses, and not with another port. */
    assert_ok(net_address_of_socket(client, &client_at));
    assert_ok(net_tcp_user_of(&client_at, &at, &uid));
    assert_int_equal(uid, geteuid());
    net_address_set_port(&at, net_address_port(&at) == 65535 ? 1 : net_address_port(&at) + 1);
    assert_status(net_tcp_user_of(&client_at, &at, &uid), LS_ENOTFOUND);
    close(client);
    close(server);
    close(listener);
}

static void addresses_of_two_families_are_no_connection(void **state)
{
    net_address a;
    net_address b;
    uid_t uid;

    LS_UNUSED(state);
    assert_ok(net_address_decode("tcp://127.0.0.1:1", &a));
    assert_ok(net_address_decode("tcp://[::1]:1", &b));
    assert_status(net_tcp_user_of(&a, &b, &uid), LS_EINVAL);
    assert_ok(net_address_decode("unix:@x", &b));
    assert_status(net_tcp_user_of(&b, &b, &uid), LS_EINVAL);
}

/* A socket without an owner has user 0, which is not root's. */
static void closed_end_has_no_owner(void **state)
{
    net_address at;
    const int listener = listen_here(&at);
    int client;
    int server;

    LS_UNUSED(state);
    assert_ok(net_connect(&at, NET_STREAM, ls_deadline_ms(SOON), &client));
    assert_int_equal(write(client, "hello", 5), 5);
    close(client);
    server = accept_one(listener);
    for (size_t i = 0; i < LS_COUNT_OF(sources); i++) {
        uid_t uid;

        assert_status(sources[i](server, &uid), LS_ENOTFOUND);
    }
    close(server);
    close(listener);
}

static void another_user_is_named(void **state)
{
    enum { OTHER_USER = 65534 };
    net_address at;
    const int listener = listen_here(&at);
    int ready[2];
    pid_t child;
    int server;

    LS_UNUSED(state);
    if (geteuid() != 0) {
        print_message("only root can become another user\n");
        skip();
    }
    assert_int_equal(pipe(ready), 0);
    child = fork();
    if (child == 0) {
        char byte;
        int fd;

        close(ready[1]);
        if (setuid(OTHER_USER) != 0 ||
            net_connect(&at, NET_STREAM, ls_deadline_ms(SOON), &fd) != LS_OK)
            _exit(1);
        _exit(read(ready[0], &byte, 1) == 0 ? 0 : 1); // until the parent has checked
    }
    assert_true(child > 0);
    close(ready[0]);
    server = accept_one(listener);
    for (size_t i = 0; i < LS_COUNT_OF(sources); i++) {
        uid_t uid = 0;

        assert_ok(sources[i](server, &uid));
        assert_int_equal(uid, OTHER_USER);
    }
    close(ready[1]);
    assert_int_equal(waitpid(child, NULL, 0), child);
    close(server);
    close(listener);
}

static void unconnected_socket_is_an_error(void **state)
{
    net_address at;
    const int listener = listen_here(&at);
    uid_t uid;

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(sources); i++) {
        assert_status(sources[i](listener, &uid), LS_ENOTFOUND);
        assert_status(sources[i](-1, &uid), LS_ESYSTEM);
    }
    close(listener);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(connection_of_this_process_belongs_to_this_user),
        cmocka_unit_test(ipv6_connection_of_this_process_belongs_to_this_user),
        cmocka_unit_test(addresses_of_two_families_are_no_connection),
        cmocka_unit_test(closed_end_has_no_owner),
        cmocka_unit_test(another_user_is_named),
        cmocka_unit_test(unconnected_socket_is_an_error),
    };

    return cmocka_run_group_tests_name("net tcp_user", tests, NULL, NULL);
}
