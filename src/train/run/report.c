/* SPDX-License-Identifier: Apache-2.0 */
/*
 * report.c - adds up the counts of all ranks every 20 steps (or --print-freq), and updates the
 * state, the history and the metrics. Between two reports only the steps themselves communicate.
 * loop.c calls it.
 */
#include "train/run/run.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "comm/comm.h"
#include "data/broken.h"
#include "tensor/device.h"
#include "train/finite.h"

#include <string.h>

enum { REPORT_STEPS = 20 };

_Static_assert((int)PHASES <= RECORDER_PHASES, "the flight recorder has a sum for each phase");

void report_seconds(ls_run *run, phase which, double seconds)
{
    run->report.window.seconds[which] += seconds;
    run->report.progress.seconds[which] += seconds;
}

void report_phase(ls_run *run, phase which)
{
    const int64_t now_ns = ls_now_ns();

    report_seconds(run, which, (double)(now_ns - run->report.mark_ns) * 1e-9);
    profile_add_phase(&run->profile, phase_name(which), run->report.mark_ns, now_ns);
    if (run->comm != NULL && which != PHASE_COMMUNICATION) // operations are recorded by comm
        comm_phase(run->comm, phase_name(which), run->report.mark_ns, now_ns);
    run->report.mark_ns = now_ns;
}

void report_device_phase(ls_run *run, const char *name)
{
    run->profile.operators.phase = name;
    if (run->comm != NULL)
        comm_device_phase(run->comm, ls_device_queue(run->device), name);
}

rank_sums *report_part(ls_run *run, int part)
{
    return part == 0 ? &run->report.window : &run->report.windows[part];
}

rank_sums *report_window(ls_run *run)
{
    return run->audit.batch != AUDIT_NONE ? &run->audit.window : report_part(run, run->part);
}

double report_bad_images(const split *s, uint64_t *seen)
{
    const uint64_t before = *seen;

    if (s->parts == NULL)
        return 0;
    *seen = 0;
    for (int i = 0; i < s->n_parts; i++)
        *seen += ls_loader_bad_images(s->parts[i].loader);
    return (double)(*seen - before);
}

static history_point make_point(const ls_run *run, const rank_sums *sum)
{
    history_point p = {
        .epoch = (double)run->at.epoch,
        .step = (double)run->at.step,
        .loss = sum->rows > 0 ? finite_mean(sum->loss, sum->rows) : run->state.loss,
        .lr = run->state.lr,
        .top1 = sum->ranked > 0 ? sum->top1 / sum->ranked : run->state.top1,
        .top5 = sum->ranked > 0 ? sum->top5 / sum->ranked : run->state.top5,
        .rows = sum->samples,
    };

    for (int i = 0; i < PHASES; i++)
        p.seconds[i] = sum->seconds[i] / run_size(run);
    values_copy(&run->values, OF_TRAINING, p.values);
    return p;
}

static double seconds_left(const ls_run *run)
{
    const int64_t steps = run_steps_left(run);
    int64_t tests = 0;

    if (run->steps_done == 0 || run->epoch_steps == 0)
        return -1;
    if (run->test.set != NULL)
        tests = (run_schedule_step(run) + steps) / run->epoch_steps - run->at.epoch;
    return (double)steps * run->train_s / (double)run->steps_done + (double)tests * run->evaluate_s;
}

static void update_state(ls_run *run, const history_point *p)
{
    const double seconds = (double)(ls_now_ns() - run->epoch_start_ns) * 1e-9;
    const double training_s = history_training_s(p);
    ls_run_state *s = &run->state;

    s->loss = p->loss;
    s->top1 = p->top1;
    s->top5 = p->top5;
    s->samples_per_s = seconds > 0 ? (run->epoch_samples + p->rows) / seconds : 0;
    if (p->rows > 0 && training_s > 0)
        s->data_wait = p->seconds[PHASE_DATA] / training_s;
    s->seconds_left = seconds_left(run);
}

