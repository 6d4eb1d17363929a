/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_pmi_client.c - the client of PMI-1 with prepared answers: those of real servers, and
 * malformed ones.
 */
#include "base/unit.h"

#include "base/clock.h"
#include "comm/join/pmi_client.h"
#include "harness/lines.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SOON_MS = 30000 };

#define HELLO                                                                                      \
    "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n"                                   \
    "cmd=my_kvsname kvsname=kvs_1_0_node0\n"

static int server; /* its end of the socket */

/* A client at which these answers wait. Each is read when its question is asked, as there is no
 * more than one at a time: so they come in pieces of one line. */
static pmi_client begin(void)
{
    int fds[2];

    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
    server = fds[0];
    return (pmi_client){.fd = fds[1], .deadline_ms = ls_deadline_ms(SOON_MS), .space = "S"};
}

static void will_answer(const char *lines)
{
    while (*lines != 0) {
        const size_t n = strcspn(lines, "\n") + 1;

        assert_int_equal(send(server, lines, n, 0), n);
        lines += n;
    }
}

static void expect_question(const char *line)
{
    char received[4096] = "";
    const ssize_t n = recv(server, received, sizeof(received) - 1, MSG_DONTWAIT);

    assert_true(n > 0);
    received[n] = 0;
    assert_string_equal(received, line);
}

static void end(const pmi_client *c)
{
    close(c->fd);
    close(server);
}

static void client_makes_all_requests_in_order(void **state)
{
    pmi_client c = begin();
    char value[64];

    LS_UNUSED(state);
    will_answer(HELLO "cmd=get_result rc=-1 msg=key_a_not_found value=unknown\n"
                      "cmd=put_result rc=0 msg=success\ncmd=barrier_out\n"
                      "cmd=get_result rc=0 msg=success value=b = c value=d\ncmd=finalize_ack\n");
    assert_ok(pmi_client_open(c.fd, c.deadline_ms, &c));
    assert_string_equal(c.space, "kvs_1_0_node0");
    assert_status(pmi_client_get(&c, "a", value, sizeof(value)), LS_ENOTFOUND);
    assert_ok(pmi_client_put(&c, "a", "b = c value=d"));
    assert_ok(pmi_client_barrier(&c));
    assert_ok(pmi_client_get(&c, "a", value, sizeof(value)));
    assert_string_equal(value, "b = c value=d");
    pmi_client_close(&c);
    expect_question("cmd=init pmi_version=1 pmi_subversion=1\n");
    expect_question("cmd=get_my_kvsname\n");
    expect_question("cmd=get kvsname=kvs_1_0_node0 key=a\n");
    expect_question("cmd=put kvsname=kvs_1_0_node0 key=a value=b = c value=d\n");
    expect_question("cmd=barrier_in\n");
    expect_question("cmd=get kvsname=kvs_1_0_node0 key=a\n");
    expect_question("cmd=finalize\n");
    end(&c);
}

/* The barrier ends after the line about the long wait. */
static void a_long_barrier_is_reported(void **state)
{
    const int lines = lines_create();
    pmi_client c = begin();
    int status = -1;
    int old;
    pid_t helper;

    LS_UNUSED(state);
    (void)setenv("LOCKSTEP_LATE_MS", "100", 1);
    helper = fork();
    if (helper == 0) {
        const bool is_logged =
            lines_await(lines, "not all ranks have reached the launcher's PMI barrier");

        will_answer("cmd=barrier_out\n");
        _exit(is_logged ? 0 : 1);
    }
    old = lines_take_stderr(lines);
    assert_ok(pmi_client_barrier(&c));
    (void)dup2(old, STDERR_FILENO);
    assert_int_equal(waitpid(helper, &status, 0), helper);
    assert_int_equal(status, 0);
    (void)unsetenv("LOCKSTEP_LATE_MS");
    (void)close(old);
    (void)close(lines);
    end(&c);
}

/* In pieces, as a stream may bring them. */
static void an_answer_may_come_in_pieces(void **state)
{
    pmi_client c = begin();
    char value[64];

    LS_UNUSED(state);
    assert_int_equal(send(server, "cmd=get_res", 11, 0), 11);
    assert_int_equal(send(server, "ult rc=0 value=x", 16, 0), 16);
    assert_int_equal(send(server, "y\n", 2, 0), 2);
    assert_ok(pmi_client_get(&c, "k", value, sizeof(value)));
    assert_string_equal(value, "xy");
    end(&c);
}

