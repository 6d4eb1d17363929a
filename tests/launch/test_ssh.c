/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs that are started from one machine. The hosts are this one under several names, and ssh is
 * fake_ssh.c. */
#include "launch/job.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define test(name) cmocka_unit_test_teardown(name, job_clean_up)

enum { ARGS_MOST = 40 };

/* `lockstep run` on these hosts; env may be NULL. */
static job *start_on(const char *hosts, const char *flag, const char *const *program,
                     const char *const *env)
{
    const char *argv[ARGS_MOST] = {JOB_TOOL, "run", "--ssh", FAKE_SSH, "-H", hosts};
    int n = 6;

    if (flag != NULL)
        argv[n++] = flag;
    for (; *program != NULL && n < ARGS_MOST - 1; program++)
        argv[n++] = *program;
    return job_start(argv, env);
}

#define SHELL(script) JOB_LIST("sh", "-c", script)

/* Everything of the job, the agents that ssh has started included, carries the test's mark. */
static void expect_end(job *j, int code)
{
    job_expect_code(j, code);
    job_expect_gone(j);
}

static void make_folder(char *path, size_t n, const char *what)
{
    text_format(path, n, "/tmp/lockstep-test-%s-%d", what, (int)getpid());
    assert_int_equal(mkdir(path, 0700), 0);
}

static void remove_folder(const char *path)
{
    job *j = job_start(JOB_LIST("rm", "-r", path), NULL);

    job_expect_code(j, 0);
}

/* --- what a job is, wherever its ranks are --- */

static void ranks_of_all_hosts_are_one_job(void **state)
{
    job *j = start_on("127.0.0.2:2,localhost:1,127.0.0.3:3", NULL,
                      JOB_LIST(JOB_ACTOR, "steps", "200"), NULL);

    LS_UNUSED(state);
    expect_end(j, 0);
    for (int rank = 0; rank < 6; rank++) {
        char line[64];

        text_format(line, sizeof(line), "rank %d| rank %d has joined", rank, rank);
        job_expect(j, job_printed(j, 0, line));
    }
}

static void places_follow_the_order_of_hosts(void **state)
{
    job *j = start_on("127.0.0.3:1,localhost:2,127.0.0.2", NULL,
                      SHELL("echo at $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE "
                            "$GROUP_RANK/$GROUP_WORLD_SIZE"),
                      NULL);

    LS_UNUSED(state);
    expect_end(j, 0);
    job_expect(j, job_printed(j, 0, "rank 0| at 0/4 0/1 0/3\n"));
    job_expect(j, job_printed(j, 0, "rank 1| at 1/4 0/2 1/3\n"));
    job_expect(j, job_printed(j, 0, "rank 2| at 2/4 1/2 1/3\n"));
    job_expect(j, job_printed(j, 0, "rank 3| at 3/4 0/1 2/3\n"));
}

static void one_other_host_is_enough(void **state)
{
    job *j = start_on("127.0.0.2", NULL, JOB_LIST(JOB_ACTOR, "steps", "20"), NULL);

    LS_UNUSED(state);
    expect_end(j, 0);
    job_expect(j, job_printed(j, 0, "rank 0 has joined"));
    job_expect(j, !job_printed(j, 0, "rank 0| "));
}

static void this_machine_alone_needs_no_ssh(void **state)
{
    job *j = job_start(JOB_LIST(JOB_TOOL, "run", "--ssh", "/nowhere", "-H", "localhost:2,127.0.0.1",
                                "sh", "-c", "echo $RANK/$WORLD_SIZE"),
                       NULL);

    LS_UNUSED(state);
    expect_end(j, 0);
    job_expect(j, job_printed(j, 0, "rank 2| 2/3"));
}

static void n_is_the_number_of_all_ranks(void **state)
{
    job *j = start_on("127.0.0.2:2,127.0.0.3:2,127.0.0.4:2", "-n3",
                      SHELL("echo $RANK on $GROUP_RANK/$GROUP_WORLD_SIZE"), NULL);

    LS_UNUSED(state);
    expect_end(j, 0); /* as with getopt */
    job_expect(j, job_printed(j, 0, "rank 1| 1 on 0/2") && job_printed(j, 0, "rank 2| 2 on 1/2"));
    j = start_on("127.0.0.2:2,127.0.0.3:2,127.0.0.4:2", "--np=3",
                 SHELL("echo $RANK on $GROUP_RANK/$GROUP_WORLD_SIZE"), NULL);
    expect_end(j, 0);
    job_expect(j, job_printed(j, 0, "rank 1| 1 on 0/2") && job_printed(j, 0, "rank 2| 2 on 1/2"));
    j = start_on("127.0.0.2:2,127.0.0.3:2", "--np=5", SHELL("true"), NULL);
    job_expect_code(j, 2);
    job_expect(j, job_printed(j, 1, "5 ranks (-n), but the 2 hosts have 4 slots"));
    j = start_on("127.0.0.2:2,127.0.0.3:2", "--np=auto", SHELL("true"), NULL);
    job_expect_code(j, 2);
    job_expect(j,
               job_printed(j, 1, "-n auto: with -H, -n is the number of ranks of the whole job"));
}

