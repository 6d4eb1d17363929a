/* SPDX-License-Identifier: Apache-2.0 */
/* test_generate.c - tests the drawing of tokens, and text that a function in place of a network
 * continues. */
#include "base/unit.h"

#include "models/generate.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { N = 5, DRAWS = 20000 };

static const float logits[N] = {1.0F, 0.0F, -1.0F, 2.0F, 0.0F};

static int64_t draw(const generation *g, int64_t position)
{
    float sorted[N];

    return generate_draw(g, logits, N, position, sorted);
}

static void count_draws(const generation *g, int counts[N])
{
    memset(counts, 0, N * sizeof(counts[0]));
    for (int i = 0; i < DRAWS; i++)
        counts[draw(g, i)]++;
}

/* Frequencies within five standard deviations of the probabilities of softmax. */
static void frequencies_are_those_of_softmax(void **state)
{
    static const double temperatures[] = {0.5, 1, 2};

    (void)state;
    for (size_t t = 0; t < LS_COUNT_OF(temperatures); t++) {
        const generation g = {.temperature = temperatures[t], .seed = 17};
        double sum = 0;
        int counts[N];

        count_draws(&g, counts);
        for (int i = 0; i < N; i++)
            sum += exp((double)logits[i] / g.temperature);
        for (int i = 0; i < N; i++) {
            const double p = exp((double)logits[i] / g.temperature) / sum;

            if (fabs(counts[i] - p * DRAWS) > 5 * sqrt(p * (1 - p) * DRAWS))
                fail_msg("temperature %g: token %d %d times, expected %.0f", g.temperature, i,
                         counts[i], p * DRAWS);
        }
    }
}

static void only_the_k_largest_are_drawn(void **state)
{
    int counts[N];

    (void)state;
    count_draws(&(generation){.temperature = 1, .top_k = 2}, counts);
    assert_true(counts[3] > counts[0] && counts[0] > 0);
    assert_int_equal(counts[3] + counts[0], DRAWS);
    count_draws(&(generation){.temperature = 1, .top_k = 3}, counts); /* tokens 1 and 4 are equal */
    assert_true(counts[1] > 0 && counts[4] > 0 && counts[2] == 0);
    count_draws(&(generation){.temperature = 1, .top_k = 100}, counts);
    assert_true(counts[2] > 0);
}

static void temperature_0_is_the_largest(void **state)
{
    int counts[N];

    (void)state;
    count_draws(&(generation){.temperature = 0}, counts);
    assert_int_equal(counts[3], DRAWS);
}

static void seed_and_position_decide_the_draw(void **state)
{
    int n_by_seed = 0;
    int n_by_position = 0;

    (void)state;
    for (int i = 0; i < 1000; i++) {
        const generation g = {.temperature = 1, .seed = i};

        assert_int_equal(draw(&g, 7), draw(&g, 7));
        n_by_seed += draw(&g, 7) != draw(&(generation){.temperature = 1, .seed = i + 1}, 7);
        n_by_position += draw(&g, 7) != draw(&g, 8);
    }
    assert_in_range(n_by_seed, 400, 800);
    assert_in_range(n_by_position, 400, 800);
}

typedef struct counter {
    int64_t most; /* tokens of an input */
    ls_tensor *logits;
} counter;

/* In place of a network: the byte behind a byte is the next larger one. */
static ls_tensor *next_byte(void *net, ls_tape *tape, ls_tensor *ids)
{
    const int64_t t = ls_tensor_dim(ids, 1);
    counter *c = net;
    int64_t last[8];
    float out[256] = {0};

    assert_true(t <= 8 && !ls_tape_training(tape));
    c->most = t > c->most ? t : c->most;
    assert_int_equal(ls_tensor_read(ids, last, (size_t)t), LS_OK);
    out[(last[t - 1] + 1) % 256] = 1;
    assert_int_equal(ls_tensor_write(c->logits, out, 256), LS_OK);
    return c->logits;
}

static void prompt_is_continued_within_the_context(void **state)
{
    ls_device_options cpu_ref = {.size = sizeof(cpu_ref), .name = "cpu_ref"};
    generation g = {.prompt = "\xC3\xA9\xC3x\xE2\x82\033ab", .length = 6, .context = 5};
    char text[64] = "";
    counter c = {.most = 0};
    ls_device *device;
    ls_tape *tape;
    bpe *bytes;
    FILE *out;

    (void)state;
    assert_int_equal(bpe_open(NULL, NULL, &bytes), LS_OK);
    assert_int_equal(ls_device_open(&cpu_ref, &device), LS_OK);
    assert_int_equal(ls_tape_create(device, &tape), LS_OK);
    assert_int_equal(ls_tensor_create(device, LS_F32, 1, (int64_t[]){256}, &c.logits), LS_OK);
    g.tokens = bytes;
    out = fmemopen(text, sizeof(text), "w");
    assert_non_null(out);
    assert_int_equal(generate(&g, device, tape, next_byte, &c, out), LS_OK);
    assert_int_equal(fclose(out), 0);
    assert_string_equal(text, "\xC3\xA9?x???abcdefgh\n");
    assert_int_equal(c.most, 5);
    g.prompt = "";
    assert_int_equal(generate(&g, device, tape, next_byte, &c, stderr), LS_EINVAL);
    ls_tensor_destroy(c.logits);
    ls_tape_destroy(tape);
    assert_int_equal(ls_device_close(device), LS_OK);
    bpe_close(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frequencies_are_those_of_softmax),
        cmocka_unit_test(only_the_k_largest_are_drawn),
        cmocka_unit_test(temperature_0_is_the_largest),
        cmocka_unit_test(seed_and_position_decide_the_draw),
        cmocka_unit_test(prompt_is_continued_within_the_context),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
