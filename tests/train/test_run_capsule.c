/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_run_capsule.c - tests step capsules and --replay: one process computes the steps of several
 * ranks again, with the same gradients; it names what is not finite, the rank that differs, and why
 * a step cannot be computed again. With the argument "slow" it computes 100 steps of 8 ranks.
 */
#include "base/alloc.h"
#include "base/file.h"
#include "base/unit.h"
#include "data/temp_files.h"
#include "train/run/capsule.h"
#include "train/small_ranks.h"

#include <lockstep/checkpoint.h>

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static char output[16384];

static small_job make_job(const char *capsule)
{
    small_job job = {.flags = small_flags(small_dir)};

    job.flags.batch_size = 3;
    job.flags.print_freq = 4;
    job.flags.capsule = path_in(capsule);
    return job;
}

/* The job in one process, which computes the capsule of `from` again. Its output is in `output`. */
static small_result replay(const small_job *from)
{
    small_job job = *from;
    ls_comm *comm;
    small_result r;

    assert_ok(ls_init(NULL, &comm));
    job.comm = comm;
    job.spoil_at = 0;
    job.flags.replay = from->flags.capsule;
    r = small_run_captured(&job, STDOUT_FILENO, output, sizeof(output));
    ls_comm_destroy(comm);
    return r;
}

static void assert_has(const char *text, const char *words)
{
    if (strstr(text, words) == NULL)
        fail_msg("\"%s\" is not in: %s", words, text);
}

/* A capsule of this step of n ranks, and its replay. */
static void assert_step_again(const small_job *from, int n, int64_t step)
{
    small_job job = *from;
    small_result r;

    job.flags.steps = step;
    job.flags.capsule_step = step;
    (void)small_run_on(n, &job);
    r = replay(&job);
    if (r.status != LS_OK)
        fail_msg("step %d of %d ranks: %s", (int)step, n, r.error);
    assert_int_equal(r.state.step, step);
    assert_has(output, ", as in the capsule");
    assert_has(output, "are finite");
}

/* Steps in the first and in later epochs, behind one report or several. */
static void one_process_computes_steps_of_several_ranks_again(void **state)
{
    static const struct {
        int ranks;
        int step;
    } cases[] = {{1, 5}, {2, 7}, {3, 30}, {8, 1}, {8, 17}};

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(cases); i++) {
        small_job job = make_job("again.safetensors");

        job.batch_norm = i % 2 == 0;
        job.dropout = 0.2;
        job.pad = 1;
        assert_step_again(&job, cases[i].ranks, cases[i].step);
    }
}

static void a_hundred_steps_of_8_ranks_are_computed_again(void **state)
{
    LS_UNUSED(state);
    for (int i = 0; i < 100; i++) {
        small_job job = make_job("again.safetensors");

        job.flags.seed = i;
        job.flags.epochs = 4;
        job.flags.optimizer = i % 3 == 0 ? "adam" : NULL;
        job.flags.lr = i % 3 == 0 ? 0.01 : 0.2;
        job.batch_norm = i % 2;
        job.dropout = i % 5 * 0.1;
        job.pad = i % 4;
        assert_step_again(&job, 8, 1 + i * 7 % 38);
    }
}

static void steps_of_shards_are_computed_again(void **state)
{
    LS_UNUSED(state);
    for (int i = 0; i < 3; i++) {
        small_job job = make_job("shards.safetensors");

        job.flags.shards = 5;
        job.flags.accumulate = i == 1 ? 2 : 1;
        job.is_one_call = i == 2;
        job.flags.sync_bn = i == 2;
        job.batch_norm = 1;
        assert_step_again(&job, 3, 6);
    }
}

/* What a capsule cannot hold is the state that the epoch before has saved: the second one diverges,
 * and saves nothing. */
