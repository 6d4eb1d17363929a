/* SPDX-License-Identifier: Apache-2.0 */
/* test_device.c - opening devices, loading modules, and a device with a layout of its own. */
#include "tensor/testing.h"

#include "base/alloc.h"
#include "host/cores.h"
#include "tensor/device_open.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void assert_error(const char *text)
{
    if (strstr(ls_last_error(), text) == NULL)
        fail_msg("\"%s\" does not tell \"%s\"", ls_last_error(), text);
}

static ls_status open_device(const char *name, ls_device **out)
{
    return ls_device_open(&(ls_device_options){.size = sizeof(ls_device_options), .name = name},
                          out);
}

static void the_reference_device_opens_by_name(void **state)
{
    ls_device *device = open_reference();

    LS_UNUSED(state);
    assert_string_equal(ls_device_name(device), "cpu_ref");
    assert_string_equal(ls_device_fingerprint(device), "cpu_ref 1 thread");
    ls_device_close(device);
    ls_device_close(NULL);
}

static void a_host_device_has_no_queue_and_no_memory_of_its_own(void **state)
{
    ls_device *device = open_reference();
    size_t free_bytes = 7;
    size_t total_bytes = 7;

    LS_UNUSED(state);
    assert_null(ls_device_queue(device));
    assert_status(LS_OK, ls_device_synchronize(device));
    assert_status(LS_EUNSUPPORTED, ls_device_memory(device, &free_bytes, &total_bytes));
    assert_error("device cpu_ref has no memory of its own");
    assert_int_equal(free_bytes + total_bytes, 14);
    ls_device_close(device);
}

static void the_variable_chooses_where_the_caller_does_not(void **state)
{
    ls_device *device = NULL;

    LS_UNUSED(state);
    assert_int_equal(setenv("LOCKSTEP_DEVICE", "cpu_ref", 1), 0);
    assert_status(LS_OK, ls_device_open(NULL, &device));
    assert_string_equal(ls_device_name(device), "cpu_ref");
    ls_device_close(device);
    // The variable takes what the option takes.
    assert_int_equal(setenv("LOCKSTEP_MODULE_DIR", "/nonexistent/modules", 1), 0);
    assert_int_equal(setenv("LOCKSTEP_DEVICE", "npu", 1), 0);
    assert_status(LS_EUNSUPPORTED, ls_device_open(NULL, &device));
    assert_error("liblockstep_npu.so in /nonexistent/modules");
    assert_int_equal(unsetenv("LOCKSTEP_MODULE_DIR"), 0);
    assert_int_equal(setenv("LOCKSTEP_DEVICE", "onednn", 1), 0);
    if (ls_device_open(NULL, &device) == LS_OK) {
        assert_string_equal(ls_device_name(device), "onednn");
        ls_device_close(device);
    } else {
        assert_error("liblockstep_onednn.so");
    }
    assert_int_equal(unsetenv("LOCKSTEP_DEVICE"), 0);
}

static void a_missing_module_is_an_error_with_the_searched_folders(void **state)
{
    ls_device *device = NULL;

    LS_UNUSED(state);
    assert_int_equal(setenv("LOCKSTEP_MODULE_DIR", "/nonexistent/modules", 1), 0);
    assert_status(LS_EUNSUPPORTED, open_device("npu", &device));
    assert_error("liblockstep_npu.so in /nonexistent/modules");
    assert_status(LS_EINVAL, open_device("../evil", &device));
    assert_error("'../evil' is not a valid device name");
    assert_int_equal(unsetenv("LOCKSTEP_MODULE_DIR"), 0);
}

