/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_program.c - tests ls_train_main(): what it calls, in which order, and the exit code.
 */
#include "base/status.h"
#include "base/unit.h"

#include <lockstep/train.h>

#include <stdlib.h>

/* What the program below was asked for. */
typedef struct calls {
    ls_train_flags flags;
    int want_ranks;
    int checked; /* calls of each function */
    int placed;
    int trained;
    int64_t layers; /* own flags */
    int64_t card;
    const char *words;
    const char *path;
    int64_t *differs; /* on rank 1; NULL: none of the numbers */
} calls;

static ls_status train(ls_run *run, ls_comm *comm, void *arg)
{
    calls *c = arg;

    c->trained++;
    if (ls_run_model(run) == NULL || ls_comm_size(comm) != c->want_ranks)
        return ls_train_refuse("%d ranks", ls_comm_size(comm));
    return LS_OK;
}

static ls_status train_and_fail(ls_run *run, ls_comm *comm, void *arg)
{
    LS_TRY(train(run, comm, arg));
    return ls_train_refuse("the network has no layers");
}

/* Does not call ls_run_distribute(). */
static ls_status train_alone(ls_run *run, ls_comm *comm, void *arg)
{
    LS_UNUSED(comm);
    LS_UNUSED(arg);
    (void)ls_nn_linear(ls_run_model(run), "fc", 2, 2, 0);
    return ls_run_start(run, NULL, NULL);
}

/* As ranks that were given other own flags on their machines. */
static ls_status train_with_other_flags(ls_run *run, ls_comm *comm, void *arg)
{
    calls *c = arg;

    if (ls_comm_rank(comm) == 1)
        c->path = "elsewhere"; // never a difference
    if (ls_comm_rank(comm) == 1 && c->differs != NULL)
        *c->differs = 7;
    else if (ls_comm_rank(comm) == 1)
        c->words = "other";
    (void)ls_nn_linear(ls_run_model(run), "fc", 2, 2, 0);
    return ls_run_distribute(run, comm, NULL);
}

static ls_status check(void *arg)
{
    calls *c = arg;

    c->checked++;
    return c->flags.epochs > 5 ? ls_train_refuse("too many epochs") : LS_OK;
}

static ls_status place(void *arg, ls_spawn_options *spawn, int *n)
{
    calls *c = arg;

    c->placed++;
    *n = spawn->size == sizeof(*spawn) ? 2 : 0;
    return LS_OK;
}

/* The exit code with these words after the program's name. */
static int run(calls *c, ls_train_program program, const char *a, const char *b)
{
    char *argv[] = {(char *)(uintptr_t) "prog", (char *)(uintptr_t)a, (char *)(uintptr_t)b, NULL};

    c->flags = (ls_train_flags){.epochs = 1, .batch_size = 4, .lr = 0.1, .device = "cpu_ref"};
    program.size = sizeof(program);
    program.name = "prog";
    program.summary = "A test.";
    program.flags = &c->flags;
    program.arg = c;
    return ls_train_main(&program, a == NULL ? 1 : b == NULL ? 2 : 3, argv);
}

static void one_rank_trains_in_this_process(void **state)
{
    calls c = {.want_ranks = 1};

    LS_UNUSED(state);
    assert_int_equal(run(&c, (ls_train_program){.train = train, .check = check}, NULL, NULL), 0);
    assert_int_equal(c.checked, 1);
    assert_int_equal(c.trained, 1);
}

static void ranks_that_would_train_alone_are_refused(void **state)
{
    calls c = {.want_ranks = 1};

    LS_UNUSED(state);
    assert_int_equal(run(&c, (ls_train_program){.train = train_alone}, NULL, NULL), 0);
    assert_int_equal(run(&c, (ls_train_program){.train = train_alone}, "-g", "2"), 1);
}

static void gpus_starts_the_ranks(void **state)
{
    calls c = {.want_ranks = 2};

    LS_UNUSED(state);
    assert_int_equal(run(&c, (ls_train_program){.train = train}, "-g", "2"), 0);
    assert_int_equal(c.trained, 0); // in the children
}

static void a_program_may_decide_how_many_ranks_start(void **state)
{
    calls c = {.want_ranks = 2};

    LS_UNUSED(state);
    assert_int_equal(run(&c, (ls_train_program){.train = train, .place = place}, NULL, NULL), 0);
    assert_int_equal(c.placed, 1);
    assert_int_equal(c.trained, 0);
}

static void help_neither_checks_nor_trains(void **state)
{
    calls c = {.want_ranks = 1};
    const ls_train_program program = {.train = train, .check = check, .place = place};

    LS_UNUSED(state);
    assert_int_equal(run(&c, program, "--help", NULL), 0);
    assert_int_equal(c.checked + c.placed + c.trained, 0);
}

