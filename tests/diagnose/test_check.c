/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_check.c - checks of a simulated machine with one problem at a time: the check reports that
 * problem alone, with the text that explains it and the command that fixes it. Hardware:
 * test_check_hardware.c.
 */
#include "diagnose/check_scene.h"

#include "base/report/json.h"
#include "base/text.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static void good_machine_has_only_ok_findings(void **state)
{
    LS_UNUSED(state);
    look();
    for (int i = 0; i < found.n; i++)
        if (found.items[i].severity != FINDING_OK)
            fail_msg("%s: %s", finding_id(found.items[i].kind), found.items[i].what);
    assert_int_equal(findings_worst(&found), FINDING_OK);
    assert_true(found.n >= 17);
}

/* --- name --- */

static void unresolvable_host_name_is_reported(void **state)
{
    LS_UNUSED(state);
    machine.resolve_status = LS_ENOTFOUND;
    expect(FINDING_NAME_UNKNOWN_KIND, FINDING_WARNING, "host name node0 does not resolve",
           "GLOO_SOCKET_IFNAME=eth0");
    options.several_nodes = false;
    expect(FINDING_NAME_UNKNOWN_KIND, FINDING_NOTE, "node0", "10.77.0.10 node0");
    machine.resolve_status = LS_ETIMEOUT;
    expect(FINDING_NAME_SLOW_KIND, FINDING_WARNING, "host name node0 timed out after",
           "getent hosts node0");
}

static void host_name_on_loopback_is_reported(void **state)
{
    LS_UNUSED(state);
    machine.addresses[0] = "127.0.1.1";
    expect(FINDING_NAME_LOOPBACK_KIND, FINDING_WARNING, "node0 resolves to loopback (127.0.1.1)",
           "GLOO_SOCKET_IFNAME=eth0");
    machine.addresses[0] = "[::1]";
    expect(FINDING_NAME_LOOPBACK_KIND, FINDING_WARNING, "::1", "/etc/hosts");
}

static void host_name_that_names_no_machine_is_reported(void **state)
{
    LS_UNUSED(state);
    machine.host = "localhost";
    expect(FINDING_NAME_LOCAL_KIND, FINDING_WARNING, "host name is localhost",
           "hostnamectl set-hostname");
    machine.host = "";
    expect(FINDING_NAME_LOCAL_KIND, FINDING_WARNING, "has no host name", "hostnamectl");
}

static void host_name_with_a_foreign_address_is_reported(void **state)
{
    LS_UNUSED(state);
    machine.addresses[0] = "10.99.0.1";
    expect(FINDING_NAME_FOREIGN_KIND, FINDING_WARNING,
           "node0 resolves to 10.99.0.1, which is not an address of this machine", "eth0");
}

static void host_name_with_several_addresses_is_reported(void **state)
{
    LS_UNUSED(state);
    machine.addresses[1] = "10.99.0.1";
    expect(FINDING_NAME_SEVERAL_KIND, FINDING_NOTE, "10.77.0.10, 10.99.0.1", "eth0");
}

/* --- networks --- */

static void unusable_networks_are_reported(void **state)
{
    LS_UNUSED(state);
    fake_add_iface(&machine, "docker0", "172.17.0.1", 16);
    expect(FINDING_NET_BRIDGE_KIND, FINDING_NOTE, "docker0 (172.17.0.1/16)", "^docker0");
    machine.n_ifaces = 0;
    machine.addresses[0] = NULL;
    look();
    assert_int_equal(get(FINDING_NET_NONE_KIND)->severity, FINDING_ERROR);
    assert_string_equal(get(FINDING_NET_NONE_KIND)->fix, "ip address show");
    assert_string_equal(get(FINDING_NAME_UNKNOWN_KIND)->fix, "ip address show");
    options.several_nodes = false;
    look();
    assert_int_equal(get(FINDING_NET_NONE_KIND)->severity, FINDING_NOTE);
}

