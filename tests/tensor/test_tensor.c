/* SPDX-License-Identifier: Apache-2.0 */
/* test_tensor.c - shapes, storage, views, copies, and what the pool keeps. */
#include "tensor/testing.h"

#include "base/alloc.h"
#include "base/rng.h"

#include <math.h>
#include <string.h>

static void assert_error(const char *text)
{
    if (strstr(ls_last_error(), text) == NULL)
        fail_msg("\"%s\" does not tell \"%s\"", ls_last_error(), text);
}

static void a_new_tensor_is_zero_and_knows_its_shape(void **state)
{
    ls_device *device = open_reference();
    ls_tensor *t = NULL;

    LS_UNUSED(state);
    assert_status(LS_OK, ls_tensor_create(device, LS_F32, 3, (int64_t[]){2, 3, 4}, &t));
    assert_int_equal(ls_tensor_n_dims(t), 3);
    assert_int_equal(ls_tensor_count(t), 24);
    assert_int_equal(ls_tensor_dim(t, 0), 2);
    assert_int_equal(ls_tensor_dim(t, -1), 4);
    assert_int_equal(ls_tensor_dim(t, 3), 1);
    assert_int_equal(ls_tensor_dim(t, -4), 1);
    assert_int_equal(ls_tensor_dtype(t), LS_F32);
    assert_ptr_equal(ls_tensor_device(t), device);
    for (size_t i = 0; i < 24; i++)
        assert_true(element_of(t, i) == 0);
    ls_tensor_destroy(t);
    ls_tensor_destroy(NULL);
    ls_device_close(device);
}

static void a_block_that_was_used_is_zero_again(void **state)
{
    ls_device *device = open_reference();
    ls_tensor *t = tensor_of(device, LS_F32, 1, (int64_t[]){3}, (double[]){1, 2, 3});

    LS_UNUSED(state);
    ls_tensor_destroy(t);
    assert_status(LS_OK, ls_tensor_create(device, LS_F32, 1, (int64_t[]){3}, &t));
    assert_elements(t, (double[]){0, 0, 0}, 0);
    ls_tensor_destroy(t);
    ls_device_close(device);
}

static void scalars_and_empty_tensors_exist(void **state)
{
    ls_device *device = open_reference();
    ls_tensor *scalar = NULL;
    ls_tensor *empty = NULL;

    LS_UNUSED(state);
    assert_status(LS_OK, ls_tensor_create(device, LS_F64, 0, NULL, &scalar));
    assert_int_equal(ls_tensor_count(scalar), 1);
    assert_status(LS_OK, ls_tensor_create(device, LS_F32, 2, (int64_t[]){0, 5}, &empty));
    assert_int_equal(ls_tensor_count(empty), 0);
    assert_status(LS_OK, ls_tensor_read(empty, NULL, 0));
    assert_status(LS_OK, ls_tensor_write(empty, NULL, 0));
    assert_true(device->accel != NULL || ls_tensor_data(empty) != NULL);
    destroy_all((ls_tensor *[]){scalar, empty}, 2);
    ls_device_close(device);
}

static void bad_shapes_are_refused(void **state)
{
    ls_device *device = open_reference();
    ls_tensor *t = NULL;
    const int64_t huge[] = {INT64_MAX, INT64_MAX};

    LS_UNUSED(state);
    assert_status(LS_EINVAL, ls_tensor_create(device, LS_F32, 2, (int64_t[]){3, -1}, &t));
    assert_error("dimension 1 is -1; it must be at least 0");
    assert_status(LS_EINVAL, ls_tensor_create(device, LS_F32, LS_MAX_DIMS + 1, huge, &t));
    assert_error("7 dimensions; 0 to 6 are supported");
    assert_status(LS_EINVAL, ls_tensor_create(device, LS_F32, -1, huge, &t));
    assert_error("-1 dimensions; 0 to 6 are supported");
    assert_status(LS_EINVAL, ls_tensor_create(device, LS_F32, 2, NULL, &t));
    assert_error("dims is NULL, but n_dims is 2");
    assert_status(LS_EINVAL, ls_tensor_create(device, LS_F32, 2, huge, &t));
    assert_status(LS_EINVAL, ls_tensor_create(device, (ls_dtype)99, 1, huge, &t));
    assert_error("99 is not an ls_dtype");
    assert_status(LS_EINVAL, ls_tensor_create(NULL, LS_F32, 1, huge, &t));
    assert_null(t);
    ls_device_close(device);
}

