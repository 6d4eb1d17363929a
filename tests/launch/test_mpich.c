/* SPDX-License-Identifier: Apache-2.0 */
/* Unmodified MPICH programs as ranks of `lockstep run`. */
#include "launch/job.h"

#include <dirent.h>
#include <signal.h>

#define test(name) cmocka_unit_test_teardown(name, job_clean_up)

#ifndef MPI_PROGRAM
#define MPI_PROGRAM ""
#endif

static job *start(const char *n, const char *what, const char *a, const char *b)
{
    return job_start(JOB_LIST(JOB_TOOL, "run", "-n", n, MPI_PROGRAM, what, a, b), NULL);
}

/* Segments of MPICH's; other programs have theirs there too. */
static int count_shared_memory(void)
{
    DIR *folder = opendir("/dev/shm");
    const struct dirent *entry;
    int n = 0;

    while (folder != NULL && (entry = readdir(folder)) != NULL)
        n += text_starts(entry->d_name, "mpich");
    if (folder != NULL)
        closedir(folder);
    return n;
}

static void ranks_of_an_mpi_program_find_each_other(void **state)
{
    LS_UNUSED(state);
    for (int n = 1; n <= 4; n++) {
        char count[8], line[128];
        job *j;

        text_format(count, sizeof(count), "%d", n);
        j = start(count, NULL, NULL, NULL);
        job_expect_code(j, 0);
        for (int r = 0; r < n; r++) {
            const int half = (n + 1 - r % 2) / 2;
            /* 1 + 3 + ... or 2 + 4 + ... */
            text_format(line, sizeof(line), "rank %d of %d: sum %d, left %d, half %d of %d\n", r, n,
                        n * (n + 1) / 2, (r + n - 1) % n + 1, half * (half + r % 2), half);
            job_expect(j, job_printed(j, 0, line));
        }
        job_expect(j, !job_printed(j, 1, "lockstep"));
        job_expect_gone(j);
        job_clean_up(NULL);
    }
}

static void an_abort_ends_the_job_with_its_code_and_its_rank(void **state)
{
    static const struct {
        const char *n, *rank, *code;
        int exit_code;
    } rows[] = {{"2", "0", "7", 7}, {"3", "2", "7", 7}, {"2", "1", "256", 1}, {"1", "0", "7", 7}};

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(rows); i++) {
        const bool alone = rows[i].n[0] == '1'; /* then MPICH just exits */
        char how[64];
        job *j = start(rows[i].n, "abort", rows[i].rank, rows[i].code);

        job_expect_code(j, rows[i].exit_code);
        text_format(how, sizeof(how), alone ? "exited with code %s\n" : "MPI_Abort, code %s\n",
                    rows[i].code);
        job_expect_failed_rank(j, rows[i].rank[0] - '0', how);
        job_clean_up(NULL);
    }
}

static void a_killed_mpi_rank_is_named_and_nothing_is_left(void **state)
{
    const int shared = count_shared_memory();

    LS_UNUSED(state);
    for (int round = 0; round < job_rounds(); round++) {
        job *j = start("3", "steps", NULL, NULL);

        for (int r = 0; r < 3; r++) {
            char line[32];
            text_format(line, sizeof(line), "rank %d steps\n", r);
            job_await_text(j, 0, line);
        }
        job_note_sockets(j);
        assert_int_equal(kill(job_find(j, JOB_RANK, round % 3), SIGKILL), 0);
        job_expect_code(j, 137);
        job_expect_failed_rank(j, round % 3, ") was killed by signal 9 (SIGKILL)\n");
        job_expect(j, job_counts_others(j, 2));
        job_clean_up(NULL);
    }
    assert_in_range(count_shared_memory(), 0, shared);
}

static void a_rank_that_leaves_mpi_alone_is_not_waited_for(void **state)
{
    job *j = start("3", "leave", "1", NULL);

    LS_UNUSED(state);
    job_expect_code(j, 1);
    job_expect_failed_rank(j, 1, "exited with code 0 without MPI_Finalize");
}

static void a_rank_that_never_comes_to_mpi_is_not_waited_for(void **state)
{
    job *j = job_start(
        JOB_LIST(JOB_TOOL, "run", "-n", "2", "sh", "-c", "[ $RANK = 1 ] || exec " MPI_PROGRAM),
        NULL);

    LS_UNUSED(state);
    job_expect_code(j, 1);
    job_expect_failed_rank(j, 1, "exited with code 0 without MPI_Init");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        test(ranks_of_an_mpi_program_find_each_other),
        test(an_abort_ends_the_job_with_its_code_and_its_rank),
        test(a_killed_mpi_rank_is_named_and_nothing_is_left),
        test(a_rank_that_leaves_mpi_alone_is_not_waited_for),
        test(a_rank_that_never_comes_to_mpi_is_not_waited_for),
    };

    if (strlen(MPI_PROGRAM) == 0) {
        print_message("no mpicc.mpich when this was built: not tested\n");
        return 77;
    }
    return cmocka_run_group_tests_name("launch mpich", tests, NULL, NULL);
}