/* Sums the window over all ranks into *sum, *p and the state; the window is not reset. */
static ls_status sum_window(ls_run *run, rank_sums *sum, history_point *p)
{
    LS_TRY(losses_collect(&run->losses));
    run->report.window.bad += report_bad_images(&run->train, &run->report.bad_seen[0]);
    LS_TRY(rank_sums_read(&run->report.window, run->report.pending, false));
    run->report.window.needs_ranks = run->metrics.fd >= 0;
    run->report.windows[0] = run->report.window;
    LS_TRY(partition_sums(&run->partition, run->comm, run->report.windows, sum));
    values_update(&run->values, OF_TRAINING, sum);
    *p = make_point(run, sum);
    run->state.bad_images = run->report.bad_images + (int64_t)sum->bad;
    update_state(run, p);
    return LS_OK;
}

static void add_to_epoch(rank_sums *epoch, const rank_sums *sum)
{
    epoch->loss += sum->loss;
    epoch->rows += sum->rows;
    epoch->ranked += sum->ranked;
    epoch->top1 += sum->top1;
    epoch->top5 += sum->top5;
}

/* Where rank 0 writes metrics: the times of each rank. All ranks decide alike, by the sum. */
static ls_status gather_seconds(ls_run *run, const rank_sums *sum)
{
    const int n = run_size(run);
    double *all;

    if (run->comm == NULL || !(sum->needs_ranks > 0) || n > REPORT_RANKS_MAX)
        return LS_OK;
    if (run->report.rank_seconds == NULL)
        run->report.rank_seconds = ls_calloc((size_t)n * PHASE_TRAINING, sizeof(double));
    all = run->report.rank_seconds;
    if (all == NULL)
        return ls_fail(LS_ENOMEM, "no memory for the times of %d ranks", n);
    comm_label(run->comm, "times of ranks");
    return ls_all_gather(run->comm, run->report.window.seconds, all, PHASE_TRAINING, LS_F64, NULL);
}

/* Ranks exchange which broken images of the training set a warning has named: in the next epoch
 * another rank reads them. Test samples stay on their ranks. */
static ls_status share_named(ls_run *run, const rank_sums *sum)
{
    const int n = run_size(run);
    const ls_dataset *set = run->train.set;
    int64_t own[DATASET_NAMED];
    int64_t *all;
    ls_status st;

    if (run->comm == NULL || !(sum->bad > 0))
        return LS_OK;
    all = ls_calloc((size_t)n, sizeof(own));
    if (all == NULL)
        return ls_fail(LS_ENOMEM, "no memory for the broken images of %d ranks", n);
    dataset_get_named(set, own);
    comm_label(run->comm, "broken images");
    st = ls_all_gather(run->comm, own, all, DATASET_NAMED, LS_I64, NULL);
    for (int i = 0; i < n && st == LS_OK; i++)
        dataset_add_named(set, all + (size_t)i * DATASET_NAMED);
    ls_free(all);
    return st;
}

ls_status report_rest(ls_run *run, history_point *p)
{
    rank_sums sum;

    run->report.mark_ns = ls_now_ns();
    LS_TRY(sum_window(run, &sum, p));
    LS_TRY(gather_seconds(run, &sum));
    LS_TRY(share_named(run, &sum));
    run->report.window = (rank_sums){.loss = 0};
    memset(run->report.windows, 0, ((size_t)run->partition.n + 1) * sizeof(*run->report.windows));
    run->epoch_samples += p->rows;
    add_to_epoch(&run->report.epoch, &sum);
    run->report.bad_images = run->state.bad_images;
    if (p->rows > 0)
        LS_TRY(finite_report(run, p->loss));
    recover_reported(run);
    report_phase(run, PHASE_COMMUNICATION);
    if (p->rows > 0)
        history_add(&run->history, p);
    else
        history_add_seconds(&run->history, p->seconds);
    return LS_OK;
}