static void reading_and_writing_need_the_right_count(void **state)
{
    ls_device *device = open_reference();
    ls_tensor *t = tensor_of(device, LS_F32, 2, (int64_t[]){1, 2}, (double[]){1, 2});
    float values[3] = {7, 8, 9};

    LS_UNUSED(state);
    assert_status(LS_EINVAL, ls_tensor_read(t, values, 3));
    assert_error("3 elements for (1, 2) float32, which has 2");
    assert_status(LS_EINVAL, ls_tensor_write(t, values, 1));
    assert_status(LS_OK, ls_tensor_write(t, values, 2));
    assert_elements(t, (double[]){7, 8}, 0);
    ls_tensor_destroy(t);
    ls_device_close(device);
}

static void writes_grow_the_version_and_reads_do_not(void **state)
{
    ls_device *device = open_reference();
    ls_tensor *t = tensor_of(device, LS_F32, 1, (int64_t[]){1}, (double[]){1});
    uint64_t version = t->storage->version;
    float value = 3;

    LS_UNUSED(state);
    assert_true(device->accel != NULL || ls_tensor_data_const(t) != NULL);
    assert_status(LS_OK, ls_tensor_read(t, &value, 1));
    assert_int_equal(t->storage->version, version);
    assert_status(LS_OK, ls_tensor_write(t, &value, 1));
    assert_true(t->storage->version > version);
    version = t->storage->version;
    assert_true(device->accel != NULL || ls_tensor_data(t) != NULL);
    assert_true(device->accel != NULL || t->storage->version > version);
    ls_tensor_destroy(t);
    ls_device_close(device);
}

static void a_view_shares_its_storage_and_outlives_the_first(void **state)
{
    ls_device *device = open_reference();
    ls_tensor *t = tensor_of(device, LS_F32, 2, (int64_t[]){2, 3}, (double[]){1, 2, 3, 4, 5, 6});
    ls_tensor *view = NULL;

    LS_UNUSED(state);
    assert_status(LS_OK, ls_tensor_view(t, 1, (int64_t[]){6}, &view));
    assert_status(LS_OK, ls_tensor_write(view, (float[]){1, 2, 3, 4, 5, 60}, 6));
    assert_elements(t, (double[]){1, 2, 3, 4, 5, 60}, 0);
    ls_tensor_destroy(t);
    assert_elements(view, (double[]){1, 2, 3, 4, 5, 60}, 0);
    assert_status(LS_EINVAL, ls_tensor_view(view, 1, (int64_t[]){5}, &t));
    assert_error("(6) cannot be seen as (5)");
    ls_tensor_destroy(view);
    ls_device_close(device);
}

static void a_part_has_its_own_version_and_outlives_its_whole(void **state)
{
    ls_device *device = open_reference();
    ls_tensor *whole = NULL;
    ls_tensor *parts[2];
    float all[24];
    uint64_t version;

    LS_UNUSED(state);
    assert_status(LS_OK, ls_tensor_create(device, LS_U8, 1, (int64_t[]){96}, &whole));
    assert_status(LS_OK, tensor_create_part(whole, 0, LS_F32, 1, (int64_t[]){2}, &parts[0]));
    assert_status(LS_OK, tensor_create_part(whole, 64, LS_F32, 1, (int64_t[]){3}, &parts[1]));
    version = parts[0]->storage->version;
    assert_status(LS_OK, ls_tensor_write(parts[1], (float[]){7, 8, 9}, 3));
    assert_int_equal(parts[0]->storage->version, version);
    assert_status(LS_OK, ls_tensor_read(whole, all, 96));
    assert_true(all[0] == 0 && all[15] == 0 && all[16] == 7 && all[18] == 9 && all[19] == 0);
    ls_tensor_destroy(whole);
    ls_tensor_destroy(parts[0]);
    assert_elements(parts[1], (double[]){7, 8, 9}, 0);
    assert_status(LS_EINVAL, ls_device_close(device)); /* the part is left */
    ls_tensor_destroy(parts[1]);
    assert_status(LS_OK, ls_device_close(device));
}

