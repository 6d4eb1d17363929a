/* SPDX-License-Identifier: Apache-2.0 */
/* test_binding.c - the cores and nodes of ranks on machines that are described here. */
#include "base/unit.h"

#include "base/text.h"
#include "harness/cpu_text.h"
#include "harness/root_folder.h"
#include "launch/isolate/binding.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static topology machine;
static cpu_mask all;
static binding_gpus gpus;

/*
 * 32 logical cores: two sockets with two nodes each, a node with four physical cores of two threads
 * (cpu and cpu + 16), and a last cache for each two physical cores.
 */
static int make_machine(void **state)
{
    LS_UNUSED(state);
    memset(&machine, 0, sizeof(machine));
    gpus = (binding_gpus){.n = 0};
    assert_true(cpu_mask_parse("0-31", &machine.online));
    assert_true(cpu_mask_parse("0-3", &machine.nodes));
    all = machine.online;
    for (int cpu = 0; cpu < 32; cpu++) {
        const int core = cpu % 16;

        machine.cpus[cpu] = (topology_cpu){
            .node = core / 4, .socket = core / 8, .core = core, .cache = core / 2 * 2};
    }
    return 0;
}

static void expect(binding_kind kind, int local_rank, int n_local, const char *cores,
                   const char *nodes)
{
    rank_binding b;
    char text[128];

    assert_ok(binding_choose(&machine, &all, &gpus, kind, local_rank, n_local, &b));
    assert_true(b.is_set);
    assert_string_equal(cpu_mask_text(&b.cores, text, sizeof(text)), cores);
    assert_string_equal(cpu_mask_text(&b.nodes, text, sizeof(text)), nodes);
}

static void ranks_are_distributed_over_nodes(void **state)
{
    LS_UNUSED(state);
    expect(BINDING_NODE, 0, 8, "0-3,16-19", "0");
    expect(BINDING_NODE, 1, 8, "0-3,16-19", "0");
    expect(BINDING_NODE, 7, 8, "12-15,28-31", "3");
    expect(BINDING_NODE, 1, 2, "8-11,24-27", "2");
    expect(BINDING_SOCKET, 1, 2, "8-15,24-31", "2-3");
    expect(BINDING_NODE, 0, 1, "0-3,16-19", "0");
}

static void ranks_follow_their_gpus(void **state)
{
    LS_UNUSED(state);
    gpus = (binding_gpus){.nodes = {3, 3, -1, 9}, .n = 4};
    expect(BINDING_NODE, 0, 4, "12-15,28-31", "3");
    expect(BINDING_EXCLUSIVE, 0, 4, "12,28", "3"); // ranks 0, 1 by their GPUs, 3 by its share
    expect(BINDING_EXCLUSIVE, 1, 4, "13,29", "3");
    expect(BINDING_EXCLUSIVE, 3, 4, "14-15,30-31", "3");
    expect(BINDING_NODE, 2, 4, "8-11,24-27", "2"); // its GPU's node is not known
    expect(BINDING_CORE_COMPLEX, 0, 4, "12-13,28-29", "3");
    expect(BINDING_CORE_COMPLEX, 1, 4, "14-15,30-31", "3");
    expect(BINDING_CORE_COMPLEX, 3, 4, "12-13,28-29", "3"); // more ranks than caches
}

/* Any number of ranks: the parts are disjoint, and together they are all cores. */
static void exclusive_cores_belong_to_one_rank(void **state)
{
    LS_UNUSED(state);
    for (int n = 4; n <= 16; n++) {
        cpu_mask seen = {.words = {0}};
        bool is_refused = false;

        for (int r = 0; r < n && !is_refused; r++) {
            rank_binding b;

            is_refused =
                binding_choose(&machine, &all, &gpus, BINDING_EXCLUSIVE, r, n, &b) != LS_OK;
            for (int cpu = 0; cpu < TOPOLOGY_CPUS && !is_refused; cpu++) {
                if (!cpu_mask_has(&b.cores, cpu))
                    continue;
                assert_false(cpu_mask_has(&seen, cpu));
                assert_true(cpu_mask_has(&b.cores, cpu < 16 ? cpu + 16 : cpu - 16));
                cpu_mask_add(&seen, cpu);
            }
        }
        assert_false(is_refused);
        assert_memory_equal(&seen, &all, sizeof(all));
    }
}

