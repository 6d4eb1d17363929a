/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_values.c - tests values that a program declares: means over ranks, its own evaluation of the
 * small set, the best one, and where they are written.
 */
#include "base/alloc.h"
#include "base/text.h"
#include "base/unit.h"
#include "harness/ranks.h"
#include "train/small_folder.h"
#include "train/small_run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { EPOCHS_MOST = 4 };

/* What the program below does. */
typedef struct job {
    ls_train_flags flags;
    ls_comm *comm;
    double given[EPOCHS_MOST]; /* the value "given" of each evaluation */
    int lowest_is_best;
    const char *adds;  /* one more value, that is added in training; NULL: none */
    double add_weight; /* its weight */
    ls_lr_fn lr;       /* NULL: by the flags */
    const char *group; /* parameters with half the rate and no weight decay; NULL: none */
    int saves;         /* saves the counters below */
    int extra_rank;    /* declares another name; 0: none does */
} job;

typedef struct result {
    ls_status status;
    ls_status after_loop;
    char error[512];
    double nll;        /* of the last evaluation, by the program's own function */
    double perplexity; /* the same, as given */
    double given;
    double share; /* of training: each rank adds its number with weight number + 1 */
    int64_t counter;
    ls_run_state state;
} result;

static result *results; /* of each rank, shared */

typedef struct program {
    const job *job;
    int64_t counter; /* of batches, saved */
    ls_named saved;
    ls_layer *fc;
    int64_t n_epochs;
} program;

static ls_tensor *forward(void *arg, ls_tape *tape, ls_tensor *x)
{
    return ls_forward(tape, ((program *)arg)->fc, ls_flatten(tape, x));
}

static ls_status test_batch(void *arg, ls_run *run, const ls_batch *batch)
{
    program *p = arg;
    ls_run_state state;
    ls_tape *tape = ls_run_tape(run);
    ls_tensor *logits = forward(p, tape, batch->x);

    ls_run_get_state(run, &state);
    ls_run_add(run, "nll", ls_cross_entropy(tape, logits, batch->y), (double)batch->rows);
    ls_run_add(run, "perplexity", ls_cross_entropy(tape, logits, batch->y), (double)batch->rows);
    ls_run_add_number(run, "given", p->job->given[state.epoch % EPOCHS_MOST], (double)batch->rows);
    return LS_OK;
}

static ls_status open_sets(ls_run *run, const job *j)
{
    ls_dataset *set;

    if (!j->flags.evaluate) {
        LS_TRY(ls_dataset_open_mnist(j->flags.data, "train", &set));
        LS_TRY(ls_run_train_on_take(run, set));
    }
    LS_TRY(ls_dataset_open_mnist(j->flags.data, "t10k", &set));
    return ls_run_test_on_take(run, set);
}

static ls_status start(ls_run *run, program *p)
{
    const job *j = p->job;
    const int rank = j->comm != NULL ? ls_comm_rank(j->comm) : 0;

    p->fc =
        ls_nn_linear(ls_run_model(run), "fc", (int64_t)SMALL_SIDE * SMALL_SIDE, SMALL_CLASSES, 0);
    LS_TRY(open_sets(run, j));
    if (j->comm != NULL)
        LS_TRY(ls_run_distribute(run, j->comm, NULL));
    LS_TRY(ls_run_declare(run, "nll"));
    LS_TRY(ls_run_declare_with(run, "perplexity", exp));
    LS_TRY(ls_run_declare(run, "given"));
    LS_TRY(ls_run_declare(run, rank > 0 && rank == j->extra_rank ? "other" : "share"));
    if (j->lr != NULL)
        LS_TRY(ls_run_schedule_with(run, j->lr, p));
    if (j->group != NULL)
        LS_TRY(ls_run_group(run, j->group,
                            &(ls_group_options){.size = sizeof(ls_group_options),
                                                .lr_factor = 0.5,
                                                .no_weight_decay = 1}));
    p->saved = (ls_named){.name = "counter", .bytes = &p->counter, .n_bytes = sizeof(p->counter)};
    if (j->saves)
        LS_TRY(ls_run_save_also(run, &p->saved, 1));
    LS_TRY(ls_run_evaluate_with(run, test_batch, p, "given", j->lowest_is_best));
    return ls_run_start(run, NULL, NULL);
}

