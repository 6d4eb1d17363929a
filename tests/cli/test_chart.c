/* SPDX-License-Identifier: Apache-2.0 */
/* test_chart.c - tests ticks, numbers and paths of charts. */
#include "base/report/json.h"
#include "cli/report/chart.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MANY = 1024 };

static double x[MANY];
static double y[MANY];

static const char *draw(text_buf *t, int n, bool stacked)
{
    const chart_series series = {"training", x, y, n};
    const chart c = {.title = "Loss", .series = &series, .n_series = 1, .stacked = stacked};

    text_free(t);
    chart_append(t, &c);
    assert_int_equal(text_status(t), LS_OK);
    return text_str(t);
}

/* --- ticks --- */

static void ticks_are_1_2_or_5_times_a_power_of_ten(void **state)
{
    static const double good[] = {1, 2, 5};

    (void)state;
    for (double range = 1e-7; range < 1e9; range *= 1.37) {
        const double tick = chart_tick(range);
        bool found = false;

        for (size_t i = 0; i < LS_COUNT_OF(good); i++) {
            const double power = log10(tick / good[i]);
            found = found || fabs(power - round(power)) < 1e-9;
        }
        assert_true(found);
        assert_true(range / tick > 1.9 && range / tick < 5.1);
    }
}

static void ticks_have_as_many_digits_as_they_differ_in(void **state)
{
    static const struct {
        double value, tick, largest;
        const char *text;
    } cases[] = {
        {0, 0.5, 3, "0"},
        {1.5, 0.5, 3, "1.5"},
        {0.30000000000000004, 0.1, 1, "0.3"},
        {2.25, 0.05, 2.4, "2.25"},
        {40, 20, 100, "40"},
        {9000, 1000, 9000, "9000"},
        {20000, 5000, 30000, "20k"},
        {10500, 500, 12000, "10.5k"},
        {12340, 20, 12400, "12340"},
        {2.5e6, 5e5, 3e6, "2.5M"},
        {3e-7, 1e-7, 5e-7, "3e-07"},
        {-1e-17, 0.1, 1, "0"},
        {-2, 1, 3, "-2"},
    };
    char text[CHART_TICK_BYTES];

    (void)state;
    for (size_t i = 0; i < LS_COUNT_OF(cases); i++) {
        chart_tick_text(text, cases[i].value, cases[i].tick, cases[i].largest);
        assert_string_equal(text, cases[i].text);
    }
}

/* Numbers behind each `what` in the chart, in per cent, are inside and at least `apart` from each
 * other. Gives how many there are. */
static int check_places(const char *text, const char *what, double apart)
{
    double before = (double)NAN;
    int n = 0;

    for (const char *at = text; (at = strstr(at, what)) != NULL; n++) {
        double place;

        at += strlen(what);
        place = strtod(at, NULL);
        assert_true(place >= -0.01 && place <= 100.01);
        assert_false(fabs(place - before) < apart);
        before = place;
    }
    return n;
}

static void axis_numbers_do_not_touch(void **state)
{
    static const int counts[] = {1, 2, 3, 61, MANY};
    text_buf t = {0};

    (void)state;
    for (double scale = 1e-4; scale < 1e7; scale *= 3.7) {
        for (size_t k = 0; k < LS_COUNT_OF(counts); k++) {
            for (int i = 0; i < counts[k]; i++) {
                x[i] = (i + 1) * ceil(scale);
                y[i] = scale * (2 + sin(i));
            }
            (void)draw(&t, counts[k], k % 2 == 0);
            // In the least place they have, 300 x 230 pixels, these are 54 and 34.
            assert_in_range(check_places(text_str(&t), "left:", 18), 1, 7);
            assert_in_range(check_places(text_str(&t), "top:", 15), 2, 7);
        }
    }
    text_free(&t);
}

/* --- what is shown --- */

static void a_single_value_is_a_point(void **state)
{
    text_buf t = {0};

    (void)state;
    x[0] = 20;
    y[0] = 2.3;
    assert_non_null(strstr(draw(&t, 1, false), "M1000.0 500.0h0"));
    assert_non_null(strstr(text_str(&t), "training <b>2.3</b>"));
    assert_non_null(strstr(draw(&t, 0, false), "no values yet"));
    y[0] = (double)NAN;
    assert_non_null(strstr(draw(&t, 1, false), "no value is a finite number (NaN or infinite)"));
    text_free(&t);
}

static void missing_values_leave_a_gap(void **state)
{
    text_buf t = {0};
    json_value *v = NULL;
    const char *begin;
    const char *end;

    (void)state;
    for (int i = 0; i < 5; i++) {
        x[i] = i + 1;
        y[i] = i == 2 ? (double)INFINITY : i;
    }
    begin = strstr(draw(&t, 5, false), "json\">") + strlen("json\">");
    end = strstr(begin, "</script>");
    assert_null(strstr(text_str(&t), "inf"));
    assert_non_null(strstr(text_str(&t), "M800.0")); // the line is begun anew at step 4 of 5
    assert_int_equal(json_parse(begin, (size_t)(end - begin), "chart", &v), LS_OK);
    json_free(v);
    text_free(&t);
}

static void columns_are_as_wide_as_their_steps(void **state)
{
    text_buf t = {0};

    (void)state;
    x[0] = 30;
    x[1] = 40;
    y[0] = y[1] = 5;
    assert_non_null(strstr(draw(&t, 2, true), "x=\"2.00\" width=\"746.00\""));
    assert_non_null(strstr(text_str(&t), "x=\"752.00\" width=\"246.00\""));
    text_free(&t);
}

static void a_late_start_uses_the_whole_width(void **state)
{
    text_buf t = {0};

    (void)state;
    for (int i = 0; i < 3; i++) {
        x[i] = 5000 + 20 * i;
        y[i] = i;
    }
    assert_non_null(strstr(draw(&t, 3, false), "\"x0\":5000,\"x1\":5040"));
    x[0] = 20;
    assert_non_null(strstr(draw(&t, 3, false), "\"x0\":0,\"x1\":5040"));
    text_free(&t);
}

/* A tick added to a great number may be that number again. */
static void an_axis_of_great_numbers_that_hardly_differ_ends(void **state)
{
    static const double pairs[][2] = {{-1e17, -1e17}, {1e17, 1e17 + 16}, {-1e21, -1e21 + 2e5}};
    text_buf t = {0};

    (void)state;
    for (size_t i = 0; i < LS_COUNT_OF(pairs); i++)
        for (int swapped = 0; swapped < 2; swapped++) {
            for (int k = 0; k < 2; k++) {
                x[k] = swapped ? k : pairs[i][k];
                y[k] = swapped ? pairs[i][k] : k;
            }
            assert_null(strstr(draw(&t, 2, false), "nan"));
            assert_null(strstr(draw(&t, 2, true), "nan"));
            assert_true(t.length < 8192);
        }
    text_free(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ticks_are_1_2_or_5_times_a_power_of_ten),
        cmocka_unit_test(ticks_have_as_many_digits_as_they_differ_in),
        cmocka_unit_test(axis_numbers_do_not_touch),
        cmocka_unit_test(a_single_value_is_a_point),
        cmocka_unit_test(missing_values_leave_a_gap),
        cmocka_unit_test(columns_are_as_wide_as_their_steps),
        cmocka_unit_test(a_late_start_uses_the_whole_width),
        cmocka_unit_test(an_axis_of_great_numbers_that_hardly_differ_ends),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
