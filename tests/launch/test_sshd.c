/* SPDX-License-Identifier: Apache-2.0 */
/* The same with OpenSSH: an sshd of our own on loopback, with its own keys and port; each
 * address is a host. */
#include "launch/job.h"

#include "base/clock.h"
#include "net/socket.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define test(name) cmocka_unit_test_teardown(name, job_clean_up)
#define SSHD       "/usr/sbin/sshd"

enum { N_HOSTS = 40, ARGS_MOST = 40, SKIPPED = 77 };

static struct {
    char folder[64];
    char port[16];
    char ssh[256]; /* --ssh */
    pid_t sshd;
} lab;

/* --- the sshd --- */

static int shell(const char *format, ...) LS_PRINTF(1, 2);
static int shell(const char *format, ...)
{
    char command[1024];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(command, sizeof(command), format, args);
    va_end(args);
    return system(command);
}

static void write_config(void)
{
    char path[128];
    FILE *f;

    text_format(path, sizeof(path), "%s/sshd_config", lab.folder);
    f = fopen(path, "w");
    assert_non_null(f);
    (void)fprintf(f,
                  "Port %s\nHostKey %s/host\nAuthorizedKeysFile %s/user.pub\nPidFile none\n"
                  "UsePAM no\nStrictModes no\nPasswordAuthentication no\n"
                  "PermitRootLogin prohibit-password\nAcceptEnv TEST_JOB_MARK LABEL\n",
                  lab.port, lab.folder, lab.folder);
    for (int i = 1; i <= 3; i++)
        (void)fprintf(f, "ListenAddress 127.0.0.%d\n", i);
    assert_int_equal(fclose(f), 0);
    text_format(path, sizeof(path), "%s/ssh_config", lab.folder);
    f = fopen(path, "w");
    assert_non_null(f);
    (void)fprintf(f,
                  "Host unknown_key\n HostName 127.0.0.2\n UserKnownHostsFile %s/wrong_hosts\n"
                  "Host denied\n HostName 127.0.0.2\n IdentityFile %s/other\n"
                  "Host h*\n HostName 127.0.0.2\n"
                  "Host * !denied\n IdentityFile %s/user\n"
                  "Host *\n IdentitiesOnly yes\n UserKnownHostsFile %s/hosts\n SendEnv "
                  "TEST_JOB_MARK\n LogLevel ERROR\n",
                  lab.folder, lab.folder, lab.folder, lab.folder);
    assert_int_equal(fclose(f), 0);
}

static void find_port(void)
{
    net_address any;
    net_address bound;
    int fd;

    assert_int_equal(net_address_parse("127.0.0.1:0", NET_PORT_REQUIRED, &any), LS_OK);
    assert_int_equal(net_listen(&any, NET_STREAM, 1, &fd, &bound), LS_OK);
    (void)close(fd);
    text_format(lab.port, sizeof(lab.port), "%d", net_address_port(&bound));
}

static bool answers(void)
{
    return shell("ssh -F %s/ssh_config -p %s -o BatchMode=yes -o StrictHostKeyChecking=accept-new "
                 "127.0.0.1 true 2>%s/why",
                 lab.folder, lab.port, lab.folder) == 0;
}

static int start_sshd(void)
{
    const int64_t deadline_ms = ls_deadline_ms(20000);

    text_format(lab.folder, sizeof(lab.folder), "/tmp/lockstep-test-sshd-%d", (int)getpid());
    assert_int_equal(mkdir(lab.folder, 0700), 0);
    find_port();
    if (shell("for k in host user other wrong; do ssh-keygen -q -t ed25519 -N '' -f %s/$k; done && "
              "(printf '[127.0.0.2]:%s '; cat %s/wrong.pub) >%s/wrong_hosts && mkdir -p /run/sshd",
              lab.folder, lab.port, lab.folder, lab.folder) != 0)
        return SKIPPED;
    write_config();
    (void)fflush(NULL);
    lab.sshd = fork();
    if (lab.sshd == 0) {
        char config[128];

        text_format(config, sizeof(config), "%s/sshd_config", lab.folder);
        execl(SSHD, SSHD, "-D", "-f", config, (char *)NULL);
        _exit(127);
    }
    text_format(lab.ssh, sizeof(lab.ssh), "ssh -F %s/ssh_config", lab.folder);
    while (!answers()) {
        if (ls_deadline_left(deadline_ms) == 0 || waitpid(lab.sshd, NULL, WNOHANG) != 0) {
            (void)shell("cat %s/why", lab.folder);
            return SKIPPED;
        }
        (void)poll(NULL, 0, 50);
    }
    return 0;
}

