/* SPDX-License-Identifier: Apache-2.0 */
/* test_report.c - the page of lockstep report: its parts, hostile files, and long runs. */
#include "base/unit.h"

#include "base/file.h"
#include "cli/report/report.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static char path[64];

static report_run *read_text(const char *text, ls_status wanted)
{
    static report_run run;

    text_format(path, sizeof(path), "/tmp/lockstep-test-report-%d.jsonl", (int)getpid());
    assert_ok(file_replace(path, text, strlen(text)));
    assert_status(report_read(path, &run), wanted);
    (void)unlink(path);
    return &run;
}

static const char first_line[] =
    "{\"epoch\":0,\"step\":5,\"loss\":2.5,\"samples_per_s\":100,\"top1\":0.25,\"top5\":0.5,"
    "\"values\":{\"share\":0.5},\"seconds\":{\"data\":0.1,\"forward\":1,\"backward\":2,"
    "\"communication\":0.5,\"optimizer\":0.1},\"rank_seconds\":[[0.1,1,2,0.9,0.1],[0.1,1,2.8,0.1,"
    "0.1]],\"step_s\":[0.5,0.6,0.7,0.9],\"bad_images\":0,\"run\":{\"command\":\"train <b> & "
    "\\\"c\\\"\",\"version\":\"0.1.0\",\"host\":\"node0\",\"cores\":2,\"memory_bytes\":1073741824,"
    "\"device\":\"onednn\",\"ranks\":2,\"batch_size\":4,\"started\":1700000000}}\n";
static const char test_line[] =
    "{\"epoch\":1,\"step\":10,\"loss\":1.5,\"samples_per_s\":110,\"seconds\":{\"forward\":1},"
    "\"test_samples\":8,\"accuracy\":0.75,\"accuracy5\":1,\"test_loss\":0.5,\"test_values\":"
    "{\"share\":0.25},\"step_s\":[0.5]}\n";

static void a_run_has_all_its_parts(void **state)
{
    text_buf file = {0};
    text_buf page = {0};
    report_run *r;
    const char *html;

    LS_UNUSED(state);
    text_append(&file, "%s%s", first_line, test_line);
    r = read_text(text_str(&file), LS_OK);
    assert_int_equal(r->n_points, 2);
    assert_int_equal(r->n_tests, 1);
    assert_true(r->tests[0].epoch == 2); // the second one is complete, as the console says
    assert_int_equal(r->n_steps, 5);
    assert_int_equal(r->points[0].n_ranks, 2);
    report_page(r, 1, &page);
    assert_ok(text_status(&page));
    html = text_str(&page);
    assert_non_null(strstr(html, "train &lt;b&gt; &amp; &quot;c&quot;"));
    assert_non_null(strstr(html, "node0"));
    assert_non_null(strstr(html, "1 GiB"));
    assert_non_null(strstr(html, "2023-11-14 22:13 UTC"));
    assert_non_null(strstr(html, "median 600 ms"));
    assert_non_null(strstr(html, "<td>75.00 %</td>"));
    // rank 0 works 3.2 s and waits 0.9, rank 1 works 4 s
    assert_non_null(strstr(html, "<tr><td>0</td><td>3.20</td><td>0.90</td>"));
    assert_non_null(strstr(html, "<tr><td>1</td><td>4.00</td><td>0.10</td>"));
    assert_int_equal(count_parts(html, "<td class=\"lane\">"), 2);
    // 5 comparisons, 2 of the value, phases, histogram, and 2 lanes
    assert_int_equal(count_parts(html, "<svg"), 11);
    assert_non_null(strstr(html, "share, training"));
    assert_null(strstr(html, "http"));
    assert_null(strstr(html, "src="));
    assert_null(strstr(html, "nan"));
    text_free(&page);
    text_free(&file);
    report_free(r);
}

static void a_byte_order_mark_is_read_over(void **state)
{
    text_buf file = {0};
    report_run *r;

    LS_UNUSED(state);
    text_append(&file, "\xEF\xBB\xBF%s", first_line);
    r = read_text(text_str(&file), LS_OK);
    assert_int_equal(r->n_points, 1);
    assert_true(r->points[0].loss == 2.5);
    report_free(r);
    text_free(&file);
}

