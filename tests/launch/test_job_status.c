/* SPDX-License-Identifier: Apache-2.0 */
/* test_status.c - the status of a job: its text, malformed texts, late ranks, and metrics. */
#include "base/unit.h"

#include "launch/metrics_check.h"
#include "launch/status/metrics_text.h"
#include "launch/status/job_status.h"

#include <math.h>
#include <stdlib.h>

static job_status *new_status(void)
{
    job_status *v = calloc(1, sizeof(*v));

    assert_non_null(v);
    v->chosen = -1;
    return v;
}

static void end_status(job_status *v)
{
    job_status_free(v);
    free(v);
}

/* A rank that has started `sequence` in the world and waits there (-1: it has ended). */
static status_rank *add_rank(job_status *v, int number, int64_t sequence, double waits_s)
{
    status_rank *r = status_add_rank(v);

    assert_non_null(r);
    r->rank = number;
    r->has_operations = true;
    r->waits_s = waits_s;
    if (sequence > 0)
        r->groups[r->n_groups++] = (status_group){.sequence = sequence, .waits_s = waits_s};
    return r;
}

static void a_status_is_read_as_it_was_written(void **state)
{
    job_status *v = new_status();
    job_status *read = new_status();
    text_buf text = {0};
    json_writer w;
    status_rank *r = add_rank(v, 3, 17, 2.5);

    LS_UNUSED(state);
    text_format(v->name, sizeof(v->name), "a \"name\"");
    v->pid = 4711;
    v->age_s = 12.5;
    v->world_size = 8;
    v->is_head = true;
    text_format(r->host, sizeof(r->host), "node0");
    r->has_progress = true;
    r->step = 123456789012;
    r->loss = 0.25;
    r->seconds[4] = 1.5;
    r->shards = 11;
    r->shard_s = 0.125;
    r->rows = 85;
    r->row_s = 0.03125;
    r->memory_bytes = 1e9;
    r->received_bytes = 5e9;
    r->sources[r->n_sources++] = (status_source){.rank = 7, .bytes = 4e9};
    v->chosen = 3;
    v->n_operations = 1;
    text_format(v->operations[0].text, STATUS_TEXT, "all_reduce #17");
    v->operations[0].took_s = -1;
    json_begin(&w, &text);
    job_status_write(v, &w);
    assert_ok(job_status_read(text_str(&text), text.length, read));
    assert_string_equal(read->name, "a \"name\"");
    assert_int_equal(read->pid, 4711);
    assert_true(read->age_s == 12.5);
    assert_int_equal(read->world_size, 8);
    assert_true(read->is_head);
    assert_int_equal(read->n_ranks, 1);
    assert_int_equal(read->ranks[0].rank, 3);
    assert_string_equal(read->ranks[0].host, "node0");
    assert_true(read->ranks[0].step == 123456789012);
    assert_true(read->ranks[0].loss == 0.25);
    assert_true(read->ranks[0].seconds[4] == 1.5);
    assert_int_equal(read->ranks[0].shards, 11);
    assert_true(read->ranks[0].shard_s == 0.125);
    assert_int_equal(read->ranks[0].rows, 85);
    assert_true(read->ranks[0].row_s == 0.03125);
    assert_int_equal(read->ranks[0].n_groups, 1);
    assert_true(read->ranks[0].groups[0].waits_s == 2.5);
    assert_true(read->ranks[0].received_bytes == 5e9);
    assert_int_equal(read->ranks[0].n_sources, 1);
    assert_int_equal(read->ranks[0].sources[0].rank, 7);
    assert_true(read->ranks[0].sources[0].bytes == 4e9);
    assert_int_equal(read->chosen, 3);
    assert_string_equal(read->operations[0].text, "all_reduce #17");
    assert_true(read->operations[0].took_s == -1);
    text_free(&text);
    end_status(read);
    end_status(v);
}

