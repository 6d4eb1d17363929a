/* SPDX-License-Identifier: Apache-2.0 */
/* test_cli_replay.c - output and exit codes of lockstep replay, with a capsule of two ranks. */
#include "launch/job.h"

#include "base/alloc.h"
#include "base/file.h"
#include "data/temp_files.h"

#include <string.h>

#define test(name)  cmocka_unit_test_setup_teardown(name, set_up, clean_up)
#define REPLAY(...) job_start(JOB_LIST(JOB_TOOL, "replay", __VA_ARGS__), NULL)

static temp_folder folder;
static char capsule[TEMP_PATH_BYTES];

static int set_up(void **state)
{
    LS_UNUSED(state);
    temp_folder_create(&folder);
    (void)temp_path(&folder, "x.capsule.safetensors", capsule);
    return 0;
}

static int clean_up(void **state)
{
    temp_folder_remove(&folder);
    return job_clean_up(state);
}

static void leave_capsule(void)
{
    job *j = job_start(JOB_LIST(JOB_TOOL, "run", "-n", "2", "own_data", "--steps", "7",
                                "--capsule-step", "7", "--capsule", capsule),
                       NULL);

    job_expect_code(j, 0);
    job_expect(j, job_printed(j, 0, " computes step 7 again"));
    job_clean_up(NULL);
}

static void expect_end(job *j, int code, int which, const char *text)
{
    job_expect_code(j, code);
    job_expect(j, job_printed(j, which, text));
    job_clean_up(NULL);
}

static void a_step_of_two_ranks_is_computed_again_from_any_folder(void **state)
{
    LS_UNUSED(state);
    leave_capsule();
    expect_end(REPLAY("--show", capsule), 0, 0, "own_data --steps 7 --capsule-step 7 --capsule /");
    expect_end(REPLAY(capsule), 0, 0, ", as in the capsule");
    expect_end(REPLAY(capsule, "--seed", "5"), 1, 1, "--seed 0, not 5");
}

static void other_files_are_refused(void **state)
{
    char other[TEMP_PATH_BYTES];
    char *bytes;
    size_t size;

    LS_UNUSED(state);
    expect_end(REPLAY("--show"), 2, 1, "no file; usage: lockstep replay");
    expect_end(REPLAY(capsule), 1, 1, "cannot open");
    temp_write(capsule, "x", 1);
    expect_end(REPLAY(capsule), 1, 1, capsule);
    leave_capsule();
    assert_ok(file_read(capsule, 1 << 24, &bytes, &size));
    (void)temp_path(&folder, "short", other);
    temp_write(other, bytes, size / 2);
    expect_end(REPLAY(other), 1, 1, other);
    *strstr(bytes + 8, "own_data") = 'O';
    *strstr(strstr(bytes + 8, "executable"), "own_data") = 'O';
    temp_drop_digests(bytes, size);
    temp_write(other, bytes, size);
    expect_end(REPLAY(other), 1, 1, "the program of the job, /");
    ls_free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        test(a_step_of_two_ranks_is_computed_again_from_any_folder),
        test(other_files_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
