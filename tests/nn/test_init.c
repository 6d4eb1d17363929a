/* SPDX-License-Identifier: Apache-2.0 */
/* test_init.c - ls_model_init(): formulas, distributions and errors of initial values. */
#include "tensor/testing.h"

#include <lockstep/nn.h>

#include "base/alloc.h"

#include <math.h>
#include <stdio.h>

typedef struct scene {
    ls_device *device;
    ls_model *model;
} scene;

static scene open_scene(void)
{
    scene s = {.device = open_reference()};

    assert_status(LS_OK, ls_model_create(s.device, 20, &s.model));
    return s;
}

static void close_scene(scene *s)
{
    ls_model_destroy(s->model);
    ls_device_close(s->device);
}

/* Of all elements. */
typedef struct statistics {
    double mean;
    double deviation;
    double low;
    double high;
} statistics;

static statistics statistics_of(const ls_tensor *t)
{
    const size_t n = ls_tensor_count(t);
    double *x = elements_of(t);
    statistics s = {.low = HUGE_VAL, .high = -HUGE_VAL};
    double squares = 0;

    for (size_t i = 0; i < n; i++) {
        s.mean += x[i] / (double)n;
        s.low = fmin(s.low, x[i]);
        s.high = fmax(s.high, x[i]);
    }
    for (size_t i = 0; i < n; i++)
        squares += (x[i] - s.mean) * (x[i] - s.mean);
    s.deviation = sqrt(squares / (double)n);
    ls_free(x);
    return s;
}

static ls_tensor *make(scene *s, int n_dims, const int64_t *dims, ls_nn_init_options how)
{
    static int number;
    char name[16];
    ls_tensor *t;

    (void)snprintf(name, sizeof(name), "p%d", number++);
    t = ls_nn_parameter(s->model, name, n_dims, dims);
    ls_model_init(s->model, name, &how);
    assert_status(LS_OK, ls_model_status(s->model));
    return t;
}

/* 12000 elements: the mean is within 5 of its standard errors, the deviation too (those of a
 * uniform one are smaller), and the bounds of uniform values are nearly reached. */
static void assert_distribution(const ls_tensor *t, bool is_uniform, double mean, double deviation)
{
    const double n = (double)ls_tensor_count(t);
    const statistics s = statistics_of(t);

    assert_true(fabs(s.mean - mean) < 5 * deviation / sqrt(n));
    assert_true(fabs(s.deviation - deviation) < 5 * deviation / sqrt(2 * n));
    if (!is_uniform) {
        assert_true(s.high > mean + 3 * deviation && s.low < mean - 3 * deviation);
        return;
    }
    assert_true(s.low >= mean - sqrt(3) * deviation * 1.000001);
    assert_true(s.high <= mean + sqrt(3) * deviation * 1.000001);
    assert_true(s.high - s.low > 0.998 * 2 * sqrt(3) * deviation);
}

/* (30,20,4,5): fan_in 400, fan_out 600. The expected deviations are those that torch.nn.init
 * documents, written out. */
static void distributions_have_the_deviations_of_their_fans(void **state)
{
    const struct {
        ls_nn_init_options how;
        bool is_uniform;
        double mean;
        double deviation;
    } all[] = {
        {{.kind = LS_INIT_UNIFORM}, true, 0.5, 1 / sqrt(12)},
        {{.kind = LS_INIT_UNIFORM, .low = -3, .high = 1}, true, -1, 4 / sqrt(12)},
        {{.kind = LS_INIT_NORMAL}, false, 0, 1},
        {{.kind = LS_INIT_NORMAL, .mean = 7, .std = 0.25}, false, 7, 0.25},
        {{.kind = LS_INIT_XAVIER_UNIFORM}, true, 0, sqrt(2.0 / 1000)},
        {{.kind = LS_INIT_XAVIER_NORMAL, .gain = 5.0 / 3}, false, 0, 5.0 / 3 * sqrt(2.0 / 1000)},
        {{.kind = LS_INIT_KAIMING_UNIFORM}, true, 0, sqrt(2.0 / 400)},
        {{.kind = LS_INIT_KAIMING_UNIFORM, .a = sqrt(5)}, true, 0, sqrt(1.0 / 3 / 400)},
        {{.kind = LS_INIT_KAIMING_NORMAL, .fan_out = 1}, false, 0, sqrt(2.0 / 600)},
        {{.kind = LS_INIT_KAIMING_NORMAL, .a = 0.2}, false, 0, sqrt(2 / 1.04 / 400)},
        {{.kind = LS_INIT_KAIMING_NORMAL, .gain = 0.75, .a = 9}, false, 0, 0.75 / 20},
    };
    scene s = open_scene();

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(all); i++)
        assert_distribution(make(&s, 4, (int64_t[]){30, 20, 4, 5}, all[i].how), all[i].is_uniform,
                            all[i].mean, all[i].deviation);
    close_scene(&s);
}