static void a_malformed_text_is_refused_or_made_harmless(void **state)
{
    static const char *const refused[] = {"", "x", "[]", "{}", "{\"ranks\":3}", "{\"ranks\":[}"};
    static const char strange[] =
        "{\"name\":\"\\u001b[2Jx\",\"pid\":-5,\"age_s\":\"long\",\"nodes\":99999999999999,"
        "\"ranks\":[7,{\"rank\":-1,\"groups\":[{},{},{},{},{},{}],"
        "\"sources\":[{},{},{},{},{},{},{},{},{\"bytes\":-1}],\"seconds\":3,\"loss\":null,"
        "\"memory_bytes\":-1,\"cpu_s\":1e300,\"step\":-9e18,\"steps\":9223372036854775807}],"
        "\"chosen\":0,\"operations\":[1,{}]}";
    job_status *v = new_status();

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(refused); i++)
        assert_true(job_status_read(refused[i], strlen(refused[i]), v) != LS_OK);
    assert_ok(job_status_read(strange, sizeof(strange) - 1, v));
    assert_string_equal(v->name, "?[2Jx");
    assert_int_equal(v->pid, 0);
    assert_true(v->age_s == 0);
    assert_int_equal(v->n_nodes, INT32_MAX);
    assert_int_equal(v->n_ranks, 2);
    assert_int_equal(v->ranks[1].n_groups, STATUS_GROUPS);
    assert_int_equal(v->ranks[1].n_sources, STATUS_SOURCES);
    assert_true(v->ranks[1].memory_bytes == 0);
    assert_true(v->ranks[1].cpu_s == 0);
    assert_true(v->ranks[1].step == 0);
    assert_true(v->ranks[1].steps == INT64_C(1) << 53); // so that differences do not overflow
    assert_int_equal(v->n_operations, 2);
    end_status(v);
}

/* Each byte of a correct text is replaced in turn: a failure or a status, never more. */
static void every_changed_byte_of_a_text_is_survived(void **state)
{
    job_status *v = new_status();
    text_buf text = {0};
    json_writer w;

    LS_UNUSED(state);
    (void)add_rank(v, 1, 5, -1);
    json_begin(&w, &text);
    job_status_write(v, &w);
    job_status_free(v);
    for (size_t i = 0; i < text.length; i++) {
        static const char bytes[] = {0, '"', '{', ']', '-', '\x80'};
        const char kept = text.data[i];

        for (size_t k = 0; k < sizeof(bytes); k++) {
            text.data[i] = bytes[k];
            if (job_status_read(text_str(&text), text.length, v) == LS_OK)
                job_status_free(v);
        }
        text.data[i] = kept;
        if (job_status_read(text_str(&text), i, v) == LS_OK)
            job_status_free(v);
    }
    text_free(&text);
    end_status(v);
}

static void a_rank_that_others_wait_for_is_late(void **state)
{
    job_status *v = new_status();

    LS_UNUSED(state);
    (void)add_rank(v, 2, 9, 3.0); // waits for rank 1
    (void)add_rank(v, 1, 8, -1);
    (void)add_rank(v, 0, 9, 0.2); // came shortly ago
    (void)add_rank(v, 3, 0, -1);  // has not started any
    job_status_mark_late(v);
    for (int i = 0; i < 4; i++)
        assert_int_equal(v->ranks[i].rank, i);
    assert_false(v->ranks[0].is_late);
    assert_true(v->ranks[1].is_late);
    assert_false(v->ranks[2].is_late);
    assert_true(v->ranks[3].is_late);
    end_status(v);
}

static void ranks_of_other_groups_and_short_waits_are_not_late(void **state)
{
    job_status *v = new_status();

    LS_UNUSED(state);
    (void)add_rank(v, 0, 5, 0.5);
    (void)add_rank(v, 1, 4, -1);
    v->ranks[0].groups[v->ranks[0].n_groups++] =
        (status_group){.id = 77, .sequence = 3, .waits_s = 10}; // rank 1 is not in it
    job_status_mark_late(v);
    assert_false(v->ranks[0].is_late);
    assert_false(v->ranks[1].is_late);
    v->ranks[1].groups[v->ranks[1].n_groups++] =
        (status_group){.id = 77, .sequence = 2, .waits_s = -1};
    job_status_mark_late(v);
    assert_true(v->ranks[1].is_late);
    end_status(v);
}