static ls_status train(ls_run *run, program *p, result *r)
{
    const job *j = p->job;
    const int rank = j->comm != NULL ? ls_comm_rank(j->comm) : 0;
    ls_batch batch;

    LS_TRY(start(run, p));
    while (ls_run_next(run, &batch)) {
        ls_tensor *logits = forward(p, ls_run_tape(run), batch.x);
        p->counter++;
        ls_run_add_number(run, "share", rank, rank + 1);
        if (j->adds != NULL)
            ls_run_add_number(run, j->adds, 1, j->add_weight);
        ls_run_step(run, ls_cross_entropy(ls_run_tape(run), logits, batch.y));
    }
    r->after_loop = ls_run_status(run);
    r->counter = p->counter;
    r->nll = ls_run_value(run, "nll", 1);
    r->perplexity = ls_run_value(run, "perplexity", 1);
    r->given = ls_run_value(run, "given", 1);
    r->share = ls_run_value(run, "share", 0);
    ls_run_get_state(run, &r->state);
    return LS_OK;
}

static result run_here(const job *j)
{
    program p = {.job = j};
    result r;
    ls_run *run = NULL;

    memset(&r, 0, sizeof(r));
    r.status = ls_run_open(&j->flags, &run);
    if (r.status == LS_OK)
        r.status = train(run, &p, &r);
    r.status = ls_run_close(run, r.status);
    if (r.status != LS_OK)
        text_format(r.error, sizeof(r.error), "%s", ls_last_error());
    return r;
}

static ls_status rank_body(const ls_test_rank *self, void *arg)
{
    job j = *(const job *)arg;

    LS_TRY(ls_test_init(self, &j.comm));
    results[self->rank] = run_here(&j);
    ls_comm_destroy(j.comm);
    return LS_OK;
}

static void run_on(int n, job *j)
{
    assert_true(ls_test_ranks(&(ls_test_job){.n = n, .body = rank_body, .arg = j}, NULL));
}

static job make_job(void)
{
    job j = {.flags = small_flags(small_dir), .given = {3, 1, 2}};

    return j;
}

static void an_own_evaluation_equals_that_of_a_classifier(void **state)
{
    const small_job as_classifier = {.flags = small_flags(small_dir)};
    const small_result classified = small_run(&as_classifier);
    job j = make_job();
    result r;

    LS_UNUSED(state);
    r = run_here(&j);
    assert_int_equal(r.status, LS_OK);
    assert_true(fabs(r.nll - classified.state.test_loss) < 1e-6);
    assert_int_equal(r.after_loop, LS_OK);
    assert_true(r.given == 2);
    assert_true(r.state.accuracy == -1);
}

static void values_are_means_over_the_weights_of_all_ranks(void **state)
{
    job j = make_job();
    result alone;

    LS_UNUSED(state);
    j.flags.save = path_in("v.safetensors");
    j.flags.epochs = 1;
    alone = run_here(&j);
    assert_int_equal(alone.status, LS_OK);
    j.flags.save = NULL;
    j.flags.init = path_in("v.safetensors");
    j.flags.evaluate = 1;
    for (int n = 2; n <= 3; n++) {
        run_on(n, &j);
        for (int i = 0; i < n; i++) {
            assert_int_equal(results[i].status, LS_OK);
            assert_true(fabs(results[i].nll - alone.nll) < 1e-6);
            assert_true(results[i].nll == results[0].nll);
            assert_true(results[i].perplexity == exp(results[i].nll));
        }
    }
    j = make_job();
    run_on(3, &j);
    for (int i = 0; i < 3; i++)
        assert_true(fabs(results[i].share - (1 * 2 + 2 * 3) / 6.0) < 1e-12);
}