/* Mean and deviation of a normal distribution between a and b deviations. */
static statistics truncated_normal(double a, double b)
{
    const double density_a = exp(-a * a / 2) / sqrt(2 * acos(-1));
    const double density_b = exp(-b * b / 2) / sqrt(2 * acos(-1));
    const double mass = (erf(b / sqrt(2)) - erf(a / sqrt(2))) / 2;
    const double mean = (density_a - density_b) / mass;
    const double variance = 1 + (a * density_a - b * density_b) / mass - mean * mean;

    return (statistics){.mean = mean, .deviation = sqrt(variance)};
}

/* A wide interval and narrow ones, which are drawn in another way. */
static void truncated_normal_has_its_mean_and_deviation(void **state)
{
    static const double bounds[][2] = {{-2, 2}, {-0.5, 0.75}, {1, 2.5}, {2, 5}, {-1, 40}};
    scene s = open_scene();

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(bounds); i++) {
        const ls_nn_init_options how = {.kind = LS_INIT_TRUNC_NORMAL,
                                        .mean = 3,
                                        .std = 0.5,
                                        .low = 3 + 0.5 * bounds[i][0],
                                        .high = 3 + 0.5 * bounds[i][1]};
        const ls_tensor *t = make(&s, 1, (int64_t[]){12000}, how);
        const statistics want = truncated_normal(bounds[i][0], bounds[i][1]);
        const statistics have = statistics_of(t);

        assert_true(have.low >= how.low && have.high <= how.high);
        assert_true(fabs((have.mean - 3) / 0.5 - want.mean) < 5 * want.deviation / sqrt(12000));
        assert_true(fabs(have.deviation / 0.5 - want.deviation) < 0.05 * want.deviation);
    }
    close_scene(&s);
}

/* Q Q^T or Q^T Q is gain^2 times the identity, and the elements have the deviation of random
 * directions. */
static void orthogonal_matrices_are_orthogonal(void **state)
{
    static const int64_t shapes[][4] = {{12, 12, 1, 1}, {5, 3, 2, 2}, {40, 2, 3, 1}, {1, 1, 1, 1}};
    scene s = open_scene();

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(shapes); i++) {
        const size_t rows = (size_t)shapes[i][0];
        ls_tensor *t =
            make(&s, 4, shapes[i], (ls_nn_init_options){.kind = LS_INIT_ORTHOGONAL, .gain = 3});
        const size_t columns = ls_tensor_count(t) / rows;
        const size_t n = rows < columns ? rows : columns;
        double *q = elements_of(t);

        for (size_t a = 0; a < n; a++) {
            for (size_t b = 0; b < n; b++) {
                double sum = 0;

                for (size_t k = 0; k < rows * columns / n; k++)
                    sum += rows < columns ? q[a * columns + k] * q[b * columns + k]
                                          : q[k * columns + a] * q[k * columns + b];
                assert_true(fabs(sum - (a == b ? 9 : 0)) < 1e-5);
            }
        }
        ls_free(q);
    }
    assert_distribution(
        make(&s, 2, (int64_t[]){120, 100}, (ls_nn_init_options){.kind = LS_INIT_ORTHOGONAL}), false,
        0, 1 / sqrt(120));
    close_scene(&s);
}