static void unusual_mtu_is_reported(void **state)
{
    LS_UNUSED(state);
    machine.ifaces[0].mtu = 9000;
    expect(FINDING_NET_MTU_KIND, FINDING_NOTE, "9000", "-s 8972");
}

static void slow_link_is_reported(void **state)
{
    LS_UNUSED(state);
    machine.ifaces[0].speed_mbps = 100;
    expect(FINDING_NET_SLOW_KIND, FINDING_WARNING, "100 Mbit/s", "ethtool eth0");
    machine.ifaces[0].speed_mbps = 0; /* the driver does not know */
    look();
    assert_false(has(FINDING_NET_SLOW_KIND));
}

static void variables_that_select_no_interface_are_reported(void **state)
{
    LS_UNUSED(state);
    machine.variables[1] = "LOCKSTEP_IFACE=ib0";
    expect(FINDING_NET_FILTER_KIND, FINDING_ERROR, "LOCKSTEP_IFACE=ib0 matches no interface",
           "unset");
    machine.variables[1] = "LOCKSTEP_IFACE=10.0.0.0/99";
    expect(FINDING_NET_FILTER_KIND, FINDING_ERROR, "is malformed (interfaces: eth0)", "unset");
    machine.variables[1] = "GLOO_SOCKET_IFNAME=^lo";
    expect(FINDING_NET_VARIABLE_KIND, FINDING_ERROR, "\"^lo\"", "GLOO_SOCKET_IFNAME=eth0");
    machine.variables[1] = "GLOO_SOCKET_IFNAME=eth0,../../..";
    expect(FINDING_NET_VARIABLE_KIND, FINDING_ERROR,
           "no interface is named \"../../..\" (interfaces: eth0", "eth0");
    machine.variables[1] = "GLOO_SOCKET_IFNAME=eth0";
    look();
    assert_false(has(FINDING_NET_VARIABLE_KIND));
    machine.variables[1] = "GLOO_SOCKET_IFNAME=eth9";
    machine.n_ifaces = 0;
    look();
    assert_string_equal(get(FINDING_NET_VARIABLE_KIND)->fix, "unset GLOO_SOCKET_IFNAME");
}

static void nccl_interface_list_is_matched_as_nccl_does(void **state)
{
    static const struct {
        const char *variable;
        const char *what; /* NULL: fine */
    } cases[] = {
        {"NCCL_SOCKET_IFNAME=eth", NULL},
        {"NCCL_SOCKET_IFNAME==eth0", NULL},
        {"NCCL_SOCKET_IFNAME=ib,eth", NULL},
        {"NCCL_SOCKET_IFNAME=eth0:1", NULL},
        {"NCCL_SOCKET_IFNAME=^docker,ib", NULL},
        {"NCCL_SOCKET_IFNAME=", NULL},
        {"NCCL_SOCKET_IFNAME=ib0,ens", "one of these prefixes (interfaces: docker0, eth0, lo)"},
        {"NCCL_SOCKET_IFNAME==eth,ib0", "no interface has one of these names (interfaces: docker0"},
        {"NCCL_SOCKET_IFNAME=^eth,lo,docker", "excludes all interfaces"},
        {"NCCL_SOCKET_IFNAME=^=eth0,lo,docker0", "excludes all interfaces"},
        {"NCCL_SOCKET_IFNAME=^=eth,lo,docker", NULL},
    };

    LS_UNUSED(state);
    fake_put(&machine, "/sys/class/net/lo/address", "00:00:00:00:00:00\n");
    fake_put(&machine, "/sys/class/net/docker0/address", "02:42:00:00:00:00\n");
    for (size_t i = 0; i < LS_COUNT_OF(cases); i++) {
        print_message("%s\n", cases[i].variable);
        machine.variables[1] = cases[i].variable;
        if (cases[i].what != NULL) {
            expect(FINDING_NET_VARIABLE_KIND, FINDING_ERROR, cases[i].what,
                   "export NCCL_SOCKET_IFNAME=eth0");
            continue;
        }
        look();
        assert_false(has(FINDING_NET_VARIABLE_KIND));
    }
}

