/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_run_agree.c - tests ranks that were started with different flags or data: what must agree is
 * named with both values on all ranks, what only rank 0 needs may be missing on the others.
 */
#include "harness/ranks.h"
#include "train/small_folder.h"
#include "train/small_run.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { RANKS = 3, OTHER = 2 };

static small_result *results; /* of each rank, shared */

/* The flags of rank OTHER and those of the other ranks. */
typedef struct pair {
    ls_train_flags other;
    ls_train_flags flags;
} pair;

static ls_status rank_body(const ls_test_rank *self, void *arg)
{
    const pair *p = arg;
    small_job job = {.flags = self->rank == OTHER ? p->other : p->flags};

    LS_TRY(ls_test_init(self, &job.comm));
    results[self->rank] = small_run(&job);
    ls_comm_destroy(job.comm);
    return LS_OK;
}

static void run_pair(const pair *p)
{
    pair copy = *p;
    const ls_test_job ranks = {.n = RANKS, .body = rank_body, .arg = &copy};

    assert_true(ls_test_ranks(&ranks, NULL));
}

static void assert_differs(const pair *p, const char *text)
{
    char here[16];

    snprintf(here, sizeof(here), "on rank %d (", OTHER);
    run_pair(p);
    for (int i = 0; i < RANKS; i++)
        if (results[i].status != LS_EMISMATCH || strstr(results[i].error, text) == NULL ||
            strstr(results[i].error, " on rank 0 (") == NULL ||
            strstr(results[i].error, here) == NULL)
            fail_msg("rank %d, for %s: %d, %s", i, text, results[i].status, results[i].error);
}

static pair make_pair(void)
{
    pair p = {.flags = small_flags(small_dir)};

    p.flags.steps = 4;
    p.other = p.flags;
    return p;
}

static void flags_that_differ_are_named_on_all_ranks(void **state)
{
    pair p;

    (void)state;
#define DIFFERS(member, value, text)                                                               \
    do {                                                                                           \
        p = make_pair();                                                                           \
        p.other.member = (value);                                                                  \
        assert_differs(&p, text);                                                                  \
    } while (0)
    DIFFERS(steps, 5, "--steps: 4 on rank 0");
    DIFFERS(epochs, 7, "--epochs: 3 on rank 0");
    DIFFERS(batch_size, 8, "--batch-size: 16 on rank 0");
    DIFFERS(accumulate, 2, "--accumulate: 0 on rank 0");
    DIFFERS(shards, 6, "--shards: 0 on rank 0");
    DIFFERS(sync_bn, 1, "--sync-bn: not given on rank 0");
    DIFFERS(lr, 0.1, "--lr: 0.2 on rank 0");
    DIFFERS(optimizer, "adam", "--optimizer: not given on rank 0");
    DIFFERS(seed, 9, "--seed: 0 on rank 0");
    DIFFERS(print_freq, 3, "--print-freq: 0 on rank 0");
    DIFFERS(evaluate, 1, "--evaluate: not given on rank 0");
    DIFFERS(compress, "bf16", "--compress: not given on rank 0");
#undef DIFFERS
}

static void values_that_mean_the_default_are_equal(void **state)
{
    pair p = make_pair();

    (void)state;
    p.other.optimizer = "sgd";
    p.other.precision = "fp32";
    p.other.compress = "none";
    p.other.workers = 2;
    run_pair(&p);
    for (int i = 0; i < RANKS; i++)
        assert_int_equal(results[i].status, LS_OK);
}

static void only_rank_0_needs_the_flags_of_files(void **state)
{
    pair p = make_pair();

    (void)state;
    p.flags.save = path_in("first.safetensors");
    p.flags.metrics = path_in("first.jsonl");
    p.flags.tensorboard = small_dir;
    run_pair(&p); // rank 1 has the flags, rank 2 has not
    for (int i = 0; i < RANKS; i++)
        assert_int_equal(results[i].status, LS_OK);
    assert_int_equal(access(p.flags.save, R_OK), 0);
    assert_int_equal(access(p.flags.metrics, R_OK), 0);

    p.flags.steps = p.other.steps = 6;
    p.flags.resume = "";
    run_pair(&p);
    for (int i = 0; i < RANKS; i++) {
        assert_int_equal(results[i].status, LS_OK);
        assert_int_equal(results[i].state.step, 6);
        assert_memory_equal(results[i].weights, results[0].weights, sizeof(results[0].weights));
    }
}

static void a_default_path_of_the_program_is_not_a_difference(void **state)
{
    pair p = make_pair();
    char *argv[] = {(char *)(uintptr_t) "program"};

    (void)state;
    p.flags.accumulate = p.other.accumulate = 1; // as parsed
    p.flags.nan_limit = p.other.nan_limit = 3;
    p.flags.outer_lr = p.other.outer_lr = 0.7;
    p.flags.outer_momentum = p.other.outer_momentum = 0.9;
    p.flags.save = path_in("given.safetensors");
    p.other.save = path_in("checkpoint.safetensors");
    if (ls_train_parse("program", "Trains.", 1, argv, &p.other, NULL, 0) != LS_OK)
        fail_msg("%s", ls_last_error());
    run_pair(&p);
    for (int i = 0; i < RANKS; i++)
        assert_int_equal(results[i].status, LS_OK);
    assert_int_equal(access(p.flags.save, R_OK), 0);
    assert_int_not_equal(access(p.other.save, R_OK), 0);
}

static void files_that_rank_0_would_not_write_are_refused(void **state)
{
    pair p = make_pair();

    (void)state;
    p.other.save = path_in("other.safetensors");
    assert_differs(&p, "--save: not given on rank 0");
    p = make_pair();
    p.flags.save = path_in("a.safetensors");
    p.other.save = path_in("b.safetensors");
    assert_differs(&p, "rank 0 reads and writes the files");
    p = make_pair();
    p.other.resume = path_in("a.safetensors");
    assert_differs(&p, "--resume: not given on rank 0");
}

static void data_sets_of_different_sizes_are_named(void **state)
{
    char other[64];
    pair p = make_pair();

    (void)state;
    small_set_make(other, sizeof(other));
    small_set_resize(other, "train", SMALL_TRAIN - 30);
    p.other.data = other;
    assert_differs(&p, "samples of the training set: 230 on rank 0");
    small_set_remove(other);
}

static int make_all(void **state)
{
    results = ls_test_shared(RANKS * sizeof(*results));
    return small_dir_make(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(flags_that_differ_are_named_on_all_ranks),
        cmocka_unit_test(values_that_mean_the_default_are_equal),
        cmocka_unit_test(only_rank_0_needs_the_flags_of_files),
        cmocka_unit_test(a_default_path_of_the_program_is_not_a_difference),
        cmocka_unit_test(files_that_rank_0_would_not_write_are_refused),
        cmocka_unit_test(data_sets_of_different_sizes_are_named),
    };
    return cmocka_run_group_tests(tests, make_all, small_dir_remove);
}
