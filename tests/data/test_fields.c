/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_fields.c - tests what is refused when a program makes a data set of its own: fields, sizes,
 * lengths, callbacks. The error names the field and the sample, and `close` runs once.
 */
#include "base/unit.h"

#include <lockstep/data.h>
#include <lockstep/train.h>

#include "tensor/suite_device.h"

#include <stdio.h>

static int n_closed;

static void count_close(void *arg)
{
    (void)arg;
    n_closed++;
}

/* What the callback below gives for sample `at`; 3 for all others. */
typedef struct hostile {
    size_t at;
    int64_t length;
    ls_status status;
} hostile;

static ls_status tell_lengths(void *arg, size_t index, int64_t *lengths)
{
    const hostile *h = arg;

    lengths[0] = index == h->at ? h->length : 3;
    lengths[1] = 2;
    if (index == h->at && h->status != LS_OK) {
        const ls_status st = ls_train_refuse("line %d is not a number", 7);

        return st == LS_OK ? st : h->status;
    }
    return LS_OK;
}

static ls_status read_nothing(void *arg, const ls_sample_request *request, void *const *values)
{
    (void)arg;
    (void)request;
    (void)values;
    return LS_OK;
}

static const ls_field good[2] = {
    {.name = "a", .type = LS_F32},
    {.name = "mel", .type = LS_F32, .n_dims = 3, .dims = {-1, 80, -1}},
};

static ls_dataset_callbacks callbacks_of(const ls_field *fields, int n, hostile *h)
{
    return (ls_dataset_callbacks){.size = sizeof(ls_dataset_callbacks),
                                  .count = 10,
                                  .fields = fields,
                                  .n_fields = n,
                                  .lengths = tell_lengths,
                                  .read = read_nothing,
                                  .close = count_close,
                                  .arg = h};
}

/* Making the set must fail with these words, and close once. */
static void assert_refused(const ls_dataset_callbacks *callbacks, ls_status status,
                           const char *message)
{
    ls_dataset *set = NULL;

    n_closed = 0;
    assert_status(ls_dataset_create(callbacks, &set), status);
    assert_last_error(message);
    assert_int_equal(n_closed, 1);
    assert_null(set);
}

static void invalid_fields_are_named(void **state)
{
    static const struct {
        ls_field field;
        const char *message;
    } cases[] = {
        {{.name = NULL, .type = LS_F32}, "the name of field 1 has 0 bytes"},
        {{.name = "", .type = LS_F32}, "the name of field 1 has 0 bytes"},
        {{.name = "0123456789012345678901234567890123456789012345678901234567890123"},
         "the name of field 1 has 64 bytes, not 1 to 63"},
        {{.name = "a", .type = LS_F32}, "two fields have the name \"a\""},
        {{.name = "b", .type = (ls_dtype)99}, "field \"b\": 99 is not an ls_dtype"},
        {{.name = "b", .type = LS_F32, .n_dims = 6}, "field \"b\": 6 dimensions; 0 to 5"},
        {{.name = "b", .type = LS_F32, .n_dims = -1}, "field \"b\": -1 dimensions"},
        {{.name = "b", .type = LS_F32, .n_dims = 1, .dims = {-2}}, "dimension 0 is -2; give -1"},
        {{.name = "b", .type = LS_F32, .n_dims = 2, .dims = {INT64_MAX, INT64_MAX}},
         "field \"b\": a sample exceeds 2^40 bytes"},
        {{.name = "b", .type = LS_F32, .n_dims = 2, .dims = {0, INT64_MAX}},
         "field \"b\": a sample exceeds 2^40 bytes"},
        {{.name = "b", .type = LS_U8, .padding = -1}, "field \"b\": padding: -1 is no uint8"},
        {{.name = "b", .type = LS_I64, .padding = 0.5}, "padding: 0.5 is no int64"},
    };

    (void)state;
    for (size_t i = 0; i < LS_COUNT_OF(cases); i++) {
        const ls_field fields[2] = {good[0], cases[i].field};
        const ls_dataset_callbacks callbacks = callbacks_of(fields, 2, NULL);
        const ls_array arrays[2] = {{fields[0], ""}, {fields[1], ""}};
        ls_dataset *set = NULL;

        assert_refused(&callbacks, LS_EINVAL, cases[i].message);
        assert_status(ls_dataset_from_arrays(arrays, 2, 1, &set), LS_EINVAL);
        assert_null(set);
    }
}