/* --- what goes along --- */

static void arguments_arrive_as_they_are(void **state)
{
    job *j =
        start_on("127.0.0.2", NULL,
                 JOB_LIST("sh", "-c", "for a; do printf '<%s>' \"$a\"; done", "sh", "two words", "",
                          "it's \"quoted\" $HOME `x` \\n", "line\nbreak", "*", "!x"),
                 NULL);

    LS_UNUSED(state);
    expect_end(j, 0);
    job_expect(
        j, job_printed(j, 0, "<two words><><it's \"quoted\" $HOME `x` \\n><line\nbreak><*><!x>"));
}

static void the_folder_and_variables_go_along(void **state)
{
    const char *script = "echo $PWD: $FROM_HERE, $SET, $NCCL_DEBUG, ${NOT_SENT-nothing}";
    job *j = job_start(JOB_LIST("sh", "-c", "cd /usr/lib && exec env \"$@\"", "sh",
                                "FROM_HERE=one two", "NCCL_DEBUG=INFO", JOB_TOOL, "run", "--ssh",
                                FAKE_SSH " -o Some=thing", "-H", "127.0.0.2,localhost", "-x",
                                "FROM_HERE", "-x", "SET=a=b", "sh", "-c", script),
                       NULL);

    LS_UNUSED(state);
    expect_end(j, 0);
    job_expect(j, job_printed(j, 0, "rank 0| /usr/lib: one two, a=b, INFO, nothing\n"));
    job_expect(j, job_printed(j, 0, "rank 1| /usr/lib: one two, a=b, INFO, nothing\n"));
    job_clean_up(NULL);
    j = start_on("127.0.0.2", "--export=NOT_SET_ANYWHERE",
                 SHELL("echo ${NOT_SET_ANYWHERE-not set}"), NULL);
    expect_end(j, 0);
    job_expect(j, job_printed(j, 0, "not set\n"));
    job_expect(j, job_printed(j, 1, "warning: -x NOT_SET_ANYWHERE: the variable is not set here"));
}

static void nothing_of_the_job_is_in_a_command_line(void **state)
{
    job *j =
        start_on("127.0.0.2", NULL,
                 SHELL("for f in /proc/[0-9]*/cmdline; do tr '\\0' '\\n' <$f; done 2>/dev/null | "
                       "grep -c secret-wor[d]; true"),
                 JOB_LIST("NCCL_TEST=secret-word"));

    LS_UNUSED(state);
    expect_end(j, 0);
    job_expect(j, text_equal(text_str(&j->out), "0\n"));
}

static void both_streams_and_large_output_arrive_whole(void **state)
{
    job *j = start_on("127.0.0.2:1,127.0.0.3:1", NULL,
                      SHELL("seq -f 'line %06g of many' 60000; echo an error >&2; printf 'no end'"),
                      NULL);
    size_t n_lines = 0;

    LS_UNUSED(state);
    expect_end(j, 0);
    for (const char *at = text_str(&j->out); (at = strchr(at, '\n')) != NULL; at++)
        n_lines++;
    job_expect(j, n_lines == 2 * 60001);
    job_expect(j, job_printed(j, 0, "rank 1| line 060000 of many") ||
                      job_printed(j, 0, "rank 1| line 60000 of many"));
    job_expect(j, job_printed(j, 0, "rank 0| no end\n"));
    job_expect(j, job_printed(j, 1, "rank 0| an error") && job_printed(j, 1, "rank 1| an error"));
}

static void only_the_chosen_ranks_are_shown(void **state)
{
    job *j = start_on("127.0.0.2:2,127.0.0.3:2", "--ranks=0,3", SHELL("echo I am $RANK"), NULL);

    LS_UNUSED(state);
    expect_end(j, 0);
    job_expect(j, job_printed(j, 0, "rank 0| I am 0") && job_printed(j, 0, "rank 3| I am 3"));
    job_expect(j, !job_printed(j, 0, "I am 1") && !job_printed(j, 0, "I am 2"));
}

