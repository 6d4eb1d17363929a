/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_architectures.c - every architecture of models/ has the parameters and buffers of
 * torchvision's, by name, shape and order; some are run, and give its logits.
 *
 * The linker replaces the functions that make tensors and draw initial values (see CMakeLists.txt):
 * large tensors of the first test share memory that is never touched, and no weights are drawn.
 */
#include "tensor/testing.h"

#include "models/architectures.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

enum { SMALL = 1 << 16 };
#define LARGEST ((size_t)1 << 30)

typedef struct expected {
    const char *name;
    int n_parameters;
    size_t n_values; /* of all parameters */
    int n_buffers;
    size_t n_buffer_values;
    uint64_t hash;
} expected;

static const expected table[] = {
#include "architecture_table.inc"
};

enum { CLASSES = 10, ROWS = 2, SIDE = 64, IMAGES = 9999 };

typedef struct expected_logits {
    const char *name;
    double logits[ROWS * CLASSES];
} expected_logits;

static const expected_logits runs[] = {
#include "architecture_logits.inc"
};

/* --- instead of those of the library --- */

static void *untouched; /* LARGEST bytes */
static bool makes_weights;

ls_status __real_ls_tensor_create(ls_device *device, ls_dtype type, int n_dims, const int64_t *dims,
                                  ls_tensor **out);
ls_status __wrap_ls_tensor_create(ls_device *device, ls_dtype type, int n_dims, const int64_t *dims,
                                  ls_tensor **out);
void __wrap_model_fill_uniform(ls_model *model, ls_tensor *t, double bound);
void __wrap_model_fill_normal(ls_model *model, ls_tensor *t, double deviation);
void __wrap_model_fill_constant(ls_model *model, ls_tensor *t, double value);
void __wrap_ls_model_init(ls_model *model, const char *pattern, const ls_nn_init_options *opt);

ls_status __wrap_ls_tensor_create(ls_device *device, ls_dtype type, int n_dims, const int64_t *dims,
                                  ls_tensor **out)
{
    size_t bytes = ls_dtype_size(type);

    for (int i = 0; i < n_dims; i++)
        bytes *= (size_t)dims[i];
    assert_true(bytes <= LARGEST);
    return makes_weights || bytes <= SMALL
               ? __real_ls_tensor_create(device, type, n_dims, dims, out)
               : ls_tensor_wrap(device, type, n_dims, dims, untouched, out);
}

void __wrap_model_fill_uniform(ls_model *model, ls_tensor *t, double bound)
{
    LS_UNUSED(model);
    LS_UNUSED(t);
    assert_true(bound > 0 && bound < 10);
}

void __wrap_model_fill_normal(ls_model *model, ls_tensor *t, double deviation)
{
    LS_UNUSED(model);
    LS_UNUSED(t);
    assert_true(deviation > 0 && deviation < 10);
}

void __wrap_model_fill_constant(ls_model *model, ls_tensor *t, double value)
{
    LS_UNUSED(model);
    LS_UNUSED(t);
    assert_true(value == 1);
}

/* The name is that of a parameter. */
void __wrap_ls_model_init(ls_model *model, const char *pattern, const ls_nn_init_options *opt)
{
    int n;
    const ls_named *items = ls_model_parameters(model, &n);

    while (n > 0 && strcmp(items[n - 1].name, pattern) != 0)
        n--;
    assert_true(n > 0);
    assert_true(opt->kind > LS_INIT_DEFAULT && opt->kind <= LS_INIT_EYE);
    assert_true(opt->kind != LS_INIT_NORMAL || (opt->std > 0 && opt->std < 10));
    assert_true(opt->kind != LS_INIT_UNIFORM || (opt->high == -opt->low && opt->high > 0));
}

static int open_memory(void **state)
{
    LS_UNUSED(state);
    untouched = mmap(NULL, LARGEST, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return untouched == MAP_FAILED;
}

static int close_memory(void **state)
{
    LS_UNUSED(state);
    return munmap(untouched, LARGEST);
}

/* --- tests --- */

static uint64_t add_to_hash(uint64_t hash, const char *text)
{
    for (; *text != '\0'; text++)
        hash = (hash ^ (unsigned char)*text) * UINT64_C(0x100000001b3);
    return hash;
}

static size_t count_values(const ls_named *items, int n)
{
    size_t sum = 0;

    for (int i = 0; i < n; i++)
        sum += ls_tensor_count(items[i].tensor);
    return sum;
}

static uint64_t hash_of(const ls_named *items, int n)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);

    for (int i = 0; i < n; i++) {
        hash = add_to_hash(hash, items[i].name);
        for (int k = 0; k < ls_tensor_n_dims(items[i].tensor); k++) {
            char text[32];

            (void)snprintf(text, sizeof(text), "%s%" PRId64, k == 0 ? ":" : "x",
                           ls_tensor_dim(items[i].tensor, k));
            hash = add_to_hash(hash, text);
        }
        hash = add_to_hash(hash, ls_tensor_n_dims(items[i].tensor) == 0 ? ":\n" : "\n");
    }
    return hash;
}