static void the_chosen_value_decides_which_evaluation_is_the_best(void **state)
{
    job j = make_job();

    LS_UNUSED(state);
    assert_int_equal(run_here(&j).state.best_epoch, 1);
    j.lowest_is_best = 1;
    assert_int_equal(run_here(&j).state.best_epoch, 2);
    run_on(2, &j);
    assert_int_equal(results[1].state.best_epoch, 2);
}

/* The second evaluation is the best; the resumed run has the third only. */
static void a_resumed_run_knows_the_best_value(void **state)
{
    job j = make_job();

    LS_UNUSED(state);
    j.lowest_is_best = 1;
    j.flags.save = path_in("best.safetensors");
    j.flags.schedule = NULL;
    j.flags.epochs = 2;
    run_on(2, &j);
    assert_int_equal(results[0].status, LS_OK);
    j.flags.epochs = 3;
    j.flags.resume = "";
    run_on(2, &j);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(results[i].status, LS_OK);
        assert_int_equal(results[i].state.best_epoch, 2);
        assert_true(results[i].given == 2);
    }
}

static void values_are_in_metrics(void **state)
{
    job j = make_job();
    char *text;

    LS_UNUSED(state);
    j.flags.metrics = path_in("m.jsonl");
    assert_int_equal(run_here(&j).status, LS_OK);
    text = text_of(path_in("m.jsonl"));
    assert_non_null(
        strstr(text, "\"values\":{\"nll\":null,\"perplexity\":null,\"given\":null,\"share\":0"));
    assert_non_null(strstr(text, "\"test_values\":{\"nll\":0."));
    assert_non_null(strstr(text, "\"best_value\":3"));
    assert_null(strstr(text, "accuracy"));
    ls_free(text);
}

static void expect_failure(const job *j, const char *why)
{
    const result r = run_here(j);

    assert_int_equal(r.status, LS_EINVAL);
    assert_non_null(strstr(r.error, why));
}

static void wrong_values_end_the_run(void **state)
{
    job j = make_job();

    LS_UNUSED(state);
    j.adds = "unknown";
    j.add_weight = 1;
    expect_failure(&j, "the value unknown is not declared");
    assert_int_equal(run_here(&j).after_loop, LS_EINVAL);
    j.adds = "share";
    j.add_weight = -1;
    expect_failure(&j, "the weight of share is -1");
    j.add_weight = INFINITY;
    expect_failure(&j, "the weight of share is inf");
}

static void wrong_names_are_refused(void **state)
{
    static const char *const wrong[] = {"", "a b", "<b>", "\"",
                                        "a_name_of_32_characters_is_too_long"};
    const ls_train_flags flags = small_flags(small_dir);
    char name[8];
    ls_run *run;

    LS_UNUSED(state);
    assert_ok(ls_run_open(&flags, &run));
    for (size_t i = 0; i < LS_COUNT_OF(wrong); i++)
        assert_status(ls_run_declare(run, wrong[i]), LS_EINVAL);
    for (int i = 0; i < 16; i++)
        assert_ok(ls_run_declare(run, text_format(name, sizeof(name), "v%d", i)));
    assert_status(ls_run_declare_with(run, "v3", exp), LS_EINVAL);
    assert_last_error("v3 is declared already");
    assert_status(ls_run_declare(run, "v16"), LS_EINVAL);
    assert_last_error("at most 16 values");
    assert_status(ls_run_evaluate_with(run, test_batch, NULL, "v99", 0), LS_EINVAL);
    assert_last_error("v99 is not declared");
    assert_true(isnan(ls_run_value(run, "v3", 0)));
    assert_ok(ls_run_close(run, LS_OK));
}

static void ranks_with_different_names_are_refused(void **state)
{
    job j = make_job();

    LS_UNUSED(state);
    j.extra_rank = 1;
    run_on(2, &j);
    assert_int_equal(results[1].status, LS_EMISMATCH);
    assert_non_null(strstr(results[1].error, "names of ls_run_declare(): "));
    assert_int_not_equal(results[0].status, LS_OK);
}

