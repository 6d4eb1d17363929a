/* SPDX-License-Identifier: Apache-2.0 */
/* test_topology.c - sets of cores, and the places of cores from a folder like sysfs. */
#include "base/unit.h"

#include "base/text.h"
#include "host/topology.h"
#include "harness/cpu_text.h"
#include "harness/root_folder.h"

static topology found;

static void lists_of_cores_are_read_and_written(void **state)
{
    static const char *const lists[] = {"", "0", "0-3,7", "1,3,5", "63-64,4095"};
    char text[64];
    cpu_mask m;

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(lists); i++) {
        assert_true(cpu_mask_parse(lists[i], &m));
        assert_string_equal(cpu_mask_text(&m, text, sizeof(text)), lists[i]);
    }
    assert_int_equal(cpu_mask_count(&m), 3);
    assert_true(cpu_mask_parse("0-4095", &m));
    assert_int_equal(cpu_mask_count(&m), TOPOLOGY_CPUS);
    assert_true(cpu_mask_parse("1,100,1000", &m));
    assert_string_equal(cpu_mask_text(&m, text, 6), "1,100"); // cut
}

static void malformed_lists_are_refused(void **state)
{
    static const char *const lists[] = {
        "a", "-1", "3-1", "1-", "1 2", ",1", "1,,", "4096", "0-99999999999999", "1;2", "0x1"};
    cpu_mask m;

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(lists); i++)
        assert_false(cpu_mask_parse(lists[i], &m));
}

static char root[ROOT_FOLDER_BYTES];

static void put(const char *path, const char *text)
{
    char full[256];

    root_folder_put(root, text_format(full, sizeof(full), "sys/devices/system/%s", path), text);
}

static int make_root(void **state)
{
    LS_UNUSED(state);
    root_folder_make(root);
    return 0;
}

static int remove_root(void **state)
{
    LS_UNUSED(state);
    root_folder_remove(root, "");
    return 0;
}

/* Two sockets with a node of two physical cores each, two threads a core, numbered as x86 does. */
static void places_of_cores_are_read(void **state)
{
    char path[128];
    char text[32];

    LS_UNUSED(state);
    put("cpu/online", "0-7\n");
    put("node/online", "0-1\n");
    put("node/node0/cpulist", "0-1,4-5\n");
    put("node/node1/cpulist", "2-3,6-7\n");
    for (int cpu = 0; cpu < 8; cpu++) {
        text_format(path, sizeof(path), "cpu/cpu%d/topology/physical_package_id", cpu);
        put(path, cpu % 4 < 2 ? "0\n" : "1\n");
        text_format(path, sizeof(path), "cpu/cpu%d/topology/thread_siblings_list", cpu);
        text_format(text, sizeof(text), "%d,%d\n", cpu % 4, cpu % 4 + 4);
        put(path, text);
        text_format(path, sizeof(path), "cpu/cpu%d/cache/index0/level", cpu);
        put(path, "1\n");
        text_format(path, sizeof(path), "cpu/cpu%d/cache/index0/shared_cpu_list", cpu);
        put(path, text);
        text_format(path, sizeof(path), "cpu/cpu%d/cache/index3/level", cpu);
        put(path, "3\n");
        text_format(path, sizeof(path), "cpu/cpu%d/cache/index3/shared_cpu_list", cpu);
        put(path, cpu % 4 < 2 ? "0-1,4-5\n" : "2-3,6-7\n");
    }
    assert_ok(topology_read(root, &found));
    assert_int_equal(cpu_mask_count(&found.online), 8);
    assert_int_equal(cpu_mask_count(&found.nodes), 2);
    assert_int_equal(found.cpus[6].node, 1);
    assert_int_equal(found.cpus[6].socket, 1);
    assert_int_equal(found.cpus[6].core, 2);
    assert_int_equal(found.cpus[6].cache, 2);
    assert_int_equal(found.cpus[5].node, 0);
    assert_int_equal(found.cpus[5].core, 1);
    assert_int_equal(found.cpus[5].cache, 0);
}

static void a_machine_without_nodes_has_one(void **state)
{
    LS_UNUSED(state);
    put("cpu/online", "0,2\n");
    put("cpu/cpu2/topology/physical_package_id", "-1\n");
    put("cpu/cpu2/cache/index0/level", "none\n");
    assert_ok(topology_read(root, &found));
    assert_int_equal(cpu_mask_count(&found.nodes), 1);
    assert_int_equal(found.cpus[2].node, 0);
    assert_int_equal(found.cpus[2].socket, 0);
    assert_int_equal(found.cpus[2].core, 2);
    assert_int_equal(found.cpus[2].cache, 2);
    put("cpu/online", "many\n");
    assert_status(topology_read(root, &found), LS_ENOTFOUND);
    assert_last_error("/sys/devices/system/cpu/online");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_of_cores_are_read_and_written),
        cmocka_unit_test(malformed_lists_are_refused),
        cmocka_unit_test_setup_teardown(places_of_cores_are_read, make_root, remove_root),
        cmocka_unit_test_setup_teardown(a_machine_without_nodes_has_one, make_root, remove_root),
    };

    return cmocka_run_group_tests_name("topology", tests, NULL, NULL);
}
