/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_files.c - tests the files of a run: metrics, saved states, and resuming from
 * them.
 */
#include "base/alloc.h"
#include "base/file.h"
#include "base/report/json.h"
#include "train/small_folder.h"
#include "train/small_run.h"

#include <lockstep/checkpoint.h>

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

enum { STEPS_AN_EPOCH = (SMALL_TRAIN + 15) / 16 };

static char output[8192]; /* of a captured run */

static small_result run_with(const ls_train_flags *flags)
{
    return small_run(&(small_job){.flags = *flags});
}

/* --- metrics --- */

static void check_line(const json_value *v)
{
    static const char *const members[] = {
        "epoch", "step", "loss", "lr", "samples_per_s", "top1", "data_wait", "top5", "bad_images"};
    json_value *seconds = json_get(v, "seconds");

    for (size_t i = 0; i < LS_COUNT_OF(members); i++)
        assert_true(json_as_real(json_get(v, members[i]), -1) >= 0);
    assert_true(json_as_real(json_get(seconds, "forward"), -1) >= 0);
    assert_true(json_as_real(json_get(seconds, "data"), -1) >= 0);
    assert_int_equal(json_kind_of(json_get(v, "step_s")), JSON_IS_ARRAY);
    if (json_get(v, "accuracy") == NULL)
        return;
    assert_int_equal(json_as_int(json_get(v, "test_samples"), 0), SMALL_TEST);
    assert_true(json_as_real(json_get(v, "accuracy5"), 0) == 1); // of four classes
    assert_true(json_as_real(json_get(v, "test_loss"), -1) > 0);
}

/* Lines of a file that all parse. */
static int count_lines(const char *path, int *n_tested)
{
    char *text = text_of(path);
    int n = 0;

    *n_tested = 0;
    for (char *line = text, *end; (end = strchr(line, '\n')) != NULL; line = end + 1) {
        json_value *v;
        assert_int_equal(json_parse(line, (size_t)(end - line), "metrics", &v), LS_OK);
        check_line(v);
        *n_tested += json_get(v, "accuracy") != NULL;
        n++;
        json_free(v);
    }
    ls_free(text);
    return n;
}

/* The first line has the times of its steps, maybe without the last one, and describes the run. */
static void expect_run_and_step_times(const char *path)
{
    char *text = text_of(path);
    json_value *v;
    const json_value *run;

    assert_int_equal(json_parse(text, strcspn(text, "\n"), "metrics", &v), LS_OK);
    run = json_get(v, "run");
    assert_in_range(json_size(json_get(v, "step_s")), json_as_int(json_get(v, "step"), 0) - 1,
                    json_as_int(json_get(v, "step"), 0));
    assert_true(json_as_real(json_at(json_get(v, "step_s"), 0), 0) > 0);
    assert_true(json_as_int(json_get(run, "cores"), 0) >= 1);
    assert_true(json_as_real(json_get(run, "memory_bytes"), 0) > 1e6);
    assert_int_equal(json_as_int(json_get(run, "ranks"), 0), 1);
    assert_non_null(strstr(json_as_string(json_get(run, "command"), ""), "test_run_files"));
    json_free(v);
    ls_free(text);
}

static void metrics_are_json_lines_with_all_members(void **state)
{
    ls_train_flags flags = small_flags(small_dir);
    int n_tested;

    (void)state;
    flags.metrics = path_in("m.jsonl");
    assert_int_equal(run_with(&flags).status, LS_OK);
    assert_int_equal(count_lines(flags.metrics, &n_tested), 3 + 3 * STEPS_AN_EPOCH / 20);
    assert_int_equal(n_tested, 3);
    expect_run_and_step_times(flags.metrics);
    flags.print_freq = 5;
    assert_int_equal(run_with(&flags).status, LS_OK);
    assert_int_equal(count_lines(flags.metrics, &n_tested), 3 + 3 * STEPS_AN_EPOCH / 5);
}