/* --- limits --- */

static void limits_are_compared_with_the_number_of_ranks(void **state)
{
    LS_UNUSED(state);
    machine.files.rlim_max = 64 + 13 * 4;
    look();
    assert_false(has(FINDING_FILES_LOW_KIND));
    machine.files.rlim_max--;
    expect(FINDING_FILES_LOW_KIND, FINDING_WARNING, "4 ranks may need 116", "ulimit -Hn 116");
    machine.files.rlim_max = 24 + 7 * 4;
    expect(FINDING_FILES_LOW_KIND, FINDING_WARNING, "4 ranks may need 116", "ulimit -Hn 116");
    machine.files.rlim_max--;
    expect(FINDING_FILES_LOW_KIND, FINDING_ERROR, "4 ranks needs 52", "ulimit -Hn 116");
    machine.files.rlim_max = RLIM_INFINITY;
    machine.processes.rlim_cur = 60;
    expect(FINDING_PROCESSES_LOW_KIND, FINDING_WARNING, "limit of 60 processes", "ulimit -u");
    machine.processes.rlim_cur = RLIM_INFINITY;
    fake_put(&machine, "/sys/fs/cgroup/pids/pids.max", "100\n");
    fake_put(&machine, "/sys/fs/cgroup/pids/pids.current", "80\n");
    fake_put(&machine, "/sys/fs/cgroup/pids/job/pids.max", "max\n");
    expect(FINDING_PROCESSES_LOW_KIND, FINDING_WARNING, "20 more", "--pids-limit");
    options.n_ranks = 1;
    machine.files.rlim_max = 30;
    expect(FINDING_FILES_LOW_KIND, FINDING_ERROR, "the launcher of 1 rank needs", "ulimit -Hn");
}

static void locked_memory_matters_with_infiniband(void **state)
{
    LS_UNUSED(state);
    machine.memlock.rlim_cur = 65536;
    look();
    assert_false(has(FINDING_MEMLOCK_LOW_KIND));
    fake_put(&machine, "/sys/class/infiniband/mlx5_0/node_type", "1");
    expect(FINDING_MEMLOCK_LOW_KIND, FINDING_WARNING, "64 KiB", "ulimit -l");
}

/* --- ports --- */

#define TCP_HEAD                                                                                   \
    "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n"

static void process_that_holds_the_port_is_named(void **state)
{
    static const char environment[] = "LOCKSTEP_JOB=0123456789abcdef";

    LS_UNUSED(state);
    fake_put(&machine, "/proc/net/tcp",
             TCP_HEAD "   0: 0100007F:733C 0100007F:9999 01 00000000:00000000 00:00000000 00000000 "
                      " 0 0 5 1 0\n"
                      "   1: 00000000:733C 00000000:0000 0A 00000000:00000000 00:00000000 00000000 "
                      " 0        0 777 1 0\n");
    expect(FINDING_PORT_HELD_KIND, FINDING_NOTE,
           "port 29500 is in use by a process of root that is not visible", "ss -tanp");
    fake_add_process(&machine, 5000001, 0, 99280000, environment, sizeof(environment));
    fake_link(&machine, "/proc/5000001/fd/3", "socket:[777]");
    options.master_port = 29500;
    expect(FINDING_PORT_HELD_KIND, FINDING_ERROR,
           "pid 5000001 (a) b (c) of root, 2 h old, of job 0123456789abcdef",
           "kill 5000001   # or use another --master-port");
    options.master_port = 0;
    machine.variables[1] = "MASTER_PORT=29500";
    expect(FINDING_PORT_HELD_KIND, FINDING_ERROR, "port 29500", "kill 5000001");
    fake_put(&machine, "/proc/net/tcp6",
             "0: 00000000000000000000000000000000:7338 0:0 0A 0:0 0:0 0 0 0 777\n");
    machine.variables[1] = "MASTER_PORT=29496";
    expect(FINDING_PORT_HELD_KIND, FINDING_ERROR, "port 29496", "kill 5000001");
    options.master_port = 40000;
    expect(FINDING_PORT_RANGE_KIND, FINDING_NOTE, "port 40000", "--master-port");
}