static void a_wrapped_tensor_uses_the_callers_memory(void **state)
{
    ls_device *device = open_test_device("cpu_ref");
    float memory[4] = {1, 2, 3, 4};
    ls_tensor *t = NULL;

    LS_UNUSED(state);
    assert_status(LS_OK, ls_tensor_wrap(device, LS_F32, 2, (int64_t[]){2, 2}, memory, &t));
    assert_ptr_equal(ls_tensor_data(t), memory);
    memory[3] = 40;
    assert_elements(t, (double[]){1, 2, 3, 40}, 0);
    ls_tensor_destroy(t);
    assert_status(LS_EINVAL, ls_tensor_wrap(device, LS_F32, 1, (int64_t[]){4}, NULL, &t));
    assert_status(LS_EINVAL,
                  ls_tensor_wrap(device, LS_F32, 1, (int64_t[]){1}, (char *)memory + 2, &t));
    assert_error("is not aligned for float32");
    ls_device_close(device);
}

static void copying_needs_equal_shapes_and_types(void **state)
{
    ls_device *device = open_reference();
    ls_device *other = open_reference();
    ls_tensor *a = tensor_of(device, LS_F32, 1, (int64_t[]){2}, (double[]){1, 2});
    ls_tensor *b = tensor_of(other, LS_F32, 1, (int64_t[]){2}, (double[]){0, 0});
    ls_tensor *c = tensor_of(device, LS_F64, 1, (int64_t[]){2}, (double[]){0, 0});
    ls_tensor *d = tensor_of(device, LS_F32, 1, (int64_t[]){2}, (double[]){0, 0});

    LS_UNUSED(state);
    assert_status(LS_OK, ls_tensor_copy(b, a));
    assert_elements(b, (double[]){1, 2}, 0);
    assert_status(LS_OK, ls_tensor_copy(d, a));
    assert_elements(d, (double[]){1, 2}, 0);
    assert_status(LS_EINVAL, ls_tensor_copy(c, a));
    assert_error("(2) float32 cannot be copied into (2) float64");
    destroy_all((ls_tensor *[]){a, b, c, d}, 4);
    ls_device_close(device);
    ls_device_close(other);
}

static void the_pool_gives_blocks_again_without_allocating(void **state)
{
    ls_device *device = open_reference();
    ls_tensor *t = NULL;
    uint64_t before = 0;

    LS_UNUSED(state);
    for (int round = 0; round < 3; round++) {
        if (round == 1)
            before = ls_alloc_count();
        for (int64_t n = 1; n < 5000; n = n * 3 + 1) {
            assert_status(LS_OK, ls_tensor_create(device, LS_F32, 1, &n, &t));
            ls_tensor_destroy(t);
        }
    }
    assert_int_equal(ls_alloc_count(), before);
    ls_device_close(device);
}

static const device_ops *real_ops;
static size_t device_bytes; // of all blocks, free or in use
static int n_made;          // blocks

static void *counting_alloc(device_state *self, size_t bytes)
{
    device_bytes += bytes;
    n_made++;
    return real_ops->alloc(self, bytes);
}

static void counting_free(device_state *self, void *memory, size_t bytes)
{
    device_bytes -= bytes;
    real_ops->free(self, memory, bytes);
}

/* A device whose blocks are counted; skips on stream devices, whose pool has no bound. */
static ls_device *open_counting(device_ops *ops)
{
    ls_device *device = open_reference();

    if (device->accel != NULL) {
        ls_device_close(device);
        skip();
    }
    real_ops = device->ops;
    *ops = *device->ops;
    ops->alloc = counting_alloc;
    ops->free = counting_free;
    device->ops = ops;
    device_bytes = 0;
    n_made = 0;
    return device;
}

