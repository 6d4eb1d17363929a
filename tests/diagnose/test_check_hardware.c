/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_check_hardware.c - checks of cores, memory, InfiniBand adapters and GPUs of a simulated
 * machine, one problem at a time. Run by test_check.c.
 */
#include "diagnose/check_scene.h"

#include "base/text.h"

/* --- cores and memory --- */

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

#define test(name) cmocka_unit_test_setup_teardown(name, check_begin, check_end)

int check_hardware(void)
{
    const struct CMUnitTest tests[] = {
        test(cores_are_compared_with_the_number_of_ranks),
        test(threads_of_all_ranks_are_compared_with_cores_and_quotas),
        test(numa_nodes_are_reported),
        test(settings_of_large_pages_are_reported),
        test(ports_of_infiniband_that_are_not_active_are_reported),
        test(roce_needs_an_address_a_large_mtu_and_flow_control),
        test(gpus_beside_an_adapter_need_the_module_for_peer_memory),
        test(memory_is_compared_with_the_number_of_ranks),
        test(machine_without_gpus_is_ok),
        test(gpus_without_a_working_driver_are_reported),
        test(gpu_that_fell_off_the_bus_is_named),
        test(gpu_check_reports_gpus_that_fail_their_test),
        test(static_agent_does_not_check_gpus),
        test(visible_gpus_are_counted_as_cuda_does),
        test(gpus_are_counted_as_torchrun_counts_them),
        test(gpus_of_amd_are_counted_from_the_kernels_files),
    };

    return cmocka_run_group_tests_name("check of hardware", tests, NULL, NULL);
}
