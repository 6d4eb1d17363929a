/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cuda_math.c - around cuDNN and cuBLASLt, over host memory: plans that are measured and
 * stored, packed copies of parameters, and memory that the libraries cannot read as it is.
 */
#include "tensor/cuda/cuda_testing.h"

#include "devices/dnn_plan_host.h"

#include "base/alloc.h"
#include "base/file.h"
#include "base/module.h"
#include "base/text.h"
#include "tensor/doubles.h"

#include <dirent.h>
#include <dlfcn.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* --- set-up --- */

static char cache[64]; /* XDG_CACHE_HOME of each test */

static dnn_host *reset_dnn_host(void)
{
    dnn_host_state_fn get;
    void *symbol = cudahost_symbol(DNN_HOST_STATE);
    dnn_host *host;

    (void)cudahost_reset();
    assert_non_null(symbol);
    memcpy(&get, &symbol, sizeof(get)); // C has no conversion between these two
    host = get();
    *host = (dnn_host){0};
    return host;
}

static int make_cache(void **state)
{
    LS_UNUSED(state);
    text_format(cache, sizeof(cache), "/tmp/lockstep-plans-XXXXXX");
    assert_non_null(mkdtemp(cache));
    assert_int_equal(setenv("XDG_CACHE_HOME", cache, 1), 0);
    return 0;
}

static void plans_folder(char *buf, size_t n)
{
    text_format(buf, n, "%s/lockstep/plans", cache);
}

/* The path of the only stored plan; the number of files. */
static int stored_plan(char *path, size_t n)
{
    char folder[128];
    const struct dirent *entry;
    int n_files = 0;
    DIR *d;

    plans_folder(folder, sizeof(folder));
    d = opendir(folder);
    while (d != NULL && (entry = file_next_entry(d)) != NULL) {
        if (entry->d_name[0] == '.')
            continue;
        text_format(path, n, "%s/%s", folder, entry->d_name);
        n_files++;
    }
    if (d != NULL)
        (void)closedir(d);
    return n_files;
}

static int remove_cache(void **state)
{
    char path[512];

    LS_UNUSED(state);
    while (stored_plan(path, sizeof(path)) > 0)
        assert_int_equal(unlink(path), 0);
    plans_folder(path, sizeof(path));
    (void)rmdir(path);
    text_format(path, sizeof(path), "%s/lockstep", cache);
    (void)rmdir(path);
    assert_int_equal(rmdir(cache), 0);
    (void)unsetenv("LOCKSTEP_AUTOTUNE");
    (void)unsetenv("LOCKSTEP_DETERMINISTIC");
    return 0;
}

/* --- convolutions --- */

/* y of a 3x3 convolution with seeded x and the given w; the caller destroys it. */
static ls_tensor *convolve(ls_device *device, ls_dtype type, ls_tensor *w)
{
    const int64_t dims[4] = {2, w->dims[1], 9, 8};
    const int64_t out[4] = {2, w->dims[0], 9, 8};
    const int margin = (int)w->dims[2] / 2;
    ls_tensor *x = random_tensor(device, type, 4, dims, 11);
    ls_tensor *y = unplaced_of(device, type, 4, out);

    assert_status(LS_OK, device_run(device, &(op_call){.op = OP_CONV2D,
                                                       .attrs = {.stride = {1, 1},
                                                                 .padding = {margin, margin},
                                                                 .dilation = {1, 1},
                                                                 .groups = 1},
                                                       .n_in = 3,
                                                       .n_out = 1,
                                                       .in = {x, w},
                                                       .out = {y}}));
    ls_tensor_destroy(x);
    return y;
}

static const int64_t weights[4] = {6, 5, 3, 3};

/* Opens the device, runs one convolution and closes the device. */
static void run_once(void)
{
    ls_device *device = open_cudahost("cudahost");
    ls_tensor *w = random_tensor(device, LS_F32, 4, weights, 3);
    ls_tensor *y = convolve(device, LS_F32, w);

    destroy_all((ls_tensor *[]){w, y}, 2);
    assert_status(LS_OK, ls_device_close(device));
}

/* --- plans --- */