static void the_same_line_of_all_hosts_is_folded(void **state)
{
    char folder[64];
    char script[512];
    job *j;

    LS_UNUSED(state);
    make_folder(folder, sizeof(folder), "meet");
    /* All have come before any of them prints. */
    text_format(
        script, sizeof(script),
        "touch %s/$RANK; until [ -e %s/3 -a -e %s/2 -a -e %s/1 -a -e %s/0 ]; do sleep "
        "0.01; done; sleep 0.1; echo $LOCKSTEP_TTY ready; for i in 1 2 3 4 5 6 7 8 9 10; do "
        "echo all; sleep 0.02; done",
        folder, folder, folder, folder, folder);
    j = job_start_on_terminal(JOB_LIST(JOB_TOOL, "run", "--ssh", FAKE_SSH, "-H",
                                       "127.0.0.2:2,localhost:1,127.0.0.3:1", "sh", "-c", script),
                              NULL);
    job_expect_code(j, 0);
    job_expect(j, job_printed(j, 0, "rank 0|") &&
                      job_printed(j, 0, " 72 ready")); /* it has the terminal */
    job_expect(j, job_printed(j, 0, "ranks "));        /* of ten times once, on a busy machine */
    remove_folder(folder);
}

/* Also without a terminal. A rank that is slow may be ended before it prints. */
static void the_same_failure_of_all_hosts_is_printed_once(void **state)
{
    job *j = start_on("127.0.0.2:2,127.0.0.3:1", NULL,
                      JOB_LIST(LOCKSTEP_BIN "/message_passing", "--absent"), NULL);
    const char *at;
    int n = 0; /* lines of ranks: the report quotes one, too */

    LS_UNUSED(state);
    expect_end(j, 1);
    for (at = text_str(&j->err); (at = strstr(at, "| message_passing: unknown flag")) != NULL; at++)
        n += at > text_str(&j->err) && at[-1] != ' ';
    job_expect(j, n == 1);
}

/* The launcher's store is the usual one; without it rank 0 hosts one, wherever it is. */
static void programs_get_the_address_of_their_store(void **state)
{
    static const char ask[] = "echo $TORCHELASTIC_USE_AGENT_STORE at $MASTER_ADDR";
    job *j = start_on("127.0.0.2,localhost", NULL, SHELL(ask), NULL);

    LS_UNUSED(state);
    expect_end(j, 0);
    job_expect(j, job_printed(j, 0, "rank 0| True at 127.0.0.1") &&
                      job_printed(j, 0, "rank 1| True at 127.0.0.1"));
    j = start_on("127.0.0.2,localhost", "--store=none", SHELL(ask), NULL);
    expect_end(j, 0);
    job_expect(j, job_printed(j, 0, "rank 0| False at 127.0.0.1") &&
                      job_printed(j, 0, "rank 1| False at 127.0.0.1"));
    j = start_on("127.0.0.2,localhost", "--store=none",
                 JOB_LIST("--master-addr", "127.0.0.2", "--", "sh", "-c", ask), NULL);
    expect_end(j, 0);
    job_expect(j, job_printed(j, 0, "rank 0| False at 127.0.0.2") &&
                      job_printed(j, 0, "rank 1| False at 127.0.0.2"));
}

/* --- hosts by a file --- */

