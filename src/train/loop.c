/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loop.c - the bookkeeping around a program's own training loop: steps, epochs, and what comes at their end.
 *
 * Ranks may have batches of different numbers: an epoch has as many steps as the rank with the most needs, and a rank that
 * has run out takes part with 0 rows. Everything that decides whether ranks communicate (step
 * counts, stop requests) is therefore agreed on, never local.
 *
 * A step of the optimizer takes run_accumulate() batches, the last one of an epoch those that are
 * left. Ranks communicate in the last of them only; a run stops and is saved between steps.
 */
#include "train/run.h"

#include "base/clock.h"
#include "base/rng.h"

/* Keeps the first failure for ls_run_close(), and tells the other ranks. */
static void fail_run(ls_run *run, ls_status st)
{
    if (run->failure != LS_OK)
        return;
    run->failure = st;
    text_format(run->failure_text, sizeof(run->failure_text), "%s", ls_last_error());
    if (run->comm != NULL)
        ls_comm_abort(run->comm, run->failure_text);
}

/* --- epochs --- */

static ls_status begin_epoch(ls_run *run)
{
    LS_TRY(run_deal_epoch(run));
    LS_TRY(ls_loader_start(run->train.loader, (uint64_t)run->at.epoch, (size_t)run->at.batch));
    run->in_epoch = true;
    if (run->at.batch == 0 && run->at.skip == 0)
        run->epoch_sums = (tally){.loss = 0};
    run->epoch_start_ns = ls_now_ns();
    run->epoch_samples = 0;
    run->state.epoch = run->at.epoch;
    return LS_OK;
}

/* Evaluates when there is something to evaluate on; *is_best: better than ever before. */
static ls_status test_epoch(ls_run *run, bool *is_best)
{
    *is_best = false;
    if (run->test.set == NULL)
        return LS_OK;
    run->mark_ns = ls_now_ns();
    LS_TRY(evaluate(run));
    report_phase(run, PHASE_EVALUATION);
    *is_best = run->state.accuracy > run->state.best_accuracy;
    if (*is_best) {
        run->state.best_accuracy = run->state.accuracy;
        run->state.best_epoch = run->at.epoch;
        run->at.best_epoch = run->at.epoch;
    }
    return LS_OK;
}

/* Means over the epoch, of the rows of all ranks. */
static void say_epoch(ls_run *run)
{
    const ls_run_state *s = &run->state;
    const tally *sums = &run->epoch_sums;
    char counted[64] = "";
    char tested[128] = "";

    if (sums->ranked > 0)
        text_format(counted, sizeof(counted), "  top-1 %.4f  top-5 %.4f", sums->top1 / sums->ranked,
                    sums->top5 / sums->ranked);
    if (run->test.set != NULL)
        text_format(tested, sizeof(tested), "  test accuracy %.4f  top-5 %.4f  test loss %.4f",
                    s->accuracy, s->accuracy5, s->test_loss);
    progress_line(&run->progress, "epoch %lld/%lld  loss %.4f%s%s  %.0f samples/s",
                  (long long)run->at.epoch, (long long)run->flags->epochs,
                  sums->rows > 0 ? sums->loss / sums->rows : s->loss, counted, tested,
                  s->samples_per_s);
}

static ls_status save(ls_run *run, bool is_best)
{
    run->mark_ns = ls_now_ns();
    LS_TRY(save_all(run, is_best));
    report_phase(run, PHASE_SAVE);
    return LS_OK;
}

/* Moves an evaluation's time from the window to what was seen, so that page, metrics and checkpoint of its own epoch tell it. It ends
 * with a collective: all ranks took the same time. */
static void note_evaluation(ls_run *run, history_point *seen)
{
    double seconds[PHASES] = {0};

    seconds[PHASE_EVALUATION] = run->window.seconds[PHASE_EVALUATION];
    run->window.seconds[PHASE_EVALUATION] = 0;
    seen->seconds[PHASE_EVALUATION] += seconds[PHASE_EVALUATION];
    history_add_seconds(&run->history, seconds);
}

static ls_status end_epoch(ls_run *run)
{
    history_point seen;
    bool is_best;

    LS_TRY(report_rest(run, &seen));
    run->in_epoch = false;
    run->at.epoch++;
    run->at.skip = 0;
    run->at.batch = 0;
    LS_TRY(test_epoch(run, &is_best));
    note_evaluation(run, &seen);
    LS_TRY(metrics_write(run, &seen, run->test.set != NULL));
    say_epoch(run);
    return save(run, is_best);
}