static void append(const char *path, const char *text)
{
    FILE *f = fopen(path, "a");

    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

/* A run that crashed after its last save leaves lines of later steps, and an incomplete one. */
static void a_resumed_run_cuts_its_metrics_at_its_step(void **state)
{
    static const char later[] = "{\"epoch\":1,\"step\":20}\n{\"epoch\":1,\"step\":25}\n";
    small_job job = {.flags = small_flags(small_dir), .stop_at = 19};
    int64_t before = 0;
    int n_tested;
    char *text;

    (void)state;
    job.flags.metrics = path_in("cut.jsonl");
    job.flags.save = path_in("cut.safetensors");
    job.flags.print_freq = 5;
    assert_int_equal(small_run(&job).status, LS_OK);
    append(job.flags.metrics, later);
    append(job.flags.metrics, "{\"epoch\":1,\"st");
    job.flags.resume = "";
    job.stop_at = 0;
    assert_int_equal(small_run(&job).status, LS_OK);
    assert_int_equal(count_lines(job.flags.metrics, &n_tested), 3 + 3 * STEPS_AN_EPOCH / 5);
    text = text_of(job.flags.metrics);
    for (const char *at = text; (at = strstr(at, "\"step\":")) != NULL; at++) {
        const int64_t step = atoll(at + strlen("\"step\":"));
        assert_true(step >= before);
        before = step;
    }
    assert_int_equal(before, 3 * STEPS_AN_EPOCH);
    ls_free(text);
}

/* The loss that the line of an epoch shows on standard output. */
static double printed_loss(const char *text, int epoch)
{
    char begin[32];
    const char *at;

    snprintf(begin, sizeof(begin), "epoch %d/3  loss ", epoch);
    at = strstr(text, begin);
    assert_non_null(at);
    return atof(at + strlen(begin));
}

/* Batches of one number of rows a line of metrics; the last one of an epoch has the rest. */
static double mean_of_metrics(const char *path, int epoch)
{
    char *text = text_of(path);
    double loss = 0;
    double rows = 0;

    for (char *line = text, *end; (end = strchr(line, '\n')) != NULL; line = end + 1) {
        json_value *v;
        double n;

        assert_int_equal(json_parse(line, (size_t)(end - line), "metrics", &v), LS_OK);
        n = (double)(json_as_int(json_get(v, "step"), 0) % STEPS_AN_EPOCH == 0 ? 70 : 80);
        if (json_as_int(json_get(v, "epoch"), -1) == epoch && json_get(v, "accuracy") == NULL) {
            loss += n * json_as_real(json_get(v, "loss"), 0);
            rows += n;
        }
        json_free(v);
    }
    ls_free(text);
    assert_true(rows == SMALL_TRAIN);
    return loss / rows;
}

/* Also of an epoch that was interrupted: the checkpoint has what was added up before. */
static void the_line_of_an_epoch_has_the_mean_of_all_rows(void **state)
{
    small_job job = {.flags = small_flags(small_dir), .stop_at = 20};

    (void)state;
    job.flags.metrics = path_in("mean.jsonl");
    job.flags.save = path_in("mean.safetensors");
    job.flags.print_freq = 5;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(small_run_captured(&job, STDOUT_FILENO, output, sizeof(output)).status,
                         LS_OK);
        for (int epoch = i + 1; epoch <= 1 + 2 * i; epoch++)
            assert_true(fabs(printed_loss(output, epoch) -
                             mean_of_metrics(job.flags.metrics, epoch - 1)) < 1e-4);
        job.stop_at = 0;
        job.flags.resume = "";
    }
}

static void evaluate_changes_no_file_and_adds_a_line(void **state)
{
    static small_result trained;
    static small_result tested;
    ls_train_flags flags = small_flags(small_dir);
    json_value *v;
    char *text;

    (void)state;
    flags.save = path_in("e.safetensors");
    trained = run_with(&flags);
    flags.save = NULL;
    flags.evaluate = 1;
    flags.metrics = path_in("e.jsonl");
    for (int i = 0; i < 2; i++) {
        flags.init = i == 0 ? path_in("e.safetensors") : NULL;
        flags.resume = i == 1 ? path_in("e.safetensors") : NULL;
        tested = run_with(&flags);
        assert_int_equal(tested.status, LS_OK);
        assert_true(tested.state.accuracy == trained.state.accuracy);
        assert_true(tested.state.test_loss == trained.state.test_loss);
        assert_memory_equal(tested.weights, trained.weights, sizeof(tested.weights));
        unlink(flags.metrics);
        assert_int_equal(run_with(&flags).status, LS_OK);
        text = text_of(flags.metrics);
        assert_int_equal(json_parse(text, strlen(text), "metrics", &v), LS_OK);
        assert_int_equal(json_as_int(json_get(v, "test_samples"), 0), SMALL_TEST);
        json_free(v);
        ls_free(text);
    }
}

