/* SPDX-License-Identifier: Apache-2.0 */
/*
 * recover.c - see recover.h. The state that ranks get from each other is that of a checkpoint, in
 * memory, and the position of the run. After a recovery each rank divides the rest of the epoch
 * anew and reads its samples again. loop.c calls it.
 */
#include "train/run.h"

#include "comm/comm.h"

#include <lockstep/log.h>

#include <inttypes.h>
#include <string.h>

/* --- what ranks get from each other --- */

static ls_status list_state(ls_run *run)
{
    run_recovery *r = &run->recovery;
    const ls_named own[] = {
        {.name = "at", .bytes = &run->at, .n_bytes = sizeof(run->at)},
        {.name = "state", .bytes = &run->state, .n_bytes = sizeof(run->state)},
        {.name = "epoch", .bytes = &run->report.epoch, .n_bytes = sizeof(run->report.epoch)},
        {.name = "bad", .bytes = &run->report.bad_images, .n_bytes = sizeof(int64_t)},
        {.name = "steps_done", .bytes = &run->steps_done, .n_bytes = sizeof(run->steps_done)},
        {.name = "train_s", .bytes = &run->train_s, .n_bytes = sizeof(run->train_s)},
        {.name = "n_all", .bytes = &r->n_all, .n_bytes = sizeof(r->n_all)},
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

/* --- marks --- */

void recover_completed(ls_run *run)
{
    run->recovery.completed = run->at.step + run->at.epoch;
    store_results(run);
}

void recover_mark(ls_run *run)
{
    run->recovery.mark = (run_mark){.is_set = true,
                                    .at = run->at,
                                    .is_in_epoch = run->is_in_epoch,
                                    .epoch = run->report.epoch,
                                    .n_points = run->history.n_points,
                                    .n_tests = run->history.n_tests};
}

ls_status recover_unmark(ls_run *run)
{
    if (run->recovery.is_elastic) {
        comm_label(run->comm, "end of the save");
        LS_TRY(ls_barrier(run->comm, NULL));
    }
    run->recovery.mark.is_set = false;
    recover_completed(run);
    return LS_OK;
}

static void return_to_mark(ls_run *run)
{
    run_mark *m = &run->recovery.mark;

    if (!m->is_set)
        return;
    m->is_set = false;
    run->at = m->at;
    run->is_in_epoch = m->is_in_epoch;
    run->report.epoch = m->epoch;
    run->history.n_points = m->n_points;
    run->history.n_tests = m->n_tests;
    ls_tape_reset(run->tape);
    run->is_testing = false;
}

/* --- the new group --- */

/* The rest of the epoch begins behind the samples that have been trained on. */
static void skip_trained(ls_run *run)
{
    run_recovery *r = &run->recovery;

    if (r->n_all != run->division.n_all && run->train.set != NULL) {
        run->at.skip += run->at.batch * r->n_all * run->flags->batch_size;
        run->at.batch = 0;
    }
    r->n_all = run->division.n_all;
}

static void note(ls_run *run)
{
    ls_recovery last;
    char more[64] = "";

    ls_ddp_last_recovery(run->ddp, &last);
    if (last.new_ranks > 0)
        text_format(more, sizeof(more), ", %d of them new", last.new_ranks);
    progress_line(&run->progress, "going on at step %" PRId64 " with %d rank%s%s, after %.2f s",
                  run->at.step, last.ranks, text_plural(last.ranks), more, last.seconds);
}

/* Losses that no report has counted are dropped: lost ranks have taken theirs with them.
 * Collective. */
static ls_status enter_group(ls_run *run)
{
    const int n_parts = run->division.n;

    LS_TRY(losses_collect(&run->losses));
    LS_TRY(rank_sums_read(&run->report.window, run->report.pending, false));
    LS_TRY(take_results(run));
    LS_TRY(division_make(run->division.has_shards ? run->division.n_all : 0, run_rank(run),
                         run_size(run), &run->division));
    run->n_added = 0;
    run->part = 0;
    run->is_in_epoch = false;
    run->is_finished = false;
    skip_trained(run);
    LS_TRY(run_divide_again(run, n_parts));
    if (run_rank(run) == 0 && !run->recovery.is_first) {
        LS_TRY(run_open_files(run));
        run->recovery.is_first = true;
    }
    note(run);
    return LS_OK;
}

/* What others may get must be complete. */
static ls_status prepare(ls_run *run, ls_status st)
{
    char why[LS_ERROR_BYTES];

    ls_error_save(why);
    if (st != LS_OK)
        return_to_mark(run);
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
        LS_TRY(ls_ddp_recover(run->ddp, st, &did));
        if (!did)
            return LS_OK;
        *again = true;
        st = enter_group(run);
        if (st == LS_OK)
            return LS_OK;
    }
}

/* --- life --- */

ls_status recover_begin(ls_run *run)
{
    run_recovery *r = &run->recovery;
    const bool is_new = comm_is_new(run->comm);
    bool again;
    ls_status st;

    r->is_elastic = run->ddp != NULL && comm_is_elastic(run->comm);
    r->is_first = run_rank(run) == 0;
    r->n_all = run->division.n_all;
    recover_completed(run);
    if (!r->is_elastic)
        return LS_OK;
    LS_TRY(list_state(run));
    LS_TRY(ls_ddp_elastic(run->ddp, &(ls_elastic_options){.size = sizeof(ls_elastic_options),
                                                          .state = r->state.items,
                                                          .n_state = r->state.n,
                                                          .step = &r->completed}));
    if (!is_new)
        return LS_OK;
    st = enter_group(run);
    return st == LS_OK ? LS_OK : recover(run, st, &again);
}

void recover_close(ls_run *run)
{
    name_list_free(&run->recovery.state);
}