/* Sizes of different classes, one after the other: their free blocks do not add up. */
static void free_blocks_of_other_sizes_take_bounded_memory(void **state)
{
    enum { LEAST_MIB = 8, MOST_MIB = 32, SURPLUS_MIB = 32 };
    device_ops ops;
    ls_device *device = open_counting(&ops);
    size_t most = 0;

    LS_UNUSED(state);
    for (int round = 0; round < 2; round++) {
        for (int64_t n = LEAST_MIB; n <= MOST_MIB; n += LEAST_MIB / 8) {
            ls_tensor *t = unplaced_of(device, LS_U8, 1, (int64_t[]){n << 20});

            assert_status(LS_OK, tensor_place(t, NULL, 0));
            most = device_bytes > most ? device_bytes : most;
            ls_tensor_destroy(t);
        }
    }
    assert_true(most >= (size_t)MOST_MIB << 20);
    assert_true(most <= (size_t)(MOST_MIB + SURPLUS_MIB) << 20);
    device->ops = real_ops;
    ls_device_close(device);
}

/* Where the bound leaves no space for a new block, a larger free one is taken: the pages of a new
 * one would have to be made. */
static void larger_free_blocks_are_used_before_they_are_freed(void **state)
{
    enum { LEAST_MIB = 17, MOST_MIB = 32 };
    device_ops ops;
    ls_device *device = open_counting(&ops);

    LS_UNUSED(state);
    for (int round = 0; round < 3; round++)
        for (int64_t n = MOST_MIB; n >= LEAST_MIB; n--) {
            ls_tensor *t = unplaced_of(device, LS_U8, 1, (int64_t[]){n << 20});

            assert_status(LS_OK, tensor_place(t, NULL, 0));
            assert_true(t->storage->bytes >= (size_t)n << 20);
            ls_tensor_destroy(t);
        }
    assert_int_equal(n_made, 2); // of 32 and 30 MiB
    device->ops = real_ops;
    ls_device_close(device);
}

static void every_size_fits_its_block(void **state)
{
    ls_device *device = open_reference();

    LS_UNUSED(state);
    for (int64_t n = 0; n < 3000; n++) {
        ls_tensor *t = NULL;

        assert_status(LS_OK, ls_tensor_create(device, LS_U8, 1, &n, &t));
        assert_true(t->storage->bytes >= (size_t)n);
        assert_true(t->storage->bytes <= 64 || t->storage->bytes <= (size_t)n + (size_t)n / 8 + 1);
        assert_int_equal((uintptr_t)t->storage->data % 64, 0);
        ls_tensor_destroy(t);
    }
    ls_device_close(device);
}

static void out_of_memory_is_an_error_and_nothing_leaks(void **state)
{
    ls_device *device = open_reference();
    const int64_t huge = (int64_t)1 << 61; // more bytes than a block may have
    ls_tensor *t = NULL;

    LS_UNUSED(state);
    assert_status(LS_ENOMEM, ls_tensor_create(device, LS_F32, 1, &huge, &t));
    for (uint64_t n = 1; n <= 2; n++) { // the record of the storage, its block
        ls_alloc_fail_at(n);
        assert_status(LS_ENOMEM,
                      ls_tensor_create(device, LS_F32, 1, (int64_t[]){1000 * (int64_t)n}, &t));
        ls_alloc_fail_at(0);
    }
    assert_status(LS_OK, ls_tensor_create(device, LS_F32, 1, (int64_t[]){1000}, &t));
    ls_tensor_destroy(t);
    ls_device_close(device);
}