/* --- best and latest --- */

static void the_best_weights_are_saved_beside_the_latest(void **state)
{
    ls_train_flags flags = small_flags(small_dir);
    small_result r;
    small_result best;

    (void)state;
    flags.save = path_in("b.safetensors");
    r = run_with(&flags);
    assert_true(size_of(path_in("b.best.safetensors")) > 0);
    assert_true(r.state.best_accuracy >= r.state.accuracy);
    flags.evaluate = 1;
    flags.init = path_in("b.best.safetensors");
    best = run_with(&flags);
    assert_true(best.state.accuracy == r.state.best_accuracy);
}

static void a_resumed_run_keeps_its_best_accuracy(void **state)
{
    ls_train_flags flags = small_flags(small_dir);
    small_result r;

    (void)state;
    flags.save = path_in("r.safetensors");
    flags.save_best = path_in("r-best.safetensors");
    r = run_with(&flags);
    assert_true(r.state.best_accuracy > 0.9);
    assert_int_equal(unlink(flags.save_best), 0);
    flags.resume = "";
    flags.lr = 1e6; // from here on it can only get worse
    flags.momentum = 0.9;
    flags.epochs = 4;
    flags.schedule = "constant";
    assert_true(run_with(&flags).state.best_accuracy == r.state.best_accuracy);
    assert_int_equal(size_of(flags.save_best), -1);
}

/* --- states that do not match --- */

static void another_optimizer_is_refused(void **state)
{
    ls_train_flags flags = small_flags(small_dir);
    small_result r;

    (void)state;
    flags.save = path_in("o.safetensors");
    flags.steps = 2;
    assert_int_equal(run_with(&flags).status, LS_OK);
    flags.optimizer = "adam";
    flags.resume = "";
    r = run_with(&flags);
    assert_int_equal(r.status, LS_EINVAL);
    assert_non_null(strstr(r.error, "--optimizer sgd, not adam"));
}

enum { REWRITTEN_MOST = 16 };

static void add_meta(const ls_checkpoint *file, ls_meta *meta, int *n)
{
    static const char *const keys[] = {"epoch",      "batch",         "step",      "best_epoch",
                                       "world_size", "best_accuracy", "optimizer", "device"};

    for (size_t i = 0; i < LS_COUNT_OF(keys); i++)
        if (ls_checkpoint_meta(file, keys[i]) != NULL)
            meta[(*n)++] = (ls_meta){keys[i], ls_checkpoint_meta(file, keys[i])};
}

/* Writes the state again, with other records as its points; NULL: without a history. */
static void rewrite_history(const char *path, const void *points, size_t n_bytes)
{
    ls_named items[REWRITTEN_MOST] = {{.name = "history.points"}};
    ls_meta meta[REWRITTEN_MOST];
    ls_checkpoint_entry entry;
    ls_checkpoint *file;
    ls_device *device;
    int n_meta = 0;
    int n = 0;

    assert_int_equal(ls_device_open(NULL, &device), LS_OK);
    assert_int_equal(ls_checkpoint_open(path, &file), LS_OK);
    for (int i = 0; i < ls_checkpoint_count(file); i++) {
        assert_int_equal(ls_checkpoint_entry_at(file, i, &entry), LS_OK);
        if (strncmp(entry.name, "history.", 8) == 0)
            continue;
        items[n].name = entry.name;
        assert_int_equal(
            ls_tensor_create(device, entry.type, entry.n_dims, entry.dims, &items[n++].tensor),
            LS_OK);
    }
    assert_int_equal(ls_checkpoint_load(file, items, n, LS_LOAD_SUBSET), LS_OK);
    add_meta(file, meta, &n_meta);
    items[n] = (ls_named){"history.points", NULL, (void *)(uintptr_t)points, n_bytes};
    items[n + 1] = (ls_named){"history.tests", NULL, items[n].bytes, 0};
    assert_int_equal(ls_checkpoint_save(path, items, points != NULL ? n + 2 : n, meta, n_meta),
                     LS_OK);
    for (int i = 0; i < n; i++)
        ls_tensor_destroy(items[i].tensor);
    ls_checkpoint_close(file);
    ls_device_close(device);
}

