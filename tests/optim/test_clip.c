/* SPDX-License-Identifier: Apache-2.0 */
/* test_clip.c - clipping by norm and by value. */
#include "optim/optim_scene.h"

#include "base/alloc.h"
#include "base/rng.h"
#include "optim/optim_kernel.h"
#include "tensor/tensor.h"

#include <math.h>

/* Two parameters with gradients (3, 0, 4) and (0, 12), of norm 13, and one without. */
typedef struct clip_scene {
    ls_named named[3];
    ls_tensor *of[2];
} clip_scene;

static clip_scene begin(ls_dtype type)
{
    clip_scene s;

    for (int i = 0; i < 3; i++)
        s.named[i] = (ls_named){.name = i == 0   ? "a"
                                        : i == 1 ? "b"
                                                 : "c",
                                .tensor = make_tensor(i == 1 ? LS_F64 : type, i == 1 ? 2 : 3)};
    for (int i = 0; i < 2; i++) {
        s.of[i] = make_tensor(i == 1 ? LS_F64 : type, i == 1 ? 2 : 3);
        grads[i] = (scene_grad){.parameter = s.named[i].tensor, .grad = s.of[i]};
    }
    set_values(s.of[0], (double[]){3, 0, 4});
    set_values(s.of[1], (double[]){0, 12});
    return s;
}

static void end(clip_scene *s)
{
    for (int i = 0; i < 3; i++)
        ls_tensor_destroy(s->named[i].tensor);
    for (int i = 0; i < 2; i++)
        ls_tensor_destroy(s->of[i]);
    memset(grads, 0, sizeof(grads));
}

static void a_norm_over_the_limit_is_brought_down_to_it(void **state)
{
    const double factor = 6.5 / (13 + 1e-6);

    LS_UNUSED(state);
    for (int wide = 0; wide < 2; wide++) {
        clip_scene s = begin(wide ? LS_F64 : LS_F32);
        double norm = 0;

        assert_ok(ls_clip_grad_norm(s.named, 3, grad_of, 6.5, &norm));
        assert_true(norm == 13);
        assert_true(fabs(value_at(s.of[0], 0) - 3 * factor) < (wide ? 1e-15 : 1e-6));
        assert_true(value_at(s.of[0], 1) == 0);
        assert_true(fabs(value_at(s.of[1], 1) - 12 * factor) < 2e-15);
        end(&s);
    }
}

static void a_norm_within_the_limit_changes_no_bit(void **state)
{
    clip_scene s = begin(LS_F32);
    const uint64_t version = s.of[0]->storage->version;
    double norm = 0;

    LS_UNUSED(state);
    assert_ok(ls_clip_grad_norm(s.named, 3, grad_of, 13.1, &norm));
    assert_true(norm == 13 && value_at(s.of[0], 2) == 4 && value_at(s.of[1], 1) == 12);
    assert_true(s.of[0]->storage->version == version);
    assert_ok(ls_clip_grad_norm(s.named, 3, grad_of, 1, NULL));
    assert_true(s.of[0]->storage->version > version);
    assert_ok(ls_clip_grad_norm(s.named, 0, grad_of, 1, &norm));
    assert_true(norm == 0);
    end(&s);
}

static void a_norm_that_is_not_finite_shows(void **state)
{
    clip_scene s = begin(LS_F32);
    double norm = 0;

    LS_UNUSED(state);
    set_values(s.of[0], (double[]){(double)INFINITY, 0, 4});
    assert_ok(ls_clip_grad_norm(s.named, 3, grad_of, 1, &norm));
    assert_true(isinf(norm) && isnan(value_at(s.of[0], 0)) && value_at(s.of[1], 1) == 0);
    set_values(s.of[0], (double[]){(double)NAN, 0, 4});
    assert_ok(ls_clip_grad_norm(s.named, 3, grad_of, 1, &norm));
    assert_true(isnan(norm) && isnan(value_at(s.of[1], 1)));
    end(&s);
}

static void values_are_brought_into_their_range(void **state)
{
    clip_scene s = begin(LS_F32);

    LS_UNUSED(state);
    set_values(s.of[0], (double[]){-5, (double)NAN, 0.5});
    assert_ok(ls_clip_grad_value(s.named, 3, grad_of, 2));
    assert_true(value_at(s.of[0], 0) == -2 && isnan(value_at(s.of[0], 1)));
    assert_true(value_at(s.of[0], 2) == 0.5 && value_at(s.of[1], 1) == 2);
    end(&s);
}

static void every_instruction_set_gives_the_same_bits(void **state)
{
    enum { N = 1003 };
    double values[N];
    float rounded[N];
    ls_rng rng;

    LS_UNUSED(state);
    ls_rng_seed(&rng, 7);
    for (size_t i = 0; i < N; i++) {
        values[i] = ls_rng_normal(&rng);
        rounded[i] = (float)values[i];
    }
    for (size_t count = 0; count <= N; count += 59) {
        const grad_range wide = {.values = values, .count = count};
        const grad_range narrow = {.values = rounded, .count = count};
        const double want_wide = optim_kernels_at(0)->f64.sum_of_squares(&wide);
        const double want_narrow = optim_kernels_at(0)->f32.sum_of_squares(&narrow);

        for (int i = 1; optim_kernels_at(i) != NULL; i++) {
            const double got_wide = optim_kernels_at(i)->f64.sum_of_squares(&wide);
            const double got_narrow = optim_kernels_at(i)->f32.sum_of_squares(&narrow);

            assert_memory_equal(&got_wide, &want_wide, sizeof(double));
            assert_memory_equal(&got_narrow, &want_narrow, sizeof(double));
        }
    }
}

static void nothing_is_allocated(void **state)
{
    clip_scene s = begin(LS_F32);
    const uint64_t before = ls_alloc_count();

    LS_UNUSED(state);
    assert_ok(ls_clip_grad_norm(s.named, 3, grad_of, 1, NULL));
    assert_ok(ls_clip_grad_value(s.named, 3, grad_of, 0.1));
    assert_int_equal(ls_alloc_count(), before);
    end(&s);
}

static void wrong_arguments_say_what_is_wrong(void **state)
{
    clip_scene s = begin(LS_F32);

    LS_UNUSED(state);
    assert_status(ls_clip_grad_norm(s.named, 3, grad_of, 0, NULL), LS_EINVAL);
    assert_last_error("max_norm is 0");
    assert_status(ls_clip_grad_norm(s.named, 3, grad_of, (double)NAN, NULL), LS_EINVAL);
    assert_status(ls_clip_grad_norm(s.named, 3, NULL, 1, NULL), LS_EINVAL);
    assert_status(ls_clip_grad_value(s.named, 3, grad_of, -1), LS_EINVAL);
    assert_last_error("limit is -1");
    grads[0].grad = s.of[1];
    assert_status(ls_clip_grad_norm(s.named, 3, grad_of, 1, NULL), LS_EINVAL);
    assert_last_error("parameter a is (3) float32 but its gradient is (2) float64");
    end(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_norm_over_the_limit_is_brought_down_to_it),
        cmocka_unit_test(a_norm_within_the_limit_changes_no_bit),
        cmocka_unit_test(a_norm_that_is_not_finite_shows),
        cmocka_unit_test(values_are_brought_into_their_range),
        cmocka_unit_test(every_instruction_set_gives_the_same_bits),
        cmocka_unit_test(nothing_is_allocated),
        cmocka_unit_test(wrong_arguments_say_what_is_wrong),
    };

    return cmocka_run_group_tests(tests, open_device, close_device);
}