static void the_fastest_plan_is_used_and_stored(void **state)
{
    dnn_host *host = reset_dnn_host();
    char path[512];

    LS_UNUSED(state);
    host->slow = 1U << 0 | 1U << 2;
    run_once();
    assert_int_equal(host->n_created, DNN_HOST_PLANS);
    assert_true(host->n_runs > DNN_HOST_PLANS);
    assert_int_equal(host->last_run, 1);
    assert_int_equal(stored_plan(path, sizeof(path)), 1);
    *host = (dnn_host){0};
    run_once();
    assert_int_equal(host->n_created, 0);
    assert_int_equal(host->n_loaded, 1);
    assert_int_equal(host->n_runs, 1);
    assert_int_equal(host->last_run, 1);
}

static void a_plan_that_cannot_run_is_passed_over(void **state)
{
    dnn_host *host = reset_dnn_host();

    LS_UNUSED(state);
    host->refused = 1U << 0;
    host->slow = 1U << 1;
    run_once();
    assert_int_equal(host->last_run, 2);
}

static void a_stored_plan_that_cannot_run_is_replaced(void **state)
{
    dnn_host *host = reset_dnn_host();

    LS_UNUSED(state);
    host->slow = 1U << 0 | 1U << 2;
    run_once();
    *host = (dnn_host){.refused = 1U << 1, .slow = 1U << 0};
    run_once();
    assert_int_equal(host->n_loaded, 1);
    assert_int_equal(host->last_run, 2);
    *host = (dnn_host){0};
    run_once();
    assert_int_equal(host->n_created, 0);
    assert_int_equal(host->last_run, 2);
}

static void without_a_plan_that_runs_the_operator_fails(void **state)
{
    dnn_host *host = reset_dnn_host();
    ls_device *device = open_cudahost("cudahost");
    const int64_t dims[4] = {2, 5, 9, 8};
    ls_tensor *w = random_tensor(device, LS_F32, 4, weights, 3);
    ls_tensor *x = random_tensor(device, LS_F32, 4, dims, 3);
    ls_tensor *y = unplaced_of(device, LS_F32, 4, (const int64_t[4]){2, 6, 7, 6});
    char path[512];

    LS_UNUSED(state);
    host->refused = ~0U;
    assert_status(
        LS_EUNSUPPORTED,
        device_run(device, &(op_call){.op = OP_CONV2D,
                                      .attrs = {.stride = {1, 1}, .dilation = {1, 1}, .groups = 1},
                                      .n_in = 3,
                                      .n_out = 1,
                                      .in = {x, w},
                                      .out = {y}}));
    assert_int_equal(stored_plan(path, sizeof(path)), 0);
    destroy_all((ls_tensor *[]){x, w, y}, 3);
    assert_status(LS_OK, ls_device_close(device));
    assert_int_equal(cudahost_reset()->n_events, 0);
}

static void nothing_is_measured_or_stored_when_that_is_off(void **state)
{
    static const char *const settings[][2] = {{"LOCKSTEP_AUTOTUNE", "0"},
                                              {"LOCKSTEP_DETERMINISTIC", "1"}};
    char path[512];

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(settings); i++) {
        dnn_host *host = reset_dnn_host();

        assert_int_equal(setenv(settings[i][0], settings[i][1], 1), 0);
        host->slow = 1U << 0;
        run_once();
        assert_int_equal(host->n_created, 1);
        assert_int_equal(host->n_runs, 1);
        assert_int_equal(host->last_run, 0);
        host->refused = 1U << 0 | 1U << 1; // the next plan that can run
        run_once();
        assert_int_equal(host->last_run, 2);
        assert_int_equal(stored_plan(path, sizeof(path)), 0);
        assert_int_equal(unsetenv(settings[i][0]), 0);
    }
}

/* Runs once with the file changed: the plan is made again, and the file is valid afterwards. */
static void check_replaced(dnn_host *host, const char *path, const char *data, size_t bytes)
{
    assert_status(LS_OK, file_replace(path, data, bytes));
    *host = (dnn_host){0};
    run_once();
    assert_int_equal(host->n_created, DNN_HOST_PLANS);
    assert_int_equal(host->n_loaded, 0);
    *host = (dnn_host){0};
    run_once();
    assert_int_equal(host->n_loaded, 1);
}