static void a_card_is_chosen_only_where_a_device_has_cards(void **state)
{
    ls_device *device = NULL;

    LS_UNUSED(state);
    assert_status(LS_EINVAL, open_device("cuda:one", &device));
    assert_error("device 'cuda:one': the number of the card");
    assert_status(LS_EINVAL, open_device("cuda:-1", &device));
    assert_status(LS_EINVAL, open_device("cpu_ref:0", &device));
    assert_error("device 'cpu_ref:0': cpu_ref has no cards to choose from");
    assert_status(LS_EINVAL, open_device("auto:0", &device));
    assert_status(LS_EUNSUPPORTED, open_device("npu:1", &device));
    assert_error("device npu is not part of this installation");
}

static ls_status check_device(const char *name)
{
    return device_check(&(ls_device_options){.size = sizeof(ls_device_options), .name = name});
}

static void a_device_is_checked_without_being_opened(void **state)
{
    LS_UNUSED(state);
    assert_status(LS_OK, check_device("cpu"));
    assert_status(LS_OK, check_device("auto"));
    assert_status(LS_EUNSUPPORTED, check_device("npu"));
    assert_error("available here: cpu (the default)");
    assert_status(LS_EINVAL, check_device("cpu_ref:0"));
}

static void a_file_that_is_not_a_module_is_an_error(void **state)
{
    ls_device *device = NULL;
    char folder[] = "/tmp/lockstep-module-XXXXXX";
    char path[256];
    FILE *f;

    LS_UNUSED(state);
    assert_non_null(mkdtemp(folder));
    assert_true(snprintf(path, sizeof(path), "%s/liblockstep_npu.so", folder) > 0);
    f = fopen(path, "we");
    assert_non_null(f);
    assert_true(fputs("this is not an object\n", f) >= 0);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(setenv("LOCKSTEP_MODULE_DIR", folder, 1), 0);
    assert_status(LS_EUNSUPPORTED, open_device("npu", &device));
    assert_error("cannot load");
    assert_error(path);
    assert_int_equal(unsetenv("LOCKSTEP_MODULE_DIR"), 0);
    assert_int_equal(remove(path), 0);
    assert_int_equal(remove(folder), 0);
}

static void a_module_without_its_library_names_it(void **state)
{
    ls_device *device = NULL;

    LS_UNUSED(state);
    assert_int_equal(setenv("LOCKSTEP_MODULE_DIR", INCOMPLETE_FOLDER, 1), 0);
    assert_status(LS_EUNSUPPORTED, open_device("incomplete", &device));
    assert_error("liblockstep_incomplete.so, which needs a library: liblockstep_absent.so: cannot");
    assert_error("install that library, or add its folder to LD_LIBRARY_PATH");
    assert_int_equal(unsetenv("LOCKSTEP_MODULE_DIR"), 0);
}

static void options_are_checked(void **state)
{
    ls_device *device = NULL;
    ls_device_options opt = {.name = "cpu_ref"};

    LS_UNUSED(state);
    assert_status(LS_EINVAL, ls_device_open(&opt, &device));
    assert_error("must be sizeof");
    opt.size = sizeof(opt);
    opt.threads = -1;
    assert_status(LS_EINVAL, ls_device_open(&opt, &device));
    assert_error("-1 threads; 0 takes the default");
    opt.threads = 0;
    assert_int_equal(setenv("LOCKSTEP_LOCAL_WORLD_SIZE", "many", 1), 0);
    assert_status(LS_EINVAL, ls_device_open(&opt, &device));
    assert_error("LOCKSTEP_LOCAL_WORLD_SIZE");
    assert_int_equal(setenv("LOCKSTEP_LOCAL_WORLD_SIZE", "1000", 1), 0);
    assert_status(LS_OK, ls_device_open(&opt, &device));
    ls_device_close(device);
    assert_int_equal(unsetenv("LOCKSTEP_LOCAL_WORLD_SIZE"), 0);
}

/* --- what launchers say --- */