static void write_file(char *path, size_t n, const char *text)
{
    FILE *f;

    text_format(path, n, "/tmp/lockstep-test-hosts-%d", (int)getpid());
    f = fopen(path, "w");
    assert_non_null(f);
    (void)fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

static job *start_by_file(const char *path, const char *flag)
{
    return job_start(JOB_LIST(JOB_TOOL, "run", "--ssh", FAKE_SSH, "--hostfile", path, flag, "sh",
                              "-c", "echo $RANK of $WORLD_SIZE on $GROUP_RANK"),
                     NULL);
}

static void a_hostfile_may_leave_numbers_out(void **state)
{
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    char path[64];
    char text[64];
    job *j;

    LS_UNUSED(state);
    write_file(path, sizeof(path), "# two hosts\n127.0.0.2 slots=1\n127.0.0.3\n");
    j = start_by_file(path, "--no-fold");
    expect_end(j, 0);
    text_format(text, sizeof(text), "0 of %ld on 0", 1 + cores);
    job_expect(j, job_printed(j, 0, text));
    j = start_by_file(path, "--np=1");
    expect_end(j, 0);
    job_expect(j, job_printed(j, 0, "0 of 1 on 0"));
    j = start_by_file(path, "--np=100000");
    job_expect_code(j, 2);
    (void)unlink(path);
}

static void a_hostfile_may_be_a_pipe(void **state)
{
    job *j = start_by_file("/dev/stdin", "--no-fold");

    LS_UNUSED(state);
    job_write(j, "127.0.0.2 slots=1\n127.0.0.3 slots=1\n");
    job_close_stdin(j);
    expect_end(j, 0);
    job_expect(j, job_printed(j, 0, "1 of 2 on 1"));
}

static void contradicting_flags_are_refused(void **state)
{
    job *j = start_on("127.0.0.2", "--nnodes=2", SHELL("true"), NULL);

    LS_UNUSED(state);
    job_expect_code(j, 2);
    job_expect(j, job_printed(j, 1, "-H starts all machines from here"));
    j = start_on("127.0.0.2", "--hostfile=/nowhere", SHELL("true"), NULL);
    job_expect_code(j, 2);
    j = start_on("-oProxyCommand=x", NULL, SHELL("true"), NULL);
    job_expect_code(j, 2);
}

/* --- hosts that cannot be started --- */

static void every_failure_says_what_to_do(void **state)
{
    static const char *const cases[][3] = {
        {"FAKE_SSH=127.0.0.3=denied", "Permission denied (publickey)", "ssh-copy-id 127.0.0.3"},
        {"FAKE_SSH=127.0.0.3=changed", "Host key verification failed", "ssh-keygen -R 127.0.0.3"},
        {"FAKE_SSH=127.0.0.3=unknown", "Could not resolve hostname", "/etc/hosts"},
        {"FAKE_SSH=127.0.0.3=refused", "Connection refused", "--ssh-port"},
        {"FAKE_SSH=127.0.0.3=down", "No route to host", "firewall"},
        {"FAKE_SSH=127.0.0.3=silent", "exited with code 255", "ssh 127.0.0.3 true"},
        {"FAKE_SSH=127.0.0.3=other", "does not run on sparc64", "fix: install Lockstep there"},
        {"FAKE_SSH=127.0.0.3=old", "it has Lockstep 0.0.1", "fix: install the same version"},
    };

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(cases); i++) {
        job *j = start_on("127.0.0.2,127.0.0.3", NULL, SHELL("sleep 100"), JOB_LIST(cases[i][0]));

        expect_end(j, 1);
        job_expect(j, job_printed(j, 1, "lockstep: host 127.0.0.3: "));
        job_expect(j, job_printed(j, 1, cases[i][1]) && job_printed(j, 1, cases[i][2]));
        job_expect(j, job_printed(j, 1, "1 of 2 other hosts could not be started: 127.0.0.3"));
        job_clean_up(NULL);
    }
}

static void all_failures_are_reported(void **state)
{
    job *j = start_on("127.0.0.2,127.0.0.3,127.0.0.4", NULL, SHELL("sleep 100"),
                      JOB_LIST("FAKE_SSH=127.0.0.3=denied,127.0.0.4=down"));

    LS_UNUSED(state);
    expect_end(j, 1);
    job_expect(j, job_printed(j, 1, "host 127.0.0.3: ") && job_printed(j, 1, "host 127.0.0.4: "));
    job_expect(j, job_printed(j, 1, "2 of 3 other hosts could not be started: 127.0.0.[3-4]"));
    j = job_start(JOB_LIST(JOB_TOOL, "run", "--ssh", "/nowhere/ssh", "-H", "127.0.0.2", "true"),
                  NULL);
    expect_end(j, 1);
    job_expect(j, job_printed(j, 1, "cannot run /nowhere/ssh: No such file"));
}

/* Many hosts, few reasons: few lines, and every host is in one of them. */
static void the_same_failure_of_many_hosts_is_one_line(void **state)
{
    char hosts[2048] = "";
    char modes[4096] = "FAKE_SSH=";
    job *j;

    LS_UNUSED(state);
    for (int i = 2; i < 62; i++) {
        const size_t n = strlen(hosts);
        const size_t n_modes = strlen(modes);

        text_format(hosts + n, sizeof(hosts) - n, "%s127.0.0.%d", i > 2 ? "," : "", i);
        if (i % 4 != 0)
            text_format(modes + n_modes, sizeof(modes) - n_modes, "127.0.0.%d=%s,", i,
                        i < 32 ? "denied" : "refused");
    }
    j = start_on(hosts, NULL, SHELL("sleep 100"), JOB_LIST(modes));
    expect_end(j, 1);
    job_expect(j, job_printed(j, 1,
                              "lockstep: hosts 127.0.0.[2-3,5-7,9-11,13-15,17-19,21-23,25-27,29-31]"
                              ": me@b: Permission denied (publickey); fix: ssh-copy-id HOST "));
    job_expect(j,
               job_printed(j, 1,
                           "lockstep: hosts 127.0.0.[33-35,37-39,41-43,45-47,49-51,53-55,57-59,61]"
                           ": ssh: connect to host b port 22: Connection refused"));
    job_expect(j, job_printed(j, 1, "45 of 60 other hosts could not be started: 127.0.0.["));
    job_expect(j, count_parts(text_str(&j->err), "Permission denied") == 1);
    job_expect(j, count_parts(text_str(&j->err), "Connection refused") == 1);
}

