/* SPDX-License-Identifier: Apache-2.0 */
/* test_clip.c - clipping by norm and by value. */
#include "optim/optim_scene.h"

#include "base/alloc.h"
#include "tensor/device.h"

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
    // A device with queues does not wait for the norm, and multiplies by 1.
    assert_true(device->accel != NULL || s.of[0]->storage->version == version);
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

static void nothing_is_allocated_after_the_first_call(void **state)
{
    clip_scene s = begin(LS_F32);
    uint64_t before;

    LS_UNUSED(state);
    assert_ok(ls_clip_grad_norm(s.named, 3, grad_of, 1, NULL));
    before = count_allocations();
    assert_ok(ls_clip_grad_norm(s.named, 3, grad_of, 1, NULL));
    assert_ok(ls_clip_grad_value(s.named, 3, grad_of, 0.1));
    assert_int_equal(count_allocations(), before);
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
        cmocka_unit_test(nothing_is_allocated_after_the_first_call),
        cmocka_unit_test(wrong_arguments_say_what_is_wrong),
    };

    return cmocka_run_group_tests(tests, open_device, close_device);
}
