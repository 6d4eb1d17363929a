/* SPDX-License-Identifier: Apache-2.0 */
/* A job of many nodes with one sleeping rank each, all on this machine: 50, with LS_TEST_FULL
 * 200. */
#include "launch/job.h"

#include "base/clock.h"
#include "net/key.h"
#include "net/socket.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SLOWNESS 5
#else
#define SLOWNESS 1
#endif
#define START_MS (5000 * SLOWNESS)
#define END_MS   (2000 * SLOWNESS)

/* Every agent is started by one shell, so that all of them are one job for the test. Each must
 * end as the head does. */
static const char script[] =
    "i=0; while [ $i -lt $NODES ]; do "
    "  $TOOL run --nnodes $NODES --node-rank $i --master-addr 127.0.0.1 --master-port $PORT -n 1 "
    "    sh -c 'echo is up; exec sleep 600' & "
    "  [ $i = 0 ] && echo head $!; pids=\"$pids $!\"; i=$((i+1)); done; "
    "for pid in $pids; do wait $pid; [ $? = 143 ] || echo agent $pid ended with $?; done";

static void choose_port(char *text, size_t n)
{
    net_address any;
    net_address bound;
    int fd;

    assert_int_equal(net_address_parse("127.0.0.1:0", NET_PORT_REQUIRED, &any), LS_OK);
    assert_int_equal(net_listen(&any, NET_STREAM, 1, &fd, &bound), LS_OK);
    (void)close(fd);
    text_format(text, n, "PORT=%d", net_address_port(&bound));
}

static void make_key(char *path, size_t n)
{
    net_key key;

    text_format(path, n, "/tmp/lockstep-test-many-%d", (int)getpid());
    assert_int_equal(net_key_random(&key), LS_OK);
    assert_int_equal(net_key_write_file(path, &key), LS_OK);
}

static void many_agents_start_and_end_quickly(void **state)
{
    const int n = getenv("LS_TEST_FULL") != NULL ? 200 : 50;
    char nodes[32];
    char port[32];
    char key[64];
    char key_env[96];
    int64_t began_ms;
    int64_t up_ms;
    int64_t end_ms;
    job *j;

    LS_UNUSED(state);
    choose_port(port, sizeof(port));
    make_key(key, sizeof(key));
    text_format(nodes, sizeof(nodes), "NODES=%d", n);
    text_format(key_env, sizeof(key_env), NET_KEY_FILE_ENV "=%s", key);
    began_ms = ls_now_ms();
    j = job_start(JOB_LIST("sh", "-c", script), JOB_LIST(nodes, port, key_env, "TOOL=" JOB_TOOL));
    while (count_parts(text_str(&j->out), "is up\n") < n) {
        job_expect(j, !j->has_ended && ls_now_ms() - began_ms < JOB_LONG_MS);
        job_read_output(j, 10);
    }
    up_ms = ls_now_ms() - began_ms;
    (void)unlink(key);
    began_ms = ls_now_ms();
    assert_int_equal(kill((pid_t)job_await_number(j, 0, "head "), SIGTERM), 0);
    job_await_end(j);
    end_ms = ls_now_ms() - began_ms;
    print_message("%d agents: up after %.2f s, gone after %.2f s\n", n, (double)up_ms / 1e3,
                  (double)end_ms / 1e3);
    job_expect(j, !job_printed(j, 0, "ended with"));
    job_expect_gone(j);
    job_expect(j, up_ms < START_MS);
    job_expect(j, end_ms < END_MS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(many_agents_start_and_end_quickly, job_clean_up),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
