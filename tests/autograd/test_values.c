/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_values.c - what operators give, against numbers that PyTorch 2.11 printed.
 */
#include "tensor/testing.h"

#include <lockstep/autograd.h>

/* A tape on the reference device, and the float64 tensors of one test. */
typedef struct bench {
    ls_device *device;
    ls_tape *tape;
    ls_tensor *made[8];
    int n_made;
} bench;

static bench set_up(void)
{
    bench s = {.device = open_reference()};

    assert_status(LS_OK, ls_tape_create(s.device, &s.tape));
    return s;
}

static void tear_down(bench *s)
{
    ls_tape_destroy(s->tape);
    destroy_all(s->made, s->n_made);
    ls_device_close(s->device);
}

/* Elements 0, 1, 2, ... times `step`, from `first` on. */
static ls_tensor *counting(bench *s, int n_dims, const int64_t *dims, double first, double step)
{
    ls_tensor *t = NULL;
    double *data;

    assert_status(LS_OK, ls_tensor_create(s->device, LS_F64, n_dims, dims, &t));
    data = ls_tensor_data(t);
    for (size_t i = 0; i < ls_tensor_count(t); i++)
        data[i] = first + step * (double)i;
    assert_true(s->n_made < 8);
    s->made[s->n_made++] = t;
    return t;
}

static void assert_gives(bench *s, const ls_tensor *y, int n_dims, const int64_t *dims,
                         const double *want)
{
    assert_status(LS_OK, ls_tape_status(s->tape));
    assert_int_equal(n_dims, ls_tensor_n_dims(y));
    for (int i = 0; i < n_dims; i++)
        assert_int_equal(dims[i], ls_tensor_dims(y)[i]);
    assert_elements(y, want, 1e-6);
}

/* Windows begin at 0, 2, 4 and, in ceil_mode, at 6, but not at 8, which is behind the image. */
static void pools_in_ceil_mode_reach_over_the_end(void **state)
{
    const ls_pool2d_params wide = {.kernel = {1, 3}, .stride = {1, 2}, .ceil_mode = 1};
    const ls_pool2d_params padded = {
        .kernel = {1, 2}, .stride = {1, 3}, .padding = {0, 1}, .ceil_mode = 1};
    bench s = set_up();
    ls_tensor *x = counting(&s, 4, (int64_t[]){1, 1, 1, 8}, 1, 1);

    LS_UNUSED(state);
    assert_gives(&s, ls_max_pool2d(s.tape, x, &wide), 4, (int64_t[]){1, 1, 1, 4},
                 (double[]){3, 5, 7, 8});
    assert_gives(&s, ls_avg_pool2d(s.tape, x, &wide), 4, (int64_t[]){1, 1, 1, 4},
                 (double[]){2, 4, 6, 7.5});
    assert_gives(&s, ls_avg_pool2d(s.tape, x, &padded), 4, (int64_t[]){1, 1, 1, 3},
                 (double[]){0.5, 3.5, 6.5});
    tear_down(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pools_in_ceil_mode_reach_over_the_end),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