static void every_failure_is_exit_code_1_with_its_text(void **state)
{
    calls c = {.want_ranks = 1};

    LS_UNUSED(state);
    assert_int_equal(run(&c, (ls_train_program){.train = train}, "--epoch", "1"), 1);
    assert_last_error("did you mean --epochs?");
    assert_int_equal(run(&c, (ls_train_program){.train = train, .check = check}, "--epochs", "6"),
                     1);
    assert_last_error("too many epochs");
    assert_int_equal(run(&c, (ls_train_program){.train = train}, "--backend", "none"), 1);
    assert_last_error("none");
    assert_int_equal(c.trained, 0);
    assert_int_equal(run(&c, (ls_train_program){.train = train_and_fail}, NULL, NULL), 1);
    assert_last_error("the network has no layers");
    assert_int_equal(c.trained, 1);
}

static void a_failure_of_a_started_rank_reaches_the_program(void **state)
{
    calls c = {.want_ranks = 2};

    LS_UNUSED(state);
    assert_int_equal(run(&c, (ls_train_program){.train = train_and_fail}, "-g", "2"), 1);
    assert_last_error("the network has no layers");
}

static void the_options_of_the_program_reach_ls_init(void **state)
{
    calls c = {.want_ranks = 1};
    const ls_init_options wrong = {.size = sizeof(wrong), .backend = "nothing"};

    LS_UNUSED(state);
    assert_int_equal(run(&c, (ls_train_program){.train = train, .init = &wrong}, NULL, NULL), 1);
    assert_last_error("nothing");
    assert_int_equal(
        run(&c, (ls_train_program){.train = train, .init = &wrong}, "--backend", "native"), 0);
    assert_int_equal(c.trained, 1);
}

static int run_with_own_flags(calls *c, const char *const *local)
{
    const ls_flag own[] = {
        {"Network", 0, LS_FLAG_HEADING, NULL, 0, 0, NULL},
        {"layers", 0, LS_FLAG_BYTES, &c->layers, 0, 100, "of the network"},
        {"card", 0, LS_FLAG_INT, &c->card, 0, 100, "of this rank"},
        {"words", 0, LS_FLAG_TEXT, &c->words, 0, 0, "a text"},
        {"path", 0, LS_FLAG_TEXT, &c->path, 0, 0, "`FILE` a text"},
        {"passes", 0, LS_FLAG_INT, &c->flags.epochs, 0, 0, "as --epochs"},
    };

    return run(
        c,
        (ls_train_program){
            .own = own, .n_own = LS_COUNT_OF(own), .train = train_with_other_flags, .local = local},
        "-g", "2");
}

static void own_flags_that_differ_are_named(void **state)
{
    const char *const local[] = {"width", "card", NULL};
    calls c = {.layers = 4, .card = 1};

    LS_UNUSED(state);
    c.differs = &c.layers;
    assert_int_equal(run_with_own_flags(&c, local), 1);
    assert_last_error("ranks were started differently: --layers: 4 on rank 0 (");
    assert_last_error(", 7 on rank 1 (");
    c.differs = NULL;
    assert_int_equal(run_with_own_flags(&c, local), 1);
    assert_last_error("--words: not given on rank 0 (");
    c.differs = &c.flags.epochs;
    assert_int_equal(run_with_own_flags(&c, local), 1);
    assert_last_error("--epochs: 1 on rank 0 (");
    c.differs = &c.card;
    assert_int_equal(run_with_own_flags(&c, NULL), 1);
    assert_last_error("--card: 1 on rank 0 (");
    assert_int_equal(run_with_own_flags(&c, local), 0);
}

static void a_program_without_its_parts_is_refused(void **state)
{
    calls c = {.want_ranks = 1};

    LS_UNUSED(state);
    assert_int_equal(run(&c, (ls_train_program){.check = check}, NULL, NULL), 1);
    assert_last_error("ls_train_program needs name, summary, flags and train");
    assert_int_equal(c.checked, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_rank_trains_in_this_process),
        cmocka_unit_test(ranks_that_would_train_alone_are_refused),
        cmocka_unit_test(gpus_starts_the_ranks),
        cmocka_unit_test(a_program_may_decide_how_many_ranks_start),
        cmocka_unit_test(help_neither_checks_nor_trains),
        cmocka_unit_test(every_failure_is_exit_code_1_with_its_text),
        cmocka_unit_test(a_failure_of_a_started_rank_reaches_the_program),
        cmocka_unit_test(the_options_of_the_program_reach_ls_init),
        cmocka_unit_test(own_flags_that_differ_are_named),
        cmocka_unit_test(a_program_without_its_parts_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