/* Waits in more groups than are remembered, in any order. */
static void ranks_behind_in_many_groups_are_all_late(void **state)
{
    job_status *v = new_status();

    LS_UNUSED(state);
    for (int i = 0; i < 200; i++) {
        status_rank *r = add_rank(v, i, 0, -1);
        const int64_t pair = i / 2 % 50 + 1;

        // of each group with four ranks, the first is at 5, the second at 7, the others at 6
        r->groups[r->n_groups++] = (status_group){.id = pair,
                                                  .sequence = i >= 100     ? 6
                                                              : i % 2 == 0 ? 5
                                                                           : 7,
                                                  .waits_s = i >= 100 ? 2 : 3};
    }
    job_status_mark_late(v);
    for (int i = 0; i < 200; i++)
        assert_int_equal(v->ranks[i].is_late, i >= 100 || i % 2 == 0);
    end_status(v);
}

static void metrics_are_in_the_format_of_prometheus(void **state)
{
    job_status *v = new_status();
    text_buf text = {0};

    LS_UNUSED(state);
    text_format(v->command, sizeof(v->command), "a \\ \"b\"\nc");
    (void)add_rank(v, 0, 5, 1.5);
    (void)add_rank(v, 1, 5, -1);
    v->ranks[1].has_progress = true;
    v->ranks[1].loss = (double)NAN;
    v->ranks[0].operation_bytes = 1e18;
    metrics_text(v, &text);
    assert_ok(text_status(&text));
    // 5 of the job, of 2 ranks 4 + 5 each, of the one with progress 6 and 5 phases.
    assert_int_equal(metrics_count(text_str(&text)), 5 + 2 * 9 + 6 + 5);
    assert_non_null(strstr(text_str(&text), "command=\"a \\\\ \\\"b\\\"\\nc\""));
    assert_non_null(strstr(text_str(&text), "lockstep_rank_loss{rank=\"1\",host=\"\"} NaN\n"));
    assert_non_null(
        strstr(text_str(&text), "lockstep_rank_waiting_seconds{rank=\"0\",host=\"\"} 1.5"));
    text_free(&text);
    end_status(v);
}

static void the_checker_of_metrics_finds_errors(void **state)
{
    static const char *const wrong[] = {"a 1\n",
                                        "# HELP a x\na 1\n",
                                        "# HELP a x\n# TYPE a gauge\nb 1\n",
                                        "# HELP a x\n# TYPE a gauge\na 1",
                                        "# HELP a x\n# TYPE a gauge\na{b=\"c} 1\n",
                                        "# HELP a x\n# TYPE a gauge\na 1\na 1\n",
                                        "# HELP a x\n# TYPE a gauge\na one\n"};

    LS_UNUSED(state);
    assert_int_equal(metrics_count("# HELP a x\n# TYPE a gauge\na{b=\"c\"} 1\na{b=\"d\"} NaN\n"),
                     2);
    for (size_t i = 0; i < LS_COUNT_OF(wrong); i++)
        assert_int_equal(metrics_count(wrong[i]), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_status_is_read_as_it_was_written),
        cmocka_unit_test(a_malformed_text_is_refused_or_made_harmless),
        cmocka_unit_test(every_changed_byte_of_a_text_is_survived),
        cmocka_unit_test(a_rank_that_others_wait_for_is_late),
        cmocka_unit_test(ranks_of_other_groups_and_short_waits_are_not_late),
        cmocka_unit_test(ranks_behind_in_many_groups_are_all_late),
        cmocka_unit_test(metrics_are_in_the_format_of_prometheus),
        cmocka_unit_test(the_checker_of_metrics_finds_errors),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