/* The folder goes while all hosts are still being tried. */
static void the_same_failure_of_many_agents_is_one_line(void **state)
{
    char folder[64];
    char busy[64];
    char variable[96];
    char command[256];
    char path[96];
    job *j;

    LS_UNUSED(state);
    make_folder(folder, sizeof(folder), "cwd-of-many");
    make_folder(busy, sizeof(busy), "busy-many");
    text_format(variable, sizeof(variable), "FAKE_SSH_FOLDER=%s", busy);
    text_format(command, sizeof(command),
                "cd %s && exec %s run --ssh %s -H 127.0.0.2,127.0.0.3,127.0.0.4 true", folder,
                JOB_TOOL, FAKE_SSH);
    j = job_start(SHELL(command),
                  JOB_LIST("FAKE_SSH=127.0.0.2=busy2,127.0.0.3=busy2,127.0.0.4=busy2", variable));
    for (int i = 2; i < 5; i++)
        while (access(text_format(path, sizeof(path), "%s/127.0.0.%d.0", busy, i), F_OK) != 0)
            job_read_output(j, 5);
    assert_int_equal(rmdir(folder), 0);
    expect_end(j, 1);
    job_expect(j, job_printed(j, 1, "lockstep: hosts 127.0.0.[2-4]: the folder /tmp/"));
    job_expect(j, job_printed(j, 1, "3 of 3 other hosts could not be started: 127.0.0.[2-4]\n"));
    job_clean_up(NULL);
    remove_folder(busy);
    j = start_on("localhost,127.0.0.2,127.0.0.3", NULL, JOB_LIST("./no-such-program"), NULL);
    expect_end(j, 127);
    job_expect(j, job_printed(j, 1, "cannot run ./no-such-program: No such file"));
    job_expect(j, job_printed(j, 1, "\n  the same on "));
}

static void a_missing_folder_or_program_names_the_host(void **state)
{
    char folder[64];
    char command[256];
    job *j;

    LS_UNUSED(state);
    make_folder(folder, sizeof(folder), "cwd");
    text_format(command, sizeof(command),
                "cd %s && rmdir %s && exec %s run --ssh %s -H 127.0.0.2 "
                "true",
                folder, folder, JOB_TOOL, FAKE_SSH);
    j = job_start(SHELL(command), NULL);
    job_await_end(j);
    job_expect(j, WEXITSTATUS(j->status) != 0 && job_printed(j, 1, "folder"));
    j = start_on("127.0.0.2:1,127.0.0.3:1", NULL, JOB_LIST("./no-such-program"), NULL);
    expect_end(j, 127);
    job_expect(j, job_printed(j, 1, "lockstep: node "));
    job_expect(j, job_printed(j, 1, "cannot run ./no-such-program: No such file"));
}

static void a_busy_sshd_is_tried_again(void **state)
{
    char folder[64];
    char variable[96];
    job *j;

    LS_UNUSED(state);
    make_folder(folder, sizeof(folder), "busy");
    text_format(variable, sizeof(variable), "FAKE_SSH_FOLDER=%s", folder);
    j = start_on("127.0.0.2,127.0.0.3", NULL, SHELL("echo here"),
                 JOB_LIST("FAKE_SSH=127.0.0.2=busy1,127.0.0.3=busy3", variable));
    expect_end(j, 0);
    job_expect(j, job_printed(j, 0, "rank 1| here"));
    job_clean_up(NULL);
    remove_folder(folder);
}

static void what_a_login_shell_prints_does_no_harm(void **state)
{
    job *j = start_on("127.0.0.2", NULL, SHELL("echo here"), JOB_LIST("FAKE_SSH=127.0.0.2=noise"));

    LS_UNUSED(state);
    expect_end(j, 0);
    job_expect(j, job_printed(j, 0, "here\n"));
    job_expect(j, job_printed(j, 1, "lockstep: host 127.0.0.2: Welcome to the cluster!"));
}

static void what_all_login_shells_print_is_printed_once(void **state)
{
    job *j = start_on("127.0.0.2,127.0.0.3,127.0.0.4", NULL, SHELL("echo here"),
                      JOB_LIST("FAKE_SSH=127.0.0.2=noise,127.0.0.3=noise,127.0.0.4=noise"));

    LS_UNUSED(state);
    expect_end(j, 0);
    /* they may be slow */
    job_expect(j, count_parts(text_str(&j->err), "Welcome to the cluster!") <= 2);
    job_expect(j,
               job_printed(j, 1, "127.0.0.2") || job_printed(j, 1, "hosts 127.0.0.[2-4]: Welcome"));
}