static void what_is_no_answer_is_shown(void **state)
{
    static const struct {
        const char *answer;
        const char *part;
    } rows[] = {
        {"cmd=barrier_out rc=0\n", "answers \"cmd=barrier_out rc=0\""},
        {"\n", "answers \"\""},
        {"HTTP/1.1 400 Bad\tRequest\r\n", "answers \"HTTP/1.1 400 Bad?Request?\""},
        {"cmd=get_result rc=0 msg=success\n", "answers"},
        {"cmd=get_result_and_more_of_it_than_any rc=0 value=1\n", "answers"},
    };

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(rows); i++) {
        pmi_client c = begin();
        char value[64];

        assert_int_equal(send(server, rows[i].answer, strlen(rows[i].answer), 0),
                         strlen(rows[i].answer));
        assert_status(pmi_client_get(&c, "k", value, sizeof(value)), LS_EPROTO);
        assert_last_error(rows[i].part);
        end(&c);
    }
}

static void answers_are_bounded(void **state)
{
    static char much[4096];
    pmi_client c = begin();
    char value[8];

    LS_UNUSED(state);
    memset(much, 'x', sizeof(much) - 1);
    assert_int_equal(send(server, much, sizeof(much) - 1, 0), sizeof(much) - 1);
    assert_status(pmi_client_get(&c, "k", value, sizeof(value)), LS_EPROTO);
    assert_last_error("a line of more than 2047 bytes");
    end(&c);
    c = begin();
    assert_int_equal(send(server, "cmd=\0\n", 6, 0), 6);
    assert_status(pmi_client_barrier(&c), LS_EPROTO);
    assert_last_error("a zero byte");
    end(&c);
    c = begin();
    will_answer("cmd=get_result rc=0 value=1234567\ncmd=get_result rc=0 value=12345678\n");
    assert_ok(pmi_client_get(&c, "k", value, sizeof(value)));
    assert_status(pmi_client_get(&c, "k", value, sizeof(value)), LS_EPROTO);
    assert_status(pmi_client_put(&c, "k", much), LS_EINVAL);
    end(&c);
}

static void a_server_that_refuses_is_quoted(void **state)
{
    pmi_client c = begin();

    LS_UNUSED(state);
    will_answer("cmd=put_result rc=-1 msg=duplicate_key\n");
    assert_status(pmi_client_put(&c, "k", "v"), LS_EPROTO);
    assert_last_error("duplicate_key");
    will_answer("cmd=barrier_out rc=-1\n");
    assert_status(pmi_client_barrier(&c), LS_EPROTO);
    will_answer("cmd=response_to_init pmi_version=2 pmi_subversion=0 rc=-1\n");
    assert_status(pmi_client_open(c.fd, c.deadline_ms, &c), LS_EPROTO);
    assert_last_error("pmi_version=2");
    end(&c);
}

static void a_server_that_goes_or_is_silent_is_named(void **state)
{
    pmi_client c = begin();

    LS_UNUSED(state);
    c.deadline_ms = ls_deadline_ms(20);
    assert_status(pmi_client_barrier(&c), LS_ETIMEOUT);
    assert_last_error("waiting for all ranks");
    close(server);
    assert_status(pmi_client_barrier(&c), LS_EPEER);
    assert_last_error("PMI_FD");
    server = -1;
    end(&c);
    assert_true(pmi_client_open(c.fd, ls_deadline_ms(20), &c) != LS_OK); /* closed */
    assert_last_error("PMI_FD");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(client_makes_all_requests_in_order),
        cmocka_unit_test(a_long_barrier_is_reported),
        cmocka_unit_test(an_answer_may_come_in_pieces),
        cmocka_unit_test(what_is_no_answer_is_shown),
        cmocka_unit_test(answers_are_bounded),
        cmocka_unit_test(a_server_that_refuses_is_quoted),
        cmocka_unit_test(a_server_that_goes_or_is_silent_is_named),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