/* A point has 30 doubles: one too many of them, half a point, invalid steps. */
static void an_invalid_history_is_ignored(void **state)
{
    enum { POINT = 30, POINTS_MOST = 1024 };
    static const double zeros[(POINTS_MOST + 1) * POINT];
    double odd[POINT];
    const struct {
        const void *points;
        size_t n_bytes;
        const char *why;
    } cases[] = {{NULL, 0, "history.points is missing"},
                 {zeros, sizeof(zeros), "history.points is not a list"},
                 {zeros, 60, "history.points is not a list"},
                 {odd, sizeof(odd), "its steps do not ascend"}};
    static small_result whole;
    small_job job = {.flags = small_flags(small_dir)};

    (void)state;
    whole = small_run(&job);
    memset(odd, 0xff, sizeof(odd));
    for (size_t i = 0; i < LS_COUNT_OF(cases); i++) {
        small_result r;

        job.flags = small_flags(small_dir);
        job.flags.save = path_in("odd.safetensors");
        job.flags.steps = STEPS_AN_EPOCH;
        assert_int_equal(small_run(&job).status, LS_OK);
        rewrite_history(path_in("odd.resume.safetensors"), cases[i].points, cases[i].n_bytes);
        job.flags.steps = 0;
        job.flags.resume = "";
        r = small_run_captured(&job, STDERR_FILENO, output, sizeof(output));
        assert_int_equal(r.status, LS_OK);
        assert_memory_equal(r.weights, whole.weights, sizeof(whole.weights));
        assert_non_null(strstr(output, "ignoring the invalid history of the state file"));
        assert_non_null(strstr(output, cases[i].why));
    }
}

/* In the middle of an epoch, where they decide the order of what is left of it. */
static void a_state_with_other_settings_is_refused(void **state)
{
    const small_job saved = {.flags = small_flags(small_dir), .stop_at = 19};
    small_job job = saved;
    small_result r;

    (void)state;
    job.flags.save = path_in("set.safetensors");
    assert_int_equal(small_run(&job).status, LS_OK);
    job.stop_at = 0;
    job.flags.resume = job.flags.save;
    job.flags.save = NULL;
    job.flags.no_shuffle = 1;
    job.flags.drop_last = 1;
    job.pad = 2;
    r = small_run(&job);
    assert_int_equal(r.status, LS_EINVAL);
    assert_non_null(strstr(r.error, "within an epoch with --no-shuffle no, not yes; "));
    assert_non_null(strstr(r.error, "--drop-last no, not yes; "));
    assert_non_null(strstr(r.error, "augmentation none, not crop 2 to 8 x 8, resize 0, pad 2"));
    job.flags = saved.flags;
    job.flags.resume = path_in("set.safetensors");
    job.flags.seed = 5;
    job.pad = 0;
    r = small_run(&job);
    assert_int_equal(r.status, LS_EINVAL);
    assert_non_null(strstr(r.error, "with --seed 0, not 5: "));
}

/* Neither a terminal's control characters nor numbers that overflow get through. */
static void hostile_metadata_is_harmless(void **state)
{
    const ls_meta meta[] = {
        {"epoch", "1"}, {"batch", "0"},      {"best_epoch", "0"},          {"best_accuracy", "0"},
        {"step", "7"},  {"world_size", "1"}, {"optimizer", "\x1b[31madam"}};
    const ls_meta far[] = {{"epoch", "1"}, {"batch", "0"}, {"step", "9223372036854775807"}};
    const ls_meta wide[] = {{"epoch", "0"},
                            {"batch", "1"},
                            {"step", "1"},
                            {"best_epoch", "0"},
                            {"best_accuracy", "0"},
                            {"world_size", "1"},
                            {"shards", "1099511627776"},
                            {"batch_size", "16777216"}};
    const ls_named item = {.name = "x", .bytes = small_dir, .n_bytes = 1};
    ls_train_flags flags = small_flags(small_dir);
    small_result r;

    (void)state;
    flags.resume = path_in("esc.safetensors");
    assert_int_equal(
        ls_checkpoint_save(path_in("esc.resume.safetensors"), &item, 1, meta, LS_COUNT_OF(meta)),
        LS_OK);
    r = run_with(&flags);
    assert_int_equal(r.status, LS_EINVAL);
    assert_non_null(strstr(r.error, "--optimizer ?[31madam, not sgd"));
    assert_null(strchr(r.error, 0x1b));
    assert_int_equal(ls_checkpoint_save(path_in("esc.resume.safetensors"), &item, 1, far, 3),
                     LS_OK);
    r = run_with(&flags);
    assert_int_equal(r.status, LS_EINVAL);
    assert_non_null(strstr(r.error, "step: \"9223372036854775807\" is not a whole number"));
    assert_int_equal(
        ls_checkpoint_save(path_in("esc.resume.safetensors"), &item, 1, wide, LS_COUNT_OF(wide)),
        LS_OK);
    r = run_with(&flags);
    assert_int_equal(r.status, LS_EFORMAT);
    assert_non_null(strstr(r.error, "1099511627776 ranks) exceeds the 230 samples"));
}