static void the_number_of_fields_is_limited(void **state)
{
    ls_field fields[LS_MAX_FIELDS + 1];
    char names[LS_MAX_FIELDS + 1][16];
    ls_dataset_callbacks callbacks = callbacks_of(fields, LS_MAX_FIELDS + 1, NULL);
    ls_dataset *set = NULL;

    (void)state;
    for (int i = 0; i <= LS_MAX_FIELDS; i++) {
        (void)snprintf(names[i], sizeof(names[i]), "f%d", i);
        fields[i] = (ls_field){.name = names[i], .type = LS_F32};
    }
    assert_refused(&callbacks, LS_EINVAL, "33 fields; 1 to 32 are supported");
    callbacks.n_fields = 0;
    assert_refused(&callbacks, LS_EINVAL, "0 fields");
    callbacks.n_fields = -1;
    assert_refused(&callbacks, LS_EINVAL, "-1 fields");
    callbacks.n_fields = 1;
    callbacks.fields = NULL;
    assert_refused(&callbacks, LS_EINVAL, "0 fields");
    callbacks.n_fields = LS_MAX_FIELDS;
    callbacks.fields = fields;
    assert_ok(ls_dataset_create(&callbacks, &set));
    names[3][0] = 'X'; // names are copied
    assert_string_equal(ls_dataset_fields(set, &callbacks.n_fields)[3].name, "f3");
    ls_dataset_close(set);
    assert_status(ls_dataset_from_arrays(&(ls_array){fields[0], ""}, 0, 1, &set), LS_EINVAL);
}

static void hostile_lengths_name_field_and_sample(void **state)
{
    static const struct {
        hostile given;
        const char *message;
    } cases[] = {
        {{.at = 4, .length = -1}, "field \"mel\" of sample 4: dimension 0 is -1, below 0"},
        {{.at = 0, .length = INT64_MIN}, "field \"mel\" of sample 0: dimension 0 is -9223"},
        {{.at = 9, .length = INT64_MAX}, "field \"mel\" of sample 9: a sample exceeds 2^40 bytes"},
        {{.at = 5, .length = INT64_MAX / 320}, "sample 5: a sample exceeds 2^40 bytes"},
        {{.at = 5, .length = ((int64_t)1 << 40) / 640 + 1}, "sample 5: a sample exceeds 2^40"},
    };
    hostile failing = {.at = 6, .length = 3, .status = LS_EFORMAT};
    ls_dataset_callbacks callbacks = callbacks_of(good, 2, &failing);

    (void)state;
    assert_refused(&callbacks, LS_EFORMAT, "lengths of sample 6: line 7 is not a number");
    for (size_t i = 0; i < LS_COUNT_OF(cases); i++) {
        hostile given = cases[i].given;

        callbacks.arg = &given;
        assert_refused(&callbacks, LS_EINVAL, cases[i].message);
    }
    callbacks.lengths = NULL;
    assert_refused(&callbacks, LS_EINVAL, "the lengths callback is NULL");
    callbacks.read = NULL;
    assert_refused(&callbacks, LS_EINVAL, "the read callback is NULL");
}

