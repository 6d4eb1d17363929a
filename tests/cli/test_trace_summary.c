/* SPDX-License-Identifier: Apache-2.0 */
/* test_trace_summary.c - what lockstep trace summarize reads and prints. */
#include "base/unit.h"

#include "base/file.h"
#include "cli/trace/trace_summary.h"

#include <stdlib.h>
#include <unistd.h>

/* Rank 1 takes twice as long as the two others. */
#define PROFILE(rank, forward_us)                                                                  \
    "{\"traceEvents\":["                                                                           \
    "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":" rank ",\"tid\":0,\"args\":{\"name\":"       \
    "\"rank " rank " (node\\u001b1)\"}},"                                                          \
    "{\"name\":\"forward\",\"cat\":\"phase\",\"ph\":\"X\",\"ts\":0,\"dur\":" forward_us            \
    ",\"pid\":" rank ",\"tid\":1},"                                                                \
    "{\"name\":\"optimizer\",\"cat\":\"phase\",\"ph\":\"X\",\"ts\":0,\"dur\":1000,\"pid\":" rank   \
    ",\"tid\":1},"                                                                                 \
    "{\"name\":\"communication\",\"cat\":\"phase\",\"ph\":\"X\",\"ts\":0,\"dur\":500,"             \
    "\"pid\":" rank ",\"tid\":1},"                                                                 \
    "{\"name\":\"conv2d\",\"cat\":\"operator\",\"ph\":\"X\",\"ts\":0,\"dur\":3000,\"pid\":" rank   \
    ",\"tid\":2,\"args\":{\"phase\":\"forward\",\"layer\":\"c1\",\"shapes\":\"(2, 3)\","           \
    "\"flops\":2.4e7,\"bytes\":1e6}},"                                                             \
    "{\"name\":\"relu\",\"cat\":\"operator\",\"ph\":\"X\",\"ts\":0,\"dur\":1000,\"pid\":" rank     \
    ",\"tid\":2,\"args\":{\"phase\":\"forward\",\"flops\":1000,\"bytes\":1.5e6}},"                 \
    "{\"name\":\"sgd\",\"cat\":\"operator\",\"ph\":\"X\",\"ts\":0,\"dur\":500,\"pid\":" rank       \
    ",\"tid\":2,\"args\":{\"phase\":\"optimizer\",\"calls\":20,\"flops\":10,\"bytes\":10}},"       \
    "{\"name\":\"all_reduce\",\"cat\":\"operation\",\"ph\":\"X\",\"ts\":0,\"dur\":200,"            \
    "\"pid\":" rank ",\"tid\":3,\"args\":{\"bytes\":400000}}"                                      \
    "],\"otherData\":{\"device\":\"onednn\",\"first_step\":5,\"last_step\":6,"                     \
    "\"ceiling_gflops_per_s\":10,\"ceiling_gb_per_s\":2}}"

static const char rank_0[] = PROFILE("0", "4000");
static const char rank_1[] = PROFILE("1", "9000");
static const char rank_2[] = PROFILE("2", "4000");

static void add(trace_summary *s, const char *text)
{
    assert_ok(trace_summary_add(s, text, strlen(text), "file"));
}

static void assert_has(const text_buf *text, const char *part)
{
    if (strstr(text_str(text), part) == NULL)
        fail_msg("\"%s\" is not in:\n%s", part, text_str(text));
}

static void operators_are_bound_by_what_explains_their_time(void **state)
{
    trace_summary s = {.n_files = 0};
    text_buf text = {0};

    LS_UNUSED(state);
    add(&s, rank_0);
    add(&s, rank_2);
    trace_summary_text(&s, 10, &text);
    assert_has(&text, "2 ranks, steps 5 to 6, onednn\n");
    assert_has(&text, "mean: 10.0 GFLOP/s, 2.0 GB/s\n");
    assert_has(&text, "operators of all ranks: 9.0 ms\n");
    // 2.4e7 operations take 2.4 ms at the ceiling, 1e6 bytes 0.5 ms
    assert_has(&text, "      6.00  66.7 %       2       8.0     0.3     80 %  compute   conv2d "
                      "(forward)\n");
    assert_has(&text, "c1: (2, 3)\n");
    assert_has(&text, "      2.00  22.2 %       2       0.0     1.5     75 %  memory    relu "
                      "(forward)\n");
    assert_has(&text, "     40       0.0     0.0      0 %  overhead  sgd (optimizer)\n");
    assert_has(&text, "      0.40       2       0.8    2.00        -  all_reduce\n");
    assert_has(&text, "no stragglers: no rank has 1.1 times the mean\n");
    text_free(&text);
    trace_summary_text(&s, 1, &text);
    assert_has(&text, "and 2 more; --top 3 shows all\n");
    assert_null(strstr(text_str(&text), "relu"));
    text_free(&text);
    trace_summary_free(&s);
}

