/* SPDX-License-Identifier: Apache-2.0 */
/*
 * metrics.c - appends whole lines to the file of --metrics:
 * {"epoch":0,"step":100,"loss":0.51,"lr":0.05,"samples_per_s":9000.0,...}; the line that ends an
 * epoch has "accuracy" and other results of the evaluation. report.c writes them on rank 0.
 */
#include "train/output/metrics.h"

#include "base/alloc.h"
#include "base/file.h"
#include "base/report/json.h"
#include "host/cores.h"
#include "host/process_id.h"

#include <lockstep/log.h>

#include <fcntl.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

ls_status metrics_open(metrics_file *m, const char *path)
{
    m->path = path;
    if (path == NULL)
        return LS_OK;
    m->fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    return m->fd >= 0 ? LS_OK : ls_fail_errno("--metrics %s", path);
}

/* -1: the line has none. */
static int64_t line_step(const char *line, size_t n)
{
    json_value *v;
    int64_t step;

    if (json_parse(line, n, "a line of metrics", &v) != LS_OK)
        return -1;
    step = json_as_int(json_get(v, "step"), -1);
    json_free(v);
    return step;
}

/* The lines up to `step`. A run that crashed after its last save has written later lines, and
 * perhaps an incomplete one. */
static ls_status find_end(metrics_file *m, int64_t step)
{
    char *text;
    const char *line;
    const char *end;
    size_t n;

    LS_TRY(file_read(m->path, SIZE_MAX, &text, &n));
    for (line = text; (end = memchr(line, '\n', n - (size_t)(line - text))) != NULL;
         line = end + 1) {
        const int64_t found = line_step(line, (size_t)(end - line));

        if (found > step)
            break;
        m->step = found;
    }
    m->bytes = line - text;
    ls_free(text);
    return LS_OK;
}

/* The lines of another run stay, under another name. */
static ls_status begin_anew(metrics_file *m)
{
    char renamed[FILE_EARLIER_BYTES];

    m->bytes = 0;
    LS_TRY(ls_context(file_keep_earlier(m->path, renamed), "--metrics"));
    if (renamed[0] == 0)
        return LS_OK;
    ls_log(LS_LOG_WARN, "train", "%s of another run was renamed to %s", m->path, renamed);
    file_close(&m->fd);
    return metrics_open(m, m->path);
}

ls_status metrics_begin(metrics_file *m, int64_t step)
{
    struct stat info;

    m->step = -1;
    m->has_run = false;
    if (m->fd < 0)
        return LS_OK;
    if (fstat(m->fd, &info) != 0)
        return ls_fail_errno("--metrics %s", m->path);
    if (!S_ISREG(info.st_mode))
        return LS_OK;
    if (step < 0)
        return begin_anew(m);
    LS_TRY(find_end(m, step));
    if (ftruncate(m->fd, m->bytes) != 0)
        return ls_fail_errno("--metrics %s", m->path);
    return LS_OK;
}

/* null: not known yet. */
static void put_values(json_writer *w, const char *key, const run_values *v, value_of kind)
{
    if (v->n == 0)
        return;
    json_open(w, key, '{');
    for (int i = 0; i < v->n; i++)
        json_put_real(w, v->names[i], v->is_known[kind][i] ? v->mean[kind][i] : (double)NAN);
    json_close(w, '}');
}

static void put_ranks(json_writer *w, const metrics_line *line)
{
    json_open(w, "rank_seconds", '[');
    for (int r = 0; r < line->ranks; r++) {
        json_open(w, NULL, '[');
        for (int i = 0; i < PHASE_TRAINING; i++)
            json_put_real(w, NULL, line->rank_seconds[r * PHASE_TRAINING + i]);
        json_close(w, ']');
    }
    json_close(w, ']');
}

/* Of --balance. */
static void put_shares(json_writer *w, const metrics_line *line)
{
    json_open(w, line->has_rows ? "rank_rows" : "rank_shards", '[');
    for (int r = 0; r < line->ranks; r++)
        json_put_int(w, NULL, (int64_t)line->rank_shares[2 * r]);
    json_close(w, ']');
    json_open(w, line->has_rows ? "rank_row_s" : "rank_shard_s", '[');
    for (int r = 0; r < line->ranks; r++)
        json_put_real(w, NULL, line->rank_shares[2 * r + 1]);
    json_close(w, ']');
}