static double falling_rate(void *arg, int64_t step, int64_t steps)
{
    return arg != NULL ? 0.3 * (double)(steps - step) / (double)steps : (double)NAN;
}

static double no_rate(void *arg, int64_t step, int64_t steps)
{
    LS_UNUSED(arg);
    return step + 1 < steps ? 0.1 : (double)NAN;
}

static void a_program_may_have_its_own_schedule(void **state)
{
    job j = make_job();
    result r;

    LS_UNUSED(state);
    j.lr = falling_rate;
    expect_failure(&j, "--schedule cosine: the program has a schedule of its own");
    j.flags.schedule = NULL;
    r = run_here(&j);
    assert_int_equal(r.status, LS_OK);
    assert_true(fabs(r.state.lr - 0.3 / 45) < 1e-12); // 3 epochs of 15 steps
    j.lr = no_rate;
    expect_failure(&j, "the learning rate of step 44 is nan");
}

static void state_of_the_program_is_resumed_on_all_ranks(void **state)
{
    job j = make_job();

    LS_UNUSED(state);
    j.flags.schedule = NULL;
    j.flags.save = path_in("own.safetensors");
    j.flags.epochs = 2;
    run_on(2, &j);
    assert_int_equal(results[0].status, LS_OK);
    j.saves = 1;
    j.flags.resume = "";
    run_on(2, &j);
    assert_int_not_equal(results[0].status, LS_OK);
    assert_non_null(strstr(results[0].error, "program.counter"));
    j.flags.resume = NULL;
    run_on(2, &j);
    assert_int_equal(results[1].counter, 16); // 2 epochs of 8 steps
    j.flags.resume = "";
    j.flags.epochs = 3;
    run_on(2, &j);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(results[i].status, LS_OK);
        assert_int_equal(results[i].counter, 24);
    }
}

static void groups_hold_in_a_resumed_run(void **state)
{
    job j = make_job();
    result r;
    double without;
    double whole;

    LS_UNUSED(state);
    j.flags.schedule = NULL;
    j.flags.momentum = 0.9;
    j.flags.weight_decay = 0.1;
    without = run_here(&j).nll;
    j.group = "*.weight";
    whole = run_here(&j).nll;
    assert_true(whole != without);
    j.flags.save = path_in("groups.safetensors");
    j.flags.epochs = 2;
    assert_int_equal(run_here(&j).status, LS_OK);
    j.flags.epochs = 3;
    j.flags.resume = "";
    assert_true(run_here(&j).nll == whole);
    j.flags.resume = NULL;
    j.group = "wieght";
    r = run_here(&j);
    assert_int_equal(r.status, LS_ENOTFOUND);
    assert_string_equal(r.error, "group: no parameter matches wieght");
}

static int set_up(void **state)
{
    results = ls_test_shared(LS_TEST_RANKS_MAX * sizeof(*results));
    return results != NULL ? small_dir_make(state) : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_own_evaluation_equals_that_of_a_classifier),
        cmocka_unit_test(values_are_means_over_the_weights_of_all_ranks),
        cmocka_unit_test(the_chosen_value_decides_which_evaluation_is_the_best),
        cmocka_unit_test(a_resumed_run_knows_the_best_value),
        cmocka_unit_test(values_are_in_metrics),
        cmocka_unit_test(wrong_values_end_the_run),
        cmocka_unit_test(wrong_names_are_refused),
        cmocka_unit_test(ranks_with_different_names_are_refused),
        cmocka_unit_test(a_program_may_have_its_own_schedule),
        cmocka_unit_test(state_of_the_program_is_resumed_on_all_ranks),
        cmocka_unit_test(groups_hold_in_a_resumed_run),
    };

    return cmocka_run_group_tests(tests, set_up, small_dir_remove);
}