static void a_damaged_plan_file_is_ignored_and_replaced(void **state)
{
    dnn_host *host = reset_dnn_host();
    char path[512];
    char *good;
    size_t bytes;

    LS_UNUSED(state);
    run_once();
    assert_int_equal(stored_plan(path, sizeof(path)), 1);
    assert_status(LS_OK, file_read(path, 1 << 20, &good, &bytes));
    for (size_t at = 0; at < bytes; at += 41) { // every field, key, card and text
        good[at] = (char)(good[at] ^ 0x20);
        check_replaced(host, path, good, bytes);
        good[at] = (char)(good[at] ^ 0x20);
    }
    for (size_t shorter = 0; shorter < bytes; shorter += bytes / 5)
        check_replaced(host, path, good, shorter);
    ls_free(good);
}

static void a_plan_file_that_others_can_write_is_not_read(void **state)
{
    dnn_host *host = reset_dnn_host();
    char path[512];

    LS_UNUSED(state);
    run_once();
    assert_int_equal(stored_plan(path, sizeof(path)), 1);
    assert_int_equal(chmod(path, 0666), 0);
    *host = (dnn_host){0};
    run_once();
    assert_int_equal(host->n_loaded, 0);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(symlink("/etc/passwd", path), 0);
    *host = (dnn_host){0};
    run_once();
    assert_int_equal(host->n_loaded, 0);
}

static void a_cache_that_cannot_be_written_changes_nothing(void **state)
{
    dnn_host *host = reset_dnn_host();

    LS_UNUSED(state);
    assert_int_equal(setenv("XDG_CACHE_HOME", "/dev/null", 1), 0);
    run_once();
    assert_int_equal(host->n_created, DNN_HOST_PLANS);
}

static void processes_store_the_same_plan_at_once(void **state)
{
    enum { PROCESSES = 6 };
    dnn_host *host = reset_dnn_host();
    pid_t pids[PROCESSES];
    char path[512];

    LS_UNUSED(state);
    for (int i = 0; i < PROCESSES; i++) {
        pids[i] = fork();
        assert_true(pids[i] >= 0);
        if (pids[i] == 0) {
            run_once();
            _exit(0);
        }
    }
    for (int i = 0; i < PROCESSES; i++) {
        int how = -1;

        assert_int_equal(waitpid(pids[i], &how, 0), pids[i]);
        assert_int_equal(how, 0);
    }
    assert_int_equal(stored_plan(path, sizeof(path)), 1);
    run_once();
    assert_int_equal(host->n_loaded, 1);
}

/* --- packed copies --- */

static void assert_near(const ls_tensor *got, const ls_tensor *want)
{
    assert_int_equal(ls_tensor_count(got), ls_tensor_count(want));
    for (size_t i = 0; i < ls_tensor_count(want); i++) {
        const double difference = element_of(got, i) - element_of(want, i);

        if (!(difference < 0.1 && difference > -0.1)) // the sums of 45 products below 1
            fail_msg("element %zu is %g, not %g", i, element_of(got, i), element_of(want, i));
    }
}

static void packed_weights_follow_writes(void **state)
{
    ls_device *device;
    ls_device *reference = open_reference();
    ls_tensor *w[2];
    double *values;

    LS_UNUSED(state);
    (void)reset_dnn_host();
    device = open_cudahost("cudahost");
    w[0] = random_tensor(device, LS_F32, 4, weights, 3);
    w[1] = random_tensor(reference, LS_F32, 4, weights, 3);
    values = ls_calloc(ls_tensor_count(w[0]), sizeof(*values));
    assert_non_null(values);
    for (int pass = 0; pass < 3; pass++) {
        ls_tensor *y[2] = {convolve(device, LS_BF16, w[0]), convolve(reference, LS_BF16, w[1])};

        assert_near(y[0], y[1]);
        destroy_all(y, 2);
        for (size_t i = 0; i < ls_tensor_count(w[0]); i++)
            values[i] = (double)(pass + 1) * (double)(i % 7) / 16;
        for (int i = 0; i < 2; i++)
            assert_status(LS_OK, doubles_write(w[i], values));
    }
    ls_free(values);
    destroy_all(w, 2);
    assert_status(LS_OK, ls_device_close(device));
    assert_status(LS_OK, ls_device_close(reference));
}

/* Of kernels and plans, also those that a graph has not run yet. */
static uint64_t count_launches(ls_device *device)
{
    device_usage usage;

    assert_status(LS_OK, device_get_usage(device, &usage));
    return usage.n_launches;
}

