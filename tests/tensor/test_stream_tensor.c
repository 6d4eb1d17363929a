/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_stream_tensor.c - tensors of a stream device as programs and layers above see them: whose
 * memory may be wrapped, what is refused, and access in pieces.
 */
#include "base/alloc.h"
#include "tensor/testing.h"

#include <string.h>

static void assert_error(const char *text)
{
    if (strstr(ls_last_error(), text) == NULL)
        fail_msg("\"%s\" does not tell \"%s\"", ls_last_error(), text);
}

static void wrapped_memory_belongs_to_the_device(void **state)
{
    ls_device *card = open_test_device("cudahost");
    ls_device *other = open_test_device("cudahost");
    ls_device *host = open_test_device("cpu_ref");
    float on_host[4] = {1, 2, 3, 4};
    float *on_card = accel_alloc(card->accel, sizeof(on_host));
    const int64_t dims[] = {4};
    ls_tensor *t = NULL;

    LS_UNUSED(state);
    assert_non_null(on_card);
    assert_status(LS_EINVAL, ls_tensor_wrap(card, LS_F32, 1, dims, on_host, &t));
    assert_error("is memory of the host, not of device cudahost");
    assert_error("ls_tensor_write() copies host memory to a device");
    assert_status(LS_EINVAL, ls_tensor_wrap(host, LS_F32, 1, dims, on_card, &t));
    assert_error("is memory of cudahost:0, not of device cpu_ref");
    assert_status(LS_EINVAL, ls_tensor_wrap(other, LS_F32, 1, dims, on_card, &t));
    assert_status(LS_OK, ls_tensor_wrap(card, LS_F32, 1, dims, on_card, &t));
    assert_status(LS_OK, ls_tensor_write(t, on_host, 4));
    assert_elements(t, (double[]){1, 2, 3, 4}, 0);
    ls_tensor_destroy(t);
    accel_free(card->accel, on_card);
    assert_status(LS_OK, ls_device_close(card));
    assert_status(LS_OK, ls_device_close(other));
    assert_status(LS_OK, ls_device_close(host));
}

static void addresses_are_refused_and_the_device_has_a_queue_and_memory(void **state)
{
    ls_device *card = open_test_device("cudahost");
    ls_tensor *t = tensor_of(card, LS_F32, 1, (int64_t[]){2}, (double[]){1, 2});
    size_t free_bytes = 1;
    size_t total_bytes = 0;

    LS_UNUSED(state);
    assert_null(ls_tensor_data(t));
    assert_error("ls_tensor_read() copies them");
    assert_null(ls_tensor_data_const(t));
    assert_ptr_equal(ls_device_queue(card), accel_queue(card->accel, ACCEL_COMPUTE));
    assert_status(LS_OK, ls_device_synchronize(card));
    assert_status(LS_OK, ls_device_memory(card, &free_bytes, &total_bytes));
    assert_true(free_bytes <= total_bytes && total_bytes > 0);
    ls_tensor_destroy(t);
    assert_status(LS_OK, ls_device_close(card));
}

/* Bytes that count up, over the pieces. */
static void write_count(void *arg, void *piece, size_t bytes)
{
    uint32_t *next = arg;
    uint32_t *data = piece;

    assert_true(bytes <= TENSOR_PIECE_BYTES);
    for (size_t i = 0; i < bytes / sizeof(*data); i++)
        data[i] = (*next)++;
}

static ls_status check_count(void *arg, const void *piece, size_t bytes)
{
    uint32_t *next = arg;
    const uint32_t *data = piece;

    assert_true(bytes <= TENSOR_PIECE_BYTES);
    for (size_t i = 0; i < bytes / sizeof(*data); i++) {
        if (data[i] != (*next)++)
            return ls_fail(LS_EFORMAT, "element %u differs", *next - 1);
    }
    return LS_OK;
}

static void large_tensors_pass_through_the_host_in_pieces(void **state)
{
    static const char *const names[] = {"cudahost", "cpu_ref"};
    const int64_t count = (int64_t)(TENSOR_PIECE_BYTES / 4 * 2 + 5);

    LS_UNUSED(state);
    for (int i = 0; i < 2; i++) {
        ls_device *device = open_test_device(names[i]);
        uint32_t next = 0;
        uint64_t version;
        ls_tensor *t = NULL;

        assert_status(LS_OK, ls_tensor_create(device, LS_I32, 1, &count, &t));
        version = t->storage->version;
        assert_status(LS_OK, tensor_write_pieces(t, write_count, &next));
        assert_int_equal(next, count);
        assert_true(t->storage->version > version);
        next = 0;
        assert_status(LS_OK, tensor_read_pieces(t, check_count, &next));
        assert_int_equal(next, count);
        next = 1;
        assert_status(LS_EFORMAT, tensor_read_pieces(t, check_count, &next));
        assert_int_equal(next, 2); // the first failure ends it
        ls_tensor_destroy(t);
        assert_status(LS_OK, ls_device_close(device));
    }
}

static void no_host_memory_for_a_piece_is_an_error(void **state)
{
    ls_device *card = open_test_device("cudahost");
    ls_tensor *t = tensor_of(card, LS_F32, 1, (int64_t[]){2}, (double[]){1, 2});
    uint32_t next = 0;

    LS_UNUSED(state);
    ls_alloc_fail_at(1);
    assert_status(LS_ENOMEM, tensor_write_pieces(t, write_count, &next));
    ls_alloc_fail_at(0);
    assert_error("no memory for 8 bytes of a copy from or to device cudahost:0");
    assert_elements(t, (double[]){1, 2}, 0);
    ls_tensor_destroy(t);
    assert_status(LS_OK, ls_device_close(card));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrapped_memory_belongs_to_the_device),
        cmocka_unit_test(addresses_are_refused_and_the_device_has_a_queue_and_memory),
        cmocka_unit_test(large_tensors_pass_through_the_host_in_pieces),
        cmocka_unit_test(no_host_memory_for_a_piece_is_an_error),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