static void threads_and_local_rank_follow_the_launcher(void **state)
{
    const int cores = ls_usable_cores(NULL);
    char two_shares[32];
    const struct {
        const char *variables[9]; /* name, value, ... */
        int threads;
        int local_rank;
        const char *spin_count;
    } cases[] = {
        {{NULL}, cores, 0, "3000"},
        {{"LOCKSTEP_LOCAL_WORLD_SIZE", "2", "LOCKSTEP_LOCAL_CORES", two_shares}, cores, 0, "3000"},
        {{"LOCKSTEP_LOCAL_WORLD_SIZE", "2", "LOCKSTEP_LOCAL_CORES", "1"}, 1, 0, "0"},
        {{"LOCKSTEP_LOCAL_WORLD_SIZE", "1", "LOCKSTEP_LOCAL_RANK", "0",
          "OMPI_COMM_WORLD_LOCAL_SIZE", "1000000", "OMPI_COMM_WORLD_LOCAL_RANK", "7"},
         1,
         7,
         "0"},
        {{"PMI_LOCAL_SIZE", "1000000", "PMI_LOCAL_RANK", "3"}, 1, 3, "0"},
        {{"SLURM_STEP_TASKS_PER_NODE", "1(x2),60000", "SLURM_NODEID", "2", "SLURM_LOCALID", "5"},
         1,
         5,
         "0"},
    };

    LS_UNUSED(state);
    (void)snprintf(two_shares, sizeof(two_shares), "%d", 2 * cores);
    for (size_t i = 0; i < LS_COUNT_OF(cases); i++) {
        const ls_device_options opt = {.size = sizeof(opt), .name = "cpu_ref"};
        device_choice choice;

        for (size_t k = 0; cases[i].variables[k] != NULL; k += 2)
            assert_int_equal(setenv(cases[i].variables[k], cases[i].variables[k + 1], 1), 0);
        assert_status(LS_OK, device_choose(&opt, &choice));
        for (size_t k = 0; cases[i].variables[k] != NULL; k += 2)
            assert_int_equal(unsetenv(cases[i].variables[k]), 0);
        assert_int_equal(choice.settings.threads, cases[i].threads);
        assert_int_equal(choice.settings.local_rank, cases[i].local_rank);
        assert_string_equal(choice.spin_count, cases[i].spin_count);
    }
}

static void a_device_that_cannot_be_made_leaves_nothing(void **state)
{
    int n_failed = 0;

    LS_UNUSED(state);
    for (uint64_t n = 1; n <= 16; n++) {
        ls_device *device = NULL;
        ls_status st;

        ls_alloc_fail_at(n);
        st = open_device("cpu_ref", &device);
        ls_alloc_fail_at(0);
        n_failed += st != LS_OK;
        if (st != LS_OK)
            assert_status(LS_ENOMEM, st);
        ls_device_close(device);
    }
    assert_true(n_failed >= 2); // the device, its pool
}

/* --- a device that keeps its results reversed --- */

struct layout {
    int unused;
};
static const layout reversed = {0};

struct packed {
    uint64_t version;
};

static int n_freed_packed;

static ls_status backwards_relu(device_state *self, const op_call *call)
{
    const size_t count = ls_tensor_count(call->in[0]);
    const float *x;
    float *y;

    LS_UNUSED(self);
    LS_TRY(tensor_place(call->out[0], &reversed, tensor_bytes(call->out[0])));
    x = call->in[0]->storage->data;
    y = call->out[0]->storage->data;
    for (size_t i = 0; i < count; i++)
        y[count - 1 - i] = x[i] > 0 ? x[i] : 0;
    return LS_OK;
}

static ls_status backwards_copy(device_state *self, const op_call *call)
{
    const size_t count = ls_tensor_count(call->in[0]);
    const float *src = call->in[0]->storage->data;
    float *dst = call->out[0]->storage->data;
    const bool turn = call->in[0]->storage->layout != call->out[0]->storage->layout;

    LS_UNUSED(self);
    for (size_t i = 0; i < count; i++)
        dst[turn ? count - 1 - i : i] = src[i];
    return LS_OK;
}

static kernel_fn backwards_find(device_state *self, const op_call *call)
{
    LS_UNUSED(self);
    if (call->op == OP_COPY)
        return backwards_copy;
    return call->op == OP_RELU && tensor_is_plain(call->in[0]) ? backwards_relu : NULL;
}