static void a_state_with_another_position_is_refused(void **state)
{
    const ls_meta meta[] = {{"epoch", "1"}, {"batch", "-3"}, {"step", "4"}};
    const ls_named item = {.name = "x", .bytes = small_dir, .n_bytes = 1};
    ls_train_flags flags = small_flags(small_dir);
    small_result r;

    (void)state;
    for (int n = 0; n <= 3; n++) {
        assert_int_equal(ls_checkpoint_save(path_in("p.resume.safetensors"), &item, 1, meta, n),
                         LS_OK);
        flags.resume = path_in("p.safetensors");
        r = run_with(&flags);
        assert_true(r.status == LS_EFORMAT || r.status == LS_EINVAL);
        assert_non_null(strstr(r.error, "p.resume.safetensors"));
    }
}

static void resume_names_the_missing_file(void **state)
{
    ls_train_flags flags = small_flags(small_dir);
    small_result r;

    (void)state;
    flags.resume = path_in("missing.safetensors");
    r = run_with(&flags);
    assert_int_equal(r.status, LS_ENOTFOUND);
    assert_non_null(strstr(r.error, "--resume "));
    assert_non_null(strstr(r.error, "/missing.safetensors: no such file"));
    assert_non_null(strstr(r.error, "omit --resume"));
    flags.resume = path_in("missing.resume.safetensors");
    r = run_with(&flags);
    assert_int_equal(r.status, LS_ENOTFOUND);
    assert_non_null(strstr(r.error, "/missing.resume.safetensors: no such file"));
    flags.resume = path_in("missing.safetensors");
    flags.evaluate = 1;
    r = run_with(&flags);
    assert_int_equal(r.status, LS_ENOTFOUND);
    assert_non_null(strstr(r.error, "cannot open "));
    assert_non_null(strstr(r.error, "/missing.safetensors: No such file"));
}

static void a_folder_may_have_the_name_of_a_state_file(void **state)
{
    ls_train_flags flags = small_flags(small_dir);

    (void)state;
    assert_int_equal(mkdir(path_in("a.resume.safetensors"), 0700), 0);
    flags.save = path_in("a.resume.safetensors/w.safetensors");
    flags.steps = 3;
    assert_int_equal(run_with(&flags).status, LS_OK);
    flags.resume = flags.save;
    flags.save = NULL;
    flags.steps = 5;
    assert_int_equal(run_with(&flags).state.step, 5);
    flags.resume = path_in("a.resume.safetensors/w.resume.safetensors");
    assert_int_equal(run_with(&flags).state.step, 5);
    small_set_remove(path_in("a.resume.safetensors"));
}

/* Weights without their state are there, or the state has another name. */
static void resume_refuses_a_file_that_is_no_state(void **state)
{
    ls_train_flags flags = small_flags(small_dir);
    small_result r;

    (void)state;
    flags.save = path_in("alone.safetensors");
    flags.steps = 3;
    assert_int_equal(run_with(&flags).status, LS_OK);
    assert_int_equal(rename(path_in("alone.resume.safetensors"), path_in("renamed.safetensors")),
                     0);
    flags.save = NULL;
    flags.resume = path_in("alone.safetensors");
    r = run_with(&flags);
    assert_int_equal(r.status, LS_ENOTFOUND);
    assert_non_null(strstr(r.error, "/alone.safetensors: the file holds weights only"));
    assert_non_null(strstr(r.error, "/alone.resume.safetensors is missing"));
    assert_non_null(strstr(r.error, "--init "));
    flags.resume = path_in("renamed.safetensors");
    flags.steps = 5;
    r = run_with(&flags);
    assert_int_equal(r.status, LS_OK);
    assert_int_equal(r.state.step, 5);
    flags.resume = path_in("model.pth.tar");
    write_text(flags.resume, "PK\3\4 and so on");
    r = run_with(&flags);
    assert_int_equal(r.status, LS_EFORMAT);
    assert_non_null(strstr(r.error, "/model.pth.tar is a file of torch.save()"));
}

