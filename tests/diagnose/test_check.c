/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_check.c - checks of a simulated machine with one problem at a time: the check reports that
 * problem alone, with the text that explains it and the command that fixes it.
 */
#include "diagnose/fake_machine.h"

#include "base/json.h"
#include "base/text.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define MIB ((uint64_t)1 << 20)

static fake_machine machine;
static check_options options;
static findings found;
static bool seen[FINDING_KIND_COUNT]; /* by any of these tests */

static int begin(void **state)
{
    LS_UNUSED(state);
    fake_start(&machine);
    options = (check_options){.several_nodes = true, .sources = &machine.sources};
    return 0;
}

static int end(void **state)
{
    LS_UNUSED(state);
    findings_free(&found);
    fake_end(&machine);
    return 0;
}

static void look(void)
{
    findings_free(&found);
    assert_ok(check_all(&options, &found));
    for (int i = 0; i < found.n; i++) {
        const finding *f = &found.items[i];
        seen[f->kind] = true;
        assert_true(f->what[0] != 0);
        assert_null(strpbrk(f->what, "\033\n"));
        if (f->severity != FINDING_OK)
            assert_true(f->fix[0] != 0 || f->kind == FINDING_KEY_MISSING_KIND);
        if (f->severity > FINDING_NOTE)
            assert_true(finding_why(f->kind)[0] != 0);
    }
}

static bool has(finding_kind kind)
{
    for (int i = 0; i < found.n; i++)
        if (found.items[i].kind == kind)
            return true;
    return false;
}

/* The first of the kind; there must be one. */
static const finding *get(finding_kind kind)
{
    static const finding none = {0};

    for (int i = 0; i < found.n; i++)
        if (found.items[i].kind == kind)
            return &found.items[i];
    fail_msg("no %s", finding_id(kind));
    return &none;
}

/* The only finding that is not OK is of this kind; its text and its fix contain these parts. */
static void expect(finding_kind kind, finding_severity severity, const char *what, const char *fix)
{
    const finding *f;

    look();
    f = get(kind);
    if (f->severity != severity || strstr(f->what, what) == NULL || strstr(f->fix, fix) == NULL)
        fail_msg("%s %s: %s; %s", finding_severity_text(f->severity), finding_id(kind), f->what,
                 f->fix);
    for (int i = 0; i < found.n; i++)
        if (found.items[i].severity > FINDING_OK && found.items[i].kind != kind)
            fail_msg("also %s: %s", finding_id(found.items[i].kind), found.items[i].what);
}

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
    machine.files.rlim_max = 64 + 14 * 4;
    look();
    assert_false(has(FINDING_FILES_LOW_KIND));
    machine.files.rlim_max--;
    expect(FINDING_FILES_LOW_KIND, FINDING_ERROR, "4 ranks needs 120", "ulimit -Hn 120");
    machine.files.rlim_max = RLIM_INFINITY;
    machine.processes.rlim_cur = 60;
    expect(FINDING_PROCESSES_LOW_KIND, FINDING_WARNING, "limit of 60 processes", "ulimit -u");
    machine.processes.rlim_cur = RLIM_INFINITY;
    fake_put(&machine, "/sys/fs/cgroup/pids/pids.max", "100\n");
    fake_put(&machine, "/sys/fs/cgroup/pids/pids.current", "80\n");
    fake_put(&machine, "/sys/fs/cgroup/pids/job/pids.max", "max\n");
    expect(FINDING_PROCESSES_LOW_KIND, FINDING_WARNING, "20 more", "--pids-limit");
    options.n_ranks = 1;
    machine.files.rlim_max = 64;
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

