/* SPDX-License-Identifier: Apache-2.0 */
/*
 * recover.c - see recover.h. The state that ranks get from each other is that of a checkpoint, in
 * memory, and the position of the run. After a recovery each rank divides the rest of the epoch
 * anew and reads its samples again. loop.c calls it.
 */
#include "train/run/run.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "comm/comm.h"
#include "ddp/local_sgd.h"
#include "ddp/shard_step.h"
#include "train/run/agree.h"

#include <lockstep/log.h>

#include <inttypes.h>
#include <string.h>

/* --- sums since the last report --- */

/* Of a part, all that a report adds up but times and broken images. */
static int exchange_part(double *numbers, rank_sums *sums, int n_values, bool is_read)
{
    double *const fields[] = {&sums->loss,   &sums->rows, &sums->samples,
                              &sums->ranked, &sums->top1, &sums->top5};
    int n = 0;

    for (size_t i = 0; i < LS_COUNT_OF(fields) + 2 * (size_t)n_values; i++) {
        const int value = (int)(i - LS_COUNT_OF(fields));
        double *field = i < LS_COUNT_OF(fields) ? fields[i]
                        : value < n_values      ? &sums->values[value]
                                                : &sums->weights[value - n_values];

        if (is_read)
            *field = numbers[n++];
        else
            numbers[n++] += *field;
    }
    return n;
}

static size_t sums_bytes(const shared_sums *s)
{
    return (size_t)s->n * (size_t)s->width * sizeof(double);
}

static ls_status open_shared_sums(ls_run *run)
{
    shared_sums *s = &run->recovery.sums;
    rank_sums none = {0};
    double numbers[sizeof(rank_sums) / sizeof(double)] = {0};

    s->n = run->partition.has_shards ? run->partition.n_all : 1;
    s->width = exchange_part(numbers, &none, run->values.n, false);
    s->kept = ls_calloc(sums_bytes(s), 1);
    s->next = ls_calloc(sums_bytes(s), 1);
    s->marked = ls_calloc(sums_bytes(s), 1);
    if (s->kept == NULL || s->next == NULL || s->marked == NULL)
        return ls_fail(LS_ENOMEM, "no memory for the sums of %d shards", s->n);
    return LS_OK;
}

/* The numbers of a part of this rank, in a list of all. */
static double *part_numbers(const ls_run *run, double *all, int part)
{
    const shared_sums *s = &run->recovery.sums;
    const int at = run->partition.has_shards ? run->partition.first + part : 0;

    return all + (size_t)at * (size_t)s->width;
}

ls_status recover_begin_sums(ls_run *run)
{
    shared_sums *s = &run->recovery.sums;

    if (!run->recovery.is_elastic || run->local != NULL || ls_device_queue(run->device) != NULL)
        return LS_OK;
    memset(s->next, 0, sums_bytes(s));
    for (int i = 0; i < run->partition.n; i++)
        (void)exchange_part(part_numbers(run, s->next, i), report_part(run, i), run->values.n,
                            false);
    comm_label(run->comm, "sums since the last report");
    return ls_all_reduce(run->comm, s->next, s->next, sums_bytes(s) / sizeof(double), LS_F64,
                         LS_SUM, &s->work);
}

ls_status recover_end_sums(ls_run *run, ls_status st)
{
    ls_work *work = run->recovery.sums.work;
    char why[LS_ERROR_BYTES];

    run->recovery.sums.work = NULL;
    if (work == NULL || st == LS_OK)
        return work == NULL ? st : ls_work_wait(work);
    ls_error_save(why);
    if (ls_work_wait(work) != LS_OK)
        ls_error_restore(why);
    return st;
}

void recover_reported(ls_run *run)
{
    run_recovery *r = &run->recovery;

    r->reported = run->at.step;
    if (!r->is_elastic)
        return;
    memset(r->sums.next, 0, sums_bytes(&r->sums));
    r->n_reports += !r->is_marked; // otherwise it belongs to what is marked
    if (r->is_marked)
        memset(r->sums.kept, 0, sums_bytes(&r->sums));
    else
        recover_completed(run);
}

/* Without shards rank 0 has all of them. */
static void take_sums(ls_run *run)
{
    const shared_sums *s = &run->recovery.sums;

    if (!run->partition.has_shards && run_rank(run) != 0)
        return;
    for (int i = 0; i < run->partition.n; i++)
        (void)exchange_part(part_numbers(run, s->kept, i), report_part(run, i), run->values.n,
                            true);
}