static void all_parameters_are_packed_in_one_launch_a_step(void **state)
{
    enum { LAYERS = 5 };
    gpu_host *gpu;
    ls_device *device;
    ls_tensor *w[LAYERS];
    float first = 0.5F;

    LS_UNUSED(state);
    (void)reset_dnn_host();
    gpu = cudahost_reset();
    device = open_cudahost("cudahost");
    for (int i = 0; i < LAYERS; i++) {
        w[i] = random_tensor(device, LS_F32, 4, (const int64_t[4]){6 + i, 5, 3, 3}, 3);
        ls_tensor_destroy(convolve(device, LS_BF16, w[i]));
    }
    for (int step = 0; step < 2; step++) {
        uint64_t launches;
        uint64_t without;

        for (int i = 0; i < LAYERS; i++)
            assert_status(LS_OK, device_write(device, tensor_elements(w[i]), &first, 4));
        for (int i = 0; i < LAYERS; i++)
            tensor_written(w[i], "test");
        launches = count_launches(device);
        for (int i = 0; i < LAYERS; i++)
            ls_tensor_destroy(convolve(device, LS_BF16, w[i]));
        launches = count_launches(device) - launches;
        without = count_launches(device);
        for (int i = 0; i < LAYERS; i++)
            ls_tensor_destroy(convolve(device, LS_BF16, w[i]));
        without = count_launches(device) - without;
        assert_int_equal(launches, without + 1);
    }
    destroy_all(w, LAYERS);
    assert_status(LS_OK, ls_device_close(device));
    assert_int_equal(gpu->used_bytes, 0);
}

/* --- padded images --- */

/* x in bfloat16, by a cast of *launches. */
static ls_tensor *cast_images(ls_tensor *x, uint64_t *launches)
{
    ls_tensor *y = unplaced_of(x->device, LS_BF16, x->n_dims, x->dims);

    *launches = count_launches(x->device);
    assert_status(
        LS_OK, device_run(x->device,
                          &(op_call){.op = OP_CAST, .n_in = 1, .n_out = 1, .in = {x}, .out = {y}}));
    *launches = count_launches(x->device) - *launches;
    return y;
}

static void run_conv(op_kind op, ls_tensor *a, ls_tensor *b, ls_tensor *out, int groups)
{
    assert_status(LS_OK, device_run(out->device, &(op_call){.op = op,
                                                            .attrs = {.stride = {1, 1},
                                                                      .padding = {1, 1},
                                                                      .dilation = {1, 1},
                                                                      .groups = groups},
                                                            .n_in = 2,
                                                            .n_out = 1,
                                                            .in = {a, b},
                                                            .out = {out}}));
}

/* Destroys both. */
static void assert_equal_elements(ls_tensor *got, ls_tensor *want)
{
    for (size_t i = 0; i < ls_tensor_count(want); i++)
        assert_true(element_of(got, i) == element_of(want, i));
    destroy_all((ls_tensor *[]){got, want}, 2);
}

/* The cast writes what convolutions read: neither forward nor backward copies the images. */
static void images_are_padded_once_a_step(void **state)
{
    enum { CHANNELS = 4, OUTPUTS = 6 };
    const int64_t dims[4] = {2, CHANNELS, 9, 8};
    const int64_t out[4] = {2, OUTPUTS, 9, 8};
    ls_device *device;
    ls_tensor *x, *dy;

    LS_UNUSED(state);
    (void)reset_dnn_host();
    assert_int_equal(setenv("LOCKSTEP_AUTOTUNE", "0", 1), 0);
    device = open_cudahost("cudahost");
    x = random_tensor(device, LS_F32, 4, dims, 1);
    dy = random_tensor(device, LS_BF16, 4, out, 2);
    for (int groups = 1; groups <= 2; groups++) {
        const int64_t of_weights[4] = {OUTPUTS, CHANNELS / groups, 3, 3};
        ls_tensor *w = random_tensor(device, LS_F32, 4, of_weights, 3);
        ls_tensor *y[2], *dw[2];
        uint64_t n[2];

        for (int i = 0; i < 2; i++) {
            ls_tensor *images = cast_images(x, &n[i]);
            void *elements;

            assert_int_equal(n[i], 1);
            if (i == 1) // as images that no cast has made
                assert_status(LS_OK, tensor_plain(images, &elements));
            y[i] = unplaced_of(device, LS_BF16, 4, out);
            dw[i] = random_tensor(device, LS_F32, 4, of_weights, 4);
            run_conv(OP_CONV2D, images, w, y[i], groups); // packs the weights
            ls_tensor_destroy(y[i]);
            y[i] = unplaced_of(device, LS_BF16, 4, out);
            n[i] = count_launches(device);
            run_conv(OP_CONV2D, images, w, y[i], groups);
            run_conv(OP_CONV2D_BACKWARD_WEIGHTS, images, dy, dw[i], groups);
            n[i] = count_launches(device) - n[i];
            ls_tensor_destroy(images);
        }
        if (groups == 1)
            assert_int_equal(n[0] + 2, n[1]);
        assert_equal_elements(y[0], y[1]);
        assert_equal_elements(dw[0], dw[1]);
        ls_tensor_destroy(w);
    }
    destroy_all((ls_tensor *[]){x, dy}, 2);
    assert_status(LS_OK, ls_device_close(device));
}

