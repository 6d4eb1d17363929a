/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_lost_host.c - a host that is lost without any message: its connections do not end, they are
 * silent. Two network namespaces serve as two hosts; needs root and iproute2.
 */
#include "base/unit.h"

#include "base/clock.h"
#include "base/text.h"
#include "net/socket.h"
#include "hub/control.h"
#include "hub/hub.h"

#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define SOON      20000
#define VANISH_MS 6000
#define SKIPPED   77
#define JOB       "0123456789abcdef"

static net_key key;
static int to_remote[2];   /* orders to the remote host */
static int from_remote[2]; /* and its answers */

/* Runs a command with $PEER set to a process id; whether it worked. */
static bool run(const char *command, pid_t peer)
{
    char whole[300];

    text_format(whole, sizeof(whole), "PEER=%d; exec >/dev/null 2>&1; %s", (int)peer, command);
    return system(whole) == 0;
}

static void send_byte(int fd)
{
    if (write(fd, "x", 1) != 1)
        _exit(1);
}

static bool await_byte(int fd)
{
    char byte;

    return read(fd, &byte, 1) == 1;
}

static control *join(const net_address *at, int rank)
{
    const control_options opt = {
        .hub = *at, .key = &key, .job = JOB, .rank = rank, .world_size = 2, .timeout_ms = SOON};
    control *c = NULL;

    if (control_open(&opt, &c) != LS_OK)
        print_message("rank %d: %s\n", rank, ls_last_error());
    return c;
}

/* The remote host: its own network, then rank 1, then waits to be killed. */
static void run_remote_host(void)
{
    net_address at;
    char text[NET_ADDRESS_TEXT_MAX] = "";

    if (unshare(CLONE_NEWNET) != 0)
        _exit(SKIPPED);
    send_byte(from_remote[1]);
    if (!await_byte(to_remote[0]) || // the cable is plugged in
        !run("ip addr add 10.99.0.2/24 dev lsfar && ip link set lsfar up", 0))
        _exit(1);
    send_byte(from_remote[1]);
    if (read(to_remote[0], text, sizeof(text) - 1) <= 0 || net_address_decode(text, &at) != LS_OK ||
        join(&at, 1) == NULL)
        _exit(1);
    send_byte(from_remote[1]);
    for (;;)
        pause();
}

/* Makes both networks; 0, or SKIPPED where that is not allowed here. */
static int make_networks(pid_t *remote)
{
    int status = 0;

    if (geteuid() != 0 || !run("ip link show", 0) || unshare(CLONE_NEWNET) != 0)
        return SKIPPED;
    if (pipe(to_remote) != 0 || pipe(from_remote) != 0)
        return 1;
    *remote = fork();
    if (*remote < 0)
        return 1;
    if (*remote == 0)
        run_remote_host();
    if (!await_byte(from_remote[0]) ||
        !run("ip link set lo up && ip link add lsnear type veth peer name lsfar "
             "netns $PEER && ip addr add 10.99.0.1/24 dev lsnear && ip link "
             "set lsnear up",
             *remote)) {
        kill(*remote, SIGKILL);
        waitpid(*remote, &status, 0);
        return SKIPPED;
    }
    send_byte(to_remote[1]);
    return await_byte(from_remote[0]) ? 0 : 1;
}

/* How long rank 0 waits for the cause; -1 when none arrives. */
static int64_t await_death(control *c, job_cause *cause)
{
    const int64_t start_ms = ls_now_ms();
    const int64_t deadline_ms = ls_deadline_ms(SOON);

    while (!control_next_cause(c, cause)) {
        if (net_wait(control_fd(c), POLLIN, deadline_ms) != LS_OK || control_poll(c) != LS_OK)
            return -1;
    }
    return ls_now_ms() - start_ms;
}

static void lost_host_is_detected_within_six_seconds(void **state)
{
    const hub_options opt = {.job = JOB, .world_size = 2, .key = &key};
    const pid_t *remote = *state;
    net_address at;
    hub_thread *t = NULL;
    control *c;
    job_cause cause = {0};
    char text[NET_ADDRESS_TEXT_MAX];
    int64_t took_ms;

    assert_ok(net_address_decode("10.99.0.1:0", &at));
    assert_ok(hub_thread_start(&opt, &at, &t));
    net_address_text(text, sizeof(text), hub_thread_address(t));
    assert_int_equal(write(to_remote[1], text, strlen(text)), strlen(text));
    assert_true(await_byte(from_remote[0]));
    c = join(hub_thread_address(t), 0);
    assert_non_null(c);
    assert_true(run("ip link set lsnear down", *remote)); // the cable is pulled
    took_ms = await_death(c, &cause);
    print_message("noticed after %lld ms: %s\n", (long long)took_ms, cause.text);
    control_close(c);
    hub_thread_stop(t, 0);
    assert_true(took_ms >= 0 && took_ms <= VANISH_MS);
    assert_int_equal(cause.kind, CAUSE_DIED);
    assert_int_equal(cause.rank, 1);
}

int main(void)
{
    static pid_t remote;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(lost_host_is_detected_within_six_seconds, &remote),
    };
    int result;

    setenv("LOCKSTEP_LOG", "error", 1);
    if (net_key_random(&key) != LS_OK)
        return 1;
    result = make_networks(&remote);
    if (result == SKIPPED)
        print_message("skipped: network namespaces need root and iproute2\n");
    if (result != 0)
        return result;
    result = cmocka_run_group_tests(tests, NULL, NULL);
    kill(remote, SIGKILL);
    waitpid(remote, NULL, 0);
    return result;
}