static void fill_and_item_convert_every_type(void **state)
{
    ls_device *device = open_reference();
    static const ls_dtype types[] = {LS_I8, LS_U8, LS_I32, LS_I64, LS_F16, LS_BF16, LS_F32, LS_F64};
    const int64_t one[] = {1};

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(types); i++) {
        ls_tensor *t;
        double value = 0;

        assert_status(LS_OK, ls_tensor_create(device, types[i], 1, one, &t));
        assert_status(LS_OK, ls_tensor_fill(t, 100));
        assert_status(LS_OK, ls_item(t, &value));
        assert_true(value == 100);
        ls_tensor_destroy(t);
    }
    ls_device_close(device);
}

static void fill_sets_every_element(void **state)
{
    ls_device *device = open_reference();
    const int64_t dims[] = {2, 3};
    float values[6];
    double value;
    ls_tensor *t;

    LS_UNUSED(state);
    assert_status(LS_OK, ls_tensor_create(device, LS_F32, 2, dims, &t));
    assert_status(LS_OK, ls_tensor_fill(t, -1.5));
    assert_status(LS_OK, ls_tensor_read(t, values, 6));
    for (int i = 0; i < 6; i++)
        assert_true(values[i] == -1.5F);
    assert_status(LS_EINVAL, ls_item(t, &value));
    ls_tensor_destroy(t);
    ls_device_close(device);
}

static void fill_refuses_integers_that_the_type_does_not_have(void **state)
{
    ls_device *device = open_reference();
    static const struct {
        ls_dtype type;
        double wrong;
    } cases[] = {{LS_I8, 128},  {LS_I8, -129},      {LS_U8, -1},
                 {LS_U8, 256},  {LS_I32, 0x1p31},   {LS_I64, 0x1p63},
                 {LS_I64, 0.5}, {LS_I32, INFINITY}, {LS_I64, NAN}};
    const int64_t one[] = {1};

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(cases); i++) {
        ls_tensor *t;
        double value = -1;

        assert_status(LS_OK, ls_tensor_create(device, cases[i].type, 1, one, &t));
        assert_status(LS_EINVAL, ls_tensor_fill(t, cases[i].wrong));
        assert_non_null(strstr(ls_last_error(), ls_dtype_name(cases[i].type)));
        assert_status(LS_OK, ls_item(t, &value));
        assert_true(value == 0);
        ls_tensor_destroy(t);
    }
    ls_device_close(device);
}

static void random_elements_are_those_of_the_seed(void **state)
{
    static const ls_dtype types[] = {LS_F64, LS_F32, LS_F16, LS_BF16};
    ls_device *device = open_reference();
    ls_tensor *integers = NULL;
    double first;
    double sum;
    ls_rng rng;

    LS_UNUSED(state);
    ls_rng_seed(&rng, 7);
    first = -1 + 4 * ls_rng_double(&rng);
    for (size_t i = 0; i < LS_COUNT_OF(types); i++) {
        ls_tensor *t = NULL;
        double *uniform;

        assert_status(LS_OK, ls_tensor_create(device, types[i], 1, (int64_t[]){1000}, &t));
        assert_status(LS_OK, ls_tensor_uniform(t, -1, 3, 7));
        uniform = elements_of(t);
        assert_true(fabs(uniform[0] - first) < 2e-2);
        for (int k = 0; k < 1000; k++)
            assert_true(uniform[k] >= -1 && uniform[k] <= 3);
        assert_status(LS_OK, ls_tensor_uniform(t, -1, 3, 7));
        assert_elements(t, uniform, 0);
        assert_status(LS_OK, ls_tensor_normal(t, 5, 0.5, 8));
        ls_free(uniform);
        uniform = elements_of(t);
        sum = 0;
        for (int k = 0; k < 1000; k++)
            sum += uniform[k] / 1000;
        assert_true(fabs(sum - 5) < 5 * 0.5 / sqrt(1000));
        ls_free(uniform);
        assert_status(LS_EINVAL, ls_tensor_uniform(t, 1, 0, 1));
        assert_status(LS_EINVAL, ls_tensor_normal(t, NAN, 1, 1));
        assert_status(LS_EINVAL, ls_tensor_normal(t, 0, -1, 1));
        ls_tensor_destroy(t);
    }
    assert_status(LS_OK, ls_tensor_create(device, LS_I32, 1, (int64_t[]){2}, &integers));
    assert_status(LS_EINVAL, ls_tensor_uniform(integers, 0, 1, 1));
    assert_string_equal(ls_last_error(), "random values need a floating-point type, not int32");
    ls_tensor_destroy(integers);
    ls_device_close(device);
}