/* Also those that write to them. */
static void other_operators_see_padded_images_as_any_tensor(void **state)
{
    const int64_t dims[4] = {2, 3, 5, 4};
    ls_device *device;
    ls_tensor *x, *images, *sum, *positive;
    uint64_t n;

    LS_UNUSED(state);
    (void)reset_dnn_host();
    device = open_cudahost("cudahost");
    x = random_tensor(device, LS_F32, 4, dims, 1);
    images = cast_images(x, &n);
    sum = cast_images(x, &n);
    positive = unplaced_of(device, LS_BF16, 4, dims);
    assert_status(
        LS_OK,
        device_run(
            device,
            &(op_call){.op = OP_RELU, .n_in = 1, .n_out = 1, .in = {images}, .out = {positive}}));
    ls_tensor_destroy(images);
    images = cast_images(x, &n);
    assert_status(
        LS_OK,
        device_run(
            device,
            &(op_call){.op = OP_ADD_INTO, .n_in = 1, .n_out = 1, .in = {images}, .out = {sum}}));
    for (size_t i = 0; i < ls_tensor_count(x); i++) {
        const double v = element_of(images, i);

        assert_true(fabs(v - element_of(x, i)) <= fabs(v) / 128);
        assert_true(element_of(sum, i) == 2 * v);
        assert_true(element_of(positive, i) == (v > 0 ? v : 0));
    }
    destroy_all((ls_tensor *[]){x, images, sum, positive}, 4);
    assert_status(LS_OK, ls_device_close(device));
}

/* --- bias gradients --- */

/* The launches of the gradients of a linear layer's weights and bias, of values in `type`. */
static uint64_t launches_of_gradients(ls_dtype type, bool accumulate)
{
    enum { ROWS = 5, INPUTS = 4, OUTPUTS = 3 };
    const ls_dtype wide = type == LS_F64 ? LS_F64 : LS_F32;
    ls_device *device = open_cudahost("cudahost");
    ls_tensor *x = random_tensor(device, type, 2, (const int64_t[]){ROWS, INPUTS}, 1);
    ls_tensor *dy = random_tensor(device, type, 2, (const int64_t[]){ROWS, OUTPUTS}, 2);
    ls_tensor *dw = random_tensor(device, wide, 2, (const int64_t[]){OUTPUTS, INPUTS}, 3);
    ls_tensor *db = random_tensor(device, wide, 1, (const int64_t[]){OUTPUTS}, 4);
    double want[OUTPUTS];
    uint64_t n;

    for (size_t o = 0; o < OUTPUTS; o++) {
        want[o] = accumulate ? element_of(db, o) : 0;
        for (size_t row = 0; row < ROWS; row++)
            want[o] += element_of(dy, row * OUTPUTS + o);
    }
    n = count_launches(device);
    assert_status(LS_OK, device_run(device, &(op_call){.op = OP_LINEAR_BACKWARD_WEIGHTS,
                                                       .accumulate = accumulate,
                                                       .n_in = 2,
                                                       .n_out = 2,
                                                       .in = {x, dy},
                                                       .out = {dw, db}}));
    n = count_launches(device) - n;
    for (size_t o = 0; o < OUTPUTS; o++)
        assert_true(fabs(element_of(db, o) - want[o]) < 1e-5);
    destroy_all((ls_tensor *[]){x, dy, dw, db}, 4);
    assert_status(LS_OK, ls_device_close(device));
    return n;
}

