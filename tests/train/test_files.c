/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a run writes and reads: weights, states, metrics and the page; full disks and files of other networks.
 */
#include "base/alloc.h"
#include "base/file.h"
#include "base/json.h"
#include "train/small_run.h"

#include <lockstep/checkpoint.h>

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

enum { STEPS_AN_EPOCH = (SMALL_TRAIN + 15) / 16 };

static char dir[64];
static char output[8192]; /* of a captured run */

static const char *path_in(const char *name)
{
    static char paths[6][128];
    static int next;
    char *path = paths[next++ % 6];

    snprintf(path, sizeof(paths[0]), "%s/%s", dir, name);
    return path;
}

static small_result run_with(const ls_train_flags *flags)
{
    return small_run(&(small_job){.flags = *flags});
}

static char *text_of(const char *path)
{
    char *text;
    size_t bytes;

    assert_int_equal(file_read(path, 1 << 22, &text, &bytes), LS_OK);
    return text;
}

static void write_file(const char *path, const char *text)
{
    FILE *f = fopen(path, "we");

    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static off_t size_of(const char *path)
{
    struct stat info;

    return stat(path, &info) == 0 ? info.st_size : -1;
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

static void metrics_are_json_lines_with_all_members(void **state)
{
    ls_train_flags flags = small_flags(dir);
    int n_tested;

    (void)state;
    flags.metrics = path_in("m.jsonl");
    assert_int_equal(run_with(&flags).status, LS_OK);
    assert_int_equal(count_lines(flags.metrics, &n_tested), 3 + 3 * STEPS_AN_EPOCH / 20);
    assert_int_equal(n_tested, 3);
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

/* What a run leaves that crashed after its last save: lines of later steps, and one that is
 * torn. */
static void a_resumed_run_cuts_its_metrics_at_its_step(void **state)
{
    static const char later[] = "{\"epoch\":1,\"step\":20}\n{\"epoch\":1,\"step\":25}\n";
    small_job job = {.flags = small_flags(dir), .stop_at = 19};
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
static void the_line_of_an_epoch_has_the_mean_of_all_its_rows(void **state)
{
    small_job job = {.flags = small_flags(dir), .stop_at = 20};

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

static void an_evaluation_alone_changes_nothing_and_has_a_line(void **state)
{
    ls_train_flags flags = small_flags(dir);
    small_result trained;
    small_result tested;
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

/* --- the page --- */

/* The values that each chart gives its script. */
static int count_values(const char *text)
{
    int n = 0;

    for (const char *at = text; (at = strstr(at, "application/json\">")) != NULL; n++) {
        const char *begin = at + strlen("application/json\">");
        json_value *v = NULL;

        at = strstr(begin, "</script>");
        assert_non_null(at);
        assert_int_equal(json_parse(begin, (size_t)(at - begin), "chart", &v), LS_OK);
        assert_non_null(json_get(v, "series"));
        json_free(v);
    }
    return n;
}

static void the_page_is_one_file_with_four_charts(void **state)
{
    ls_train_flags flags = small_flags(dir);
    char *text;
    int n = 0;

    (void)state;
    flags.metrics_html = path_in("m.html");
    assert_int_equal(run_with(&flags).status, LS_OK);
    text = text_of(flags.metrics_html);
    assert_null(strstr(text, "http"));
    assert_null(strstr(text, "src="));
    assert_null(strstr(text, "nan"));
    assert_null(strstr(text, "inf"));
    for (const char *at = text; (at = strstr(at, "<svg")) != NULL; at++)
        n++;
    assert_int_equal(n, 4);
    assert_int_equal(count_values(text), 4);
    assert_non_null(strstr(text, "evaluation</th><td>"));
    assert_null(strstr(text, "evaluation</th><td>0.00</td><td>0.0 %"));
    assert_non_null(strstr(text, "</html>"));
    ls_free(text);
}

static void a_page_without_steps_says_so(void **state)
{
    ls_train_flags flags = small_flags(dir);
    char *text;

    (void)state;
    flags.metrics_html = path_in("short.html");
    flags.evaluate = 1;
    assert_int_equal(run_with(&flags).status, LS_OK);
    text = text_of(flags.metrics_html);
    assert_non_null(strstr(text, "nothing yet"));
    assert_non_null(strstr(text, "Evaluations"));
    ls_free(text);
}

/* --- best and latest --- */

static void the_best_weights_are_kept_beside_the_latest(void **state)
{
    ls_train_flags flags = small_flags(dir);
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

static void a_resumed_run_remembers_its_best(void **state)
{
    ls_train_flags flags = small_flags(dir);
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

/* --- other networks --- */

static void a_checkpoint_of_another_network_is_refused_whole(void **state)
{
    ls_train_flags flags = small_flags(dir);
    small_job job = {.flags = flags, .other_classes = 9};
    small_result r;

    (void)state;
    job.flags.save = path_in("other.safetensors");
    assert_int_equal(small_run(&job).status, LS_OK);
    flags.init = path_in("other.safetensors");
    r = run_with(&flags);
    assert_int_equal(r.status, LS_EFORMAT);
    assert_non_null(strstr(r.error, "fc.weight is (9, 64) float32 in the file"));
    assert_non_null(strstr(r.error, "fc.bias"));
    flags.init = NULL;
    flags.resume = path_in("other.safetensors");
    r = run_with(&flags);
    assert_int_equal(r.status, LS_EFORMAT);
    assert_non_null(strstr(r.error, "model.fc.weight"));
    assert_non_null(strstr(r.error, "optimizer.fc.bias"));
}

static void an_optimizer_of_another_kind_is_named(void **state)
{
    ls_train_flags flags = small_flags(dir);
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

static void weights_of_a_wrapped_model_load_without_its_prefix(void **state)
{
    enum { N = SMALL_CLASSES * SMALL_SIDE * SMALL_SIDE };
    float weight[N];
    float bias[SMALL_CLASSES] = {0};
    const int64_t dims[2] = {SMALL_CLASSES, SMALL_SIDE * SMALL_SIDE};
    ls_train_flags flags = small_flags(dir);
    ls_device *device;
    ls_named items[2] = {{.name = "module.fc.weight"}, {.name = "module.fc.bias"}};
    small_result r;

    (void)state;
    for (int i = 0; i < N; i++)
        weight[i] = (float)i;
    assert_int_equal(ls_device_open(NULL, &device), LS_OK);
    assert_int_equal(ls_tensor_wrap(device, LS_F32, 2, dims, weight, &items[0].tensor), LS_OK);
    assert_int_equal(ls_tensor_wrap(device, LS_F32, 1, dims, bias, &items[1].tensor), LS_OK);
    assert_int_equal(ls_checkpoint_save(path_in("ddp.safetensors"), items, 2, NULL, 0), LS_OK);
    ls_tensor_destroy(items[0].tensor);
    ls_tensor_destroy(items[1].tensor);
    ls_device_close(device);
    flags.init = path_in("ddp.safetensors");
    flags.epochs = 0;
    r = run_with(&flags);
    assert_int_equal(r.status, LS_OK);
    assert_memory_equal(r.weights, weight, sizeof(weight));
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

/* A point has 14 doubles: one too many of them, half a point, invalid steps. */
static void a_history_that_cannot_be_used_starts_anew(void **state)
{
    enum { POINT = 14, POINTS_MOST = 1024 };
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
    small_job job = {.flags = small_flags(dir)};

    (void)state;
    whole = small_run(&job);
    memset(odd, 0xff, sizeof(odd));
    for (size_t i = 0; i < LS_COUNT_OF(cases); i++) {
        small_result r;

        job.flags = small_flags(dir);
        job.flags.save = path_in("odd.safetensors");
        job.flags.metrics_html = path_in("odd.html");
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
static void a_state_of_other_settings_is_refused_with_their_names(void **state)
{
    const small_job saved = {.flags = small_flags(dir), .stop_at = 19};
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

/* Neither a terminal's control characters nor a step that overflows get through. */
static void texts_and_numbers_of_a_foreign_state_are_harmless(void **state)
{
    const ls_meta meta[] = {
        {"epoch", "1"}, {"batch", "0"},      {"best_epoch", "0"},          {"best_accuracy", "0"},
        {"step", "7"},  {"world_size", "1"}, {"optimizer", "\x1b[31madam"}};
    const ls_meta far[] = {{"epoch", "1"}, {"batch", "0"}, {"step", "9223372036854775807"}};
    const ls_named item = {.name = "x", .bytes = dir, .n_bytes = 1};
    ls_train_flags flags = small_flags(dir);
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
}

static void a_state_with_another_position_is_refused(void **state)
{
    const ls_meta meta[] = {{"epoch", "1"}, {"batch", "-3"}, {"step", "4"}};
    const ls_named item = {.name = "x", .bytes = dir, .n_bytes = 1};
    ls_train_flags flags = small_flags(dir);
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

static void resume_names_the_missing_file_that_was_given(void **state)
{
    ls_train_flags flags = small_flags(dir);
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

/* Weights without their state are there, or the state has another name. */
static void resume_says_what_the_given_file_is(void **state)
{
    ls_train_flags flags = small_flags(dir);
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
    write_file(flags.resume, "PK\3\4 and so on");
    r = run_with(&flags);
    assert_int_equal(r.status, LS_EFORMAT);
    assert_non_null(strstr(r.error, "/model.pth.tar is a file of torch.save()"));
}

/* --- weights of another kind --- */

static void weights_that_fit_are_loaded_and_the_others_listed(void **state)
{
    small_job job = {.flags = small_flags(dir), .batch_norm = 1, .other_classes = 7};
    small_result r;

    (void)state;
    job.flags.save = path_in("seven.safetensors");
    job.flags.steps = 3;
    assert_int_equal(small_run(&job).status, LS_OK);
    job.other_classes = 0;
    job.flags.save = NULL;
    job.flags.init = path_in("seven.safetensors");
    r = small_run(&job);
    assert_int_equal(r.status, LS_EFORMAT);
    assert_non_null(strstr(r.error, "float32 here; --skip-mismatched loads the others"));
    job.flags.skip_mismatched = 1;
    r = small_run_captured(&job, STDOUT_FILENO, output, sizeof(output));
    assert_int_equal(r.status, LS_OK);
    assert_non_null(strstr(output, "--skip-mismatched: 6 of 8 tensors loaded\n"));
    assert_non_null(strstr(output, "  2 with another shape or type: fc.weight is (7, "));
    assert_non_null(strstr(output, ", fc.bias is (7) float32 in the file and (4) float32 here\n"));
    assert_null(strstr(output, "missing in the file"));
    job.batch_norm = 0;
    job.flat_batch_norm = 1; // the name of one layer, other shapes
    r = small_run_captured(&job, STDOUT_FILENO, output, sizeof(output));
    assert_int_equal(r.status, LS_OK);
    assert_non_null(strstr(output, "--skip-mismatched: 1 of 7 tensors loaded\n"));
    assert_non_null(strstr(output, "  1 unexpected in the file: conv.weight\n"));
    job.flat_batch_norm = 0;
    r = small_run(&job);
    assert_int_equal(r.status, LS_EFORMAT);
    assert_non_null(strstr(r.error, "no tensor of the file matches the model"));
    job.flags.init = NULL;
    r = small_run(&job);
    assert_int_equal(r.status, LS_EINVAL);
    assert_non_null(strstr(r.error, "--skip-mismatched needs --init"));
}

static void weights_of_16_bits_are_saved_and_loaded(void **state)
{
    static const char *const types[] = {"fp16", "bf16"};
    static small_result whole; // static: frames are bounded
    static small_result r;
    small_job job = {.flags = small_flags(dir)};
    off_t bytes;

    (void)state;
    job.flags.save = path_in("half.safetensors");
    whole = small_run(&job);
    bytes = size_of(path_in("half.safetensors"));
    for (size_t i = 0; i < LS_COUNT_OF(types); i++) {
        const float bound = i == 0 ? 0x1p-11F : 0x1p-8F;

        job.flags.save_dtype = types[i];
        job.stop_at = 7;
        assert_int_equal(small_run(&job).status, LS_OK);
        job.stop_at = 0;
        job.flags.resume = ""; // the state has kept all bits
        r = small_run(&job);
        assert_memory_equal(r.weights, whole.weights, sizeof(whole.weights));
        assert_in_range(size_of(path_in("half.safetensors")), bytes / 2, bytes * 3 / 4);
        job.flags.resume = NULL;
        job.flags.save = NULL;
        job.flags.evaluate = 1;
        job.flags.init = path_in("half.safetensors");
        r = small_run(&job);
        job.flags.save = job.flags.init;
        job.flags.init = NULL;
        job.flags.evaluate = 0;
        assert_int_equal(r.status, LS_OK);
        for (int k = 0; k < SMALL_WEIGHTS; k++)
            assert_true(fabsf(r.weights[k] - whole.weights[k]) <=
                        bound * fabsf(whole.weights[k]) + 1e-7F);
    }
    job.flags.save_dtype = "int8";
    r = small_run(&job);
    assert_int_equal(r.status, LS_EINVAL);
    assert_non_null(strstr(r.error, "--save-dtype int8: choose one of fp32, fp16, bf16"));
}

/* --- a full disk --- */

static int count_of(const char *text, const char *part)
{
    int n = 0;

    for (; (text = strstr(text, part)) != NULL; text++)
        n++;
    return n;
}

static void set_file_limit(rlim_t bytes)
{
    struct rlimit limit;

    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = bytes;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

/* Whole and with the weights of step 1: an earlier save. */
static void save_one_step(ls_train_flags *flags)
{
    flags->save = path_in("full.safetensors");
    flags->metrics = path_in("full.jsonl");
    flags->metrics_html = path_in("full.html");
    flags->steps = 1;
    assert_int_equal(run_with(flags).status, LS_OK);
    flags->steps = 0;
    flags->resume = "";
}

static void when_nothing_can_be_written_training_goes_on(void **state)
{
    ls_train_flags flags = small_flags(dir);
    char *before;
    char *after;
    size_t n_before;
    size_t n_after;
    small_result r;

    (void)state;
    save_one_step(&flags);
    assert_int_equal(file_read(flags.save, 1 << 20, &before, &n_before), LS_OK);
    set_file_limit(700); // room for some lines of metrics, for no weights
    r = small_run_captured(&(small_job){.flags = flags}, STDERR_FILENO, output, sizeof(output));
    set_file_limit(RLIM_INFINITY);
    assert_int_equal(r.state.step, 3 * STEPS_AN_EPOCH); // to the end
    assert_int_equal(r.status, LS_EIO);                 // which is then told
    assert_non_null(strstr(r.error, "cannot save the weights of step "));
    assert_non_null(strstr(r.error, "full"));
    assert_int_equal(file_read(flags.save, 1 << 20, &after, &n_after), LS_OK);
    assert_int_equal(n_before, n_after);
    assert_memory_equal(before, after, n_before);
    assert_int_equal(size_of(path_in("full.safetensors.tmp")), -1);
    assert_int_equal(size_of(path_in("full.resume.safetensors.tmp")), -1);
    ls_free(before);
    ls_free(after);
    count_lines(flags.metrics, &(int){0}); // whole lines only
    assert_int_equal(count_of(output, "train: cannot save metrics"), 1);
}

static void when_nothing_can_be_written_training_stops_as_asked(void **state)
{
    ls_train_flags flags = small_flags(dir);
    small_result r;

    (void)state;
    save_one_step(&flags);
    flags.on_save_error = "stop";
    flags.metrics = NULL;
    set_file_limit(700);
    r = run_with(&flags);
    set_file_limit(RLIM_INFINITY);
    assert_true(r.status != LS_OK);
    assert_int_equal(r.state.step, STEPS_AN_EPOCH);
    assert_non_null(strstr(r.error, "full"));
}

/* The data set is not there either: it comes later. */
static void a_file_that_cannot_be_written_ends_the_run_before_the_data(void **state)
{
    static const char *const names[] = {"--save", "--save-best", "--metrics", "--metrics-html"};

    (void)state;
    for (int i = 0; i < 4; i++) {
        ls_train_flags flags = small_flags("/nowhere");
        const char *path = path_in("absent/file");
        small_result r;

        *(const char **[]){&flags.save, &flags.save_best, &flags.metrics, &flags.metrics_html}[i] =
            path;
        r = run_with(&flags);
        assert_true(r.status != LS_OK);
        assert_non_null(strstr(r.error, names[i]));
        assert_non_null(strstr(r.error, path));
        assert_non_null(strstr(r.error, "No such file or directory"));
    }
}

/* A program prints the run's error at the end: what that says is not on standard error before. */
static void a_run_prints_its_error_once(void **state)
{
    small_job job = {.flags = small_flags(dir), .other_classes = 9};
    small_result r;

    (void)state;
    save_one_step(&job.flags);
    job.flags.resume = NULL;
    job.flags.metrics = NULL;
    job.flags.metrics_html = NULL;
    job.flags.save = path_in("once.safetensors");
    job.flags.epochs = 1;
    job.other_classes = 0;
    set_file_limit(700);
    r = small_run_captured(&job, STDERR_FILENO, output, sizeof(output));
    set_file_limit(RLIM_INFINITY);
    assert_int_equal(r.status, LS_EIO);
    assert_int_equal(count_of(output, "cannot save"), 0);
    job.flags.save = NULL;
    job.flags.init = path_in("full.safetensors");
    job.other_classes = 9;
    r = small_run_captured(&job, STDERR_FILENO, output, sizeof(output));
    assert_non_null(strstr(r.error, "fc.bias"));
    assert_int_equal(count_of(output, "fc.bias"), 0);
}

/* --- words --- */

static void one_of_a_thing_is_printed_as_one(void **state)
{
    small_job job = {.flags = small_flags(dir)};

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
    small_job job = {.flags = small_flags(dir)};

    (void)state;
    job.flags.lr = 1e38;
    job.flags.print_freq = 5;
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

static void words_that_are_none_are_refused_with_those_there_are(void **state)
{
    ls_train_flags flags = small_flags(dir);

    (void)state;
    flags.optimizer = "sdg";
    assert_refused(&flags, "--optimizer sdg: choose one of sgd, adam, adamw");
    flags.optimizer = "adam";
    flags.nesterov = 1;
    assert_refused(&flags, "--nesterov");
    flags = small_flags(dir);
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
    flags = small_flags(dir);
    flags.on_save_error = "ignore";
    assert_refused(&flags, "--on-save-error ignore");
    flags.on_save_error = NULL;
    flags.bad_images = "hide";
    assert_refused(&flags, "--bad-images hide");
    flags.bad_images = NULL;
    flags.compress = "zip";
    assert_refused(&flags, "--compress zip: choose one of none, bf16, fp16");
}

static int make_set(void **state)
{
    (void)state;
    small_set_make(dir, sizeof(dir));
    return 0;
}

static int remove_set(void **state)
{
    (void)state;
    small_set_remove(dir);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(metrics_are_json_lines_with_all_members),
        cmocka_unit_test(a_resumed_run_cuts_its_metrics_at_its_step),
        cmocka_unit_test(the_line_of_an_epoch_has_the_mean_of_all_its_rows),
        cmocka_unit_test(an_evaluation_alone_changes_nothing_and_has_a_line),
        cmocka_unit_test(the_page_is_one_file_with_four_charts),
        cmocka_unit_test(a_page_without_steps_says_so),
        cmocka_unit_test(the_best_weights_are_kept_beside_the_latest),
        cmocka_unit_test(a_resumed_run_remembers_its_best),
        cmocka_unit_test(resume_names_the_missing_file_that_was_given),
        cmocka_unit_test(resume_says_what_the_given_file_is),
        cmocka_unit_test(weights_that_fit_are_loaded_and_the_others_listed),
        cmocka_unit_test(weights_of_16_bits_are_saved_and_loaded),
        cmocka_unit_test(a_checkpoint_of_another_network_is_refused_whole),
        cmocka_unit_test(an_optimizer_of_another_kind_is_named),
        cmocka_unit_test(weights_of_a_wrapped_model_load_without_its_prefix),
        cmocka_unit_test(a_history_that_cannot_be_used_starts_anew),
        cmocka_unit_test(a_state_of_other_settings_is_refused_with_their_names),
        cmocka_unit_test(texts_and_numbers_of_a_foreign_state_are_harmless),
        cmocka_unit_test(a_state_with_another_position_is_refused),
        cmocka_unit_test(when_nothing_can_be_written_training_goes_on),
        cmocka_unit_test(when_nothing_can_be_written_training_stops_as_asked),
        cmocka_unit_test(a_file_that_cannot_be_written_ends_the_run_before_the_data),
        cmocka_unit_test(a_run_prints_its_error_once),
        cmocka_unit_test(one_of_a_thing_is_printed_as_one),
        cmocka_unit_test(a_plot_without_finite_losses_is_replaced_by_a_line),
        cmocka_unit_test(words_that_are_none_are_refused_with_those_there_are),
    };
    return cmocka_run_group_tests(tests, make_set, remove_set);
}
