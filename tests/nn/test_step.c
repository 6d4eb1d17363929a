/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_step.c - whole training steps of a ConvNet: they learn, repeat bit by bit, allocate nothing
 * once warm, and survive batches without rows and allocators that fail.
 */
#include "tensor/testing.h"

#include "base/alloc.h"
#include "nn/convnet.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct bench {
    ls_device *device;
    ls_tape *tape;
    convnet net;
    ls_tensor *x;
    ls_tensor *y;
} bench;

static bench setup(int64_t rows)
{
    bench s = {.device = open_reference()};

    assert_status(LS_OK, ls_tape_create(s.device, &s.tape));
    assert_status(LS_OK, convnet_create(s.device, 3, &s.net));
    assert_status(LS_OK, convnet_batch(s.device, rows, 11, &s.x, &s.y));
    return s;
}

static void teardown(bench *s)
{
    ls_tape_destroy(s->tape);
    ls_model_destroy(s->net.model);
    destroy_all((ls_tensor *[]){s->x, s->y}, 2);
    ls_device_close(s->device);
}

static float step(bench *s, ls_tensor *x, ls_tensor *y)
{
    float loss = 0;

    ls_model_zero_grad(s->net.model);
    assert_status(LS_OK, convnet_gradients(&s->net, s->tape, x, y, &loss));
    assert_status(LS_OK, convnet_descend(&s->net, 0.1F));
    return loss;
}

static void training_learns_and_repeats_bit_by_bit(void **state)
{
    float losses[2][30];

    LS_UNUSED(state);
    for (int run = 0; run < 2; run++) {
        bench s = setup(12);

        for (int i = 0; i < 30; i++)
            losses[run][i] = step(&s, s.x, s.y);
        teardown(&s);
    }
    assert_true(losses[0][0] > 1.0F);
    assert_true(losses[0][29] < 0.1F);
    assert_memory_equal(losses[0], losses[1], sizeof(losses[0]));
}

static void the_gradients_survive_a_change_of_mode(void **state)
{
    bench s = setup(6);
    ls_tensor *out;
    int n;
    const ls_named *p = ls_model_parameters(s.net.model, &n);

    LS_UNUSED(state);
    (void)step(&s, s.x, s.y);
    ls_tape_set_training(s.tape, 0);
    out = convnet_forward(&s.net, s.tape, s.x);
    assert_non_null(out);
    assert_int_equal(ls_tensor_dim(out, 1), CONVNET_CLASSES);
    for (int i = 0; i < n; i++)
        assert_non_null(ls_grad(p[i].tensor));
    teardown(&s);
}

static int64_t count_of(const ls_tensor *t)
{
    int64_t count = -1;

    assert_status(LS_OK, ls_tensor_read(t, &count, 1));
    return count;
}

static void the_counter_moves_only_in_training_and_with_rows(void **state)
{
    bench s = setup(6);
    ls_tensor *x = NULL;
    ls_tensor *y = NULL;
    int n;
    const ls_named *buffers = ls_model_buffers(s.net.model, &n);
    double mean;

    LS_UNUSED(state);
    assert_status(LS_OK, convnet_batch(s.device, 0, 1, &x, &y));
    (void)step(&s, s.x, s.y);
    assert_int_equal(count_of(buffers[2].tensor), 1);
    mean = element_of(buffers[0].tensor, 0);
    assert_true(mean != 0);
    (void)step(&s, x, y);
    ls_tape_set_training(s.tape, 0);
    assert_non_null(convnet_forward(&s.net, s.tape, s.x));
    assert_int_equal(count_of(buffers[2].tensor), 1);
    assert_true(element_of(buffers[0].tensor, 0) == mean);
    destroy_all((ls_tensor *[]){x, y}, 2);
    teardown(&s);
}

static void no_rows_give_no_loss_and_gradients_of_zero(void **state)
{
    bench s = setup(0);
    float loss = 1;
    int n;
    const ls_named *p = ls_model_parameters(s.net.model, &n);

    LS_UNUSED(state);
    for (int round = 0; round < 2; round++) {
        assert_status(LS_OK, convnet_gradients(&s.net, s.tape, s.x, s.y, &loss));
        assert_true(loss == 0);
        for (int i = 0; i < n; i++) {
            const ls_tensor *g = ls_grad(p[i].tensor);

            assert_non_null(g);
            for (size_t k = 0; k < ls_tensor_count(g); k++)
                assert_true(element_of(g, k) == 0);
        }
    }
    teardown(&s);
}