/* The launcher of this job, process 5000009, does not exist. */
static void leftover_process_on_the_port_is_fixed_by_lockstep_clean(void **state)
{
    static const char environment[] =
        "LOCKSTEP_JOB=feed\0LOCKSTEP_AGENT_PROCESS=5000009.7." FAKE_SPACE;
    const finding *f;

    LS_UNUSED(state);
    fake_put(&machine, "/proc/net/tcp",
             TCP_HEAD "   1: 00000000:733C 00000000:0000 0A 00000000:00000000 00:00000000 00000000 "
                      " 0        0 777 1 0\n");
    fake_add_process(&machine, 5000001, 0, 99280000, environment, sizeof(environment));
    fake_link(&machine, "/proc/5000001/fd/3", "socket:[777]");
    fake_put_bytes(&machine, "/proc/5000001/cmdline", "python3\0train\n.py", 17);
    options.master_port = 29500;
    look();
    f = get(FINDING_PORT_HELD_KIND);
    assert_non_null(strstr(f->what, "pid 5000001 (python3 train .py) of root, 2 h old, left of job "
                                    "feed, whose launcher is dead"));
    assert_true(text_starts(f->fix, geteuid() == 0 ? "lockstep clean" : "sudo -u root lockstep"));
}

/* --- clock, key, kernel, ssh, settings --- */

static void wrong_clock_is_reported(void **state)
{
    LS_UNUSED(state);
    machine.clock_is_synchronized = false;
    expect(FINDING_CLOCK_ALONE_KIND, FINDING_NOTE,
           "clock not synchronized (no NTP); it shows 2030-03-17", "timedatectl");
    machine.seconds = 86400;
    expect(FINDING_CLOCK_WRONG_KIND, FINDING_ERROR, "1970-01-02", "timedatectl");
}

static void refused_keys_are_reported(void **state)
{
    LS_UNUSED(state);
    assert_int_equal(chmod(machine.key, 0644), 0);
    expect(FINDING_KEY_BAD_KIND, FINDING_ERROR, "is readable by other users", "chmod 600 '/tmp/");
    if (geteuid() == 0) {
        assert_int_equal(chown(machine.key, 12345, 12345), 0);
        expect(FINDING_KEY_BAD_KIND, FINDING_ERROR, "belongs to user 12345", "chown 0 '/tmp/");
    }
    fake_remove(&machine, "/home/key");
    expect(FINDING_KEY_MISSING_KIND, FINDING_NOTE, "/home/key yet", "");
    fake_put(&machine, "/home/key", "short");
    expect(FINDING_KEY_BAD_KIND, FINDING_ERROR, "hexadecimal", "mv '/tmp/");
    fake_link(&machine, "/home/key", "/etc/passwd");
    expect(FINDING_KEY_BAD_KIND, FINDING_ERROR, "symbolic link", "mv '/tmp/");
    machine.key[0] = 0;
    expect(FINDING_KEY_MISSING_KIND, FINDING_NOTE, "no home folder", "LOCKSTEP_KEY_FILE=");
}

static void incomplete_key_file_is_reported(void **state)
{
    LS_UNUSED(state);
    fake_put(&machine, "/home/key.0123456789abcdef", "");
    fake_put(&machine, "/home/key.0123456789abcdeg", "");
    fake_put(&machine, "/home/key.pub", "");
    expect(FINDING_KEY_STALE_KIND, FINDING_NOTE, "key.0123456789abcdef is an incomplete", "rm '");
}