static void an_agent_travels_to_a_bare_host(void **state)
{
    job *j;

    LS_UNUSED(state);
    if (access(AGENT_BINARY, X_OK) != 0) {
        print_message("this build has no static agent\n");
        skip();
    }
    j = start_on("127.0.0.2:1,127.0.0.3:1", NULL, JOB_LIST(JOB_ACTOR, "steps", "50"),
                 JOB_LIST("FAKE_SSH=127.0.0.2=bare,127.0.0.3=bare", "XDG_RUNTIME_DIR"));
    expect_end(j, 0);
    job_expect(j, job_printed(j, 0, "rank 1| rank 1 has joined"));
    j = job_start(SHELL("ls /dev/shm /tmp | grep 'lockstep[.]........$'"), NULL);
    job_expect_code(j, 1); /* nothing of it is left */
    j = start_on("127.0.0.2:1,127.0.0.3:1", NULL, SHELL("true"),
                 JOB_LIST("FAKE_SSH=127.0.0.3=full", "XDG_RUNTIME_DIR"));
    expect_end(j, 1);
    job_expect(j, job_printed(j, 1, "host 127.0.0.3: no space for the agent in /dev/shm"));
}

static void many_hosts_start_in_their_turn(void **state)
{
    char hosts[1024] = "";
    job *j;

    LS_UNUSED(state);
    for (int i = 2; i < 42; i++)
        text_format(hosts + strlen(hosts), sizeof(hosts) - strlen(hosts), "%s127.0.0.%d",
                    i > 2 ? "," : "", i);
    j = start_on(hosts, NULL, SHELL("echo I am $RANK/$WORLD_SIZE"), NULL);
    expect_end(j, 0);
    job_expect(j,
               job_printed(j, 0, "rank 39| I am 39/40") && job_printed(j, 0, "rank  0| I am 0/40"));
}

/* --- failures --- */

static void the_cause_names_host_and_rank(void **state)
{
    job *j = start_on("localhost:1,127.0.0.3:2", NULL,
                      SHELL("echo last words of $RANK; [ $RANK = 2 ] && exit 7; sleep 100"), NULL);

    LS_UNUSED(state);
    expect_end(j, 7);
    job_expect(j, job_printed(j, 1, "lockstep: node 1 (127.0.0.3): rank 2 (pid "));
    job_expect(j,
               job_printed(j, 1, "exited with code 7\n  its last lines:\n  | last words of 2\n"));
}

static void a_killed_rank_fails_the_others_calls(void **state)
{
    job *j =
        start_on("127.0.0.2:1,127.0.0.3:2", NULL, JOB_LIST(JOB_ACTOR, "steps", "1000000"), NULL);
    pid_t pid;

    LS_UNUSED(state);
    job_await_text(j, 0, "rank 2| rank 2 has joined");
    pid = job_find_process(j, "actor", "", "LOCKSTEP_RANK=2 ");
    job_note_sockets(j);
    assert_int_equal(kill(pid, SIGKILL), 0);
    expect_end(j, 128 + SIGKILL);
    job_expect(j, job_printed(j, 1, "lockstep: node 1 (127.0.0.3): rank 2 (pid "));
    job_expect(j, job_printed(j, 1, "was killed by signal 9 (SIGKILL)"));
}

static void a_stop_ends_all_hosts_in_good_order(void **state)
{
    job *j =
        start_on("127.0.0.2:1,127.0.0.3:1", NULL,
                 SHELL("trap 'echo orderly end; exit 0' TERM; echo ready; while :; do sleep 0.1; "
                       "done"),
                 NULL);

    LS_UNUSED(state);
    job_await_text(j, 0, "rank 0| ready");
    job_await_text(j, 0, "rank 1| ready");
    assert_int_equal(kill(j->pid, SIGTERM), 0);
    expect_end(j, 128 + SIGTERM);
    job_expect(j, job_printed(j, 0, "rank 0| orderly end") &&
                      job_printed(j, 0, "rank 1| orderly end"));
}

/* An agent that ssh has started; its helpers have its command line, but names of their own. */
static pid_t find_agent(const job *j)
{
    return job_find_process(j, "lockstep-agent", "", "");
}

static job *start_sleepers(const char *flag)
{
    job *j = start_on("127.0.0.2:1,127.0.0.3:1,localhost:1", flag,
                      SHELL("trap '' TERM HUP; echo ready; sleep 1000 & wait; sleep 1000"), NULL);

    job_await_text(j, 0, "rank 0| ready");
    job_await_text(j, 0, "rank 1| ready");
    job_await_text(j, 0, "rank 2| ready");
    job_note_sockets(j);
    return j;
}

static void nothing_is_left_when_the_head_is_killed(void **state)
{
    job *j = start_sleepers("--no-fold");

    LS_UNUSED(state);
    assert_int_equal(kill(j->pid, SIGKILL), 0);
    expect_end(j, 128 + SIGKILL);
}