static void check_architecture(ls_device *device, const expected *want)
{
    ls_model *model = NULL;
    network *net;
    const ls_named *items;
    int n;

    print_message("%s\n", want->name);
    assert_status(LS_OK, ls_model_create(device, 1, &model));
    net = net_create(model, architecture_find(want->name, NULL, 0), 1000, 224);
    assert_non_null(net);
    assert_status(LS_OK, ls_model_status(model));
    items = ls_model_parameters(model, &n);
    assert_int_equal(n, want->n_parameters);
    assert_int_equal(count_values(items, n), want->n_values);
    items = ls_model_buffers(model, &n);
    assert_int_equal(n, want->n_buffers);
    assert_int_equal(count_values(items, n), want->n_buffer_values);
    items = ls_model_state(model, &n);
    assert_true(hash_of(items, n) == want->hash);
    net_destroy(net);
    ls_model_destroy(model);
}

static void names_and_shapes_are_torchvisions(void **state)
{
    ls_device *device = open_reference();
    int n = 0;

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(table); i++)
        check_architecture(device, &table[i]);
    while (architecture_name(n) != NULL)
        n++;
    assert_int_equal(n, LS_COUNT_OF(table));
    ls_device_close(device);
}

/* As noise() of tests/parity/architecture_logits.py. */
static double noise(uint32_t number, size_t i)
{
    uint32_t x = ((uint32_t)i + number * 1000003U) * 2654435761U;

    x = (x ^ x >> 15) * 2246822519U;
    x ^= x >> 13;
    return (x >> 8) / 8388608.0 - 1;
}

static bool ends_with(const char *name, const char *end)
{
    return strlen(name) >= strlen(end) && strcmp(name + strlen(name) - strlen(end), end) == 0;
}

/* As fill() there. */
static void fill_value(const ls_named *item, uint32_t number)
{
    float *data = ls_tensor_data(item->tensor);
    const size_t count = ls_tensor_count(item->tensor);
    const bool is_factor = ends_with(item->name, "weight") || ends_with(item->name, "running_var");
    double scale = 2;

    if (ls_tensor_n_dims(item->tensor) > 1) {
        for (size_t fan_in = count / (size_t)ls_tensor_dim(item->tensor, 0); fan_in >= 4;
             fan_in /= 4)
            scale /= 2;
        for (size_t i = 0; i < count; i++)
            data[i] = (float)(scale * noise(number, i));
    } else {
        for (size_t i = 0; i < count; i++)
            data[i] = (float)((is_factor ? 1 : 0) + noise(number, i) / 4);
    }
}

static void check_logits(ls_device *device, const expected_logits *want)
{
    const int64_t dims[] = {ROWS, 3, SIDE, SIDE};
    float got[ROWS * CLASSES];
    ls_model *model = NULL;
    ls_tape *tape = NULL;
    ls_tensor *images = NULL;
    network *net;
    const ls_named *state;
    double largest = 0;
    int n;

    assert_status(LS_OK, ls_model_create(device, 1, &model));
    assert_status(LS_OK, ls_tape_create(device, &tape));
    assert_status(LS_OK, ls_tensor_create(device, LS_F32, 4, dims, &images));
    net = net_create(model, architecture_find(want->name, NULL, 0), CLASSES, SIDE);
    state = ls_model_state(model, &n);
    for (int i = 0; i < n; i++) {
        if (ls_tensor_dtype(state[i].tensor) == LS_F32)
            fill_value(&state[i], (uint32_t)i);
    }
    for (size_t i = 0; i < ls_tensor_count(images); i++)
        ((float *)ls_tensor_data(images))[i] = (float)noise(IMAGES, i);
    ls_tape_set_training(tape, 0);
    assert_status(LS_OK, ls_tensor_read(net_forward(net, tape, images), got, ROWS * CLASSES));
    for (int i = 0; i < ROWS * CLASSES; i++)
        largest = fmax(largest, fabs(want->logits[i]));
    for (int i = 0; i < ROWS * CLASSES; i++) {
        if (fabs((double)got[i] - want->logits[i]) > 1e-5 * largest)
            fail_msg("%s: logit %d is %g, not %g", want->name, i, (double)got[i], want->logits[i]);
    }
    net_destroy(net);
    ls_tensor_destroy(images);
    ls_tape_destroy(tape);
    ls_model_destroy(model);
}

static void logits_are_torchvisions(void **state)
{
    ls_device *device = NULL;

    LS_UNUSED(state);
    assert_status(LS_OK, ls_device_open(NULL, &device));
    makes_weights = true;
    for (size_t i = 0; i < LS_COUNT_OF(runs); i++)
        check_logits(device, &runs[i]);
    makes_weights = false;
    ls_device_close(device);
}

static void an_unknown_name_gets_a_list_within_80_columns(void **state)
{
    char error[ARCHITECTURE_LIST_BYTES + 128];
    char little[8];
    char list[ARCHITECTURE_LIST_BYTES];

    LS_UNUSED(state);
    assert_int_equal(architecture_find("resnet20", error, sizeof(error)), -1);
    assert_non_null(strstr(error, "unknown architecture \"resnet20\"; choose one of\nalexnet, "));
    assert_non_null(strstr(error, "resnet18|34|50|101|152,"));
    for (const char *line = error; line != NULL; line = strchr(line + 1, '\n'))
        assert_true(strcspn(line + 1, "\n") <= 80);
    architecture_list(list, sizeof(list));
    assert_true(strlen(list) + 1 < sizeof(list));
    assert_int_equal(architecture_find("", little, sizeof(little)), -1);
    assert_string_equal(little, "unknown");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_and_shapes_are_torchvisions),
        cmocka_unit_test(logits_are_torchvisions),
        cmocka_unit_test(an_unknown_name_gets_a_list_within_80_columns),
    };

    return cmocka_run_group_tests(tests, open_memory, close_memory);
}