static void a_large_state_is_that_of_the_last_save(void **state)
{
    small_job job = make_job("large.safetensors");
    small_result r;

    LS_UNUSED(state);
    job.flags.save = path_in("state.safetensors");
    job.flags.schedule = "multi-step";
    job.flags.lr_milestones = "1";
    job.flags.lr_gamma = 1e40;
    job.flags.nan_limit = 1;
    job.state_most = 16;
    assert_false(ls_test_ranks(&(ls_test_job){.n = 3, .body = small_rank, .arg = &job}, NULL));
    r = replay(&job);
    if (r.status != LS_OK)
        fail_msg("%s", r.error);
    assert_has(output, ", rank 0: fc: linear: the result (3, 4) float32 has ");
    assert_has(output, ", as in the capsule");
    job.flags.capsule = "";
    job.flags.lr = 0.1;
    job.flags.epochs = 1;
    (void)small_run_on(3, &job);
    job.flags.capsule = path_in("large.safetensors");
    job.flags.epochs = 3;
    r = replay(&job);
    assert_int_equal(r.status, LS_EUNSUPPORTED);
    assert_has(r.error, "state.resume.safetensors has been replaced since the step");
}

/* Without such a state there is a reason instead of a capsule. */
static void a_large_state_that_is_not_saved_leaves_no_capsule(void **state)
{
    small_job job = make_job("not-saved.safetensors");

    LS_UNUSED(state);
    job.state_most = 16;
    job.flags.steps = job.flags.capsule_step = 6;
    (void)small_run_on(2, &job);
    assert_int_equal(size_of(job.flags.capsule), -1);
}

/* The job and its replay; both find it at the same place. */
static void the_first_result_that_is_not_finite_is_named_with_its_rank(void **state)
{
    small_job job = make_job("nan.safetensors");
    small_result r;

    LS_UNUSED(state);
    job.flags.lr = 1e38;
    job.flags.schedule = NULL;
    job.flags.epochs = 9;
    job.flags.nan_limit = 2;
    assert_false(ls_test_ranks(&(ls_test_job){.n = 3, .body = small_rank, .arg = &job}, NULL));
    for (int i = 0; i < 3; i++) {
        assert_int_equal(small_results[i].status, LS_EFORMAT);
        assert_has(small_results[i].error, "; `lockstep replay ");
        assert_has(small_results[i].error, "nan.safetensors` computes step ");
    }
    r = replay(&job);
    if (r.status != LS_OK)
        fail_msg("%s", r.error);
    assert_has(output, ", rank 0: fc: linear: the result (3, 4) float32 has ");
    assert_has(output, " of the batch is sample ");
    assert_has(output, ", as in the capsule");
}

static void a_rank_with_other_parameters_is_named(void **state)
{
    small_job job = make_job("other.safetensors");
    small_result r;

    LS_UNUSED(state);
    job.flags.check_replicas = 1;
    job.spoil_at = 6;
    assert_false(ls_test_ranks(&(ls_test_job){.n = 3, .body = small_rank, .arg = &job}, NULL));
    assert_int_equal(small_results[0].status, LS_EMISMATCH);
    assert_has(small_results[1].error, "other.safetensors` computes step 6 again");
    r = replay(&job);
    assert_int_equal(r.status, LS_EMISMATCH);
    assert_has(r.error, "after step 6 the parameters are not those of 1 of 3 ranks: 2");
}

/* Only the last rank has NaN, so a replay finds none. */
static void a_step_that_check_nan_has_ended_is_computed_to_its_end(void **state)
{
    small_job job = make_job("check.safetensors");
    small_result r;

    LS_UNUSED(state);
    job.flags.check_nan = 1;
    job.spoil_at = 5;
    job.spoil_by = (double)NAN;
    assert_false(ls_test_ranks(&(ls_test_job){.n = 3, .body = small_rank, .arg = &job}, NULL));
    assert_has(small_results[0].error, "check.safetensors` computes step 6 again");
    r = replay(&job);
    assert_int_equal(r.status, LS_EMISMATCH);
    assert_has(r.error, "all results up to step 6 are finite here, and one in the job was not");
}

/* The note of --capsule-step is not that of a later failure, whose rank leaves no capsule. */
static void a_failure_does_not_name_an_earlier_capsule(void **state)
{
    small_job job = make_job("earlier.safetensors");

    LS_UNUSED(state);
    job.flags.capsule_step = 2;
    job.flags.check_nan = 1;
    job.spoil_at = 5;
    job.spoil_by = (double)NAN;
    assert_false(ls_test_ranks(&(ls_test_job){.n = 3, .body = small_rank, .arg = &job}, NULL));
    for (int i = 0; i < 3; i++)
        if (strstr(small_results[i].error, "computes step 2 again") != NULL)
            fail_msg("rank %d: %s", i, small_results[i].error);
}