static void missing_kernel_features_are_reported(void **state)
{
    LS_UNUSED(state);
    machine.has_pidfd = false;
    expect(FINDING_KERNEL_PIDFD_KIND, FINDING_NOTE, "pidfd", "uname");
    machine.has_pidfd = true;
    machine.has_vm_read = false;
    expect(FINDING_KERNEL_VM_KIND, FINDING_NOTE, "memory", "ptrace_scope=1");
    machine.has_vm_read = true;
    fake_put(&machine, "/proc/sys/kernel/yama/ptrace_scope", "2\n");
    expect(FINDING_KERNEL_VM_KIND, FINDING_NOTE, "memory", "ptrace_scope=1");
    fake_put(&machine, "/proc/sys/kernel/yama/ptrace_scope", "0\n");
    fake_remove(&machine, "/sys/fs/cgroup/unified");
    expect(FINDING_KERNEL_CGROUP_KIND, FINDING_NOTE, "control group", "Delegate=yes");
}

/*
 * Root may always create namespaces, so the check runs as another user that can read the root
 * folder.
 */
static void missing_user_namespaces_are_reported(void **state)
{
    const uid_t before = geteuid();
    char path[256];

    LS_UNUSED(state);
    fake_put(&machine, "/proc/sys/user/max_user_namespaces", "0\n");
    text_format(path, sizeof(path), "%s/proc/sys/user/max_user_namespaces", machine.root);
    assert_int_equal(chmod(machine.root, 0755), 0);
    assert_int_equal(chmod(path, 0644), 0);
    if (before == 0)
        assert_int_equal(seteuid(12345), 0);
    look();
    assert_int_equal(seteuid(before), 0);
    assert_int_equal(get(FINDING_KERNEL_USERNS_KIND)->severity, FINDING_NOTE);
    assert_string_equal(get(FINDING_KERNEL_USERNS_KIND)->fix,
                        "sysctl user.max_user_namespaces=10000");
}

static void missing_programs_are_reported(void **state)
{
    LS_UNUSED(state);
    fake_remove(&machine, "/usr/bin/ssh");
    expect(FINDING_SSH_MISSING_KIND, FINDING_NOTE, "ssh", "openssh-client");
    fake_put(&machine, "/bin/ssh", "");
    fake_remove(&machine, "/usr/sbin/sshd");
    expect(FINDING_SSHD_MISSING_KIND, FINDING_NOTE, "sshd", "openssh-server");
}

static void wrong_setting_is_reported(void **state)
{
    LS_UNUSED(state);
    assert_int_equal(setenv("LOCKSTEP_SEGMENT", "many", 1), 0);
    expect(FINDING_SETTING_BAD_KIND, FINDING_ERROR, "LOCKSTEP_SEGMENT", "--settings");
    assert_int_equal(unsetenv("LOCKSTEP_SEGMENT"), 0);
}

/* --- leftovers --- */

#define DEAD_ENVIRONMENT                                                                           \
    "LOCKSTEP_JOB=0123456789abcdef\0LOCKSTEP_AGENT_PROCESS=5000000.77." FAKE_SPACE

static void leftovers_of_all_users_are_reported(void **state)
{
    static const char dead[] = "A=1\0" DEAD_ENVIRONMENT;

    LS_UNUSED(state);
    fake_add_process(&machine, 5000001, geteuid(), 99280000, dead, sizeof(dead));
    expect(FINDING_LEFTOVER_KIND, FINDING_WARNING,
           "pid 5000001 (a) b (c), 2 h old, of job 0123456789abcdef, user ",
           "lockstep clean --job 0123456789abcdef");
    assert_true(text_starts(get(FINDING_LEFTOVER_KIND)->fix, "lockstep"));
    fake_remove(&machine, "/proc/5000001");
    fake_add_process(&machine, 5000002, 54321, 99280000, dead, sizeof(dead));
    expect(FINDING_LEFTOVER_KIND, FINDING_WARNING, "user user 54321", "sudo -u user 54321");
    for (int i = 0; i < 30; i++)
        fake_add_process(&machine, 5000010 + i, 0, 99280000, dead, sizeof(dead));
    look();
    assert_string_equal(found.items[found.n - 1].what, "11 more leftover processes of dead jobs");
    assert_string_equal(found.items[found.n - 1].fix, "lockstep clean --dry-run");
    fake_put(&machine, "/proc/self/status", "Name:\tx\nNSpid:\t1\t2\nCpus_allowed_list:\t0-7\n");
    expect(FINDING_LEFTOVER_BLIND_KIND, FINDING_NOTE, "another namespace", "mount -t proc");
}

