/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_run_errors.c - tests that every common flag is parsed and in the help, and that errors of
 * flags and of calls in the wrong order name their remedy.
 */
#include "train/small_folder.h"
#include "train/small_run.h"

#include "base/log.h"
#include "base/unit.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static char output[16384]; /* captured text */

/* --- flags --- */

static ls_status parse(int n, const char *const *words, ls_train_flags *flags)
{
    char *argv[64] = {(char *)(uintptr_t) "./program"};

    for (int i = 0; i < n; i++)
        argv[i + 1] = (char *)(uintptr_t)words[i];
    return ls_train_parse("program", "Trains.", n + 1, argv, flags, NULL, 0);
}

/* The help as it is printed, in `output`. */
static void capture_help(const char *flag)
{
    const int real = dup(STDOUT_FILENO);
    const int captured = memfd_create("help", MFD_CLOEXEC);
    ls_train_flags flags = {.epochs = 7};
    ssize_t got;

    dup2(captured, STDOUT_FILENO);
    assert_ok(parse(1, &flag, &flags));
    dup2(real, STDOUT_FILENO);
    got = pread(captured, output, sizeof(output) - 1, 0);
    output[got > 0 ? got : 0] = 0;
    close(captured);
    close(real);
    assert_true(flags.help);
}

static void help_lists_every_common_flag(void **state)
{
    static const char *const flags[] = {"-n, --nodes N",
                                        "-g, --gpus LIST",
                                        "-i, --id N",
                                        "--backend NAME",
                                        "--device NAME",
                                        "--share-gpu",
                                        "--master HOST",
                                        "--local-rank N",
                                        "--epochs N",
                                        "--start-epoch N",
                                        "--steps N",
                                        "-b, --batch-size N",
                                        "--accumulate N",
                                        "--data DIR",
                                        "--seed N",
                                        "--no-shuffle",
                                        "--drop-last",
                                        "-j, --workers N",
                                        "--bad-images",
                                        "--check-replicas N",
                                        "--heal",
                                        "--check-nan",
                                        "-e, --evaluate",
                                        "--optimizer NAME",
                                        "--lr ",
                                        "--momentum ",
                                        "--nesterov",
                                        "--beta1 ",
                                        "--beta2 ",
                                        "--eps ",
                                        "--weight-decay ",
                                        "--schedule NAME",
                                        "--schedule-steps",
                                        "--lr-step-size N",
                                        "--lr-milestones LIST",
                                        "--lr-gamma ",
                                        "--lr-min ",
                                        "--lr-warmup-epochs",
                                        "--lr-warmup-factor",
                                        "--precision TYPE",
                                        "--label-smoothing ",
                                        "--clip-grad-norm",
                                        "--sync-bn",
                                        "--compress TYPE",
                                        "-p, --print-freq N",
                                        "--metrics FILE",
                                        "--save FILE",
                                        "--save-best FILE",
                                        "--on-save-error",
                                        "--save-dtype TYPE",
                                        "--init FILE",
                                        "--skip-mismatched",
                                        "--resume",
                                        "-h, --help"};

    LS_UNUSED(state);
    capture_help("--help=all");
    for (size_t i = 0; i < LS_COUNT_OF(flags); i++)
        if (strstr(output, flags[i]) == NULL)
            fail_msg("%s is not in the help:\n%s", flags[i], output);
    assert_non_null(strstr(output, "number of epochs (7)"));
    assert_null(strstr(output, "; 0: ")); // a value with a special meaning is "0 = disabled"
}

static void short_help_lists_ten_common_flags(void **state)
{
    static const char *const flags[] = {"--nodes N",      "--gpus LIST", "--id N", "--device NAME",
                                        "--epochs N",     "--data DIR",  "--lr X", "--save FILE",
                                        "--batch-size N", "--resume"};
    int n = 0;

    LS_UNUSED(state);
    capture_help("--help");
    for (size_t i = 0; i < LS_COUNT_OF(flags); i++)
        assert_non_null(strstr(output, flags[i]));
    for (const char *at = output; (at = strstr(at, "\n  ")) != NULL; at++)
        n += at[3] == '-' || strncmp(at + 3, "    --", 6) == 0;
    assert_int_equal(n, LS_COUNT_OF(flags));
    assert_non_null(strstr(output, "\n--help=all lists "));
}

