/* SPDX-License-Identifier: Apache-2.0 */
/* bench_job.h - runs of lockstep bench for tests: how to start one, and what it has printed. */
#ifndef TESTS_CLI_BENCH_JOB_H
#define TESTS_CLI_BENCH_JOB_H

#include "launch/job.h"

#include "base/report/json.h"

#define BENCH(...) JOB_LIST(JOB_TOOL, "bench", __VA_ARGS__)
#define test(name) cmocka_unit_test_teardown(name, job_clean_up)

/* A row of the table; of two values the first is out of place, the second in place. */
typedef struct bench_row {
    long long size, count, wrong[2];
    char type[16], redop[16];
    int root;
    double time[2], algbw[2], busbw[2];
} bench_row;

/* All rows of the table in *rows, at most `max`, each line of the output after `prefix`; lines of
 * the header and footer begin with '#'. */
int bench_rows(job *j, const char *prefix, bench_row *rows, int max);

/* The number of rows of a table where there is no in place: those columns say N/A. */
int bench_count_rows(job *j);

/* The array in the file of --json; removes the file. Freed with json_free(). */
json_value *bench_json(job *j, const char *path);

/* The member of that name; "" when there is none. */
const char *bench_text(const json_value *object, const char *key);

/* Runs a command that prints no table, exits with `code`, and whose error has `text`. */
void bench_expect_refused(const char *const *argv, int code, const char *text);

#endif