static void a_warm_step_allocates_nothing(void **state)
{
    bench s = setup(12);
    ls_tensor *x = NULL;
    ls_tensor *y = NULL;
    uint64_t before;

    LS_UNUSED(state);
    assert_status(LS_OK, convnet_batch(s.device, 5, 1, &x, &y));
    (void)step(&s, s.x, s.y);
    before = ls_alloc_count();
    for (int i = 0; i < 3; i++)
        (void)step(&s, s.x, s.y);
    assert_int_equal(ls_alloc_count(), before);
    (void)step(&s, x, y);
    ls_tape_set_training(s.tape, 0);
    assert_non_null(convnet_forward(&s.net, s.tape, x));
    ls_tape_set_training(s.tape, 1);
    before = ls_alloc_count();
    for (int i = 0; i < 3; i++) {
        (void)step(&s, s.x, s.y);
        (void)step(&s, x, y);
        ls_tape_set_training(s.tape, 0);
        assert_non_null(convnet_forward(&s.net, s.tape, x));
        ls_tape_set_training(s.tape, 1);
    }
    assert_int_equal(ls_alloc_count(), before);
    destroy_all((ls_tensor *[]){x, y}, 2);
    teardown(&s);
}

/* Resident pages, from /proc/self/statm. */
static long resident_pages(void)
{
    FILE *f = fopen("/proc/self/statm", "re");
    long total = 0;
    long resident = 0;

    assert_non_null(f);
    assert_int_equal(fscanf(f, "%ld %ld", &total, &resident), 2);
    assert_int_equal(fclose(f), 0);
    return resident;
}

static void resident_memory_is_flat_over_1000_steps(void **state)
{
    bench s;
    long before;

    LS_UNUSED(state);
#ifdef __SANITIZE_ADDRESS__
    if (strcmp(test_device_name(), "cpu_ref") != 0)
        skip(); // AddressSanitizer keeps what the simulated card has freed
#endif
    s = setup(2);
    for (int i = 0; i < 20; i++)
        (void)step(&s, s.x, s.y);
    before = resident_pages();
    for (int i = 0; i < 1000; i++)
        (void)step(&s, s.x, s.y);
    // Some pages of the C library may come in late; a leak of one value a step would be hundreds.
    assert_true(resident_pages() - before < 64);
    teardown(&s);
}

/* A step whose n-th allocation fails returns LS_ENOMEM, and the next step on the same tape is as if
 * nothing had happened. */
static void any_failed_allocation_leaves_a_usable_tape(void **state)
{
    float want = 0;
    bool whole = false;

    LS_UNUSED(state);
    for (uint64_t n = 0; !whole; n++) {
        bench s = setup(4);
        float loss = 0;
        ls_status st;

        assert_true(n < 1000);
        ls_alloc_fail_at(n);
        st = convnet_gradients(&s.net, s.tape, s.x, s.y, &loss);
        ls_alloc_fail_at(0);
        whole = n > 0 && st == LS_OK;
        if (n == 0)
            want = loss;
        if (n > 0 && !whole) {
            assert_status(LS_ENOMEM, st);
            ls_model_zero_grad(s.net.model);
            assert_status(LS_OK, convnet_gradients(&s.net, s.tape, s.x, s.y, &loss));
        }
        assert_true(loss == want);
        teardown(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(training_learns_and_repeats_bit_by_bit),
        cmocka_unit_test(the_gradients_survive_a_change_of_mode),
        cmocka_unit_test(the_counter_moves_only_in_training_and_with_rows),
        cmocka_unit_test(no_rows_give_no_loss_and_gradients_of_zero),
        cmocka_unit_test(a_warm_step_allocates_nothing),
        cmocka_unit_test(resident_memory_is_flat_over_1000_steps),
        cmocka_unit_test(any_failed_allocation_leaves_a_usable_tape),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