static void contradicting_flags_of_nodes_name_the_remedy(void **state)
{
    static const struct {
        ls_train_flags flags;
        const char *message;
    } cases[] = {
        {{.gpus = ""}, "--gpus is empty: give the ranks of each node, as 2 or 8,2"},
        {{.nodes = 2}, "--nodes and --id (-n, -i) need --gpus (-g)"},
        {{.node_id = 1}, "--nodes and --id (-n, -i) need --gpus (-g)"},
        {{.gpus = "1,1,1", .nodes = 2}, "--gpus 1,1,1 lists 3 nodes, but --nodes is 2"},
        {{.gpus = "1", .nodes = 2, .node_id = 2}, "--id 2: must be below the number of nodes, 2"},
    };

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(cases); i++) {
        ls_train_flags flags = cases[i].flags;
        int n;

        assert_status(ls_train_local_ranks(&flags, &n), LS_EINVAL);
        assert_last_error(cases[i].message);
    }
}

/* --- calls --- */

static ls_run *open_run(const ls_train_flags *flags)
{
    ls_run *run;

    assert_ok(ls_run_open(flags, &run));
    (void)ls_nn_linear(ls_run_model(run), "fc", SMALL_SIDE * SMALL_SIDE, SMALL_CLASSES, 0);
    return run;
}

static ls_dataset *open_set(const char *split)
{
    ls_dataset *set;

    assert_ok(ls_dataset_open_mnist(small_dir, split, &set));
    return set;
}

static void assert_close_fails(ls_run *run, const char *message)
{
    assert_status(ls_run_close(run, LS_OK), LS_EINVAL);
    assert_last_error(message);
}

static void calls_before_start_name_the_missing_call(void **state)
{
    const ls_train_flags flags = small_flags(small_dir);
    ls_batch batch;
    ls_run *run = open_run(&flags);

    LS_UNUSED(state);
    assert_int_equal(ls_run_next(run, &batch), 0);
    assert_close_fails(run, "call ls_run_start() before ls_run_next()");
    run = open_run(&flags);
    ls_run_step(run, NULL);
    assert_close_fails(run, "call ls_run_start() before ls_run_step()");
    run = open_run(&flags);
    assert_ok(ls_run_start(run, NULL, NULL));
    assert_int_equal(ls_run_next(run, &batch), 0);
    assert_close_fails(run, "ls_run_next needs a training set");
    run = open_run(&flags);
    assert_ok(ls_run_start(run, NULL, NULL));
    assert_status(ls_run_distribute(run, NULL, NULL), LS_EINVAL);
    assert_last_error("call ls_run_distribute() once, before ls_run_start()");
    assert_ok(ls_run_close(run, LS_OK));
}

static void a_second_training_set_is_refused(void **state)
{
    const ls_train_flags flags = small_flags(small_dir);
    ls_run *run = open_run(&flags);

    LS_UNUSED(state);
    assert_ok(ls_run_train_on_take(run, open_set("train")));
    assert_status(ls_run_train_on_take(run, open_set("train")), LS_EINVAL);
    assert_last_error("the run already has a training set");
    assert_ok(ls_run_close(run, LS_OK));
}

static ls_tensor *return_input(void *arg, ls_tape *tape, ls_tensor *x)
{
    LS_UNUSED(arg);
    LS_UNUSED(tape);
    return x;
}

