/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_hosts_check_run.c - lockstep check with several hosts: this machine under several names,
 * fake_ssh.c in place of ssh and srun, and network namespaces with faults.
 */
#include "launch/lab_scene.h"

#include "base/report/json.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#define test(name) cmocka_unit_test_teardown(name, lab_clean_up)

enum { ARGS_MOST = 40, NODES = 3 };

/* Starts `lockstep check` of these hosts; `more` are further flags, env may be NULL. */
static job *check(const char *hosts, const char *const *more, const char *const *env)
{
    const char *argv[ARGS_MOST] = {JOB_TOOL, "check", "--ssh", FAKE_SSH, "-H", hosts};
    int n = 6;

    for (; more != NULL && *more != NULL && n < ARGS_MOST - 1; more++)
        argv[n++] = *more;
    return job_start(argv, env);
}

/* Whether the section of these hosts contains `what`. */
static bool found(const job *j, const char *hosts, const char *what)
{
    const char *at = text_str(&j->out);
    char head[256];

    text_format(head, sizeof(head), "%s:\n", hosts);
    while ((at = strstr(at, head)) != NULL) {
        const bool is_line = at == text_str(&j->out) || at[-1] == '\n';
        const char *end = at + strlen(head);
        const char *hit = strstr(end, what);

        while (*end == ' ') /* the lines of the section */
            end += strcspn(end, "\n") + 1;
        if (is_line && hit != NULL && hit < end)
            return true;
        at++;
    }
    return false;
}

/* --- hosts by ssh --- */

static void hosts_are_checked_together(void **state)
{
    job *j = check("127.0.0.2:1,localhost:1,127.0.0.3:1", JOB_LIST("--quick"), NULL);

    LS_UNUSED(state);
    job_await_end(j);
    job_expect(j, found(j, "127.0.0.2, localhost, 127.0.0.3", "shm-"));
    job_expect(j, found(j, "127.0.0.2, localhost, 127.0.0.3", "cores-ok"));
    job_expect(j, found(j, "127.0.0.2, 127.0.0.3", "time-ok: clock agrees") ||
                      found(j, "127.0.0.2", "time-ok: clock agrees"));
    job_expect(j, found(j, "all hosts together", "same-ok: lockstep versions match on 3 hosts"));
    job_expect(j, found(j, "all hosts together", "network-ok: "));
    job_expect(j, job_printed(j, 0, "same machine") && job_printed(j, 0, "\n3 of 3 hosts: "));
    job_expect(j, !job_printed(j, 0, "version-ok")); /* not a quick finding */
    job_expect_gone(j);
}

static void hosts_that_do_not_start_hide_nothing_of_the_others(void **state)
{
    char version[64];
    job *j = check(
        "127.0.0.2,127.0.0.4,127.0.0.5,127.0.0.6", JOB_LIST("--quick", "--problems", "-n", "3"),
        JOB_LIST("FAKE_SSH=127.0.0.4=denied,127.0.0.5=old,127.0.0.6=gone",
                 text_format(version, sizeof(version), "FAKE_SSH_VERSION=%s", ls_version())));

    LS_UNUSED(state);
    job_expect_code(j, 1);
    job_expect(j, found(j, "127.0.0.4",
                        "error    host-unstarted: the agent could not be started: me@b: "
                        "Permission denied (publickey)\n"));
    job_expect(j, found(j, "127.0.0.4", "fix: ssh-copy-id 127.0.0.4 (login without"));
    job_expect(j, found(j, "127.0.0.5", "it has Lockstep 0.0.1"));
    job_expect(j, found(j, "127.0.0.6",
                        "host-lost: agent lost: ssh exited with "
                        "code 9: the cable was pulled"));
    job_expect(j, found(j, "127.0.0.6", "fix: lockstep check   # on that host"));
    job_expect(j, job_printed(j, 0, "\n1 of 4 hosts: 3 errors"));
    job_expect(j, !job_printed(j, 0, "  ok "));
    job_expect_gone(j);
}

static void missing_folder_is_reported(void **state)
{
    char folder[64];
    char script[512];
    job *j;

    LS_UNUSED(state);
    text_format(folder, sizeof(folder), "/tmp/lockstep-test-here-%d", (int)getpid());
    text_format(script, sizeof(script),
                "mkdir %s && cd %s && exec %s check --quick --ssh %s -H 127.0.0.2", folder, folder,
                JOB_TOOL, FAKE_SSH);
    j = job_start(JOB_LIST("sh", "-c", script), JOB_LIST("FAKE_SSH=127.0.0.2=elsewhere"));
    job_await_end(j);
    job_expect(j,
               found(j, "127.0.0.2", "host-folder: cannot enter folder /tmp/lockstep-test-here-"));
    job_expect_gone(j);
}