static void constants_and_the_identity_are_exact(void **state)
{
    scene s = open_scene();

    LS_UNUSED(state);
    assert_elements(
        make(&s, 1, (int64_t[]){2}, (ls_nn_init_options){.kind = LS_INIT_CONSTANT, .value = -1.5}),
        (double[]){-1.5, -1.5}, 0);
    assert_elements(make(&s, 2, (int64_t[]){2, 3}, (ls_nn_init_options){.kind = LS_INIT_EYE}),
                    (double[]){1, 0, 0, 0, 1, 0}, 0);
    (void)make(&s, 2, (int64_t[]){0, 3}, (ls_nn_init_options){.kind = LS_INIT_ORTHOGONAL});
    (void)make(&s, 2, (int64_t[]){0, 0}, (ls_nn_init_options){.kind = LS_INIT_XAVIER_NORMAL});
    close_scene(&s);
}

static void the_seed_and_the_order_decide_the_values(void **state)
{
    const ls_nn_init_options how = {.kind = LS_INIT_NORMAL};
    scene a = open_scene();
    scene b = open_scene();
    ls_tensor *fc[2];
    double *first;

    LS_UNUSED(state);
    fc[0] = ls_layer_tensor(ls_nn_linear(a.model, "fc", 3, 4, 0), "weight");
    fc[1] = ls_layer_tensor(ls_nn_linear(b.model, "fc", 3, 4, 0), "weight");
    ls_model_init(a.model, "fc.*", &how);
    ls_model_init(b.model, "fc.*", &how);
    first = elements_of(fc[0]);
    assert_elements(fc[1], first, 0);
    ls_free(first);
    close_scene(&a);
    close_scene(&b);
}

static void wrong_options_are_named(void **state)
{
    const struct {
        ls_nn_init_options how;
        const char *pattern;
        const char *text;
        ls_status status;
    } all[] = {
        {{.kind = LS_INIT_NORMAL},
         "fc.wieght",
         "init: no parameter matches fc.wieght",
         LS_ENOTFOUND},
        {{.kind = LS_INIT_XAVIER_NORMAL},
         "*",
         "init: fc.bias: 1 dimensions; these initial values need at least 2",
         LS_EINVAL},
        {{.kind = LS_INIT_DEFAULT},
         "*",
         "init: fc.weight: 0 is not an ls_nn_init of ls_model_init()",
         LS_EINVAL},
        {{.kind = LS_INIT_UNIFORM, .low = 2, .high = 1},
         "*",
         "init: std 0, low 2, high 1: std must be at least 0, high low",
         LS_EINVAL},
        {{.kind = LS_INIT_NORMAL, .mean = NAN}, "*", "init: nan is not finite", LS_EINVAL},
        {{.kind = LS_INIT_TRUNC_NORMAL, .low = 2.5, .high = 3},
         "*",
         "init: fc.weight: truncated normal: low 2.5 and high 3 of mean 0 and deviation 1; the "
         "mean must be within 2 deviations of the interval",
         LS_EINVAL},
    };

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(all); i++) {
        scene s = open_scene();

        (void)ls_nn_linear(s.model, "fc", 3, 4, 0);
        ls_model_init(s.model, all[i].pattern, &all[i].how);
        assert_status(all[i].status, ls_model_status(s.model));
        assert_string_equal(ls_last_error(), all[i].text);
        close_scene(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(distributions_have_the_deviations_of_their_fans),
        cmocka_unit_test(truncated_normal_has_its_mean_and_deviation),
        cmocka_unit_test(orthogonal_matrices_are_orthogonal),
        cmocka_unit_test(constants_and_the_identity_are_exact),
        cmocka_unit_test(the_seed_and_the_order_decide_the_values),
        cmocka_unit_test(wrong_options_are_named),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