/* --- the list --- */

static void findings_become_json_and_lines(void **state)
{
    text_buf text = {0};
    json_value *json;
    const json_value *first;

    LS_UNUSED(state);
    machine.shm_total = 0;
    look();
    findings_to_lines(&found, FINDING_WARNING, &text);
    assert_string_equal(text_str(&text),
                        "warning shm-missing: /dev/shm does not exist; fix: mount -t "
                        "tmpfs -o mode=1777 tmpfs /dev/shm\n");
    text_free(&text);
    findings_to_json(&found, "node\"0", &text);
    assert_ok(json_parse(text_str(&text), text.length, "findings", &json));
    assert_int_equal(json_size(json), found.n);
    first = json_at(json, 0);
    assert_string_equal(json_as_string(json_get(first, "host"), ""), "node\"0");
    assert_string_equal(json_as_string(json_get(first, "id"), ""), "name-ok");
    assert_string_equal(json_as_string(json_get(first, "severity"), ""), "ok");
    assert_int_equal(json_size(first), 6);
    json_free(json);
    text_free(&text);
}

static void full_check_begins_with_the_quick_findings(void **state)
{
    findings quick = {0};

    LS_UNUSED(state);
    machine.shm_total = 0;
    look();
    assert_ok(check_quick(&options, &quick));
    assert_true(quick.n > 0 && quick.n < found.n);
    for (int i = 0; i < quick.n; i++)
        assert_string_equal(quick.items[i].what, found.items[i].what);
    assert_int_equal(findings_worst(&quick), FINDING_WARNING);
    findings_free(&quick);
}

static void every_kind_is_provoked_by_a_test(void **state)
{
    LS_UNUSED(state);
    for (int i = 0; i < FINDING_HOSTS_FIRST; i++)
        if (!seen[i])
            fail_msg("no test provokes %s", finding_id((finding_kind)i));
}

#define test(name) cmocka_unit_test_setup_teardown(name, check_begin, check_end)

int main(void)
{
    const int failed = check_hardware();
    const struct CMUnitTest tests[] = {
        test(good_machine_has_only_ok_findings),
        test(unresolvable_host_name_is_reported),
        test(host_name_on_loopback_is_reported),
        test(host_name_with_a_foreign_address_is_reported),
        test(host_name_with_several_addresses_is_reported),
        test(unusable_networks_are_reported),
        test(unusual_mtu_is_reported),
        test(slow_link_is_reported),
        test(variables_that_select_no_interface_are_reported),
        test(nccl_interface_list_is_matched_as_nccl_does),
        test(limits_are_compared_with_the_number_of_ranks),
        test(locked_memory_matters_with_infiniband),
        test(host_name_that_names_no_machine_is_reported),
        test(process_that_holds_the_port_is_named),
        test(leftover_process_on_the_port_is_fixed_by_lockstep_clean),
        test(wrong_clock_is_reported),
        test(refused_keys_are_reported),
        test(incomplete_key_file_is_reported),
        test(missing_kernel_features_are_reported),
        test(missing_user_namespaces_are_reported),
        test(missing_programs_are_reported),
        test(wrong_setting_is_reported),
        test(leftovers_of_all_users_are_reported),
        test(findings_become_json_and_lines),
        test(full_check_begins_with_the_quick_findings),
        test(every_kind_is_provoked_by_a_test),
    };

    return failed + cmocka_run_group_tests_name("check", tests, NULL, NULL);
}