static void host_without_lockstep_gets_a_copied_agent(void **state)
{
    job *j;

    LS_UNUSED(state);
    if (access(AGENT_BINARY, X_OK) != 0) {
        print_message("this build has no static agent\n");
        skip();
    }
    j = check("127.0.0.2:1,127.0.0.3:1", NULL, JOB_LIST("FAKE_SSH=127.0.0.2=bare"));
    job_await_end(j);
    job_expect(j, found(j, "127.0.0.2", "host-bare: "));
    job_expect(j, !found(j, "127.0.0.3", "host-bare: "));
    job_expect(j, job_printed(j, 0, "version-ok: ") && job_printed(j, 0, "gpu-none: no NVIDIA"));
    job_expect(j, !job_printed(j, 0, "host-lost") && !job_printed(j, 0, "build-differs"));
    job_expect(
        j, found(j, "127.0.0.2, 127.0.0.3", " name-")); /* resolved in two ways, with one result */
    job_expect_gone(j);
}

static void network_filter_that_matches_nothing_is_reported(void **state)
{
    job *j = check("127.0.0.2,127.0.0.3", JOB_LIST("--quick", "--net", "nosuch0"), NULL);

    LS_UNUSED(state);
    job_expect_code(j, 1);
    job_expect(j, found(j, "all hosts together",
                        "path-here: agents cannot connect to this machine: no network interface "
                        "matches --net nosuch0"));
    job_expect(j, found(j, "all hosts together", "fix: ip address show"));
    job_expect(j, found(j, "127.0.0.2, 127.0.0.3", "host-lost: agent lost: no network interface"));
}

static void json_names_the_hosts(void **state)
{
    job *j = check("127.0.0.2:1,127.0.0.4:1,127.0.0.3:1", JOB_LIST("--quick", "--json"),
                   JOB_LIST("FAKE_SSH=127.0.0.4=unknown"));
    const json_value *hosts;
    const json_value *list;
    json_value *json = NULL;
    bool has_error = false;

    LS_UNUSED(state);
    job_expect_code(j, 1);
    assert_ok(json_parse(text_str(&j->out), j->out.length, "the output", &json));
    hosts = json_get(json, "hosts");
    list = json_get(json, "findings");
    assert_int_equal(json_size(hosts), 3);
    assert_string_equal(json_as_string(json_get(json_at(hosts, 1), "host"), ""), "127.0.0.4");
    assert_false(json_as_bool(json_get(json_at(hosts, 1), "answered"), true));
    assert_true(json_as_bool(json_get(json_at(hosts, 2), "answered"), false));
    assert_string_equal(json_as_string(json_get(json_at(hosts, 0), "lockstep"), ""), ls_version());
    assert_non_null(json_get(json_at(hosts, 0), "clock_ahead_s"));
    for (size_t i = 0; i < json_size(list); i++)
        has_error |=
            text_equal(json_as_string(json_get(json_at(list, i), "host"), ""), "127.0.0.4") &&
            text_equal(json_as_string(json_get(json_at(list, i), "id"), ""), "host-unstarted");
    job_expect(j, has_error);
    json_free(json);
}

static void hostfile_and_allocation_name_hosts(void **state)
{
    char path[64];
    char script[512];
    job *j;

    LS_UNUSED(state);
    text_format(path, sizeof(path), "/tmp/lockstep-test-check-%d", (int)getpid());
    text_format(script, sizeof(script),
                "printf '127.0.0.2 slots=2\\n127.0.0.3\\n' >%s; exec %s check --quick --ssh %s "
                "--hostfile %s",
                path, JOB_TOOL, FAKE_SSH, path);
    j = job_start(JOB_LIST("sh", "-c", script), NULL);
    job_await_end(j);
    (void)unlink(path);
    job_expect(j, job_printed(j, 0, "\n2 of 2 hosts: "));
    j = job_start(JOB_LIST(JOB_TOOL, "check", "--quick", "--problems", "--ssh", FAKE_SSH),
                  JOB_LIST("SLURM_JOB_ID=7", "SLURM_JOB_NODELIST=n[1-2],m3",
                           "SLURM_TASKS_PER_NODE=2,1(x2)", "SLURM_STEP_ID", "SLURM_PROCID",
                           "SLURMD_NODENAME", "FAKE_SSH=n2=down"));
    job_expect_code(j, 1);
    job_expect(j, found(j, "n2", "No route to host") && found(j, "n2", "fix: srun -N1 -n1 -w n2"));
    job_expect(j, job_printed(j, 0, "\n2 of 3 hosts: "));
    j = job_start(JOB_LIST(JOB_TOOL, "check", "--quick", "--nnodes", "1"),
                  JOB_LIST("SLURM_JOB_ID=7", "SLURM_JOB_NODELIST=n[1-2],m3", "SLURM_STEP_ID"));
    job_await_end(j);
    job_expect(j, !job_printed(j, 0, "3 hosts: ") && job_printed(j, 0, "cores-"));
}