static void reset_step_times(report *r)
{
    r->n_step_s = 0;
    r->step_stride = 1;
    r->n_steps = 0;
}

ls_status report_metrics(ls_run *run, const history_point *point, bool has_test)
{
    const metrics_line line = {.state = &run->state,
                               .values = &run->values,
                               .has_own_test = run->evaluate != NULL,
                               .ranks = run_size(run),
                               .training = point,
                               .has_test = has_test,
                               .device = ls_device_fingerprint(run->device),
                               .batch_size = run->flags->batch_size,
                               .rank_seconds = run->report.rank_seconds,
                               .rank_shares = run_balance_ranks(run),
                               .has_rows = partition_divides_rows(run->flags),
                               .step_s = run->report.step_s,
                               .n_step_s = run->report.n_step_s,
                               .test_samples = run->report.test_samples};
    ls_status st = metrics_write(&run->metrics, &line);

    if (st != LS_OK)
        LS_TRY(save_failed(run, st, "metrics"));
    tensorboard_add(&run->tensorboard, &line);
    reset_step_times(&run->report);
    return save_events(run);
}

/* Early values for runs whose steps take seconds. */
static bool is_early_report(int64_t steps_done)
{
    return steps_done == 1 || steps_done == 2 || steps_done == 5 || steps_done == 10;
}

static double training_s(const recorder_progress *p)
{
    double sum = 0;

    for (int i = 0; i < PHASE_TRAINING; i++)
        sum += p->seconds[i];
    return sum;
}

static void update_device_bytes(ls_run *run, int64_t now_ns)
{
    device_usage usage;

    if (run->device->accel == NULL || now_ns - run->report.usage_ns < 1000000000 ||
        device_get_usage(run->device, &usage) != LS_OK)
        return;
    run->report.usage_ns = now_ns;
    run->report.progress.device_bytes = (double)usage.used_bytes;
}

/* The list covers all steps since the last line, however many there are. */
static void add_step_time(report *r, double seconds)
{
    if (r->step_stride == 0)
        r->step_stride = 1;
    if (r->n_steps++ % r->step_stride != 0)
        return;
    if (r->n_step_s == REPORT_STEP_TIMES) {
        for (size_t i = 0; i < REPORT_STEP_TIMES / 2; i++)
            r->step_s[i] = r->step_s[2 * i];
        r->n_step_s = REPORT_STEP_TIMES / 2;
        r->step_stride *= 2;
    }
    r->step_s[r->n_step_s++] = seconds;
}

void report_progress(ls_run *run)
{
    recorder_progress *p = &run->report.progress;
    const double done_s = training_s(p);

    add_step_time(&run->report, done_s - run->report.reported_s);
    if (run->comm == NULL) {
        run->report.reported_s = done_s;
        return;
    }
    p->step = run->at.step;
    p->steps = run->at.step + run_steps_left(run);
    p->epoch = run->at.epoch;
    p->epochs = run->flags->epochs;
    p->step_ns = run->report.mark_ns;
    p->step_s = done_s - run->report.reported_s;
    p->loss = run->state.loss;
    run->report.reported_s = done_s;
    update_device_bytes(run, p->step_ns);
    comm_progress(run->comm, p);
}

ls_status report_step(ls_run *run)
{
    const int64_t every = run->flags->print_freq > 0 ? run->flags->print_freq : REPORT_STEPS;
    history_point p;
    rank_sums sum;

    if (!run_local_meets(run))
        return LS_OK;
    if (run->at.step / every > run->recovery.reported / every) {
        LS_TRY(report_rest(run, &p));
        run->report.last = p;
        LS_TRY(report_metrics(run, &p, false));
        return recover_snapshot(run);
    }
    return is_early_report(run->steps_done) ? sum_window(run, &sum, &p) : LS_OK;
}