static void a_replay_that_ends_before_its_step_fails(void **state)
{
    small_job job = make_job("epochs.safetensors");
    small_result r;

    LS_UNUSED(state);
    job.flags.epochs = 9;
    job.flags.steps = job.flags.capsule_step = 40;
    (void)small_run_on(2, &job);
    job.flags.epochs = 1;
    r = replay(&job);
    assert_int_equal(r.status, LS_EMISMATCH);
    assert_has(r.error, "before the comparison of step 40");
}

/* --- what cannot be computed again --- */

static small_job leave_capsule(const char *name, int ranks)
{
    small_job job = make_job(name);

    job.flags.steps = job.flags.capsule_step = 6;
    (void)small_run_on(ranks, &job);
    return job;
}

static void assert_refused(const small_job *job, ls_status status, const char *words)
{
    const small_result r = replay(job);

    assert_int_equal(r.status, status);
    assert_has(r.error, words);
}

/* Replaces `n` bytes of the file's text. */
static void change_file(const char *path, const char *from, const char *to)
{
    const size_t n = strlen(from);
    char *bytes;
    size_t size;
    char *at = NULL;

    assert_int_equal(n, strlen(to));
    assert_ok(file_read(path, 1 << 20, &bytes, &size));
    for (size_t i = 0; i + n <= size && at == NULL; i++)
        if (memcmp(bytes + i, from, n) == 0)
            at = bytes + i;
    assert_non_null(at);
    memcpy(at, to, n);
    temp_drop_digests(bytes, size);
    assert_ok(file_replace(path, bytes, size));
    ls_free(bytes);
}

static void other_data_and_settings_are_refused_by_name(void **state)
{
    small_job job = leave_capsule("refused.safetensors", 2);
    small_job other = job;

    LS_UNUSED(state);
    other.flags.seed = 7;
    assert_refused(&other, LS_EINVAL, "--seed 0, not 7");
    other = job;
    other.flags.shards = 4;
    assert_refused(&other, LS_EINVAL, "the step has 0 shards");
    small_set_resize(small_dir, "train", SMALL_TRAIN - 1);
    assert_refused(&job, LS_EINVAL, "training samples 230, not 229");
    small_set_resize(small_dir, "train", SMALL_TRAIN);
    assert_int_equal(replay(&job).status, LS_OK);
}

static void other_machines_and_files_are_refused_by_name(void **state)
{
    small_job job = leave_capsule("machine.safetensors", 2);
    const char *path = job.flags.capsule;

    LS_UNUSED(state);
    change_file(path, "\"capsule_lockstep\":\"0.", "\"capsule_lockstep\":\"7.");
    assert_refused(&job, LS_EUNSUPPORTED, "computed with Lockstep 7.");
    job = leave_capsule("machine.safetensors", 2);
    change_file(path, "\"device\":\"cpu_", "\"device\":\"gpu_");
    assert_refused(&job, LS_EUNSUPPORTED, "computed with the device gpu_");
    job = leave_capsule("machine.safetensors", 2);
    change_file(path, "\"capsule\":\"1\"", "\"capsule\":\"9\"");
    assert_refused(&job, LS_EFORMAT, "a capsule of another format (9)");
    job.flags.capsule = NULL;
    job.flags.save = path_in("state.safetensors");
    assert_ok(small_run(&job).status);
    job.flags.capsule = path_in("state.resume.safetensors");
    assert_refused(&job, LS_EFORMAT, "its metadata has no capsule");
}

/* A step that is changed in the file stands for one that a processor has computed wrongly. */
static void other_gradients_are_an_error(void **state)
{
    const small_job job = leave_capsule("wrong.safetensors", 2);
    ls_checkpoint *file;
    int64_t hash = 0;
    const ls_named item = {CAPSULE_GRADIENTS, NULL, &hash, sizeof(hash)};
    char *bytes;
    size_t size;
    bool found = false;

    LS_UNUSED(state);
    assert_ok(ls_checkpoint_open(job.flags.capsule, &file));
    assert_ok(ls_checkpoint_load(file, &item, 1, LS_LOAD_SUBSET));
    ls_checkpoint_close(file);
    assert_ok(file_read(job.flags.capsule, 1 << 20, &bytes, &size));
    for (size_t i = 0; i + sizeof(hash) <= size && !found; i++) {
        found = memcmp(bytes + i, &hash, sizeof(hash)) == 0;
        bytes[i] = (char)(bytes[i] ^ (found ? 1 : 0));
    }
    assert_true(found);
    temp_drop_digests(bytes, size);
    assert_ok(file_replace(job.flags.capsule, bytes, size));
    ls_free(bytes);
    assert_refused(&job, LS_EMISMATCH, "step 6 has other gradients here than in the job");
}

