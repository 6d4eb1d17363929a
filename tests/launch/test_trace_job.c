/* SPDX-License-Identifier: Apache-2.0 */
/* lockstep run --trace: one timeline of all ranks, wherever they ran and however they ended. */
#include "launch/job.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/report/json.h"

#include <signal.h>
#include <unistd.h>

#define test(name) cmocka_unit_test_teardown(name, job_clean_up)

typedef struct timeline {
    char path[64];
    json_value *json;
    const json_value *events;
} timeline;

static void name_file(timeline *t)
{
    text_format(t->path, sizeof(t->path), "/tmp/lockstep-test-trace-%d.json", (int)getpid());
    (void)unlink(t->path);
}

static void load(timeline *t)
{
    char *text;
    size_t bytes;

    assert_ok(file_read(t->path, 64 << 20, &text, &bytes));
    assert_ok(json_parse(text, bytes, t->path, &t->json));
    ls_free(text);
    (void)unlink(t->path);
    t->events = json_get(t->json, "traceEvents");
}

/* The n-th event of this name of a rank; NULL: there are fewer. */
static const json_value *find(const timeline *t, const char *name, int rank, int n)
{
    for (size_t i = 0; i < json_size(t->events); i++) {
        const json_value *e = json_at(t->events, i);

        if (text_equal(json_as_string(json_get(e, "name"), ""), name) &&
            json_as_int(json_get(e, "pid"), -1) == rank && n-- == 0)
            return e;
    }
    return NULL;
}

static double start_of(const json_value *e)
{
    return json_as_real(json_get(e, "ts"), -1);
}

static double end_of(const json_value *e)
{
    return start_of(e) + json_as_real(json_get(e, "dur"), -1);
}

/* No rank can leave an all_reduce before all have come to it: so on a common clock, but for a
 * rank that loses its core between coming and noting that. */
static void expect_common_clock(job *j, const timeline *t, int n_ranks, int n_operations)
{
    int n_apart = 0;

    for (int n = 0; n < n_operations; n++) {
        double last_start = 0;
        double first_end = 1e300;

        for (int r = 0; r < n_ranks; r++) {
            const json_value *e = find(t, "all_reduce", r, n);

            job_expect(j, e != NULL);
            last_start = start_of(e) > last_start ? start_of(e) : last_start;
            first_end = end_of(e) < first_end ? end_of(e) : first_end;
        }
        n_apart += first_end + 500 < last_start; // us
    }
    job_expect(j, n_apart <= n_operations / 4);
}

static void ranks_of_one_machine_are_on_one_timeline(void **state)
{
    timeline t;
    job *j;

    LS_UNUSED(state);
    name_file(&t);
    j = job_start(
        JOB_LIST(JOB_TOOL, "run", "-n", "2", "--trace", t.path, LOCKSTEP_BIN "/elastic_ddp"), NULL);
    job_expect_code(j, 0);
    load(&t);
    for (int r = 0; r < 2; r++) {
        const json_value *e = find(&t, "backward", r, 0);

        job_expect(j, e != NULL && find(&t, "wait for gradients", r, 0) != NULL);
        job_expect(j, find(&t, "process_name", r, 0) != NULL);
        job_expect(j, find(&t, "all_reduce", r, 0) != NULL);
    }
    json_free(t.json);
}

static const char *arg_of(const json_value *e, const char *name)
{
    return json_as_string(json_get(json_get(e, "args"), name), "");
}

static int64_t bytes_of(const json_value *e)
{
    return json_as_int(json_get(json_get(e, "args"), "bytes"), -1);
}

static void events_have_times_and_names_and_bytes_of_the_program(void **state)
{
    const int64_t start_ns = ls_now_ns();
    timeline t;
    job *j;

    LS_UNUSED(state);
    name_file(&t);
    j = job_start(
        JOB_LIST(JOB_TOOL, "run", "-n", "2", "--trace", t.path, LOCKSTEP_BIN "/elastic_ddp"), NULL);
    job_expect_code(j, 0);
    load(&t);
    for (size_t i = 0; i < json_size(t.events); i++) {
        const json_value *e = json_at(t.events, i);

        if (!text_equal(json_as_string(json_get(e, "ph"), ""), "X"))
            continue;
        job_expect(j, start_of(e) >= 0 && end_of(e) >= start_of(e));
        job_expect(j, end_of(e) < 1e-3 * (double)(ls_now_ns() - start_ns));
        job_expect(j, strstr(arg_of(e, "site"), "liblockstep") == NULL);
        if (text_equal(arg_of(e, "site"), "net1.weight"))
            job_expect(j, bytes_of(e) == 400); // 10 x 10 float32, on either rank
    }
    job_expect(j, text_equal(arg_of(find(&t, "broadcast", 1, 2), "site"), "net1.weight"));
    // Of 2 ranks; before it, the flags of the run are compared.
    job_expect(j, bytes_of(find(&t, "all_gather", 0, 1)) == 512);
    json_free(t.json);
}