static void stop_sshd(void)
{
    if (lab.sshd > 0) {
        (void)kill(lab.sshd, SIGTERM);
        (void)waitpid(lab.sshd, NULL, 0);
    }
    (void)shell("rm -rf %s", lab.folder);
}

/* --- jobs --- */

static job *start_on(const char *hosts, const char *flag, const char *const *program)
{
    const char *argv[ARGS_MOST] = {JOB_TOOL, "run", "--ssh",      lab.ssh,
                                   "-H",     hosts, "--ssh-port", lab.port};
    int n = 8;

    if (flag != NULL)
        argv[n++] = flag;
    for (; *program != NULL && n < ARGS_MOST - 1; program++)
        argv[n++] = *program;
    return job_start(argv, NULL);
}

#define SHELL(script) JOB_LIST("sh", "-c", script)

static void expect_end(job *j, int code)
{
    job_expect_code(j, code);
    job_expect_gone(j);
}

static void ranks_behind_ssh_are_one_job(void **state)
{
    job *j =
        start_on("127.0.0.2:2,localhost:1,127.0.0.3", NULL, JOB_LIST(JOB_ACTOR, "steps", "200"));

    LS_UNUSED(state);
    expect_end(j, 0);
    job_expect(j,
               job_printed(j, 0, "rank 3| rank 3 has joined") && job_printed(j, 0, "rank 0| sum "));
}

static void arguments_and_output_pass_through_ssh(void **state)
{
    job *j =
        start_on("127.0.0.2,127.0.0.3", NULL,
                 JOB_LIST("sh", "-c",
                          "printf '<%s>' \"$@\"; echo; head -c 3000000 /dev/zero | tr '\\0' z | "
                          "fold -w 99; echo; echo err >&2",
                          "sh", "two words", "it's \"$HOME\" \\n !", "a\nb"));
    size_t n = 0;

    LS_UNUSED(state);
    expect_end(j, 0);
    job_expect(j, job_printed(j, 0, "rank 1| <two words><it's \"$HOME\" \\n !><a\n") &&
                      job_printed(j, 0, "rank 1| b>\n"));
    job_expect(j, job_printed(j, 1, "rank 0| err") && job_printed(j, 1, "rank 1| err"));
    for (const char *at = text_str(&j->out); *at != 0; at++)
        n += *at == 'z';
    job_expect(j, n == 6000000);
}

static void changed_key_and_denied_login_are_reported(void **state)
{
    job *j = start_on("127.0.0.3,unknown_key,denied", NULL, SHELL("sleep 100"));

    LS_UNUSED(state);
    expect_end(j, 1);
    job_expect(j, job_printed(j, 1, "host unknown_key: Host key verification failed; fix: "));
    job_expect(j, job_printed(j, 1, "host denied: ") && job_printed(j, 1, "ssh-copy-id denied"));
    job_expect(j, job_printed(j, 1, "2 of 3 other hosts could not be started: denied,unknown_key"));
}

static void unknown_name_and_closed_port_are_reported(void **state)
{
    job *j = start_on("no-such-host.invalid,127.0.0.99", NULL, SHELL("sleep 100"));

    LS_UNUSED(state);
    expect_end(j, 1);
    job_expect(j, job_printed(j, 1, "host no-such-host.invalid: ssh: Could not resolve hostname"));
    job_expect(j,
               job_printed(j, 1, "host 127.0.0.99: ") && job_printed(j, 1, "Connection refused"));
}