static void a_batch_that_no_memory_holds_names_the_field(void **state)
{
    const ls_device_options device_options = {.size = sizeof(device_options),
                                              .name = test_device_name()};
    const ls_sampler_options sampling = {.size = sizeof(sampling), .count = 10};
    hostile given = {.at = 4, .length = (int64_t)1 << 30};
    ls_dataset_callbacks callbacks = callbacks_of(good, 2, &given);
    ls_loader_options opt = {.size = sizeof(opt), .batch_size = 1 << 30};
    ls_device *device;
    ls_sampler *sampler;
    ls_dataset *set;
    ls_loader *loader;

    (void)state;
    n_closed = 0;
    assert_ok(ls_device_open(&device_options, &device));
    assert_ok(ls_sampler_create(&sampling, &sampler));
    assert_ok(ls_dataset_create(&callbacks, &set));
    opt.device = device;
    opt.dataset = set;
    opt.sampler = sampler;
    assert_status(ls_loader_create(&opt, &loader), LS_EINVAL);
    assert_last_error("field \"mel\": a batch of 1073741824 rows with the longest samples exceeds");
    assert_int_equal(n_closed, 0);
    ls_dataset_close(set);
    assert_int_equal(n_closed, 1);
    ls_sampler_destroy(sampler);
    assert_ok(ls_device_close(device));
}

static void arrays_are_checked(void **state)
{
    const ls_array varying = {{.name = "x", .type = LS_F32, .n_dims = 1, .dims = {-1}}, ""};
    const ls_array missing = {{.name = "x", .type = LS_F32, .n_dims = 1, .dims = {2}}, NULL};
    ls_dataset *set = NULL;

    (void)state;
    assert_status(ls_dataset_from_arrays(&varying, 1, 3, &set), LS_EINVAL);
    assert_last_error("need ls_dataset_create()");
    assert_status(ls_dataset_from_arrays(&missing, 1, 3, &set), LS_EINVAL);
    assert_last_error("the array of field \"x\" is NULL");
    assert_status(ls_dataset_from_arrays(&missing, 1, SIZE_MAX, &set), LS_EINVAL);
    assert_last_error("field \"x\"");
    assert_ok(ls_dataset_from_arrays(&missing, 1, 0, &set));
    assert_int_equal(ls_dataset_count(set), 0);
    ls_dataset_close(set);
}

static void sets_without_images_have_no_classes(void **state)
{
    static const float numbers[3] = {1, 2, 3};
    const ls_array array = {{.name = "x", .type = LS_F32}, numbers};
    const ls_augment augment = {.size = sizeof(augment), .height = 2};
    const int64_t *lengths;
    ls_dataset *set;

    (void)state;
    assert_ok(ls_dataset_from_arrays(&array, 1, 3, &set));
    assert_int_equal(ls_dataset_classes(set), 0);
    assert_null(ls_dataset_class_name(set, 0));
    assert_int_equal(ls_dataset_label(set, 0), -1);
    assert_null(ls_dataset_sample_dims(set));
    assert_status(ls_dataset_augment(set, &augment), LS_EINVAL);
    assert_last_error("the data set has no images");
    assert_status(ls_dataset_lengths(set, "x", &lengths), LS_EINVAL);
    assert_last_error("field \"x\" has a fixed size");
    assert_status(ls_dataset_lengths(set, "y", &lengths), LS_EINVAL);
    assert_last_error("no field \"y\"; its fields are x");
    assert_status(ls_dataset_lengths(set, NULL, &lengths), LS_EINVAL);
    ls_dataset_close(set);
}

static void lengths_of_all_samples_can_be_read(void **state)
{
    hostile given = {.at = 4, .length = 9};
    const ls_dataset_callbacks callbacks = callbacks_of(good, 2, &given);
    const int64_t *lengths = NULL;
    ls_dataset *set;

    (void)state;
    assert_ok(ls_dataset_create(&callbacks, &set));
    assert_ok(ls_dataset_lengths(set, NULL, &lengths));
    for (size_t i = 0; i < 10; i++)
        assert_int_equal(lengths[i], i == 4 ? 9 : 3);
    ls_dataset_close(set);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(invalid_fields_are_named),
        cmocka_unit_test(the_number_of_fields_is_limited),
        cmocka_unit_test(hostile_lengths_name_field_and_sample),
        cmocka_unit_test(a_batch_that_no_memory_holds_names_the_field),
        cmocka_unit_test(arrays_are_checked),
        cmocka_unit_test(sets_without_images_have_no_classes),
        cmocka_unit_test(lengths_of_all_samples_can_be_read),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
