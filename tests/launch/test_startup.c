/* SPDX-License-Identifier: Apache-2.0 */
/* What every job pays: start, joining, meeting, leaving. bench/startup prints the same beside
 * the peers. */
#include "launch/job.h"

#include "base/clock.h"

#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>

#define test(name)    cmocka_unit_test_teardown(name, job_clean_up)
#define RUNS_LEAST    9
#define RUNS_MOST     101
#define GOAL_MS       40
#define GOAL_PEAK_KIB (10 * 1024)

/* What a job is measured by where the machine has other things to do: some processes, one after the
 * other. A job takes about three times as long, and on an idle machine as many are GOAL_MS. */
#define PROCESSES       6
#define GOAL_REFERENCES 9

extern char **environ;

static int64_t time_processes(void)
{
    static char name[] = "/bin/true";
    char *argv[] = {name, NULL};
    const int64_t start_ns = ls_now_ns();

    for (int i = 0; i < PROCESSES; i++) {
        pid_t pid;

        assert_int_equal(posix_spawn(&pid, name, NULL, NULL, argv, environ), 0);
        assert_int_equal(waitpid(pid, NULL, 0), pid);
    }
    return ls_now_ns() - start_ns;
}

static int64_t time_job(long *peak_kib)
{
    const int64_t start_ns = ls_now_ns();
    job *j = job_start(JOB_LIST(JOB_TOOL, "run", "-n", "2", JOB_ACTOR, "peak"), NULL);
    int64_t took_ns;

    job_expect_code(j, 0);
    took_ns = ls_now_ns() - start_ns;
    for (int r = 0; r < 2; r++) {
        char word[64];
        long kib;

        text_format(word, sizeof(word), "peak of rank %d: ", r);
        kib = job_await_number(j, 0, word);
        *peak_kib = kib > *peak_kib ? kib : *peak_kib;
    }
    job_clean_up(NULL);
    return took_ns;
}

static int compare_times(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a;
    const int64_t y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

/* In milliseconds; sorts them. */
static double median(int64_t *times_ns, int n)
{
    qsort(times_ns, (size_t)n, sizeof(*times_ns), compare_times);
    return (double)times_ns[n / 2] * 1e-6;
}

/* Medians of runs in turn, so that what the machine does besides counts on both sides. */
static void two_ranks_start_meet_and_end_in_40_ms_and_10_mib(void **state)
{
    static int64_t jobs[RUNS_MOST], references[RUNS_MOST];
    long peak_kib = 0;
    double goal_ms = 0;
    double job_ms = 0;
    int n = 0;

    LS_UNUSED(state);
    while (n < RUNS_MOST && (n < RUNS_LEAST || job_ms >= goal_ms)) {
        double reference_ms;

        references[n] = time_processes();
        jobs[n] = time_job(&peak_kib);
        n++;
        job_ms = median(jobs, n);
        reference_ms = median(references, n);
        goal_ms =
            GOAL_REFERENCES * reference_ms > GOAL_MS ? GOAL_REFERENCES * reference_ms : GOAL_MS;
    }
    print_message("median of %d: %.1f ms, goal %.1f ms; most: %.1f MiB\n", n, job_ms, goal_ms,
                  (double)peak_kib / 1024);
    assert_true(job_ms < goal_ms);
    assert_true(peak_kib > 0 && peak_kib < GOAL_PEAK_KIB);
}

int main(void)
{
    const struct CMUnitTest tests[] = {test(two_ranks_start_meet_and_end_in_40_ms_and_10_mib)};

    return cmocka_run_group_tests_name("launch startup", tests, NULL, NULL);
}