/* More than its MaxStartups lets in at once. */
static void one_sshd_may_be_many_hosts(void **state)
{
    char hosts[1024] = "";
    job *j;

    LS_UNUSED(state);
    for (int i = 2; i <= N_HOSTS; i++)
        text_format(hosts + strlen(hosts), sizeof(hosts) - strlen(hosts), "%sh%d", i > 2 ? "," : "",
                    i);
    j = start_on(hosts, NULL, SHELL("echo I am $RANK/$WORLD_SIZE"));
    expect_end(j, 0);
    job_expect(j,
               job_printed(j, 0, "rank 38| I am 38/39") && job_printed(j, 0, "rank  0| I am 0/39"));
}

static job *start_sleepers(void)
{
    job *j = start_on("127.0.0.2:1,127.0.0.3:1", NULL,
                      SHELL("trap '' TERM HUP; echo ready; sleep 1000 & wait; sleep 1000"));

    job_await_text(j, 0, "rank 0| ready");
    job_await_text(j, 0, "rank 1| ready");
    return j;
}

static void nothing_is_left_when_the_head_is_killed(void **state)
{
    job *j = start_sleepers();

    LS_UNUSED(state);
    assert_int_equal(kill(j->pid, SIGKILL), 0);
    expect_end(j, 128 + SIGKILL);
}

static void nothing_is_left_when_an_ssh_is_killed(void **state)
{
    job *j = start_sleepers();

    LS_UNUSED(state);
    assert_int_equal(kill(job_find_process(j, "ssh", "", ""), SIGKILL), 0);
    expect_end(j, 1);
    job_expect(j, job_printed(j, 1, "lockstep: node ") && job_printed(j, 1, "was lost: "));
}

static void nothing_is_left_when_an_agent_is_killed(void **state)
{
    job *j = start_sleepers();

    LS_UNUSED(state);
    assert_int_equal(kill(job_find_process(j, "lockstep-agent", "", ""), SIGKILL), 0);
    expect_end(j, 1);
    job_expect(j, job_printed(j, 1, "was lost: "));
}

static void a_signal_ends_all_in_good_order(void **state)
{
    job *j = start_on("127.0.0.2:1,127.0.0.3:1", NULL,
                      SHELL("trap 'echo orderly; exit 0' TERM; echo ready; while :; do sleep 0.1; "
                            "done"));

    LS_UNUSED(state);
    job_await_text(j, 0, "rank 0| ready");
    job_await_text(j, 0, "rank 1| ready");
    assert_int_equal(kill(j->pid, SIGINT), 0);
    expect_end(j, 128 + SIGINT);
    job_expect(j, job_printed(j, 0, "rank 0| orderly") && job_printed(j, 0, "rank 1| orderly"));
}

static void hosts_are_looked_at_through_ssh(void **state)
{
    job *j = job_start(JOB_LIST(JOB_TOOL, "check", "--quick", "--ssh", lab.ssh, "--ssh-port",
                                lab.port, "-H", "127.0.0.2,denied,127.0.0.3"),
                       NULL);

    LS_UNUSED(state);
    job_expect_code(j, 1);
    job_expect(j, job_printed(j, 0, "\n2 of 3 hosts: 1 error,"));
    job_expect(j,
               job_printed(j, 0, "denied:\n  error    host-unstarted: it could not be started: "));
    job_expect(j, job_printed(j, 0, "fix: ssh-copy-id denied (login without a password)\n"));
    job_expect(j, job_printed(j, 0, "time-ok: its clock is right by this machine's to within 1"));
    job_expect_gone(j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        test(ranks_behind_ssh_are_one_job),
        test(arguments_and_output_pass_through_ssh),
        test(changed_key_and_denied_login_are_reported),
        test(unknown_name_and_closed_port_are_reported),
        test(hosts_are_looked_at_through_ssh),
        test(one_sshd_may_be_many_hosts),
        test(nothing_is_left_when_the_head_is_killed),
        test(nothing_is_left_when_an_ssh_is_killed),
        test(nothing_is_left_when_an_agent_is_killed),
        test(a_signal_ends_all_in_good_order),
    };
    int code;

    if (access(SSHD, X_OK) != 0) {
        print_message("there is no " SSHD " (openssh-server)\n");
        return SKIPPED;
    }
    code = start_sshd();
    if (code == 0)
        code = cmocka_run_group_tests(tests, NULL, NULL);
    else
        print_message("no sshd could be started here\n");
    stop_sshd();
    return code;
}