/* --- what ranks get from each other --- */

static ls_status list_state(ls_run *run)
{
    run_recovery *r = &run->recovery;
    const ls_named own[] = {
        {.name = "at", .bytes = &run->at, .n_bytes = sizeof(run->at)},
        {.name = "state", .bytes = &run->state, .n_bytes = sizeof(run->state)},
        {.name = "epoch", .bytes = &run->report.epoch, .n_bytes = sizeof(run->report.epoch)},
        {.name = "not_finite", .bytes = &run->report.bad, .n_bytes = sizeof(run->report.bad)},
        {.name = "bad", .bytes = &run->report.bad_images, .n_bytes = sizeof(int64_t)},
        {.name = "steps_done", .bytes = &run->steps_done, .n_bytes = sizeof(run->steps_done)},
        {.name = "train_s", .bytes = &run->train_s, .n_bytes = sizeof(run->train_s)},
        {.name = "n_all", .bytes = &r->n_all, .n_bytes = sizeof(r->n_all)},
        {.name = "n_reports", .bytes = &r->n_reports, .n_bytes = sizeof(r->n_reports)},
        {.name = "reported", .bytes = &r->reported, .n_bytes = sizeof(r->reported)},
        {.name = "last", .bytes = &run->report.last, .n_bytes = sizeof(run->report.last)},
        {.name = "sums", .bytes = r->sums.kept, .n_bytes = sums_bytes(&r->sums)},
        {.name = "results", .bytes = r->results, .n_bytes = sizeof(r->results)},
    };
    int n_moments;
    int n_scales = 0;
    const ls_named *moments = ls_optimizer_state(run->optimizer, &n_moments);
    const ls_named *scales =
        run->scaler == NULL ? NULL : ls_grad_scaler_state(run->scaler, &n_scales);

    LS_TRY(name_list_add(&r->state, "optimizer.", moments, n_moments));
    LS_TRY(name_list_add(&r->state, "program.", run->own, run->n_own));
    LS_TRY(name_list_add(&r->state, "", scales, n_scales));
    return name_list_add(&r->state, "run.", own, (int)LS_COUNT_OF(own));
}

/* With --sync-every. */
static ls_status list_local_state(ls_run *run)
{
    run_recovery *r = &run->recovery;
    const ls_named then = {.name = "then", .bytes = &r->then, .n_bytes = sizeof(r->then)};
    const ls_named *outer;
    int n;

    LS_TRY(local_sgd_protect(run->local));
    outer = local_sgd_protected(run->local, &n);
    LS_TRY(name_list_add(&r->state, "", outer, n));
    LS_TRY(name_list_add(&r->state, "program.", run->own, run->n_own));
    return name_list_add(&r->state, "run.", &then, 1);
}

static void store_results(ls_run *run)
{
    run->recovery.results[0] = run->values.has_best;
    run->recovery.results[1] = run->values.best_mean;
}

static ls_status take_results(ls_run *run)
{
    run->values.has_best = run->recovery.results[0] != 0;
    run->values.best_mean = run->recovery.results[1];
    LS_TRY(ls_optimizer_loaded(run->optimizer));
    return run->scaler == NULL ? LS_OK : ls_grad_scaler_loaded(run->scaler);
}

/* --- snapshots --- */

static void take_snapshot(ls_run *run)
{
    run_recovery *r = &run->recovery;

    r->then = (run_snapshot){.at = run->at,
                             .state = run->state,
                             .epoch = run->report.epoch,
                             .bad = run->report.bad,
                             .bad_step = run->report.bad_step,
                             .bad_images = run->report.bad_images,
                             .steps_done = run->steps_done,
                             .reported = r->reported,
                             .train_s = run->train_s,
                             .results = {r->results[0], r->results[1]}};
}

static void return_to(ls_run *run, const run_snapshot *s, const int64_t n_history[2])
{
    run->at = s->at;
    run->state = s->state;
    run->report.epoch = s->epoch;
    run->report.bad = s->bad;
    run->report.bad_step = s->bad_step;
    run->report.bad_images = s->bad_images;
    run->steps_done = s->steps_done;
    run->recovery.reported = s->reported;
    run->train_s = s->train_s;
    run->values.has_best = s->results[0] != 0;
    run->values.best_mean = s->results[1];
    history_return(&run->history, n_history);
    ls_tape_reset(run->tape);
    run->is_testing = false;
}