static void the_product_of_weight_gradients_sums_those_of_the_bias(void **state)
{
    LS_UNUSED(state);
    (void)reset_dnn_host();
    assert_int_equal(launches_of_gradients(LS_F32, false), 1);
    assert_int_equal(launches_of_gradients(LS_BF16, false), 1);
    assert_int_equal(launches_of_gradients(LS_F16, false), 1);
}

/* Where the product cannot, or its order of sums is not known. */
static void a_kernel_sums_the_gradients_of_the_bias_otherwise(void **state)
{
    LS_UNUSED(state);
    (void)reset_dnn_host();
    assert_int_equal(launches_of_gradients(LS_F64, false), 2);
    assert_int_equal(launches_of_gradients(LS_F32, true), 2);
    assert_int_equal(setenv("LOCKSTEP_DETERMINISTIC", "1", 1), 0);
    assert_int_equal(launches_of_gradients(LS_F32, false), 2);
    assert_int_equal(launches_of_gradients(LS_BF16, false), 2);
}

/* --- memory that is not aligned --- */

/* A parameter that begins `offset` elements into a larger one. */
static ls_tensor *part_of(ls_tensor *whole, int64_t offset, int n_dims, const int64_t *dims)
{
    ls_tensor *part = NULL;

    assert_status(LS_OK, tensor_shape(whole->device, whole->dtype, n_dims, dims, &part));
    tensor_share(part, whole);
    part->offset = (size_t)offset * sizeof(float);
    return part;
}

static void parameters_need_no_alignment(void **state)
{
    const int64_t dims[4] = {6, 5, 1, 1};
    ls_device *device;
    ls_tensor *whole;

    LS_UNUSED(state);
    (void)reset_dnn_host();
    device = open_cudahost("cudahost");
    whole = random_tensor(device, LS_F32, 1, (const int64_t[]){40}, 5);
    for (int64_t offset = 0; offset < 4; offset++) {
        double values[30];
        ls_tensor *part = part_of(whole, offset, 4, dims);
        ls_tensor *copy;
        ls_tensor *y[2];

        for (size_t i = 0; i < 30; i++)
            values[i] = element_of(part, i);
        copy = tensor_of(device, LS_F32, 4, dims, values);
        y[0] = convolve(device, LS_F32, part);
        y[1] = convolve(device, LS_F32, copy);
        for (size_t i = 0; i < ls_tensor_count(y[0]); i++)
            assert_true(element_of(y[0], i) == element_of(y[1], i));
        destroy_all((ls_tensor *[]){part, copy, y[0], y[1]}, 4);
    }
    ls_tensor_destroy(whole);
    assert_status(LS_OK, ls_device_close(device));
}

/* --- out of memory --- */

static void every_allocation_of_a_convolution_may_fail(void **state)
{
    uint64_t n = 1;
    int n_failed = 0;
    bool has_failed = true;

    LS_UNUSED(state);
    while (has_failed) {
        gpu_host *gpu;
        ls_device *device;
        ls_tensor *x;
        ls_tensor *w;
        ls_tensor *y;
        ls_status st;

        (void)reset_dnn_host();
        gpu = cudahost_reset();
        device = open_cudahost("cudahost");
        x = random_tensor(device, LS_BF16, 4, (const int64_t[4]){2, 3, 9, 8}, 3);
        w = random_tensor(device, LS_F32, 4, (const int64_t[4]){6, 3, 3, 3}, 3);
        y = unplaced_of(device, LS_BF16, 4, (const int64_t[4]){2, 6, 7, 6});
        gpu->fail_malloc_at = n++;
        st = device_run(device,
                        &(op_call){.op = OP_CONV2D,
                                   .attrs = {.stride = {1, 1}, .dilation = {1, 1}, .groups = 1},
                                   .n_in = 3,
                                   .n_out = 1,
                                   .in = {x, w},
                                   .out = {y}});
        has_failed = gpu->fail_malloc_at == 0;
        // The pool gives back what it holds, and tries again.
        assert_status(has_failed && st != LS_OK ? LS_ENOMEM : LS_OK, st);
        n_failed += st != LS_OK;
        gpu->fail_malloc_at = 0;
        destroy_all((ls_tensor *[]){x, w, y}, 3);
        assert_status(LS_OK, ls_device_close(device));
        assert_int_equal(gpu->used_bytes, 0);
    }
    assert_true(n_failed >= 2); // the packed weights and the workspace
}