static void nothing_is_left_when_an_ssh_is_killed(void **state)
{
    job *j = start_sleepers("--no-fold");

    LS_UNUSED(state);
    assert_int_equal(kill(job_find_process(j, "fake_ssh", "", ""), SIGKILL), 0);
    expect_end(j, 1);
    job_expect(j, job_printed(j, 1, "lockstep: node ") && job_printed(j, 1, "was lost: "));
    job_expect(j, job_printed(j, 1, "ssh was killed by signal 9 (SIGKILL)"));
}

/* What its ranks printed last, and which ranks those were. */
static void a_lost_host_is_reported_with_its_last_lines(void **state)
{
    job *j =
        start_on("localhost:1,127.0.0.3:2", NULL,
                 SHELL("seq -f \"$RANK counts %g\" 3; [ $RANK = 0 ] || printf 'no \\033[31mend'; "
                       "echo ready >&2; sleep 1000"),
                 NULL);

    LS_UNUSED(state);
    job_await_text(j, 1, "rank 0| ready");
    job_await_text(j, 1, "rank 1| ready");
    job_await_text(j, 1, "rank 2| ready");
    assert_int_equal(kill(job_find_process(j, "fake_ssh", "", ""), SIGKILL), 0);
    expect_end(j, 1);
    job_expect(j, job_printed(j, 1, "lockstep: node 1 (127.0.0.3) with ranks 1-2 was lost: "));
    job_expect(j, job_printed(j, 1, "\n  last lines of 127.0.0.3:\n  | rank "));
    job_expect(j, job_printed(j, 1, "  | rank 1| 1 counts 3\n"));
    job_expect(j, job_printed(j, 1, "  | rank 2| 2 counts 3\n"));
    job_expect(j, job_printed(j, 1, "  | rank 2| no end\n")); /* without its colour */
    job_expect(j, !job_printed(j, 1, "  | rank 0| ") && !job_printed(j, 1, "lockstep: host "));
}

static void several_lost_hosts_are_one_report(void **state)
{
    job *j = start_on("localhost,127.0.0.2,127.0.0.3,127.0.0.4", NULL,
                      SHELL("echo $RANK was here; sleep 1000"), NULL);
    pid_t pids[3];

    LS_UNUSED(state);
    for (int rank = 1; rank < 4; rank++) {
        char line[32];

        job_await_text(j, 0, text_format(line, sizeof(line), "%d was here", rank));
        text_format(line, sizeof(line), " 127.0.0.%d ", rank + 1);
        pids[rank - 1] = job_find_process(j, "fake_ssh", line, "");
        assert_true(pids[rank - 1] > 0);
    }
    for (int i = 0; i < 3; i++)
        assert_int_equal(kill(pids[i], SIGKILL), 0);
    expect_end(j, 1);
    job_expect(j, job_printed(j, 1, "nodes 1-3 (127.0.0.[2-4]) with ranks 1-3 were lost: ") ||
                      job_printed(j, 1, "  then node"));
    for (int rank = 1; rank < 4; rank++) {
        char line[64];

        text_format(line, sizeof(line), "  last lines of 127.0.0.%d:\n  | %d was here\n", rank + 1,
                    rank);
        job_expect(j, job_printed(j, 1, line) || job_printed(j, 1, "  then node"));
    }
}

static void nothing_is_left_when_an_agent_is_killed(void **state)
{
    job *j = start_sleepers("--no-fold");

    LS_UNUSED(state);
    assert_int_equal(kill(find_agent(j), SIGKILL), 0);
    expect_end(j, 1);
    job_expect(j, job_printed(j, 1, "lockstep: node ") && job_printed(j, 1, "was lost: "));
}

static void nothing_is_left_when_all_agents_are_killed(void **state)
{
    job *j = start_sleepers("--no-fold");
    pid_t pid;

    LS_UNUSED(state);
    while ((pid = find_agent(j)) > 0)
        (void)kill(pid, SIGKILL);
    expect_end(j, 1);
}

static void a_stop_while_hosts_are_starting_ends_at_once(void **state)
{
    job *j = start_on("127.0.0.2", NULL, SHELL("true"), JOB_LIST("FAKE_SSH=127.0.0.2=hangs"));

    LS_UNUSED(state);
    job_await_text(j, 1, "waiting for 127.0.0.2");
    assert_int_equal(kill(j->pid, SIGTERM), 0);
    expect_end(j, 128 + SIGTERM);
}

/* --- starting again --- */