static void count_packed(device_state *self, packed *p)
{
    LS_UNUSED(self);
    n_freed_packed++;
    ls_free(p);
}

/* cpu_ref with these kernels in front. */
static void turn_around(ls_device *device, device_ops *ops)
{
    *ops = *device->ops;
    ops->name = "backwards";
    ops->find_kernel = backwards_find;
    ops->free_packed = count_packed;
    device->ops = ops;
}

static void an_opaque_result_is_read_in_row_major_order(void **state)
{
    ls_device *device = open_reference();
    device_ops ops;
    ls_tensor *x = tensor_of(device, LS_F32, 1, (int64_t[]){3}, (double[]){1, -2, 3});
    ls_tensor *y = unplaced_of(device, LS_F32, 1, (int64_t[]){3});
    uint64_t version;

    LS_UNUSED(state);
    turn_around(device, &ops);
    assert_status(
        LS_OK, device_run(device,
                          &(op_call){.op = OP_RELU, .n_in = 1, .n_out = 1, .in = {x}, .out = {y}}));
    assert_false(tensor_is_plain(y));
    version = y->storage->version;
    assert_elements(y, (double[]){1, 0, 3}, 0);
    assert_true(tensor_is_plain(y));
    assert_int_equal(y->storage->version, version);
    destroy_all((ls_tensor *[]){x, y}, 2);
    ls_device_close(device);
}

static void a_missing_kernel_runs_on_plain_layouts(void **state)
{
    ls_device *device = open_reference();
    device_ops ops;
    ls_tensor *x = tensor_of(device, LS_F32, 1, (int64_t[]){3}, (double[]){1, -2, 3});
    ls_tensor *y = unplaced_of(device, LS_F32, 1, (int64_t[]){3});
    ls_tensor *sum = unplaced_of(device, LS_F32, 1, (int64_t[]){3});

    LS_UNUSED(state);
    turn_around(device, &ops);
    assert_status(
        LS_OK, device_run(device,
                          &(op_call){.op = OP_RELU, .n_in = 1, .n_out = 1, .in = {x}, .out = {y}}));
    assert_status(
        LS_OK,
        device_run(device,
                   &(op_call){.op = OP_BINARY, .n_in = 2, .n_out = 1, .in = {x, y}, .out = {sum}}));
    assert_elements(sum, (double[]){2, -2, 6}, 0);
    destroy_all((ls_tensor *[]){x, y, sum}, 3);
    ls_device_close(device);
}

static void views_of_an_opaque_tensor_and_copies_into_it_agree(void **state)
{
    ls_device *device = open_reference();
    device_ops ops;
    ls_tensor *x = tensor_of(device, LS_F32, 1, (int64_t[]){4}, (double[]){1, 2, 3, 4});
    ls_tensor *y = unplaced_of(device, LS_F32, 1, (int64_t[]){4});
    ls_tensor *second = unplaced_of(device, LS_F32, 1, (int64_t[]){4});
    ls_tensor *view = NULL;

    LS_UNUSED(state);
    turn_around(device, &ops);
    assert_status(
        LS_OK, device_run(device,
                          &(op_call){.op = OP_RELU, .n_in = 1, .n_out = 1, .in = {x}, .out = {y}}));
    tensor_share(second, y);
    assert_status(LS_OK, ls_tensor_copy(y, x));
    assert_status(LS_OK, ls_tensor_view(y, 2, (int64_t[]){2, 2}, &view));
    assert_elements(view, (double[]){1, 2, 3, 4}, 0);
    assert_elements(second, (double[]){1, 2, 3, 4}, 0);
    destroy_all((ls_tensor *[]){x, y, second, view}, 4);
    ls_device_close(device);
}