static uint64_t hash_of(ls_device *d, ls_dtype type, const void *data, int64_t n)
{
    uint64_t hash = 1;
    ls_tensor *t;

    assert_int_equal(ls_tensor_create(d, type, 1, &n, &t), LS_OK);
    assert_int_equal(ls_tensor_write(t, data, (size_t)n), LS_OK);
    assert_int_equal(tensor_hash(t, &hash), LS_OK);
    ls_tensor_destroy(t);
    return hash;
}

/* The elements stand in the second of two parts. */
static void hashes_differ_by_a_bit_but_not_by_a_kind_of_nan(void **state)
{
    static const struct {
        ls_dtype type;
        uint64_t one, nan, other_nan, infinity;
    } cases[] = {
        {LS_F16, 0x3C00, 0x7E00, 0xFC01, 0x7C00},
        {LS_BF16, 0x3F80, 0x7FC0, 0xFF81, 0x7F80},
        {LS_F32, 0x3F800000, 0x7FC00000, 0xFF800001, 0x7F800000},
        {LS_F64, 0x3FF0000000000000, 0x7FF8000000000000, 0xFFF0000000000001, 0x7FF0000000000000},
        {LS_I32, 1, 0x7FC00000, 0xFF800001, 0x7F800000},
    };
    enum { N = 3000 };
    static unsigned char data[N * 8];
    ls_device *d = open_reference();

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(cases); i++) {
        const size_t size = ls_dtype_size(cases[i].type);
        const uint64_t bits[] = {cases[i].one, cases[i].one ^ 1, cases[i].infinity, cases[i].nan,
                                 cases[i].other_nan};
        uint64_t hashes[LS_COUNT_OF(bits)];

        for (size_t k = 0; k < LS_COUNT_OF(bits); k++) {
            memcpy(data + (N - 2) * size, &bits[k], size);
            hashes[k] = hash_of(d, cases[i].type, data, N);
            for (size_t j = 0; j < k; j++)
                assert_true((hashes[j] == hashes[k]) == (j == 3 && cases[i].type != LS_I32));
        }
    }
    ls_device_close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_new_tensor_is_zero_and_knows_its_shape),
        cmocka_unit_test(a_block_that_was_used_is_zero_again),
        cmocka_unit_test(scalars_and_empty_tensors_exist),
        cmocka_unit_test(bad_shapes_are_refused),
        cmocka_unit_test(reading_and_writing_need_the_right_count),
        cmocka_unit_test(writes_grow_the_version_and_reads_do_not),
        cmocka_unit_test(a_view_shares_its_storage_and_outlives_the_first),
        cmocka_unit_test(a_part_has_its_own_version_and_outlives_its_whole),
        cmocka_unit_test(a_wrapped_tensor_uses_the_callers_memory),
        cmocka_unit_test(copying_needs_equal_shapes_and_types),
        cmocka_unit_test(the_pool_gives_blocks_again_without_allocating),
        cmocka_unit_test(free_blocks_of_other_sizes_take_bounded_memory),
        cmocka_unit_test(larger_free_blocks_are_used_before_they_are_freed),
        cmocka_unit_test(every_size_fits_its_block),
        cmocka_unit_test(out_of_memory_is_an_error_and_nothing_leaks),
        cmocka_unit_test(fill_and_item_convert_every_type),
        cmocka_unit_test(fill_sets_every_element),
        cmocka_unit_test(fill_refuses_integers_that_the_type_does_not_have),
        cmocka_unit_test(random_elements_are_those_of_the_seed),
        cmocka_unit_test(hashes_differ_by_a_bit_but_not_by_a_kind_of_nan),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