static void a_slow_rank_is_named(void **state)
{
    trace_summary s = {.n_files = 0};
    text_buf text = {0};

    LS_UNUSED(state);
    add(&s, rank_1); // in any order
    add(&s, rank_2);
    add(&s, rank_0);
    trace_summary_text(&s, 10, &text);
    assert_has(&text, "     0      1      5.00      0.00      4.00      0.00      1.00      0.50"
                      "        -       -\n     1      1     10.00 ");
    assert_has(&text, "imbalance: the slowest rank, 1, has 1.50 times the mean own time\n");
    assert_has(&text, "straggler: rank 1 (node?1) needs 10.00 ms of its own for a step, 1.50 times "
                      "the mean; most of it is forward\n");
    text_free(&text);
    trace_summary_free(&s);
}

/* The form of lockstep run --trace. */
static void late_and_awaited_ranks_are_counted(void **state)
{
    static const char trace[] =
        "{\"traceEvents\":["
        "{\"name\":\"barrier\",\"cat\":\"operation\",\"dur\":9,\"pid\":0,\"args\":"
        "{\"late_us\":0,\"waited_for_rank\":1}},"
        "{\"name\":\"barrier\",\"cat\":\"operation\",\"dur\":1,\"pid\":1,\"args\":{\"late_us\":8}},"
        "{\"name\":\"barrier\",\"cat\":\"operation\",\"dur\":9,\"pid\":0,\"args\":"
        "{\"late_us\":0,\"waited_for_rank\":1}}]}";
    trace_summary s = {.n_files = 0};
    text_buf text = {0};

    LS_UNUSED(state);
    add(&s, trace);
    trace_summary_text(&s, 10, &text);
    assert_has(&text, "      0.02       3       0.0    0.00        3  barrier\n");
    assert_has(&text, "     1      0      0.00      0.00      0.00      0.00      0.00      0.00"
                      "        8       2\n");
    text_free(&text);
    trace_summary_free(&s);
}

static void a_byte_order_mark_is_read_over(void **state)
{
    char path[] = "/tmp/lockstep-test-trace-XXXXXX";
    const int fd = mkstemp(path);
    trace_summary s = {.n_files = 0};
    text_buf text = {0};

    LS_UNUSED(state);
    assert_true(fd >= 0);
    assert_int_equal(close(fd), 0);
    text_append(&text, "\xEF\xBB\xBF%s", rank_0);
    assert_ok(file_replace(path, text_str(&text), text.length));
    assert_ok(trace_summary_add_file(&s, path));
    assert_int_equal(s.n_files, 1);
    assert_int_equal(unlink(path), 0);
    trace_summary_free(&s);
    text_free(&text);
}

static void a_rank_in_two_files_is_refused(void **state)
{
    trace_summary s = {.n_files = 0};

    LS_UNUSED(state);
    add(&s, rank_0);
    assert_status(trace_summary_add(&s, rank_0, strlen(rank_0), "again.json"), LS_EINVAL);
    assert_last_error("again.json: rank 0 is in another of the traces, too");
    trace_summary_free(&s);
}

static void what_is_no_trace_is_refused(void **state)
{
    static const char *const wrong[] = {"[]", "{}", "{\"traceEvents\":1}", "{\"traceEvents\":[}"};
    trace_summary s = {.n_files = 0};

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(wrong); i++)
        assert_status(trace_summary_add(&s, wrong[i], strlen(wrong[i]), "f.json"), LS_EFORMAT);
    assert_last_error("f.json");
    trace_summary_free(&s);
}

static void wrong_values_count_as_0(void **state)
{
    static const char trace[] =
        "{\"traceEvents\":[7,null,{\"pid\":-1},{\"pid\":99999999999},"
        "{\"pid\":3,\"cat\":\"operator\",\"name\":7,\"dur\":-5,\"args\":{\"flops\":1e300,\"calls\":"
        "-4}},"
        "{\"pid\":3,\"cat\":\"operation\",\"name\":\"x\",\"dur\":\"long\",\"args\":{\"late_us\":-1,"
        "\"waited_for_rank\":5}}],\"otherData\":[]}";
    trace_summary s = {.n_files = 0};
    text_buf text = {0};

    LS_UNUSED(state);
    add(&s, trace);
    trace_summary_text(&s, 10, &text);
    assert_ok(text_status(&text));
    assert_has(&text, "      0.00   0.0 %       1       0.0     0.0        -  ?         \n");
    assert_has(&text, "4 events were left out\n");
    text_free(&text);
    trace_summary_free(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(operators_are_bound_by_what_explains_their_time),
        cmocka_unit_test(a_slow_rank_is_named),
        cmocka_unit_test(late_and_awaited_ranks_are_counted),
        cmocka_unit_test(a_byte_order_mark_is_read_over),
        cmocka_unit_test(a_rank_in_two_files_is_refused),
        cmocka_unit_test(what_is_no_trace_is_refused),
        cmocka_unit_test(wrong_values_count_as_0),
    };

    return cmocka_run_group_tests_name("trace_summary", tests, NULL, NULL);
}
