/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_architectures.c - every architecture of models/ has the parameters and buffers of
 * torchvision's, by name, shape and order.
 *
 * The linker replaces the functions that make tensors and draw initial values (see CMakeLists.txt):
 * large tensors share memory that is never touched, so that no weights are made.
 */
#include "tensor/testing.h"

#include "models/architectures.h"

#include <inttypes.h>
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

/* --- instead of those of the library --- */

static void *untouched; /* LARGEST bytes */

ls_status __real_ls_tensor_create(ls_device *device, ls_dtype type, int n_dims, const int64_t *dims,
                                  ls_tensor **out);
ls_status __wrap_ls_tensor_create(ls_device *device, ls_dtype type, int n_dims, const int64_t *dims,
                                  ls_tensor **out);
void __wrap_model_fill_uniform(ls_model *model, ls_tensor *t, double bound);
void __wrap_model_fill_normal(ls_model *model, ls_tensor *t, double deviation);
void __wrap_ls_model_fill(ls_model *model, ls_tensor *t, ls_fill how, double value);

ls_status __wrap_ls_tensor_create(ls_device *device, ls_dtype type, int n_dims, const int64_t *dims,
                                  ls_tensor **out)
{
    size_t bytes = ls_dtype_size(type);

    for (int i = 0; i < n_dims; i++)
        bytes *= (size_t)dims[i];
    assert_true(bytes <= LARGEST);
    return bytes <= SMALL ? __real_ls_tensor_create(device, type, n_dims, dims, out)
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

void __wrap_ls_model_fill(ls_model *model, ls_tensor *t, ls_fill how, double value)
{
    LS_UNUSED(model);
    assert_non_null(t);
    assert_true(how == LS_FILL_CONSTANT || (value > 0 && value < 10));
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

static void an_unknown_name_gets_a_list_within_80_columns(void **state)
{
    char error[ARCHITECTURE_LIST_BYTES + 128];
    char little[8];
    char list[ARCHITECTURE_LIST_BYTES];

    LS_UNUSED(state);
    assert_int_equal(architecture_find("resnet20", error, sizeof(error)), -1);
    assert_non_null(strstr(error, "there is no architecture \"resnet20\"; known are\nalexnet, "));
    assert_non_null(strstr(error, "resnet18|34|50|101|152,"));
    for (const char *line = error; line != NULL; line = strchr(line + 1, '\n'))
        assert_true(strcspn(line + 1, "\n") <= 80);
    architecture_list(list, sizeof(list));
    assert_true(strlen(list) + 1 < sizeof(list));
    assert_int_equal(architecture_find("", little, sizeof(little)), -1);
    assert_string_equal(little, "there i");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_and_shapes_are_torchvisions),
        cmocka_unit_test(an_unknown_name_gets_a_list_within_80_columns),
    };

    return cmocka_run_group_tests(tests, open_memory, close_memory);
}