static void runs_are_lines_of_the_same_charts(void **state)
{
    report_run runs[2];
    text_buf page = {0};
    const char *loss;

    LS_UNUSED(state);
    runs[0] = *read_text(first_line, LS_OK);
    runs[1] = *read_text(test_line, LS_OK);
    text_format(runs[0].name, sizeof(runs[0].name), "one");
    text_format(runs[1].name, sizeof(runs[1].name), "<two>");
    report_page(runs, 2, &page);
    loss = strstr(text_str(&page), "<figcaption>Training loss");
    assert_non_null(loss);
    assert_non_null(strstr(loss, "one <b>2.5</b>"));
    assert_non_null(strstr(loss, "&lt;two&gt; <b>1.5</b>"));
    assert_null(strstr(text_str(&page), "<two>"));
    assert_int_equal(count_parts(text_str(&page), "<h2>"), 2);
    for (int i = 0; i < 2; i++)
        report_free(&runs[i]);
    text_free(&page);
}

static void a_file_that_is_not_metrics_is_refused_with_its_line(void **state)
{
    LS_UNUSED(state);
    (void)read_text("", LS_EFORMAT);
    assert_last_error("no whole line");
    (void)read_text("{\"step\":1,\"loss\":2}", LS_EFORMAT); // its end is missing
    (void)read_text("{\"step\":1,\"loss\":2}\n[]\n", LS_EFORMAT);
    assert_last_error("line 2");
    (void)read_text("{\"step\":1,\"loss\":2}\nx\n", LS_EFORMAT);
    assert_last_error("line 2");
    (void)read_text("{\"loss\":2}\n", LS_EFORMAT);
    assert_last_error("no step");
}

static void strange_values_and_changed_bytes_are_survived(void **state)
{
    static char text[4096];
    text_buf page = {0};
    report_run *r = read_text(
        "{\"step\":-1e17,\"loss\":null,\"seconds\":[1],\"rank_seconds\":[1,[],\"x\"],\"step_s\":"
        "[null,-1,1e300],\"values\":3,\"run\":7}\n{\"step\":1e17,\"loss\":1e308,\"values\":"
        "{\"a\":null},\"test_samples\":null,\"run\":{\"memory_bytes\":1e300,\"cores\":\"x\","
        "\"started\":9223372036854775807}}\n",
        LS_OK);

    LS_UNUSED(state);
    report_page(r, 1, &page);
    assert_ok(text_status(&page));
    report_free(r);
    text_format(text, sizeof(text), "%s", first_line);
    for (size_t i = 0; i + 1 < sizeof(first_line); i += 5) {
        const char kept = text[i];
        static report_run run;

        text[i] = '9';
        assert_ok(file_replace(path, text, strlen(text)));
        if (report_read(path, &run) == LS_OK) {
            text_free(&page);
            report_page(&run, 1, &page);
            report_free(&run);
        }
        text[i] = kept;
    }
    (void)unlink(path);
    text_free(&page);
}

static void a_long_run_makes_a_small_page(void **state)
{
    text_buf file = {0};
    text_buf page = {0};
    report_run *r;

    LS_UNUSED(state);
    for (int i = 1; i <= 20000; i++)
        text_append(&file, "{\"step\":%d,\"loss\":%g,\"step_s\":[0.1,0.2]}\n", i, 1.0 / i);
    r = read_text(text_str(&file), LS_OK);
    assert_int_equal(r->n_points, 20000);
    report_page(r, 1, &page);
    assert_true(page.length < 200000);
    assert_non_null(strstr(text_str(&page), "\"x\":[50,100,"));
    report_free(r);
    text_free(&page);
    text_free(&file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_run_has_all_its_parts),
        cmocka_unit_test(a_byte_order_mark_is_read_over),
        cmocka_unit_test(runs_are_lines_of_the_same_charts),
        cmocka_unit_test(a_file_that_is_not_metrics_is_refused_with_its_line),
        cmocka_unit_test(strange_values_and_changed_bytes_are_survived),
        cmocka_unit_test(a_long_run_makes_a_small_page),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