static void an_evaluation_needs_a_set_and_a_forward_function(void **state)
{
    ls_train_flags flags = small_flags(small_dir);
    ls_batch batch;
    ls_run *run;

    LS_UNUSED(state);
    flags.evaluate = 1;
    run = open_run(&flags);
    assert_status(ls_run_start(run, NULL, NULL), LS_EINVAL);
    assert_last_error("--evaluate needs a test set");
    assert_ok(ls_run_test_on_take(run, open_set("t10k")));
    assert_status(ls_run_start(run, NULL, NULL), LS_EINVAL);
    assert_last_error("a test set needs a forward function");
    assert_ok(ls_run_start(run, return_input, NULL));
    assert_int_equal(ls_run_next(run, &batch), 0);
    assert_close_fails(run, "the forward function must return float32 logits (rows, classes)");
}

static void init_and_resume_exclude_each_other(void **state)
{
    ls_train_flags flags = small_flags(small_dir);
    small_result r;

    LS_UNUSED(state);
    flags.init = path_in("a.safetensors");
    flags.resume = path_in("b.safetensors");
    r = small_run(&(small_job){.flags = flags});
    assert_int_equal(r.status, LS_EINVAL);
    assert_non_null(strstr(r.error, "--init and --resume exclude each other"));
}

static void check_nan_names_the_operator_of_a_step_that_diverges(void **state)
{
    small_job job = {.flags = small_flags(small_dir)};
    small_result r;

    LS_UNUSED(state);
    job.flags.lr = 3e38;
    job.flags.check_nan = 1;
    r = small_run(&job);
    assert_int_equal(r.status, LS_EFORMAT);
    if (strstr(r.error, ": the result (") == NULL || strstr(r.error, "linear of (") == NULL)
        fail_msg("%s", r.error);
}