ls_status recover_snapshot(ls_run *run)
{
    run_recovery *r = &run->recovery;
    bool is_called;

    if (!r->is_elastic || run->local == NULL)
        return LS_OK;
    memcpy(r->n_history[(r->completed + 1) % 2], run->history.n_added, sizeof(r->n_history[0]));
    store_results(run);
    run->report.mark_ns = ls_now_ns();
    LS_TRY(local_sgd_snapshot(run->local, ls_comm_is_called(run->comm), &is_called));
    take_snapshot(run);
    r->completed++;
    if (is_called)
        ddp_call(r->ddp);
    report_phase(run, PHASE_COMMUNICATION);
    return LS_OK;
}

static ls_status return_to_snapshot(ls_run *run)
{
    const run_recovery *r = &run->recovery;

    return_to(run, &r->then, r->n_history[r->completed % 2]);
    run->stop_at = 0;
    return local_sgd_regroup(run->local, r->completed, run->at.step);
}

/* --- marks --- */

void recover_completed(ls_run *run)
{
    run_recovery *r = &run->recovery;

    if (run->local != NULL)
        return;
    r->completed = run->at.step + run->at.epoch + r->n_reports;
    if (r->is_elastic)
        memcpy(r->sums.kept, r->sums.next, sums_bytes(&r->sums));
    store_results(run);
}

void recover_mark(ls_run *run)
{
    run_recovery *r = &run->recovery;

    if (run->local != NULL)
        return;
    if (r->is_elastic)
        memcpy(r->sums.marked, r->sums.kept, sums_bytes(&r->sums));
    take_snapshot(run);
    memcpy(r->n_history[0], run->history.n_added, sizeof(r->n_history[0]));
    r->is_marked = true;
}

ls_status recover_unmark(ls_run *run)
{
    if (run->local != NULL)
        return recover_snapshot(run);
    if (run->recovery.is_elastic) {
        comm_label(run->comm, "end of the save");
        LS_TRY(ls_barrier(run->comm, NULL));
    }
    run->recovery.is_marked = false;
    recover_completed(run);
    return LS_OK;
}

static void return_to_mark(ls_run *run)
{
    run_recovery *r = &run->recovery;

    if (!r->is_marked)
        return;
    r->is_marked = false;
    memcpy(r->sums.kept, r->sums.marked, sums_bytes(&r->sums));
    return_to(run, &r->then, r->n_history[0]);
}

/* By the position: another rank may have ended it, and then its state has replaced that of this
 * rank. */
bool recover_repeats_end(const ls_run *run)
{
    const run_position *then = &run->recovery.then.at;

    return run->local == NULL && run->at.step > 0 && run->at.step == then->step &&
           run->at.epoch == then->epoch;
}

/* --- the new group --- */

/* The rest of the epoch begins behind the samples that have been trained on. */
static void skip_trained(ls_run *run)
{
    run_recovery *r = &run->recovery;

    if (r->n_all != run->partition.n_all && run->train.set != NULL)
        run_skip_trained(run, r->n_all, run->flags->batch_size, &run->at);
    r->n_all = run->partition.n_all;
}

static void note(ls_run *run)
{
    ls_recovery last;
    char more[64] = "";

    ls_ddp_last_recovery(run->recovery.ddp, &last);
    if (last.new_ranks > 0)
        text_format(more, sizeof(more), ", %d of them new", last.new_ranks);
    progress_line(&run->progress, "going on at step %" PRId64 " with %d rank%s%s, after %.2f s",
                  run->at.step, last.ranks, text_plural(last.ranks), more, last.seconds);
}

/* All ranks are at the same step. A rank may have been lost during its report, and the first one
 * before it wrote the line. has_opened: this rank has found the last line of the file. */
static ls_status report_again(ls_run *run, bool has_opened)
{
    const history_point *last = &run->report.last;

    if (run->recovery.reported != run->at.step)
        return report_step(run);
    if (!has_opened || (int64_t)last->step != run->at.step || run->metrics.step >= run->at.step)
        return LS_OK;
    if (run->history.n_points == 0) // a new first rank
        history_add(&run->history, last);
    return report_metrics(run, last, false);
}