/* NaN on two ranks whose sums one process does not form. */
static void the_reason_for_no_capsule_is_named(void **state)
{
    LS_UNUSED(state);
    for (int i = 0; i < 2; i++) {
        small_job job = make_job("hook.safetensors");

        job.flags.compress = i == 0 ? "bf16" : NULL;
        job.flags.accumulate = i == 0 ? 1 : 2;
        job.flags.nan_limit = 1;
        job.spoil_at = 5;
        job.spoil_by = (double)NAN;
        assert_false(ls_test_ranks(&(ls_test_job){.n = 2, .body = small_rank, .arg = &job}, NULL));
        assert_has(small_results[1].error, i == 0
                                               ? "with --compress are computed again with --shards"
                                               : "with --accumulate are computed again with");
    }
    assert_int_equal(size_of(path_in("hook.safetensors")), -1);
}

static void no_capsule_is_left_where_none_is_asked_for(void **state)
{
    small_job job = make_job("none.safetensors");

    LS_UNUSED(state);
    job.flags.save = path_in("none.safetensors");
    job.flags.capsule = "";
    job.flags.steps = job.flags.capsule_step = 6;
    (void)small_run_on(2, &job);
    assert_int_equal(size_of(path_in("none.capsule.safetensors")), -1);
    job.flags.capsule = NULL;
    (void)small_run_on(2, &job);
    assert_true(size_of(path_in("none.capsule.safetensors")) > 0);
}

static void a_copy_without_memory_leaves_the_original(void **state)
{
    static char bytes[] = "not of the heap";
    ls_named items[] = {{.name = "a", .bytes = bytes, .n_bytes = sizeof(bytes)},
                        {.name = "b", .bytes = bytes, .n_bytes = sizeof(bytes)}};
    const name_list list = {.items = items, .n = LS_COUNT_OF(items)};
    state_copy copy = {.is_complete = false};
    ls_status st = LS_ENOMEM;
    uint64_t n = 0;

    LS_UNUSED(state);
    while (st != LS_OK) {
        ls_alloc_fail_at(++n);
        st = state_copy_take(&copy, &list);
        ls_alloc_fail_at(0);
        assert_true(st == LS_OK || st == LS_ENOMEM);
    }
    assert_true(n > 4); // the list, two names and two copies can lack memory
    assert_string_equal(copy.list.items[1].bytes, bytes);
    state_copy_free(&copy);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_process_computes_steps_of_several_ranks_again),
        cmocka_unit_test(steps_of_shards_are_computed_again),
        cmocka_unit_test(a_large_state_is_that_of_the_last_save),
        cmocka_unit_test(a_large_state_that_is_not_saved_leaves_no_capsule),
        cmocka_unit_test(the_first_result_that_is_not_finite_is_named_with_its_rank),
        cmocka_unit_test(a_rank_with_other_parameters_is_named),
        cmocka_unit_test(a_step_that_check_nan_has_ended_is_computed_to_its_end),
        cmocka_unit_test(a_failure_does_not_name_an_earlier_capsule),
        cmocka_unit_test(a_replay_that_ends_before_its_step_fails),
        cmocka_unit_test(other_data_and_settings_are_refused_by_name),
        cmocka_unit_test(other_machines_and_files_are_refused_by_name),
        cmocka_unit_test(other_gradients_are_an_error),
        cmocka_unit_test(the_reason_for_no_capsule_is_named),
        cmocka_unit_test(no_capsule_is_left_where_none_is_asked_for),
        cmocka_unit_test(a_copy_without_memory_leaves_the_original),
    };
    const struct CMUnitTest slow[] = {
        cmocka_unit_test(a_hundred_steps_of_8_ranks_are_computed_again),
    };

    if (argc > 1 && strcmp(argv[1], "slow") == 0)
        return cmocka_run_group_tests(slow, small_ranks_set_up, small_dir_remove);
    return cmocka_run_group_tests(tests, small_ranks_set_up, small_dir_remove);
}
