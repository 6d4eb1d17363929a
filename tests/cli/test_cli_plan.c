/* SPDX-License-Identifier: Apache-2.0 */
/* test_cli_plan.c - lockstep plan: what it prints about a program, and what it refuses. */
#include "launch/job.h"

#include "base/report/json.h"

#include <dirent.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char folder[64];
static char temporary[80]; /* TMPDIR=folder */

static int make_folder(void **state)
{
    LS_UNUSED(state);
    text_format(folder, sizeof(folder), "/tmp/lockstep-test-plan-XXXXXX");
    if (mkdtemp(folder) == NULL)
        return -1;
    text_format(temporary, sizeof(temporary), "TMPDIR=%s", folder);
    return 0;
}

static int count_left(void)
{
    DIR *d = opendir(folder);
    int n = 0;

    assert_non_null(d);
    while (readdir(d) != NULL)
        n++;
    (void)closedir(d);
    return n - 2; // . and ..
}

static int remove_folder(void **state)
{
    LS_UNUSED(state);
    return rmdir(folder);
}

static job *start(const char *const *argv)
{
    return job_start(argv, JOB_LIST(temporary, "LOCKSTEP_TRANSPORT"));
}

static double number(const json_value *rows, size_t i, const char *key)
{
    return json_as_real(json_get(json_at(rows, i), key), -1);
}

static void a_plan_has_a_row_for_each_number_of_machines(void **state)
{
    job *j = start(JOB_LIST(JOB_TOOL, "plan", "--link", "8Mbit,2ms", "--batch", "10", "--compress",
                            "--speeds", "1,0.5", "--most", "8", "--json", PLAN_PROGRAM, "--ddp",
                            "--batch", "10", "--steps", "8", "--warmup", "0"));
    json_value *report = NULL;
    const json_value *plans;
    const json_value *rows;
    const json_value *half;

    LS_UNUSED(state);
    job_expect_code(j, 0);
    assert_ok(json_parse(text_str(&j->out), strlen(text_str(&j->out)), "the plan", &report));
    plans = json_get(report, "plans");
    assert_int_equal(json_size(plans), 4);
    rows = json_get(json_at(plans, 0), "rows");
    half = json_get(json_at(plans, 1), "rows");
    assert_int_equal(json_size(rows), 4);
    assert_string_equal(json_as_string(json_get(report, "unit"), ""), "samples/s");
    // the ConvNet has 29034 parameters, in a bucket of whole cache lines
    assert_true(number(rows, 1, "sent_bytes") >= 29034 * 4);
    assert_true(number(rows, 1, "sent_bytes") < 29034 * 4 + 1000);
    assert_true(number(half, 1, "sent_bytes") < number(rows, 1, "sent_bytes") * 0.51);
    // at least as long as the link needs
    assert_true(number(rows, 1, "step_s") > 29034 * 4 / 1e6);
    assert_true(number(half, 1, "step_s") < number(rows, 1, "step_s"));
    assert_true(number(rows, 0, "rate") > 0);
    json_free(report);
    assert_int_equal(count_left(), 0);
}

static void the_table_names_what_bounds_a_step(void **state)
{
    job *j = start(JOB_LIST(JOB_TOOL, "plan", "--link", "100kbit,0ms", "--most", "2", PLAN_PROGRAM,
                            "--ddp", "--batch", "10", "--steps", "8", "--warmup", "0"));

    LS_UNUSED(state);
    job_expect_code(j, 0);
    job_expect(j, job_printed(j, 0, "MACHINES    BATCHES/S EFFICIENCY MB SENT/STEP  BOUND BY"));
    job_expect(j, job_printed(j, 0, "  bandwidth\n"));
    job_expect(j, job_printed(j, 0, "knee: 1;"));
}

static void bad_input_is_refused(void **state)
{
    const struct {
        const char *const *argv;
        int code;
        const char *text;
    } rows[] = {
        {JOB_LIST(JOB_TOOL, "plan"), 2, "usage: lockstep plan"},
        {JOB_LIST(JOB_TOOL, "plan", "--link", "nonsense", "/bin/true"), 2,
         "--link nonsense: must be RATE,ROUND-TRIP such as 1Gbit,0.2ms"},
        {JOB_LIST(JOB_TOOL, "plan", "--batch", "0", "/bin/true"), 2, "--batch"},
        {JOB_LIST(JOB_TOOL, "plan", "--speeds", "1,0", "/bin/true"), 2, "--speeds: \"0\""},
        {JOB_LIST(JOB_TOOL, "plan", "--check", "/dev/null", "/bin/true"), 1, "/dev/null"},
        {JOB_LIST(JOB_TOOL, "plan", "--check", "x", "--link", "1Gbit,0ms", "/bin/true"), 2,
         "exclude each other"},
        {JOB_LIST(JOB_TOOL, "plan", "/bin/true"), 1, "/bin/true has no training step"},
        {JOB_LIST(JOB_TOOL, "plan", "sh", "-c", "echo broken; exit 3"), 1,
         "sh failed with exit code 3; its output is above"},
        {JOB_LIST(JOB_TOOL, "plan", "sh", "-c", "echo broken; exit 3"), 1, "broken\n"},
        {JOB_LIST(JOB_TOOL, "plan", PLAN_PROGRAM, "--ddp", "--steps", "2", "--warmup", "0"), 1,
         "has 2 training steps; a plan needs 7: more --steps"},
    };

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(rows); i++) {
        job *j = start(rows[i].argv);

        job_expect_code(j, rows[i].code);
        job_expect(j, job_printed(j, 1, rows[i].text));
        (void)job_clean_up(NULL);
    }
    assert_int_equal(count_left(), 0);
}

static void a_plan_that_is_stopped_leaves_no_process(void **state)
{
    job *j = start(JOB_LIST(JOB_TOOL, "plan", "sleep", "4711"));

    LS_UNUSED(state);
    while (job_find_process(j, "sleep", "4711", temporary) == 0)
        job_read_output(j, 10);
    assert_int_equal(kill(j->pid, SIGTERM), 0);
    job_expect_code(j, 1);
    job_expect(j, job_printed(j, 1, "lockstep plan: stopped by signal 15"));
    assert_int_equal(count_left(), 0);
    job_expect_gone(j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(a_plan_has_a_row_for_each_number_of_machines, job_clean_up),
        cmocka_unit_test_teardown(the_table_names_what_bounds_a_step, job_clean_up),
        cmocka_unit_test_teardown(bad_input_is_refused, job_clean_up),
        cmocka_unit_test_teardown(a_plan_that_is_stopped_leaves_no_process, job_clean_up),
    };

    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