static void packed_copies_are_freed_with_their_storage(void **state)
{
    ls_device *device = open_reference();
    device_ops ops;
    ls_tensor *w = tensor_of(device, LS_F32, 1, (int64_t[]){2}, (double[]){1, 2});
    ls_tensor *view = NULL;

    LS_UNUSED(state);
    turn_around(device, &ops);
    n_freed_packed = 0;
    w->storage->packed = ls_calloc(1, sizeof(packed));
    assert_non_null(w->storage->packed);
    assert_status(LS_OK, ls_tensor_view(w, 1, (int64_t[]){2}, &view));
    ls_tensor_destroy(w);
    assert_int_equal(n_freed_packed, 0);
    ls_tensor_destroy(view);
    assert_int_equal(n_freed_packed, 1);
    ls_device_close(device);
}

/* --- a device with little memory --- */

static size_t bytes_left;

static void *limited_alloc(device_state *self, size_t bytes)
{
    if (bytes > bytes_left)
        return NULL;
    bytes_left -= bytes;
    return cpu_ref_device_ops.alloc(self, bytes);
}

static void limited_free(device_state *self, void *block, size_t bytes)
{
    bytes_left += bytes;
    cpu_ref_device_ops.free(self, block, bytes);
}

static ls_tensor *bytes_of(ls_device *device, int64_t n)
{
    ls_tensor *t = NULL;

    assert_status(LS_OK, ls_tensor_create(device, LS_I8, 1, &n, &t));
    return t;
}

/* Values of a step and persistent tensors have separate free lists; both are freed for
 * new memory. */
static void a_full_device_frees_unused_blocks_of_other_sizes(void **state)
{
    ls_device *device = open_reference();
    device_ops ops = cpu_ref_device_ops;
    ls_tensor *used;
    ls_tensor *large;
    ls_tensor *value;
    ls_tensor *none = NULL;

    LS_UNUSED(state);
    ops.alloc = limited_alloc;
    ops.free = limited_free;
    device->ops = &ops;
    bytes_left = 4096;
    used = bytes_of(device, 1024);
    ls_tensor_destroy(bytes_of(device, 512));
    value = unplaced_of(device, LS_I8, 1, (int64_t[]){768});
    assert_status(LS_OK, tensor_place(value, NULL, 0));
    ls_tensor_destroy(value);
    assert_int_equal(bytes_left, 4096 - 1024 - 512 - 768);
    large = bytes_of(device, 3072);
    assert_int_equal(bytes_left, 0);
    assert_status(LS_ENOMEM, ls_tensor_create(device, LS_I8, 1, (int64_t[]){64}, &none));
    assert_error("64 bytes on device cpu_ref");
    ls_tensor_destroy(used);
    ls_tensor_destroy(large);
    ls_device_close(device);
    assert_int_equal(bytes_left, 4096);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_reference_device_opens_by_name),
        cmocka_unit_test(a_host_device_has_no_queue_and_no_memory_of_its_own),
        cmocka_unit_test(the_variable_chooses_where_the_caller_does_not),
        cmocka_unit_test(a_missing_module_is_an_error_with_the_searched_folders),
        cmocka_unit_test(a_card_is_chosen_only_where_a_device_has_cards),
        cmocka_unit_test(a_device_is_checked_without_being_opened),
        cmocka_unit_test(a_file_that_is_not_a_module_is_an_error),
        cmocka_unit_test(a_module_without_its_library_names_it),
        cmocka_unit_test(options_are_checked),
        cmocka_unit_test(threads_and_local_rank_follow_the_launcher),
        cmocka_unit_test(a_device_that_cannot_be_made_leaves_nothing),
        cmocka_unit_test(an_opaque_result_is_read_in_row_major_order),
        cmocka_unit_test(a_missing_kernel_runs_on_plain_layouts),
        cmocka_unit_test(views_of_an_opaque_tensor_and_copies_into_it_agree),
        cmocka_unit_test(packed_copies_are_freed_with_their_storage),
        cmocka_unit_test(a_full_device_frees_unused_blocks_of_other_sizes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