static void a_job_of_several_ranks_needs_ls_run_distribute(void **state)
{
    static const char *const job[][2] = {
        {"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "29500"}};
    const ls_train_flags flags = small_flags(small_dir);
    ls_run *run = open_run(&flags);

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(job); i++)
        assert_int_equal(setenv(job[i][0], job[i][1], 1), 0);
    assert_status(ls_run_start(run, NULL, NULL), LS_EINVAL);
    assert_last_error("this job has 2 ranks");
    assert_last_error("call ls_run_distribute() before ls_run_start()");
    for (size_t i = 0; i < LS_COUNT_OF(job); i++)
        assert_int_equal(unsetenv(job[i][0]), 0);
    assert_ok(ls_run_close(run, LS_OK));
}

/* --- messages --- */

/* Trains with a value "used" and a value "unused"; standard error is in `output`. */
static void train_with_values(const ls_train_flags *flags)
{
    const int real = dup(STDERR_FILENO);
    const int captured = memfd_create("errors", MFD_CLOEXEC);
    ls_run *run = open_run(flags);
    ls_layer *fc = ls_nn_linear(ls_run_model(run), "fc2", SMALL_SIDE * SMALL_SIDE, 4, 0);
    ls_batch batch;
    ssize_t got;

    dup2(captured, STDERR_FILENO);
    assert_ok(ls_run_train_on_take(run, open_set("train")));
    assert_ok(ls_run_declare(run, "used"));
    assert_ok(ls_run_declare(run, "unused"));
    assert_ok(ls_run_start(run, NULL, NULL));
    while (ls_run_next(run, &batch)) {
        ls_tensor *x = ls_flatten(ls_run_tape(run), batch.x);

        ls_run_add_number(run, "used", 1, 1);
        ls_run_step(run, ls_run_classify(run, ls_forward(ls_run_tape(run), fc, x), batch.y));
    }
    assert_ok(ls_run_close(run, LS_OK));
    dup2(real, STDERR_FILENO);
    got = pread(captured, output, sizeof(output) - 1, 0);
    output[got > 0 ? got : 0] = 0;
    close(captured);
    close(real);
}

static void a_value_that_is_never_added_is_named_once(void **state)
{
    static const char words[] = "the value unused is declared, but nothing was added to it";
    ls_train_flags flags = small_flags(small_dir);
    const char *first;

    LS_UNUSED(state);
    for (int i = 0; i < 2; i++) {
        flags.steps = i == 0 ? 0 : 2;
        train_with_values(&flags);
        first = strstr(output, words);
        assert_non_null(first);
        assert_null(strstr(first + 1, words));
        assert_null(strstr(output, "the value used"));
    }
}

static void a_path_of_pytorch_gets_a_warning(void **state)
{
    small_job job = {.flags = small_flags(small_dir)};

    LS_UNUSED(state);
    job.flags.steps = 1;
    job.flags.save = path_in("model.pt");
    assert_ok(small_run_captured(&job, STDERR_FILENO, output, sizeof(output)).status);
    assert_non_null(strstr(output, "model.pt writes a safetensors file: torch.load() does not"));
    job.flags.save = path_in("model.safetensors");
    assert_ok(small_run_captured(&job, STDERR_FILENO, output, sizeof(output)).status);
    assert_null(strstr(output, "torch.load"));
}

static const char *last_line(char *text)
{
    const size_t n = strlen(text);
    char *end;

    if (n > 0)
        text[n - 1] = 0;
    end = strrchr(text, '\n');
    return end != NULL ? end + 1 : text;
}

static void the_last_line_after_a_stop_says_how_to_go_on(void **state)
{
    small_job job = {.flags = small_flags(small_dir), .stop_at = 5};
    const char *line;

    LS_UNUSED(state);
    assert_ok(small_run_captured(&job, STDOUT_FILENO, output, sizeof(output)).status);
    line = last_line(output);
    assert_non_null(strstr(line, "nothing is saved: a run with --save FILE can be continued"));
    job.flags.save = path_in("stopped.safetensors");
    assert_ok(small_run_captured(&job, STDOUT_FILENO, output, sizeof(output)).status);
    line = last_line(output);
    assert_non_null(strstr(line, "to go on from step 5: the same command with --resume /tmp"));
}

static void a_warning_erases_the_progress_bar(void **state)
{
    small_job job = {.flags = small_flags(small_dir)};
    const char *at;

    LS_UNUSED(state);
    assert_int_equal(setenv("LOCKSTEP_TTY", "80", 1), 0);
    (void)log_set_bar(true);
    job.flags.steps = 1;
    job.flags.save = path_in("bar.pt");
    assert_ok(small_run_captured(&job, STDERR_FILENO, output, sizeof(output)).status);
    assert_int_equal(unsetenv("LOCKSTEP_TTY"), 0);
    at = strstr(output, "\r\x1b[K");
    assert_non_null(at);
    assert_ptr_equal(at, output); // before the warning about the name
    assert_false(log_set_bar(false));
}

static void the_help_ends_with_an_example_and_the_page(void **state)
{
    LS_UNUSED(state);
    capture_help("--help");
    assert_non_null(strstr(output, "-n of lockstep run is a number of ranks"));
    assert_string_equal(last_line(output), "Page: docs/training.md");
    assert_non_null(strstr(output, "Example, on 2 ranks:\n  lockstep run -n 2 ./program --"));
}

static void resume_auto_without_a_state_reports_a_new_run(void **state)
{
    small_job job = {.flags = small_flags(small_dir)};

    LS_UNUSED(state);
    job.flags.save = path_in("auto.safetensors");
    job.flags.resume = "auto";
    job.flags.steps = 1;
    assert_ok(small_run_captured(&job, STDOUT_FILENO, output, sizeof(output)).status);
    assert_non_null(strstr(output, "no saved state at "));
    assert_non_null(strstr(output, "/auto.safetensors: starting from scratch\n"));
}

static void a_renamed_state_is_reported_with_its_new_name(void **state)
{
    small_job job = {.flags = small_flags(small_dir)};

    LS_UNUSED(state);
    job.flags.save = path_in("renamed.safetensors");
    job.flags.steps = 4;
    assert_ok(small_run(&job).status);
    job.flags.steps = 2;
    assert_ok(small_run_captured(&job, STDERR_FILENO, output, sizeof(output)).status);
    assert_non_null(strstr(output, "of another run, at step 4, was renamed to "));
    assert_non_null(strstr(output, "renamed.earlier.safetensors continues it"));
}

static void a_stop_signal_is_reported_by_name(void **state)
{
    small_job job = {.flags = small_flags(small_dir), .stop_at = 5};

    LS_UNUSED(state);
    assert_ok(small_run_captured(&job, STDOUT_FILENO, output, sizeof(output)).status);
    assert_non_null(strstr(output, "stopped by SIGTERM at step 5\n"));
}

static void a_run_also_stops_at_the_signals_that_its_launcher_passes_on(void **state)
{
    static const struct {
        int number;
        const char *line;
    } signals[] = {{SIGHUP, "stopped by SIGHUP at step 5\n"},
                   {SIGQUIT, "stopped by SIGQUIT at step 5\n"},
                   {SIGUSR1, "stopped by SIGUSR1 at step 5\n"},
                   {SIGINT, "stopped by SIGINT at step 5\n"}};

    LS_UNUSED(state);
    assert_int_equal(setenv("LOCKSTEP_STOP_SIGNALS", "SIGHUP,SIGQUIT,SIGUSR1", 1), 0);
    for (size_t i = 0; i < LS_COUNT_OF(signals); i++) {
        small_job job = {
            .flags = small_flags(small_dir), .stop_at = 5, .stop_by = signals[i].number};

        assert_ok(small_run_captured(&job, STDOUT_FILENO, output, sizeof(output)).status);
        assert_non_null(strstr(output, signals[i].line));
    }
    assert_int_equal(unsetenv("LOCKSTEP_STOP_SIGNALS"), 0);
}

static void a_run_weighs_all_batches_or_none(void **state)
{
    small_job job = {.flags = small_flags(small_dir), .weight = -1};
    small_result r = small_run(&job);

    (void)state;
    assert_int_equal(r.status, LS_EINVAL);
    assert_non_null(strstr(r.error, "below 0"));
    job.weight = 1;
    job.weigh_from = 2;
    r = small_run(&job);
    assert_int_equal(r.status, LS_EINVAL);
    assert_non_null(strstr(r.error, "a batch of step 1 has no weight"));
    job.weigh_from = 0;
    job.forgets_weights = 1;
    r = small_run(&job);
    assert_int_equal(r.status, LS_EINVAL);
    assert_non_null(strstr(r.error, "call ls_run_use_weights() before ls_run_start()"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(help_lists_every_common_flag),
        cmocka_unit_test(short_help_lists_ten_common_flags),
        cmocka_unit_test(contradicting_flags_of_nodes_name_the_remedy),
        cmocka_unit_test(calls_before_start_name_the_missing_call),
        cmocka_unit_test(a_second_training_set_is_refused),
        cmocka_unit_test(an_evaluation_needs_a_set_and_a_forward_function),
        cmocka_unit_test(init_and_resume_exclude_each_other),
        cmocka_unit_test(check_nan_names_the_operator_of_a_step_that_diverges),
        cmocka_unit_test(a_job_of_several_ranks_needs_ls_run_distribute),
        cmocka_unit_test(a_value_that_is_never_added_is_named_once),
        cmocka_unit_test(a_path_of_pytorch_gets_a_warning),
        cmocka_unit_test(the_last_line_after_a_stop_says_how_to_go_on),
        cmocka_unit_test(a_warning_erases_the_progress_bar),
        cmocka_unit_test(the_help_ends_with_an_example_and_the_page),
        cmocka_unit_test(resume_auto_without_a_state_reports_a_new_run),
        cmocka_unit_test(a_renamed_state_is_reported_with_its_new_name),
        cmocka_unit_test(a_stop_signal_is_reported_by_name),
        cmocka_unit_test(a_run_also_stops_at_the_signals_that_its_launcher_passes_on),
        cmocka_unit_test(a_run_weighs_all_batches_or_none),
    };
    return cmocka_run_group_tests(tests, small_dir_make, small_dir_remove);
}