static void a_failure_may_cost_a_restart(void **state)
{
    job *j = start_on("127.0.0.2:1,127.0.0.3:1", "--max-restarts=1",
                      SHELL("echo try $TORCHELASTIC_RESTART_COUNT; "
                            "[ $RANK$TORCHELASTIC_RESTART_COUNT != 10 ]"),
                      NULL);

    LS_UNUSED(state);
    expect_end(j, 0);
    job_expect(j, job_printed(j, 0, "rank 0| try 1") && job_printed(j, 0, "rank 1| try 1"));
}

static void a_host_that_was_lost_is_started_again(void **state)
{
    job *j = start_on("127.0.0.2:1,127.0.0.3:1", "--max-restarts=1",
                      SHELL("echo try $TORCHELASTIC_RESTART_COUNT; "
                            "[ $TORCHELASTIC_RESTART_COUNT = 1 ] || sleep 1000"),
                      NULL);

    LS_UNUSED(state);
    job_await_text(j, 0, "rank 0| try 0");
    job_await_text(j, 0, "rank 1| try 0");
    assert_int_equal(kill(job_find_process(j, "fake_ssh", "", ""), SIGKILL), 0);
    expect_end(j, 0);
    job_expect(j, job_printed(j, 0, "rank 0| try 1") && job_printed(j, 0, "rank 1| try 1"));
}

/* The others go on without it, and it is not there again. */
static void an_elastic_job_goes_on_when_a_lost_host_cannot_be_started_again(void **state)
{
    char folder[64];
    char entry[96];
    char gate[96];
    char gate_entry[128];
    job *j;

    LS_UNUSED(state);
    make_folder(folder, sizeof(folder), "lost");
    text_format(entry, sizeof(entry), "FAKE_SSH_FOLDER=%s", folder);
    text_format(gate, sizeof(gate), "%s/gate", folder);
    text_format(gate_entry, sizeof(gate_entry), "ELASTIC_GATE=%s", gate);
    j = start_on("127.0.0.2:1,127.0.0.3:1", "--elastic",
                 JOB_LIST("--max-restarts", "1", ELASTIC_LOOP, "40", "0@20:hold"),
                 JOB_LIST("FAKE_SSH=127.0.0.3=once", entry, gate_entry));
    job_await_text(j, 0, "hold of step 20");
    assert_int_equal(kill(job_find_process(j, "fake_ssh", " 127.0.0.3 ", ""), SIGKILL), 0);
    job_await_text(j, 1, "host 127.0.0.3: cannot be started again: ssh: connect to host");
    assert_int_equal(mkdir(gate, 0700), 0);
    expect_end(j, 0);
    job_expect(j, job_printed(j, 1, "1 rank goes on"));
    remove_folder(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        test(ranks_of_all_hosts_are_one_job),
        test(places_follow_the_order_of_hosts),
        test(one_other_host_is_enough),
        test(this_machine_alone_needs_no_ssh),
        test(n_is_the_number_of_all_ranks),
        test(arguments_arrive_as_they_are),
        test(the_folder_and_variables_go_along),
        test(nothing_of_the_job_is_in_a_command_line),
        test(both_streams_and_large_output_arrive_whole),
        test(only_the_chosen_ranks_are_shown),
        test(the_same_line_of_all_hosts_is_folded),
        test(the_same_failure_of_all_hosts_is_printed_once),
        test(programs_get_the_address_of_their_store),
        test(a_hostfile_may_leave_numbers_out),
        test(a_hostfile_may_be_a_pipe),
        test(contradicting_flags_are_refused),
        test(every_failure_says_what_to_do),
        test(all_failures_are_reported),
        test(the_same_failure_of_many_hosts_is_one_line),
        test(the_same_failure_of_many_agents_is_one_line),
        test(a_missing_folder_or_program_names_the_host),
        test(a_busy_sshd_is_tried_again),
        test(what_a_login_shell_prints_does_no_harm),
        test(what_all_login_shells_print_is_printed_once),
        test(an_agent_travels_to_a_bare_host),
        test(many_hosts_start_in_their_turn),
        test(the_cause_names_host_and_rank),
        test(a_killed_rank_fails_the_others_calls),
        test(a_stop_ends_all_hosts_in_good_order),
        test(nothing_is_left_when_the_head_is_killed),
        test(nothing_is_left_when_an_ssh_is_killed),
        test(a_lost_host_is_reported_with_its_last_lines),
        test(several_lost_hosts_are_one_report),
        test(nothing_is_left_when_an_agent_is_killed),
        test(nothing_is_left_when_all_agents_are_killed),
        test(a_stop_while_hosts_are_starting_ends_at_once),
        test(a_failure_may_cost_a_restart),
        test(a_host_that_was_lost_is_started_again),
        test(an_elastic_job_goes_on_when_a_lost_host_cannot_be_started_again),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