static void ranks_of_several_hosts_are_on_one_clock(void **state)
{
    timeline t;
    job *j;

    LS_UNUSED(state);
    name_file(&t);
    j = job_start(JOB_LIST(JOB_TOOL, "run", "--ssh", FAKE_SSH, "-H", "127.0.0.2:2,localhost:1",
                           "--trace", t.path, JOB_ACTOR, "steps", "200"),
                  NULL);
    job_expect_code(j, 0);
    job_expect_gone(j);
    load(&t);
    expect_common_clock(j, &t, 3, 50);
    json_free(t.json);
}

static void a_killed_rank_has_its_last_operations_there(void **state)
{
    const json_value *e;
    timeline t;
    job *j;

    LS_UNUSED(state);
    name_file(&t);
    j = job_start(JOB_LIST(JOB_TOOL, "run", "-n", "2", "--trace", t.path, JOB_ACTOR, "steps", "0"),
                  NULL);
    job_await_text(j, 0, "rank 1 has joined");
    job_read_output(j, 200);
    // Stopped first: rank 0 is to be in an operation, which then fails, and not between two.
    job_expect(j, kill(job_find(j, JOB_RANK, 1), SIGSTOP) == 0);
    job_read_output(j, 300);
    job_expect(j, kill(job_find(j, JOB_RANK, 1), SIGKILL) == 0);
    job_expect_code(j, 128 + SIGKILL);
    load(&t);
    job_expect(j, find(&t, "all_reduce", 0, 3) != NULL && find(&t, "all_reduce", 1, 3) != NULL);
    for (int n = 0; (e = find(&t, "all_reduce", 0, n)) != NULL && find(&t, "all_reduce", 0, n + 1);)
        n++;
    job_expect(j, json_get(json_get(e, "args"), "end") != NULL); // rank 0's last one failed
    json_free(t.json);
}

static void file_of_another_job_is_renamed(void **state)
{
    timeline t = {0};
    char earlier[128];
    char *text;
    size_t n;

    LS_UNUSED(state);
    name_file(&t);
    text_format(earlier, sizeof(earlier), "%.*s.earlier.json", (int)strlen(t.path) - 5, t.path);
    job_expect_code(job_start(JOB_LIST("cp", "/proc/self/comm", t.path), NULL), 0);
    job_expect_code(
        job_start(JOB_LIST(JOB_TOOL, "run", "--trace", t.path, JOB_ACTOR, "exit", "0"), NULL), 0);
    load(&t);
    json_free(t.json);
    assert_ok(file_read(earlier, 64, &text, &n));
    assert_int_equal(n, 3);
    assert_memory_equal(text, "cp\n", 3);
    ls_free(text);
    (void)unlink(earlier);
}

static void unwritable_file_is_reported_before_the_start(void **state)
{
    job *j = job_start(
        JOB_LIST(JOB_TOOL, "run", "--trace", "/no/such/folder/t.json", "sh", "-c", "echo started"),
        NULL);

    LS_UNUSED(state);
    job_expect_code(j, 1);
    job_expect(j, job_printed(j, 1, "/no/such/folder/t.json") && !job_printed(j, 0, "started"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        test(ranks_of_one_machine_are_on_one_timeline),
        test(events_have_times_and_names_and_bytes_of_the_program),
        test(ranks_of_several_hosts_are_on_one_clock),
        test(a_killed_rank_has_its_last_operations_there),
        test(file_of_another_job_is_renamed),
        test(unwritable_file_is_reported_before_the_start),
    };

    return cmocka_run_group_tests_name("launch trace", tests, NULL, NULL);
}