/* Rank 0 opens the files of a lost one, or takes lines back. *has_opened: it did one of them. */
static ls_status open_files(ls_run *run, bool *has_opened)
{
    run_recovery *r = &run->recovery;
    const bool is_new_first = run_rank(run) == 0 && !r->is_first;

    r->is_first |= is_new_first;
    *has_opened =
        run_rank(run) == 0 && (is_new_first || run->local != NULL || recover_repeats_end(run));
    if (is_new_first)
        return run_open_files(run);
    return *has_opened ? run_open_again(run) : LS_OK;
}

/* Collective. */
static ls_status enter_group(ls_run *run)
{
    bool has_opened;

    LS_TRY(losses_collect(&run->losses));
    LS_TRY(rank_sums_read(&run->report.window, run->report.pending, false));
    LS_TRY(run->local != NULL ? return_to_snapshot(run) : take_results(run));
    run->partition = run_find_partition(run, run->partition.has_shards ? run->partition.n_all : 0);
    run->n_added = 0;
    run->part = 0;
    audit_drop(run);
    if (!run->partition.has_shards) // the steps from the held state on have other parts
        capsule_drop(run);
    run->is_in_epoch = false;
    run->is_finished = false;
    skip_trained(run);
    LS_TRY(run_divide_again(run));
    LS_TRY(open_files(run, &has_opened));
    note(run);
    if (run->local != NULL)
        return LS_OK;
    take_sums(run);
    return report_again(run, has_opened);
}

/* What others may get must be complete. */
static ls_status prepare(ls_run *run, ls_status st)
{
    char why[LS_ERROR_BYTES];

    ls_error_save(why);
    if (st != LS_OK) {
        return_to_mark(run);
        if (!run->partition.has_shards) // count_batch() has counted each batch of the step
            run->at.batch -= run->n_added;
        run->n_added = 0;
    }
    if (run->local != NULL && ls_comm_status(run->comm) != LS_OK)
        local_sgd_drop(run->local);
    LS_TRY(run_update_scaler(run));
    ls_error_restore(why);
    return st;
}

ls_status recover(ls_run *run, ls_status st, bool *again)
{
    *again = false;
    if (!run->recovery.is_elastic)
        return st;
    for (;;) {
        int did;

        st = prepare(run, st);
        LS_TRY(ls_ddp_recover(run->recovery.ddp, st, &did));
        if (!did)
            return LS_OK;
        *again = true;
        st = enter_group(run);
        if (st == LS_OK)
            return LS_OK;
    }
}

/* --- life --- */

static ls_status check_group(void *arg, bool has_state)
{
    return agree_again(arg, has_state);
}

ls_status recover_begin(ls_run *run)
{
    run_recovery *r = &run->recovery;
    const bool is_new = comm_is_new(run->comm);
    bool again;
    ls_status st;

    r->ddp = run->ddp;
    r->is_elastic = (run->ddp != NULL || run->local != NULL) && comm_is_elastic(run->comm);
    if (r->is_elastic && run->local != NULL)
        LS_TRY(ddp_create_local(run->comm, run->model, &r->ddp));
    r->is_first = run_rank(run) == 0;
    r->n_all = run->partition.n_all;
    r->reported = run->at.step;
    if (r->is_elastic)
        LS_TRY(open_shared_sums(run));
    recover_completed(run);
    if (!r->is_elastic)
        return LS_OK;
    LS_TRY(run->local != NULL ? list_local_state(run) : list_state(run));
    ddp_check_groups(r->ddp, check_group, run);
    LS_TRY(ls_ddp_elastic(r->ddp, &(ls_elastic_options){.size = sizeof(ls_elastic_options),
                                                        .state = r->state.items,
                                                        .n_state = r->state.n,
                                                        .step = &r->completed}));
    if (!is_new)
        return recover_snapshot(run);
    st = enter_group(run);
    return st == LS_OK ? LS_OK : recover(run, st, &again);
}

void recover_close(ls_run *run)
{
    shared_sums *s = &run->recovery.sums;

    ls_free(s->kept);
    ls_free(s->next);
    ls_free(s->marked);
    name_list_free(&run->recovery.state);
}
