/* SPDX-License-Identifier: Apache-2.0 */
/* two_hosts.c - see two_hosts.h. */
#include "harness/two_hosts.h"

#include "base/text.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* The process that keeps the second namespace alive. */
static pid_t keeper;

/* The ranks race for making the user's key. */
static char home[] = "/tmp/lockstep-test-XXXXXX";
static char home_variable[64];

static bool command(const char *format, ...) LS_PRINTF(1, 2);
static bool command(const char *format, ...)
{
    char text[512];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    return system(text) == 0;
}

static bool start_keeper(void)
{
    int ready[2];
    char byte;
    bool is_ready;

    if (pipe(ready) != 0)
        return false;
    keeper = fork();
    if (keeper == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)!write(ready[1], unshare(CLONE_NEWNET) == 0 ? "y" : "n", 1);
        for (;;)
            (void)pause();
    }
    is_ready = keeper > 0 && read(ready[0], &byte, 1) == 1 && byte == 'y';
    (void)close(ready[0]);
    (void)close(ready[1]);
    return is_ready;
}

bool two_hosts_make(void)
{
    if (geteuid() != 0 || !command("ip -V >/dev/null 2>&1") || unshare(CLONE_NEWNET) != 0 ||
        !start_keeper() || mkdtemp(home) == NULL)
        return false;
    text_format(home_variable, sizeof(home_variable), "HOME=%s", home);
    if (command("ip link set lo up && ip link add lsnear type veth peer name lsfar netns %d && "
                "ip addr add 10.77.0.1/24 dev lsnear && ip link set lsnear up && "
                "nsenter -t %d -n sh -c 'ip link set lo up && "
                "ip addr add 10.77.0.2/24 dev lsfar && ip link set lsfar up'",
                (int)keeper, (int)keeper))
        return true;
    two_hosts_end();
    return false;
}

bool two_hosts_move(void)
{
    char path[64];
    bool is_moved;
    int fd;

    text_format(path, sizeof(path), "/proc/%d/ns/net", (int)keeper);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    is_moved = setns(fd, CLONE_NEWNET) == 0;
    (void)close(fd);
    return is_moved;
}

void two_hosts_end(void)
{
    (void)kill(keeper, SIGKILL);
    (void)waitpid(keeper, NULL, 0);
    (void)command("rm -r '%s'", home);
}

ls_test_job two_hosts_job(int n, ls_test_body body, void *arg)
{
    return (ls_test_job){.n = n,
                         .body = body,
                         .arg = arg,
                         .rendezvous = LS_TEST_AT_MASTER,
                         .env = {home_variable, "MASTER_ADDR=10.77.0.1", "MASTER_PORT=29500"}};
}