static void stopped_check_leaves_no_process(void **state)
{
    job *j = check("127.0.0.2,127.0.0.3,127.0.0.5", NULL, JOB_LIST("FAKE_SSH=127.0.0.5=hangs"));

    LS_UNUSED(state);
    job_await_text(j, 1, "lockstep: waiting for checks from ");
    assert_int_equal(kill(j->pid, SIGINT), 0);
    job_expect_code(j, 128 + SIGINT);
    job_expect_gone(j);
}

/* --- networks --- */

static job *check_in_lab(const char *hosts, const char *flag)
{
    return job_start(JOB_LIST(LS_NETLAB_SH, "exec", "0", JOB_TOOL, "check", "--quick", "--ssh",
                              FAKE_SSH, "-H", hosts, flag),
                     JOB_LIST(lab_variable, "FAKE_SSH_LAB=" LS_NETLAB_SH));
}

/* On all networks. */
static void cut(int from, int to)
{
    char command[256];

    text_format(
        command, sizeof(command),
        "for net in 10.77.0 10.78.0 10.79.0 10.80.0; do ip route add blackhole $net.%d/32; done; "
        "ip route add blackhole fd77::%d/128 || true",
        10 + to, 10 + to);
    assert_true(netlab_run(&lab, from, command));
}

static void network_failures_between_hosts_are_reported(void **state)
{
    job *j;

    LS_UNUSED(state);
    lab_build(NODES, "--mixed --dead --black-hole");
    j = check_in_lab("node0,node1,node2,node7", NULL);
    job_expect_code(j, 1); /* there is no node 7 */
    job_expect(
        j,
        found(j, "node0, node1, node2",
              "path-blocked: eth2 (10.79.0.0/24) cannot be used: timed out from all other hosts"));
    job_expect(
        j,
        found(j, "node0, node1, node2",
              "path-mtu: eth3 (10.80.0.0/24) cannot be used: MTU black hole from all other hosts"));
    job_expect(j, found(j, "node0, node1, node2",
                        "path-wrong: docker0 (172.17.0.0/16) cannot be used: wrong node"));
    job_expect(
        j, found(j, "node2", "name-loopback: host name node2 resolves to loopback (127.0.1.1)"));
    job_expect(j, found(j, "node7", "host-unstarted: "));
    job_expect(j, !job_printed(j, 0, "path-none") && !job_printed(j, 0, "network-none"));
    job_expect(j, job_printed(j, 0, "\n  node1 ") && job_printed(j, 0, "\n3 of 4 hosts: "));
    job_expect(j, found(j, "all hosts together",
                        "selected network 10.77.0.0/24: eth0 on node0, node1; ens3 on node2"));
    cut(2, 0);
    j = check_in_lab("node1,node2", "--problems"); /* started from node 0 */
    job_expect_code(j, 1);
    job_expect(
        j, found(j, "node2",
                 "path-here: cannot connect to this machine (node0): eth0 10.77.0.10 unreachable"));
    job_expect(j, !found(j, "node1", "path-here") && !job_printed(j, 0, "path-none"));
    job_expect(j, !job_printed(j, 0, "network-none") && !job_printed(j, 0, "  ok "));
    job_expect_gone(j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        test(hosts_are_checked_together),
        test(hosts_that_do_not_start_hide_nothing_of_the_others),
        test(missing_folder_is_reported),
        test(host_without_lockstep_gets_a_copied_agent),
        test(network_filter_that_matches_nothing_is_reported),
        test(json_names_the_hosts),
        test(hostfile_and_allocation_name_hosts),
        test(stopped_check_leaves_no_process),
        test(network_failures_between_hosts_are_reported),
    };

    return cmocka_run_group_tests_name("check hosts", tests, NULL, NULL);
}