/* --- a card that is lost --- */

/* A product of matrices, or a convolution of images of one pixel: no kernel of our own runs. */
static ls_status run_library(ls_device *device, op_kind op, ls_tensor *a, ls_tensor *b)
{
    ls_tensor *y = unplaced_of(device, LS_F32, a->n_dims, a->dims);
    const ls_status st =
        device_run(device, &(op_call){.op = op,
                                      .attrs = {.stride = {1, 1}, .dilation = {1, 1}, .groups = 1},
                                      .n_in = 3,
                                      .n_out = 1,
                                      .in = {a, b},
                                      .out = {y}});

    ls_tensor_destroy(y);
    return st;
}

/* The library is the first that sees it, and knows only that its own call has failed. */
static void check_loss(op_kind op, int n_dims, const char *library)
{
    const int64_t dims[4] = {8, 8, 1, 1};
    gpu_host *gpu;
    ls_device *device;
    ls_tensor *a;
    ls_tensor *b;

    (void)reset_dnn_host();
    gpu = cudahost_reset();
    device = open_cudahost("cudahost");
    a = random_tensor(device, LS_F32, n_dims, dims, 3);
    b = random_tensor(device, LS_F32, n_dims, dims, 5);
    assert_status(LS_OK, run_library(device, op, a, b)); // has made what it allocates
    gpu->is_lost = true;
    assert_status(LS_ESYSTEM, run_library(device, op, a, b));
    assert_non_null(strstr(ls_last_error(), "cudahost:0 (host memory, PCI 10000000:00:00.0) can no "
                                            "longer be used by this process: "));
    // With graphs the launch of the segment may be the first that sees it.
    assert_true(strstr(ls_last_error(), library) != NULL ||
                strstr(ls_last_error(), "graph_launch") != NULL);
    gpu->is_lost = false;
    destroy_all((ls_tensor *[]){a, b}, 2);
    assert_status(LS_OK, ls_device_close(device));
}

static void a_card_that_was_lost_before_a_call_of_a_library_is_reported_as_lost(void **state)
{
    LS_UNUSED(state);
    check_loss(OP_MATMUL, 2, "cuBLASLt failed: error 2: unspecified launch failure");
    check_loss(OP_CONV2D, 4, "cuDNN failed: error 2: unspecified launch failure");
}

#define PLAN_TEST(name) cmocka_unit_test_setup_teardown(name, make_cache, remove_cache)

int main(void)
{
    const struct CMUnitTest tests[] = {
        PLAN_TEST(the_fastest_plan_is_used_and_stored),
        PLAN_TEST(a_plan_that_cannot_run_is_passed_over),
        PLAN_TEST(a_stored_plan_that_cannot_run_is_replaced),
        PLAN_TEST(without_a_plan_that_runs_the_operator_fails),
        PLAN_TEST(nothing_is_measured_or_stored_when_that_is_off),
        PLAN_TEST(a_damaged_plan_file_is_ignored_and_replaced),
        PLAN_TEST(a_plan_file_that_others_can_write_is_not_read),
        PLAN_TEST(a_cache_that_cannot_be_written_changes_nothing),
        PLAN_TEST(processes_store_the_same_plan_at_once),
        PLAN_TEST(packed_weights_follow_writes),
        PLAN_TEST(all_parameters_are_packed_in_one_launch_a_step),
        PLAN_TEST(images_are_padded_once_a_step),
        PLAN_TEST(other_operators_see_padded_images_as_any_tensor),
        PLAN_TEST(the_product_of_weight_gradients_sums_those_of_the_bias),
        PLAN_TEST(a_kernel_sums_the_gradients_of_the_bias_otherwise),
        PLAN_TEST(parameters_need_no_alignment),
        PLAN_TEST(every_allocation_of_a_convolution_may_fail),
        PLAN_TEST(a_card_that_was_lost_before_a_call_of_a_library_is_reported_as_lost),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