static void cores_are_compared_with_the_number_of_ranks(void **state)
{
    LS_UNUSED(state);
    options.n_ranks = 8;
    look();
    assert_true(has(FINDING_CORES_OK_KIND));
    options.n_ranks = 9;
    expect(FINDING_CORES_FEW_KIND, FINDING_WARNING, "9 ranks share 8 cores", "-n 8");
    options.n_ranks = 2;
    fake_put(&machine, "/proc/self/status", "Name:\tx\nNSpid:\t1\nCpus_allowed_list:\t0,2-3\n");
    expect(FINDING_CORES_MASKED_KIND, FINDING_NOTE, "3 of 8 cores (affinity mask)", "-n cpu");
    fake_put(&machine, "/sys/fs/cgroup/job/cpu.max", "150000 100000\n"); /* version 2 */
    expect(FINDING_CORES_FEW_KIND, FINDING_WARNING, "2 ranks share 1 core (cgroup CPU quota)",
           "-n 1");
    fake_remove(&machine, "/sys/fs/cgroup/job/cpu.max");
    fake_put(&machine, "/sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "200000\n"); /* version 1 */
    fake_put(&machine, "/sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n");
    expect(FINDING_CORES_MASKED_KIND, FINDING_NOTE, "2 of 8 cores (cgroup", "-n cpu");
}

static void threads_of_all_ranks_are_compared_with_cores_and_quotas(void **state)
{
    LS_UNUSED(state);
    options.n_ranks = 2;
    machine.variables[1] = "OMP_NUM_THREADS=4";
    look();
    assert_false(has(FINDING_CORES_THREADS_KIND));
    machine.variables[1] = "OMP_NUM_THREADS=5,2";
    expect(FINDING_CORES_THREADS_KIND, FINDING_WARNING,
           "2 ranks with 5 threads each (OMP_NUM_THREADS) on 8 cores", "OMP_NUM_THREADS=4");
    machine.variables[1] = "OMP_NUM_THREADS=2";
    fake_put(&machine, "/sys/fs/cgroup/job/cpu.max", "300000 100000\n"); /* version 2 */
    look();
    assert_non_null(strstr(get(FINDING_CORES_THREADS_KIND)->what, "3 cores (cgroup CPU quota)"));
    fake_remove(&machine, "/sys/fs/cgroup/job/cpu.max");
    fake_put(&machine, "/sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "300000\n"); /* version 1 */
    fake_put(&machine, "/sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n");
    look();
    assert_non_null(strstr(get(FINDING_CORES_THREADS_KIND)->fix, "OMP_NUM_THREADS=1"));
    machine.variables[1] = "OMP_NUM_THREADS=many";
    look();
    assert_false(has(FINDING_CORES_THREADS_KIND));
}

/* Two nodes of four cores each. */
static void put_nodes(void)
{
    fake_put(&machine, "/sys/devices/system/node/online", "0-1\n");
    fake_put(&machine, "/sys/devices/system/node/node0/cpulist", "0-3\n");
    fake_put(&machine, "/sys/devices/system/node/node1/cpulist", "4-7\n");
    fake_put(&machine, "/sys/devices/system/node/node0/meminfo", "Node 0 MemTotal:  32000 kB\n");
}

static void numa_nodes_are_reported(void **state)
{
    LS_UNUSED(state);
    put_nodes();
    expect(FINDING_NUMA_UNBOUND_KIND, FINDING_NOTE, "2 NUMA nodes", "--numa-binding node");
    fake_put(&machine, "/proc/sys/kernel/numa_balancing", "1\n");
    look();
    assert_non_null(strstr(get(FINDING_NUMA_BALANCING_KIND)->fix, "kernel.numa_balancing=0"));
    fake_put(&machine, "/sys/devices/system/node/node1/meminfo", "Node 1 MemTotal:  0 kB\n");
    look();
    assert_string_equal(get(FINDING_NUMA_MEMORY_KIND)->what, "NUMA node 1 has cores but no memory");
}

static void settings_of_large_pages_are_reported(void **state)
{
    LS_UNUSED(state);
    fake_put(&machine, "/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
    look();
    assert_true(has(FINDING_PAGES_OK_KIND));
    fake_put(&machine, "/sys/kernel/mm/transparent_hugepage/defrag",
             "[always] defer defer+madvise madvise never\n");
    expect(FINDING_PAGES_STALL_KIND, FINDING_NOTE, "defrag: always", "echo defer+madvise");
    fake_put(&machine, "/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
    expect(FINDING_PAGES_SMALL_KIND, FINDING_NOTE, "huge pages are off", "echo madvise");
}

/* --- InfiniBand and RoCE --- */

static void put_port(const char *state, const char *layer)
{
    fake_put(&machine, "/sys/class/infiniband/mlx5_0/ports/1/state", state);
    fake_put(&machine, "/sys/class/infiniband/mlx5_0/ports/1/link_layer", layer);
    fake_put(&machine, "/sys/class/infiniband/mlx5_0/ports/1/rate", "100 Gb/sec (4X EDR)\n");
}

static void put_gid(const char *index, const char *type, const char *gid)
{
    char path[128];

    text_format(path, sizeof(path), "/sys/class/infiniband/mlx5_0/ports/1/gid_attrs/types/%s",
                index);
    fake_put(&machine, path, type);
    text_format(path, sizeof(path), "/sys/class/infiniband/mlx5_0/ports/1/gids/%s", index);
    fake_put(&machine, path, gid);
}

/* An adapter without a problem. */
static void put_roce(void)
{
    put_port("4: ACTIVE\n", "Ethernet\n");
    fake_put(&machine, "/sys/class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/0", "eth1\n");
    put_gid("0", "IB/RoCE v1\n", "fe80:0000:0000:0000:0000:0000:0000:0001\n");
    put_gid("1", "RoCE v2\n", "fe80:0000:0000:0000:0000:0000:0000:0001\n");
    put_gid("3", "RoCE v2\n", "0000:0000:0000:0000:0000:ffff:0a4d:000a\n");
    fake_put(&machine, "/sys/class/net/eth1/mtu", "9000\n");
    fake_put(&machine, "/sys/class/net/eth1/ecn/roce_rp/enable/3", "1\n");
}

static void ports_of_infiniband_that_are_not_active_are_reported(void **state)
{
    LS_UNUSED(state);
    look();
    assert_true(has(FINDING_IB_NONE_KIND));
    put_port("4: ACTIVE\n", "InfiniBand\n");
    look();
    assert_string_equal(get(FINDING_IB_OK_KIND)->what,
                        "mlx5_0 port 1: InfiniBand, 100 Gb/sec (4X EDR)");
    put_port("2: INIT\n", "InfiniBand\n");
    expect(FINDING_IB_DOWN_KIND, FINDING_WARNING, "mlx5_0 port 1 (InfiniBand) is in state INIT",
           "opensm");
    put_port("1: DOWN\n", "InfiniBand\n");
    expect(FINDING_IB_DOWN_KIND, FINDING_WARNING, "DOWN", "ibstat mlx5_0 1");
    fake_put(&machine, "/sys/class/infiniband/mlx5_1/ports/1/state", "4: ACTIVE\n");
    expect(FINDING_IB_DOWN_KIND, FINDING_NOTE, "DOWN", "ibstat mlx5_0 1");
    put_port("\033[31m", "\033");
    look();
    assert_true(has(FINDING_IB_DOWN_KIND));
}

static void roce_needs_an_address_a_large_mtu_and_flow_control(void **state)
{
    LS_UNUSED(state);
    put_roce();
    look();
    assert_int_equal(findings_worst(&found), FINDING_OK);
    assert_non_null(strstr(get(FINDING_IB_OK_KIND)->what, "mlx5_0 port 1: RoCE, 100 Gb/sec"));
    machine.variables[1] = "NCCL_IB_GID_INDEX=3";
    look();
    assert_false(has(FINDING_IB_GID_KIND));
    machine.variables[1] = "NCCL_IB_GID_INDEX=1";
    expect(FINDING_IB_GID_KIND, FINDING_WARNING, "NCCL_IB_GID_INDEX selects no GID",
           "NCCL_IB_GID_INDEX=3");
    machine.variables[1] = NULL;
    put_gid("3", "RoCE v2\n", "0000:0000:0000:0000:0000:0000:0000:0000\n");
    expect(FINDING_IB_GID_KIND, FINDING_WARNING, "has no GID of RoCE v2", "dev eth1");
    put_roce();
    fake_put(&machine, "/sys/class/net/eth1/mtu", "1500\n");
    expect(FINDING_IB_MTU_KIND, FINDING_NOTE, "eth1, of mlx5_0 port 1, has MTU 1500", "mtu 9000");
    put_roce();
    fake_put(&machine, "/sys/class/net/eth1/ecn/roce_rp/enable/3", "0\n");
    expect(FINDING_IB_ECN_KIND, FINDING_NOTE, "ECN is off for all priorities of eth1", "dcb pfc");
    fake_remove(&machine, "/sys/class/net/eth1/ecn");
    expect(FINDING_IB_ECN_KIND, FINDING_NOTE, "eth1 does not show", "mlnx_qos -i eth1");
    put_roce();
    put_port("1: DOWN\n", "Ethernet\n");
    expect(FINDING_IB_DOWN_KIND, FINDING_WARNING, "(Ethernet) is in state DOWN", "dev eth1 up");
}

static void gpus_beside_an_adapter_need_the_module_for_peer_memory(void **state)
{
    LS_UNUSED(state);
    put_roce();
    fake_put(&machine, "/proc/driver/nvidia/version", "NVRM version\n");
    expect(FINDING_IB_PEER_KIND, FINDING_WARNING, "nvidia_peermem is not loaded",
           "modprobe nvidia_peermem");
    fake_put(&machine, "/sys/module/nvidia_peermem/refcnt", "0\n");
    look();
    assert_false(has(FINDING_IB_PEER_KIND));
}

static void memory_is_compared_with_the_number_of_ranks(void **state)
{
    LS_UNUSED(state);
    machine.shm_total = machine.shm_free = 64 * MIB;
    expect(FINDING_SHM_SMALL_KIND, FINDING_WARNING, "64 MiB", "remount");
    machine.shm_total = 1024 * MIB;
    expect(FINDING_SHM_SMALL_KIND, FINDING_WARNING, "64 MiB free", "ls -lS");
    machine.shm_total = 0;
    expect(FINDING_SHM_MISSING_KIND, FINDING_WARNING, "/dev/shm", "mount -t tmpfs");
    machine.shm_total = machine.shm_free = 4096 * MIB;
    fake_put(&machine, "/proc/meminfo", "MemTotal: 1 kB\nMemAvailable: 102400 kB\n");
    expect(FINDING_MEMORY_LOW_KIND, FINDING_WARNING,
           "the machine has 100 MiB of memory available, too little for 4 ranks", "ps ");
    fake_put(&machine, "/proc/meminfo", "MemAvailable: 64000000 kB\n");
    fake_put(&machine, "/sys/fs/cgroup/unified/job/memory.max", "1073741824\n");
    fake_put(&machine, "/sys/fs/cgroup/unified/job/memory.current", "1063256064\n");
    expect(FINDING_MEMORY_LOW_KIND, FINDING_WARNING, "the control group has 10 MiB of memory",
           "ps ");
    fake_remove(&machine, "/sys/fs/cgroup/unified/job/memory.max");
    fake_put(&machine, "/sys/fs/cgroup/memory/memory.limit_in_bytes", "1048576\n");
    expect(FINDING_MEMORY_LOW_KIND, FINDING_WARNING, "the control group has 1 MiB of memory",
           "ps ");
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

/* --- GPUs --- */

static void add_gpu(int i, bool on_bus, bool in_driver)
{
    char path[128];
    gpu_seen *g;

    text_format(path, sizeof(path), "/sys/bus/pci/devices/0000:%02x:00.0/vendor", 0x80 + i);
    if (on_bus)
        fake_put(&machine, path, "0x10de\n");
    text_format(path, sizeof(path), "/sys/bus/pci/devices/0000:%02x:00.0/class", 0x80 + i);
    if (on_bus)
        fake_put(&machine, path, "0x030200\n");
    if (!in_driver)
        return;
    g = &machine.gpus.gpus[machine.gpus.n++];
    g->is_usable = true;
    text_format(g->bus, sizeof(g->bus), "00000000:%02X:00.0", 0x80 + i);
    text_format(g->name, sizeof(g->name), "NVIDIA H200");
}

static void machine_without_gpus_is_ok(void **state)
{
    LS_UNUSED(state);
    look();
    assert_int_equal(get(FINDING_GPU_NONE_KIND)->severity, FINDING_OK);
    machine.gpu_status = LS_ENOTFOUND;
    look();
    assert_int_equal(get(FINDING_GPU_NONE_KIND)->severity, FINDING_OK);
    assert_non_null(strstr(get(FINDING_GPU_NONE_KIND)->what, "no NVIDIA driver library"));
    fake_put(&machine, "/sys/bus/pci/devices/0000:00:01.0/vendor",
             "0x10de\n"); /* its audio function */
    fake_put(&machine, "/sys/bus/pci/devices/0000:00:01.0/class", "0x040300\n");
    fake_put(&machine, "/sys/bus/pci/devices/0000:00:02.0/vendor", "0x8086\n");
    fake_put(&machine, "/sys/bus/pci/devices/0000:00:02.0/class", "0x030000\n");
    look();
    assert_int_equal(get(FINDING_GPU_NONE_KIND)->severity, FINDING_OK);
}

static void gpus_without_a_working_driver_are_reported(void **state)
{
    LS_UNUSED(state);
    add_gpu(0, true, false);
    machine.gpu_status = LS_ENOTFOUND;
    expect(FINDING_GPU_LIBRARY_KIND, FINDING_WARNING,
           "1 NVIDIA GPU on the PCI bus, but no driver library: ", "nvidia-driver");
    machine.gpu_status = LS_ESYSTEM;
    expect(FINDING_GPU_DRIVER_KIND, FINDING_ERROR, "the driver is ?[31mill", "nvidia-smi");
    machine.gpu_status = LS_ETIMEOUT;
    expect(FINDING_GPU_HUNG_KIND, FINDING_ERROR, "ill", "reboot");
}

static void gpu_that_fell_off_the_bus_is_named(void **state)
{
    LS_UNUSED(state);
    for (int i = 0; i < 4; i++)
        add_gpu(i, true, i != 2);
    fake_put(&machine, "/sys/bus/pci/devices/0000:81:00.0/config", "\xde\x10\x30\x23");
    expect(FINDING_GPU_MISSING_KIND, FINDING_ERROR, "0000:82:00.0", "dmesg");
    machine.variables[1] = "NVIDIA_VISIBLE_DEVICES=0,1,3";
    expect(FINDING_GPU_MISSING_KIND, FINDING_NOTE, "may have no access", "dmesg");
    fake_put(&machine, "/sys/bus/pci/devices/0000:82:00.0/config", "\xff\xff\xff\xff\xff");
    expect(FINDING_GPU_LOST_KIND, FINDING_ERROR, "0000:82:00.0 has fallen off the bus", "-n 3");
    fake_remove(&machine, "/sys/bus/pci/devices/0000:82:00.0");
    machine.gpus.gpus[0].is_usable = false;
    text_format(machine.gpus.gpus[0].name, 64, "GPU is lost");
    expect(FINDING_GPU_LOST_KIND, FINDING_ERROR, "0000:80:00.0 cannot be used: GPU is lost", "");
}

static void set_trial(int i, ls_status status, const char *why)
{
    machine.trials.gpus[i].status = status;
    text_format(machine.trials.gpus[i].why, sizeof(machine.trials.gpus[i].why), "%s", why);
}

static void gpu_check_reports_gpus_that_fail_their_test(void **state)
{
    LS_UNUSED(state);
    for (int i = 0; i < 2; i++)
        add_gpu(i, true, true);
    set_trial(1, LS_ESYSTEM, "opening it fails");
    look();
    assert_string_equal(get(FINDING_GPU_OK_KIND)->what, "2 GPUs: NVIDIA H200");
    options.tries_gpus = true;
    expect(FINDING_GPU_LOST_KIND, FINDING_ERROR,
           "00000000:81:00.0 (NVIDIA H200) cannot be used: opening it fails", "reboot");
    set_trial(1, LS_ETIMEOUT, "no answer");
    expect(FINDING_GPU_HUNG_KIND, FINDING_ERROR, "00000000:81:00.0 (NVIDIA H200) hangs", "reboot");
    set_trial(1, LS_ENOTFOUND, "");
    expect(FINDING_GPU_UNTRIED_KIND, FINDING_NOTE, "81:00.0 (NVIDIA H200) has no UUID", "-L");
    set_trial(1, LS_OK, "");
    look();
    assert_string_equal(get(FINDING_GPU_OK_KIND)->what,
                        "2 GPUs: NVIDIA H200; each opened, its memory tested, a kernel run; NCCL "
                        "reduces over them");
    machine.nccl_status = LS_ESYSTEM;
    expect(FINDING_GPU_NCCL_KIND, FINDING_ERROR, "NCCL cannot reduce over the GPUs: a hang",
           "one rank for each GPU");
    machine.nccl_status = LS_ENOTFOUND;
    expect(FINDING_GPU_NCCL_KIND, FINDING_NOTE, "NCCL is not installed", "--backend native");
    machine.nccl_status = LS_EUNSUPPORTED; /* CUDA_VISIBLE_DEVICES shows one */
    look();
    assert_string_equal(get(FINDING_GPU_OK_KIND)->what,
                        "2 GPUs: NVIDIA H200; each opened, its memory tested, a kernel run");
    machine.trial_status = LS_ENOTFOUND;
    expect(FINDING_GPU_LIBRARY_KIND, FINDING_WARNING, "libcuda.so.1", "libcuda1");
}

static void static_agent_does_not_check_gpus(void **state)
{
    LS_UNUSED(state);
    machine.gpu_status = LS_EUNSUPPORTED;
    look();
    assert_int_equal(get(FINDING_GPU_NONE_KIND)->severity, FINDING_OK);
    add_gpu(0, true, false);
    expect(FINDING_GPU_UNTRIED_KIND, FINDING_NOTE, "1 NVIDIA GPU on the PCI bus not checked",
           "install");
}

static void visible_gpus_are_counted_as_cuda_does(void **state)
{
    LS_UNUSED(state);
    for (int i = 0; i < 2; i++)
        add_gpu(i, true, true);
    look();
    assert_string_equal(get(FINDING_GPU_OK_KIND)->what, "2 GPUs: NVIDIA H200");
    machine.variables[1] = "CUDA_VISIBLE_DEVICES=1,7,0";
    expect(FINDING_GPU_VISIBLE_KIND, FINDING_ERROR,
           "exposes 1 of 2 GPUs: CUDA ignores the list from \"7\"", "unset");
    machine.variables[1] = "CUDA_VISIBLE_DEVICES=";
    expect(FINDING_GPU_VISIBLE_KIND, FINDING_NOTE, "hides all", "unset");
    machine.variables[1] = "CUDA_VISIBLE_DEVICES=1";
    options.n_ranks = 2;
    expect(FINDING_GPU_FEW_KIND, FINDING_NOTE, "2 ranks share 1 visible GPU", "-n 1");
}

/* --- leftovers --- */

#define DEAD_ENVIRONMENT                                                                           \
    "LOCKSTEP_JOB=0123456789abcdef\0LOCKSTEP_AGENT_PROCESS=5000000.77." FAKE_SPACE

static void expect_count(int n, const char *cuda, const char *hip)
{
    int counted = 0;

    machine.variables[1] = cuda;
    machine.variables[2] = hip;
    assert_ok(check_count_gpus(&machine.sources, &counted));
    assert_int_equal(counted, n);
}

static void expect_no_gpu(const char *cuda, const char *hip, const char *why)
{
    int counted = 0;

    machine.variables[1] = cuda;
    machine.variables[2] = hip;
    assert_status(check_count_gpus(&machine.sources, &counted), LS_ENOTFOUND);
    assert_last_error(why);
}

static void gpus_are_counted_as_torchrun_counts_them(void **state)
{
    LS_UNUSED(state);
    machine.gpu_status = LS_ENOTFOUND;
    expect_no_gpu("A=1", NULL, "no usable GPU of NVIDIA or AMD");
    machine.gpu_status = LS_OK;
    for (int i = 0; i < 3; i++)
        add_gpu(i, true, true);
    expect_count(3, "A=1", NULL);
    expect_count(2, "CUDA_VISIBLE_DEVICES=2,0", NULL);
    expect_count(1, "CUDA_VISIBLE_DEVICES=1,7,0", NULL);
    expect_count(3, "A=1", "HIP_VISIBLE_DEVICES=0"); /* ignored: a variable of AMD */
    expect_no_gpu("CUDA_VISIBLE_DEVICES=", NULL, "CUDA_VISIBLE_DEVICES= leaves none of the 3 GPUs");
    expect_no_gpu("CUDA_VISIBLE_DEVICES=-1", NULL, "leaves none");
}

static void gpus_of_amd_are_counted_from_the_kernels_files(void **state)
{
    LS_UNUSED(state);
    fake_put(&machine, "/sys/class/kfd/kfd/topology/nodes/0/properties",
             "cpu_cores_count 64\nsimd_count 0\n");
    for (int i = 1; i < 5; i++) {
        char path[96];
        text_format(path, sizeof(path), "/sys/class/kfd/kfd/topology/nodes/%d/properties", i);
        fake_put(&machine, path, "cpu_cores_count 0\nsimd_count 440\n");
    }
    machine.gpu_status = LS_ENOTFOUND;
    expect_count(4, "A=1", NULL);
    expect_count(3, "CUDA_VISIBLE_DEVICES=0,1,2", NULL);
    expect_count(2, "CUDA_VISIBLE_DEVICES=0,1,2", "HIP_VISIBLE_DEVICES=3,0");
    expect_count(1, "ROCR_VISIBLE_DEVICES=2", NULL);
    expect_no_gpu("A=1", "HIP_VISIBLE_DEVICES=", "HIP_VISIBLE_DEVICES= leaves none of the 4 GPUs");
}

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

#define test(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void)
{
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
        test(cores_are_compared_with_the_number_of_ranks),
        test(threads_of_all_ranks_are_compared_with_cores_and_quotas),
        test(numa_nodes_are_reported),
        test(settings_of_large_pages_are_reported),
        test(ports_of_infiniband_that_are_not_active_are_reported),
        test(roce_needs_an_address_a_large_mtu_and_flow_control),
        test(gpus_beside_an_adapter_need_the_module_for_peer_memory),
        test(host_name_that_names_no_machine_is_reported),
        test(memory_is_compared_with_the_number_of_ranks),
        test(process_that_holds_the_port_is_named),
        test(leftover_process_on_the_port_is_fixed_by_lockstep_clean),
        test(wrong_clock_is_reported),
        test(refused_keys_are_reported),
        test(incomplete_key_file_is_reported),
        test(missing_kernel_features_are_reported),
        test(missing_user_namespaces_are_reported),
        test(missing_programs_are_reported),
        test(wrong_setting_is_reported),
        test(machine_without_gpus_is_ok),
        test(gpus_without_a_working_driver_are_reported),
        test(gpu_that_fell_off_the_bus_is_named),
        test(gpu_check_reports_gpus_that_fail_their_test),
        test(static_agent_does_not_check_gpus),
        test(visible_gpus_are_counted_as_cuda_does),
        test(gpus_are_counted_as_torchrun_counts_them),
        test(gpus_of_amd_are_counted_from_the_kernels_files),
        test(leftovers_of_all_users_are_reported),
        test(findings_become_json_and_lines),
        test(full_check_begins_with_the_quick_findings),
        test(every_kind_is_provoked_by_a_test),
    };

    return cmocka_run_group_tests_name("check", tests, NULL, NULL);
}