static void only_allowed_cores_are_used(void **state)
{
    rank_binding b;

    LS_UNUSED(state);
    assert_true(cpu_mask_parse("5,21,40", &all));
    expect(BINDING_NODE, 0, 2, "5,21", "1");
    expect(BINDING_SOCKET, 1, 2, "5,21", "1");
    assert_status(binding_choose(&machine, &all, &gpus, BINDING_EXCLUSIVE, 0, 2, &b), LS_EINVAL);
    assert_last_error("NUMA node 1 has 1 physical core for 2 ranks");
    assert_true(cpu_mask_parse("40", &all));
    assert_status(binding_choose(&machine, &all, &gpus, BINDING_NODE, 0, 2, &b), LS_ENOTFOUND);
    assert_ok(binding_choose(&machine, &all, &gpus, BINDING_NONE, 0, 2, &b));
    assert_false(b.is_set);
}

static void names_are_read(void **state)
{
    binding_kind kind;

    LS_UNUSED(state);
    assert_ok(binding_parse(NULL, &kind));
    assert_int_equal(kind, BINDING_NONE);
    assert_ok(binding_parse("core-complex", &kind));
    assert_int_equal(kind, BINDING_CORE_COMPLEX);
    assert_status(binding_parse("", &kind), LS_EINVAL);
    assert_status(binding_parse("moon", &kind), LS_EINVAL);
    assert_last_error("--numa-binding moon: node, socket, exclusive or core-complex");
}

// --- GPUs below a folder like sysfs ---

static char root[ROOT_FOLDER_BYTES];

static void put(const char *address, const char *file, const char *text)
{
    char full[256];

    root_folder_put(
        root, text_format(full, sizeof(full), "sys/bus/pci/devices/%s/%s", address, file), text);
}

static void put_device(const char *address, const char *vendor, const char *class, const char *node)
{
    put(address, "vendor", vendor);
    put(address, "class", class);
    put(address, "numa_node", node);
}

static void expect_gpus(const char *visible, int n, int first, int second)
{
    binding_gpus found;

    binding_read_gpus(root, visible, &found);
    assert_int_equal(found.n, n);
    assert_true(n < 1 || found.nodes[0] == first);
    assert_true(n < 2 || found.nodes[1] == second);
}

static void gpus_have_the_order_of_the_bus_or_of_the_variable(void **state)
{
    LS_UNUSED(state);
    root_folder_make(root);
    expect_gpus(NULL, 0, 0, 0);
    put_device("0000:85:00.0", "0x10de\n", "0x030200\n", "1\n");
    put_device("0000:05:00.0", "0x10de\n", "0x030000\n", "0\n");
    put_device("0000:05:00.1", "0x10de\n", "0x040300\n", "0\n"); // its sound
    put_device("0000:00:02.0", "0x8086\n", "0x030000\n", "0\n");
    put_device("0000:a5:00.0", "0x10de\n", "0x030200\n", "-1\n");
    expect_gpus(NULL, 3, 0, 1);
    expect_gpus("1,0", 2, 1, 0);
    expect_gpus("2", 1, -1, 0);
    expect_gpus("GPU-1234,7", 2, -1, -1);
    expect_gpus("", 0, 0, 0);
    put("0000:85:00.0", "numa_node", "99999999\n");
    expect_gpus("1", 1, -1, 0);
    root_folder_remove(root, "");
}

/* In a child: the first core that this process may use, and its node. */
static void a_process_is_bound(void **state)
{
    rank_binding b = {.is_set = true};
    cpu_mask mine;
    int status;
    pid_t child;

    LS_UNUSED(state);
    cpu_mask_of_process(&mine);
    for (int cpu = 0; cpu < TOPOLOGY_CPUS && cpu_mask_count(&b.cores) == 0; cpu++)
        if (cpu_mask_has(&mine, cpu))
            cpu_mask_add(&b.cores, cpu);
    cpu_mask_add(&b.nodes, 0);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        cpu_mask after;

        if (binding_apply(&b) != 0)
            _exit(2);
        cpu_mask_of_process(&after);
        _exit(memcmp(&after, &b.cores, sizeof(after)) == 0 ? 0 : 3);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    b.is_set = false;
    assert_int_equal(binding_apply(&b), 0);
    b = (rank_binding){.is_set = true};
    assert_int_equal(binding_apply(&b), EINVAL); // no core
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(ranks_are_distributed_over_nodes, make_machine),
        cmocka_unit_test_setup(ranks_follow_their_gpus, make_machine),
        cmocka_unit_test_setup(exclusive_cores_belong_to_one_rank, make_machine),
        cmocka_unit_test_setup(only_allowed_cores_are_used, make_machine),
        cmocka_unit_test(names_are_read),
        cmocka_unit_test(gpus_have_the_order_of_the_bus_or_of_the_variable),
        cmocka_unit_test(a_process_is_bound),
    };

    return cmocka_run_group_tests_name("binding", tests, NULL, NULL);
}