/* What the numbers were measured with. */
static void put_run(json_writer *w, const metrics_line *line)
{
    char command[1024];
    char host[65] = "";

    process_command("", getpid(), command, sizeof(command));
    if (gethostname(host, sizeof(host) - 1) != 0)
        host[0] = '\0';
    json_open(w, "run", '{');
    json_put_string(w, "command", command);
    json_put_string(w, "version", ls_version());
    json_put_string(w, "host", host);
    json_put_int(w, "cores", ls_usable_cores(NULL));
    json_put_int(w, "memory_bytes", (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE));
    json_put_string(w, "device", line->device);
    json_put_int(w, "ranks", line->ranks);
    json_put_int(w, "batch_size", line->batch_size);
    json_put_int(w, "started", (int64_t)time(NULL));
    json_close(w, '}');
}

static void put_training(json_writer *w, const metrics_line *line)
{
    const ls_run_state *s = line->state;

    json_put_real(w, "loss", s->loss);
    json_put_real(w, "lr", s->lr);
    json_put_real(w, "samples_per_s", s->samples_per_s);
    json_put_real(w, "samples_per_s_rank", s->samples_per_s / line->ranks);
    if (s->top1 >= 0) {
        json_put_real(w, "top1", s->top1);
        json_put_real(w, "top5", s->top5);
    }
    put_values(w, "values", line->values, OF_TRAINING);
    json_put_real(w, "data_wait", s->data_wait);
    json_open(w, "seconds", '{');
    for (int i = 0; i < PHASES; i++)
        json_put_real(w, phase_name((phase)i), line->training->seconds[i]);
    json_close(w, '}');
    if (line->rank_seconds != NULL)
        put_ranks(w, line);
    if (line->rank_shares != NULL)
        put_shares(w, line);
    json_open(w, "step_s", '[');
    for (int i = 0; i < line->n_step_s; i++)
        json_put_real(w, NULL, line->step_s[i]);
    json_close(w, ']');
}

static void put_test(json_writer *w, const metrics_line *line)
{
    const ls_run_state *s = line->state;

    put_values(w, "test_values", line->values, OF_TEST);
    json_put_int(w, "test_samples", line->test_samples);
    if (line->has_own_test) {
        json_put_real(w, "best_value", line->values->best_mean);
        return;
    }
    json_put_real(w, "accuracy", s->accuracy);
    json_put_real(w, "accuracy5", s->accuracy5);
    json_put_real(w, "test_loss", s->test_loss);
    json_put_real(w, "best_accuracy", s->best_accuracy);
}

/* Removes an incomplete line, so that the file consists of whole lines. */
static ls_status append(metrics_file *m, const text_buf *text)
{
    bool is_repeated = m->has_failed;
    ls_status st = text_status(text);

    if (st == LS_OK)
        st = file_write_all(m->fd, m->path, text_str(text), text->length);
    m->has_failed = st != LS_OK;
    if (st == LS_OK)
        m->bytes += (int64_t)text->length;
    else
        LS_UNUSED(ftruncate(m->fd, m->bytes));
    return is_repeated ? LS_OK : st;
}

ls_status metrics_write(metrics_file *m, const metrics_line *line)
{
    text_buf text = {0};
    json_writer w;
    ls_status st;

    if (m->fd < 0)
        return LS_OK;
    json_begin(&w, &text);
    json_open(&w, NULL, '{');
    json_put_int(&w, "epoch", line->state->epoch);
    json_put_int(&w, "step", line->state->step);
    if (line->training != NULL)
        put_training(&w, line);
    if (line->has_test)
        put_test(&w, line);
    json_put_int(&w, "bad_images", line->state->bad_images);
    if (!m->has_run)
        put_run(&w, line);
    m->has_run = true;
    json_close(&w, '}');
    text_append(&text, "\n");
    st = append(m, &text);
    text_free(&text);
    return st;
}

void metrics_close(metrics_file *m)
{
    file_close(&m->fd);
}