/* A stop that all ranks have agreed on, or the step limit: the state is kept where it stands. */
static ls_status end_early(ls_run *run)
{
    history_point seen;

    LS_TRY(report_rest(run, &seen));
    if (run->ddp != NULL)
        LS_TRY(ls_ddp_sync_buffers(run->ddp));
    if (run->state.stopping)
        progress_line(&run->progress, "stopping at step %lld as asked", (long long)run->at.step);
    return save(run, false);
}

static ls_status evaluate_only(ls_run *run)
{
    bool is_best;

    run->finished = true;
    LS_TRY(test_epoch(run, &is_best));
    LS_TRY(metrics_write(run, NULL, true));
    return save_page(run);
}

/* --- the next batch --- */

/* Ranks drop different elements. */
static uint64_t rank_seed(const ls_run *run)
{
    return ls_hash3((uint64_t)run->flags->seed, (uint64_t)run_rank(run), 0);
}

/* Whether the batch under way completes a step: the same on all ranks. */
static bool completes_step(const ls_run *run)
{
    return run->n_added + 1 == run_accumulate(run) ||
           (run->train.set != NULL && run->at.batch + 1 == run->epoch_batches);
}

/* Rows that this rank has in the step that begins now. */
static int64_t count_step_rows(const ls_run *run)
{
    int64_t batches = run_accumulate(run);
    int64_t rows;

    if (run->train.set == NULL)
        return batches;
    if (batches > run->epoch_batches - run->at.batch)
        batches = run->epoch_batches - run->at.batch;
    rows = (int64_t)ls_sampler_count(run->train.sampler) - run->at.batch * run->flags->batch_size;
    if (rows > batches * run->flags->batch_size)
        rows = batches * run->flags->batch_size;
    return rows > 0 ? rows : 0;
}

static ls_status get_batch(ls_run *run, ls_batch *batch)
{
    run->mark_ns = ls_now_ns();
    run->step_ns = run->mark_ns;
    if (run->ddp != NULL && run->n_added == 0) {
        LS_TRY(ls_ddp_sync_buffers(run->ddp));
        report_phase(run, PHASE_COMMUNICATION);
    }
    ls_tape_set_training(run->tape, 1);
    ls_tape_reset(run->tape);
    ls_tape_set_random(run->tape, rank_seed(run),
                       run->at.step * run_accumulate(run) + run->n_added);
    LS_TRY(ls_loader_next(run->train.loader, batch));
    report_phase(run, PHASE_DATA);
    run->rows = batch->rows;
    if (run->ddp == NULL || !completes_step(run))
        return LS_OK;
    LS_TRY(ls_ddp_begin(run->ddp, run->rows));
    report_phase(run, PHASE_COMMUNICATION); // comparing replicas, where that is due
    return LS_OK;
}

/* Ends and begins epochs until one has a batch left, or the run is finished. */
static ls_status find_batch(ls_run *run)
{
    for (;;) {
        if (run->in_epoch && run->at.batch >= run->epoch_batches)
            LS_TRY(end_epoch(run));
        if (run->at.epoch >= run->flags->epochs) {
            run->finished = true;
            return LS_OK;
        }
        if (run->state.stopping || (run->flags->steps > 0 && run->at.step >= run->flags->steps)) {
            run->finished = true;
            return end_early(run);
        }
        if (run->in_epoch)
            return LS_OK;
        LS_TRY(begin_epoch(run));
    }
}

static ls_status next_batch(ls_run *run, ls_batch *batch)
{
    if (run->flags->evaluate)
        return evaluate_only(run);
    if (run->train.loader == NULL)
        return ls_fail(LS_EINVAL, "ls_run_next needs a training set and ls_run_start");
    LS_TRY(find_batch(run));
    return run->finished ? LS_OK : get_batch(run, batch);
}

int ls_run_next(ls_run *run, ls_batch *batch)
{
    ls_status st;

    if (run == NULL || run->failure != LS_OK || run->finished)
        return 0;
    if (batch == NULL) {
        fail_run(run, ls_fail(LS_EINVAL, "ls_run_next: batch is NULL"));
        return 0;
    }
    st = run->started ? next_batch(run, batch)
                      : ls_fail(LS_EINVAL, "ls_run_next comes after ls_run_start");
    if (st != LS_OK)
        fail_run(run, st);
    else if (run->finished)
        run_set_activity(run, NULL);
    return run->failure == LS_OK && !run->finished;
}

/* --- a step --- */

ls_tensor *ls_run_classify(ls_run *run, ls_tensor *logits, ls_tensor *targets)
{
    ls_cross_entropy_params params;
    ls_status st;

    if (run == NULL || logits == NULL)
        return NULL;
    params = (ls_cross_entropy_params){.label_smoothing = run->flags->label_smoothing};
    st = tally_logits(&run->window, logits, targets, false);
    if (st != LS_OK) {
        fail_run(run, st);
        return NULL;
    }
    return ls_cross_entropy_with(run->tape, logits, targets, &params);
}