/* --- words --- */

static void singular_and_plural_are_printed(void **state)
{
    small_job job = {.flags = small_flags(small_dir)};

    (void)state;
    job.flags.epochs = 1;
    (void)small_run_captured(&job, STDOUT_FILENO, output, sizeof(output));
    assert_non_null(strstr(output, " after 1 epoch on 1 rank, "));
    job.flags.epochs = 3;
    (void)small_run_captured(&job, STDOUT_FILENO, output, sizeof(output));
    assert_non_null(strstr(output, " after 3 epochs on 1 rank, "));
}

static void a_plot_without_finite_losses_is_replaced_by_a_line(void **state)
{
    small_job job = {.flags = small_flags(small_dir)};

    (void)state;
    job.flags.lr = 1e38;
    job.flags.print_freq = 5;
    job.flags.nan_limit = -1;
    (void)small_run_captured(&job, STDOUT_FILENO, output, sizeof(output));
    assert_non_null(strstr(output, "no plot: no loss is a finite number (NaN or infinite)"));
    assert_null(strstr(output, "loss +"));
}

static void assert_refused(const ls_train_flags *flags, const char *words)
{
    const small_result r = run_with(flags);

    assert_int_equal(r.status, LS_EINVAL);
    assert_non_null(strstr(r.error, words));
}

static void invalid_choices_are_refused_with_the_valid_ones(void **state)
{
    ls_train_flags flags = small_flags(small_dir);

    (void)state;
    flags.optimizer = "sdg";
    assert_refused(&flags, "--optimizer sdg: choose one of sgd, adam, adamw");
    flags.optimizer = "adam";
    flags.nesterov = 1;
    assert_refused(&flags, "--nesterov");
    flags = small_flags(small_dir);
    flags.schedule = "cosines";
    assert_refused(&flags, "multi-step");
    flags.schedule = "multi-step";
    assert_refused(&flags, "--lr-milestones");
    flags.schedule = NULL;
    flags.lr_milestones = "1";
    assert_refused(&flags, "--lr-milestones needs --schedule multi-step");
    flags.schedule = "multi-step";
    flags.lr_milestones = "1,x";
    assert_refused(&flags, "--lr-milestones");
    flags = small_flags(small_dir);
    flags.on_save_error = "ignore";
    assert_refused(&flags, "--on-save-error ignore");
    flags.on_save_error = NULL;
    flags.bad_images = "hide";
    assert_refused(&flags, "--bad-images hide");
    flags.bad_images = NULL;
    flags.compress = "zip";
    assert_refused(&flags, "--compress zip: choose one of none, bf16, fp16");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(metrics_are_json_lines_with_all_members),
        cmocka_unit_test(a_resumed_run_cuts_its_metrics_at_its_step),
        cmocka_unit_test(the_line_of_an_epoch_has_the_mean_of_all_rows),
        cmocka_unit_test(evaluate_changes_no_file_and_adds_a_line),
        cmocka_unit_test(the_best_weights_are_saved_beside_the_latest),
        cmocka_unit_test(a_resumed_run_keeps_its_best_accuracy),
        cmocka_unit_test(resume_names_the_missing_file),
        cmocka_unit_test(a_folder_may_have_the_name_of_a_state_file),
        cmocka_unit_test(resume_refuses_a_file_that_is_no_state),
        cmocka_unit_test(another_optimizer_is_refused),
        cmocka_unit_test(an_invalid_history_is_ignored),
        cmocka_unit_test(a_state_with_other_settings_is_refused),
        cmocka_unit_test(hostile_metadata_is_harmless),
        cmocka_unit_test(a_state_with_another_position_is_refused),
        cmocka_unit_test(singular_and_plural_are_printed),
        cmocka_unit_test(a_plot_without_finite_losses_is_replaced_by_a_line),
        cmocka_unit_test(invalid_choices_are_refused_with_the_valid_ones),
    };
    return cmocka_run_group_tests(tests, small_dir_make, small_dir_remove);
}