static ls_status read_loss(const ls_tensor *loss, double *value)
{
    float value32 = 0;

    *value = 0;
    if (loss == NULL) /* a failed forward: backward reports it */
        return LS_OK;
    if (ls_tensor_dtype(loss) != LS_F32)
        return ls_tensor_read(loss, value, 1);
    LS_TRY(ls_tensor_read(loss, &value32, 1));
    *value = (double)value32;
    return LS_OK;
}

/* Of one process: each batch's mean counts by its rows among those of the step. */
static ls_status backward_alone(ls_run *run, ls_tensor *loss, ls_ddp_step *step)
{
    const double rows = (double)run->step_rows;

    if (run->n_added == 0)
        ls_model_zero_grad(run->model);
    *step = (ls_ddp_step){.weight = rows, .more_data = rows > 0, .stop = run_stop_signalled()};
    LS_TRY(ls_backward(run->tape, loss, rows > 0 ? (double)run->rows / rows : 1.0));
    report_phase(run, PHASE_BACKWARD);
    return LS_OK;
}

/* Backward with its communication, each counted as what it is. */
static ls_status backward(ls_run *run, ls_tensor *loss, ls_ddp_step *step)
{
    ls_ddp_stats stats;

    if (run->ddp == NULL)
        return backward_alone(run, loss, step);
    if (run_stop_signalled())
        ls_ddp_request_stop(run->ddp);
    if (completes_step(run))
        LS_TRY(ls_ddp_backward(run->ddp, run->tape, loss, run->rows, step));
    else
        LS_TRY(ls_ddp_accumulate(run->ddp, run->tape, loss, run->rows));
    ls_ddp_get_stats(run->ddp, &stats);
    run->window.seconds[PHASE_BACKWARD] += stats.backward_s - run->backward_s;
    run->window.seconds[PHASE_COMMUNICATION] += stats.wait_s - run->wait_s;
    run->backward_s = stats.backward_s;
    run->wait_s = stats.wait_s;
    run->mark_ns = ls_now_ns();
    return LS_OK;
}

static ls_status update_parameters(ls_run *run)
{
    ls_optimizer_set_lr(run->optimizer, run->state.lr);
    if (run->flags->clip_grad_norm > 0) {
        int n;
        const ls_named *parameters = ls_model_parameters(run->model, &n);
        LS_TRY(ls_clip_grad_norm(parameters, n, ls_grad, run->flags->clip_grad_norm, NULL));
    }
    return ls_optimizer_step(run->optimizer);
}

static void count_batch(ls_run *run, double loss)
{
    run->at.batch++;
    run->n_added++;
    run->window.loss += loss * (double)run->rows;
    run->window.rows += (double)run->rows;
    run->train_s += (double)(run->mark_ns - run->step_ns) * 1e-9;
    run->step_ns = run->mark_ns; // of a program that makes its batches itself
}

static void count_step(ls_run *run, const ls_ddp_step *step)
{
    run->at.step++;
    run->n_added = 0;
    run->steps_done++;
    run->state.step = run->at.step;
    run->state.stopping = step->stop;
    run->epoch_samples += step->weight;
}

static ls_status train_batch(ls_run *run, ls_tensor *loss)
{
    const bool is_last = completes_step(run);
    double value;
    ls_ddp_step step = {.weight = 0};

    if (run->n_added == 0) {
        run->step_rows = count_step_rows(run);
        run->state.lr = ls_schedule_lr(&run->schedule, run_schedule_step(run));
    }
    LS_TRY(read_loss(loss, &value));
    report_phase(run, PHASE_FORWARD);
    LS_TRY(backward(run, loss, &step));
    if (is_last && step.more_data)
        LS_TRY(update_parameters(run));
    report_phase(run, PHASE_OPTIMIZER);
    count_batch(run, value);
    if (!is_last)
        return LS_OK;
    count_step(run, &step);
    LS_TRY(report_step(run));
    progress_step(run);
    return LS_OK;
}

void ls_run_step(ls_run *run, ls_tensor *loss)
{
    ls_status st;

    if (run == NULL || run->failure != LS_OK)
        return;
    if (run->train.set == NULL)
        run->rows = 1;
    st = run->started ? train_batch(run, loss)
                      : ls_fail(LS_EINVAL, "ls_run_step comes after ls_run_start");
    if (st != LS_OK)
        fail_run(run, st);
}
