/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loop.c - ls_run_next(), ls_run_step() and ls_run_train(): the steps and epochs of a program's
 * training, and the evaluation and save at the end of an epoch.
 *
 * Ranks may have different numbers of batches: an epoch has as many steps as the rank with the most
 * batches, and a rank without data takes part with 0 rows. Whatever decides if ranks communicate
 * (step counts, stop requests) is agreed on by all ranks, never local.
 *
 * A step of the optimizer takes run_accumulate() batches, the last step of an epoch the remaining
 * ones. Ranks communicate in the last batch of a step only; a run stops and is saved between steps.
 */
#include "train/run/run.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/rng.h"
#include "base/signal_list.h"
#include "comm/comm.h"
#include "ddp/shard_step.h"
#include "tensor/device.h"
#include "train/finite.h"

#include <inttypes.h>
#include <math.h>

void run_fail(ls_run *run, ls_status st)
{
    if (run->failure != LS_OK)
        return;
    run->failure = st;
    text_format(run->failure_text, sizeof(run->failure_text), "%s", ls_last_error());
    capsule_leave_failed(run);
    run_local_failed(run);
    if (run->comm != NULL)
        ls_comm_abort(run->comm, run->failure_text);
}

/* --- epochs --- */

static ls_status begin_epoch(ls_run *run)
{
    LS_TRY(run_divide_epoch(run));
    if (run->at.skip == 0) // other ranks may train on the rest
        run->at.bucket_rows = run->bucket_rows;
    for (int i = 0; i < run->train.n_parts; i++)
        LS_TRY(ls_loader_start(run->train.parts[i].loader, (uint64_t)run->at.epoch,
                               (size_t)run->at.batch));
    run->is_in_epoch = true;
    if (run->at.batch == 0 && run->at.skip == 0)
        run->report.epoch = (rank_sums){.loss = 0};
    run->epoch_start_ns = ls_now_ns();
    run->epoch_samples = 0;
    run->state.epoch = run->at.epoch;
    return LS_OK;
}

static bool is_best_evaluation(ls_run *run)
{
    if (run->evaluate != NULL)
        return values_improved(&run->values);
    if (!(run->state.accuracy > run->state.best_accuracy))
        return false;
    run->state.best_accuracy = run->state.accuracy;
    return true;
}

/* Evaluates if there is a test set. *is_best: the result is the best so far. */
static ls_status test_epoch(ls_run *run, bool *is_best)
{
    *is_best = false;
    if (run->test.set == NULL || replay_is_on(run))
        return LS_OK;
    run->report.mark_ns = ls_now_ns();
    run->profile.operators.phase = phase_name(PHASE_EVALUATION);
    LS_TRY(evaluate(run));
    run->profile.operators.phase = NULL;
    report_phase(run, PHASE_EVALUATION);
    *is_best = is_best_evaluation(run);
    if (*is_best) {
        run->state.best_epoch = run->at.epoch;
        run->at.best_epoch = run->at.epoch;
    }
    return LS_OK;
}

/* Prints the means over the rows of all ranks in the epoch. */
static void print_epoch(ls_run *run)
{
    const ls_run_state *s = &run->state;
    const rank_sums *sums = &run->report.epoch;
    char counted[64] = "";
    text_buf tested = {0};

    if (sums->ranked > 0)
        text_format(counted, sizeof(counted), "  top-1 %.4f  top-5 %.4f", sums->top1 / sums->ranked,
                    sums->top5 / sums->ranked);
    if (run->evaluate != NULL) {
        text_append(&tested, "  test:");
        values_append(&run->values, OF_TEST, &tested);
    } else if (run->test.set != NULL) {
        text_append(&tested, "  test accuracy %.4f  top-5 %.4f  test loss %.4f", s->accuracy,
                    s->accuracy5, s->test_loss);
    }
    progress_line(&run->progress, "epoch %lld/%lld  loss %.4f%s%s  %.0f samples/s",
                  (long long)run->at.epoch, (long long)run->flags->epochs,
                  sums->rows > 0 ? finite_mean(sums->loss, sums->rows) : s->loss, counted,
                  text_str(&tested), s->samples_per_s);
    text_free(&tested);
}

static ls_status save(ls_run *run, bool is_best)
{
    run->report.mark_ns = ls_now_ns();
    LS_TRY(run_update_scaler(run));
    LS_TRY(run_local_collect(run));
    LS_TRY(run_power_collect(run));
    LS_TRY(save_all(run, is_best));
    run_local_drop(run);
    run_power_drop(run);
    report_phase(run, PHASE_SAVE);
    return LS_OK;
}

/* Moves the time of an evaluation from the window to the point of its epoch. An evaluation ends
 * with a collective, so all ranks took the same time. */
static void add_evaluation_time(ls_run *run, history_point *point)
{
    double seconds[PHASES] = {0};

    seconds[PHASE_EVALUATION] = run->report.window.seconds[PHASE_EVALUATION];
    run->report.window.seconds[PHASE_EVALUATION] = 0;
    point->seconds[PHASE_EVALUATION] += seconds[PHASE_EVALUATION];
    history_add_seconds(&run->history, seconds);
}

static ls_status end_epoch(ls_run *run)
{
    history_point point;
    bool is_best;

    recover_mark(run);
    LS_TRY(report_rest(run, &point));
    run->is_in_epoch = false;
    run->at.epoch++;
    run->at.skip = 0;
    run->at.batch = 0;
    if (run->ddp != NULL)
        LS_TRY(ls_ddp_sync_buffers(run->ddp));
    LS_TRY(run_local_show(run, run->at.epoch >= run->flags->epochs));
    LS_TRY(test_epoch(run, &is_best));
    if (run_rank(run) == 0)
        values_warn_unused(&run->values, true);
    add_evaluation_time(run, &point);
    LS_TRY(report_metrics(run, &point, run->test.set != NULL));
    print_epoch(run);
    LS_TRY(save(run, is_best));
    return recover_unmark(run);
}

static void print_stop(ls_run *run)
{
    const int signal_number = stop_signal_received();

    if (signal_number == 0)
        progress_line(&run->progress, "stopped at step %lld: another rank received a signal",
                      (long long)run->at.step);
    else
        progress_line(&run->progress, "stopped by %s at step %lld", signal_list_name(signal_number),
                      (long long)run->at.step);
}

/* Saves the state at a stop that all ranks have agreed on, or at the step limit. */
static ls_status end_early(ls_run *run)
{
    history_point point;

    recover_mark(run);
    LS_TRY(report_rest(run, &point));
    if (run->ddp != NULL)
        LS_TRY(ls_ddp_sync_buffers(run->ddp));
    LS_TRY(run_local_show(run, false));
    if (run_rank(run) == 0)
        values_warn_unused(&run->values, run->evaluate == NULL);
    if (run->state.stopping)
        print_stop(run);
    LS_TRY(save_events(run));
    LS_TRY(save(run, false));
    return recover_unmark(run);
}

static ls_status evaluate_only(ls_run *run)
{
    bool is_best;

    run->is_finished = true;
    LS_TRY(test_epoch(run, &is_best));
    return report_metrics(run, NULL, true);
}

/* --- the next batch --- */

/* Parts have different dropout masks. */
static uint64_t part_seed(const ls_run *run, int number)
{
    return ls_hash3((uint64_t)run->flags->seed, (uint64_t)number, 0);
}

/* Whether the current batch completes a step: the same on all ranks. */
static bool completes_step(const ls_run *run)
{
    if (run->partition.has_shards)
        return run->n_added + 1 == run->partition.n;
    return run->n_added + 1 == run_accumulate(run) ||
           (run->train.set != NULL && run->at.batch + 1 == run->epoch_batches);
}

static int64_t count_step_rows(const ls_run *run)
{
    const int64_t batch_rows = run_batch_rows(run, run->partition.first);
    int64_t batches = run_accumulate(run);
    int64_t rows;

    if (run->train.set == NULL)
        return batches;
    if (batches > run->epoch_batches - run->at.batch)
        batches = run->epoch_batches - run->at.batch;
    rows = (int64_t)ls_sampler_count(run->train.parts[0].sampler) - run->at.batch * batch_rows;
    if (rows > batches * batch_rows)
        rows = batches * batch_rows;
    return rows > 0 ? rows : 0;
}

static void set_rows(ls_run *run, int64_t rows)
{
    run->rows = rows;
    run->weight = rows;
    run->has_weight = false;
}

/* Before a step: what forward computes with is the same on all ranks. */
static ls_status heal(ls_run *run)
{
    const int64_t every = run->flags->heal ? run->flags->check_replicas : 0;
    const ls_named *moments;
    int n_healed;
    int n;

    if (every == 0 || run->at.step % every != 0)
        return LS_OK;
    moments = ls_optimizer_state(run->optimizer, &n);
    LS_TRY(ls_ddp_heal(run->ddp, moments, n, &n_healed));
    run->n_healed += n_healed;
    return n_healed > 0 ? ls_optimizer_loaded(run->optimizer) : LS_OK;
}

static ls_status begin_batch(ls_run *run)
{
    run->report.mark_ns = ls_now_ns();
    run->step_ns = run->report.mark_ns;
    if (run->n_added > 0 || run->audit.is_begun)
        return LS_OK;
    if (run->ddp != NULL) {
        LS_TRY(run_local_enter(run)); // whose buffers the ddp has
        LS_TRY(heal(run));
        LS_TRY(ls_ddp_sync_buffers(run->ddp));
        report_phase(run, PHASE_COMMUNICATION);
    }
    LS_TRY(capsule_hold(run));
    return audit_begin(run);
}

ls_status run_load_batch(ls_run *run, split_part *part, int number, ls_batch *batch)
{
    ls_tape_set_training(run->tape, 1);
    ls_tape_reset(run->tape);
    ls_tape_set_random(run->tape, part_seed(run, number),
                       run->partition.has_shards
                           ? run->at.step
                           : run->at.step * run_accumulate(run) + run->n_added);
    LS_TRY(ls_loader_next(part->loader, batch));
    part->batch = *batch;
    set_rows(run, batch->rows);
    return LS_OK;
}

/* Of part run->part. */
static ls_status load_batch(ls_run *run, ls_batch *batch)
{
    return run_load_batch(run, &run->train.parts[run->part], run->partition.first + run->part,
                          batch);
}

static ls_status get_batch(ls_run *run, ls_batch *batch)
{
    LS_TRY(begin_batch(run));
    if (audit_has_batch(run))
        return audit_load(run, batch);
    run->part = run->partition.has_shards ? (int)run->n_added : 0;
    LS_TRY(run_local_enter(run));
    LS_TRY(load_batch(run, batch));
    report_phase(run, PHASE_DATA);
    if (run->ddp != NULL && completes_step(run) && !run->uses_weights) {
        LS_TRY(ls_ddp_begin(run->ddp, run->rows));
        report_phase(run, PHASE_COMMUNICATION); // --check-replicas
    }
    report_device_phase(run, phase_name(PHASE_FORWARD));
    return LS_OK;
}

/* Ends and begins epochs until there is a batch, or the run is finished. */
static ls_status find_batch(ls_run *run)
{
    for (;;) {
        if (run->is_in_epoch && run->at.batch >= run->epoch_batches)
            LS_TRY(end_epoch(run));
        if (run->at.epoch >= run->flags->epochs) {
            run->is_finished = true;
            return LS_OK;
        }
        if (run->state.stopping || (run->flags->steps > 0 && run->at.step >= run->flags->steps)) {
            run->is_finished = true;
            return end_early(run);
        }
        if (run->is_in_epoch)
            return LS_OK;
        LS_TRY(begin_epoch(run));
    }
}

static ls_status idle_step(ls_run *run);

/* batch NULL: the step takes its batches itself. *has_next: there is a batch, or the run is
 * finished; otherwise this rank has taken part in a step without shards. */
static ls_status next_batch(ls_run *run, ls_batch *batch, bool *has_next)
{
    *has_next = true;
    if (run->flags->evaluate)
        return evaluate_only(run);
    LS_TRY(audit_leave_batch(run));
    if (run->audit.differs) {
        *has_next = audit_has_batch(run);
        return *has_next ? audit_load(run, batch) : audit_judge(run);
    }
    if (run->train.parts == NULL)
        return ls_fail(LS_EINVAL, "ls_run_next needs a training set");
    LS_TRY(find_batch(run));
    if (run->is_finished)
        return LS_OK;
    LS_TRY(run_rebalance(run));
    *has_next = run->partition.n > 0;
    if (!*has_next)
        return idle_step(run);
    return batch == NULL ? LS_OK : get_batch(run, batch);
}

/* After a recovery the search for a batch begins again. */
static ls_status next_batch_of_ranks(ls_run *run, ls_batch *batch)
{
    bool has_next;
    bool again;

    do
        LS_TRY(recover(run, next_batch(run, batch, &has_next), &again));
    while (again || !has_next);
    return LS_OK;
}

/* Whether there is a next one. */
static bool find_next(ls_run *run, ls_batch *batch)
{
    ls_status st;

    if (run->failure != LS_OK || run->is_finished)
        return false;
    st = run->is_started ? next_batch_of_ranks(run, batch)
                         : ls_fail(LS_EINVAL, "call ls_run_start() before ls_run_next()");
    if (st != LS_OK)
        run_fail(run, st);
    else if (run->is_finished)
        run_set_activity(run, NULL);
    return run->failure == LS_OK && !run->is_finished;
}

int ls_run_next(ls_run *run, ls_batch *batch)
{
    if (run == NULL)
        return 0;
    if (batch == NULL)
        run_fail(run, ls_fail(LS_EINVAL, "ls_run_next: batch is NULL"));
    return find_next(run, batch);
}

/* --- a step --- */

ls_tensor *ls_run_classify(ls_run *run, ls_tensor *logits, ls_tensor *targets)
{
    ls_cross_entropy_params params;
    ls_status st;

    if (run == NULL || logits == NULL)
        return NULL;
    logits = run_read_logits(run, logits);
    if (logits == NULL)
        return NULL;
    params = (ls_cross_entropy_params){.label_smoothing = run->flags->label_smoothing};
    st = rank_sums_add_logits(report_window(run), &run->report.pending, logits, targets, false);
    if (st != LS_OK) {
        run_fail(run, st);
        return NULL;
    }
    return ls_cross_entropy_with(run->tape, logits, targets, &params);
}

/* --- weights of batches --- */

static ls_status weigh(ls_run *run, int64_t weight)
{
    if (weight < 0)
        return ls_fail(LS_EINVAL, "ls_run_weigh: the weight is %" PRId64 ", below 0", weight);
    if (!run->uses_weights)
        return ls_fail(LS_EINVAL, "ls_run_weigh: call ls_run_use_weights() before ls_run_start()");
    run->weight = weight;
    run->has_weight = true;
    return LS_OK;
}

void ls_run_weigh(ls_run *run, int64_t weight)
{
    ls_status st;

    if (run == NULL || run->failure != LS_OK)
        return;
    st = weigh(run, weight);
    if (st != LS_OK)
        run_fail(run, st);
}

static ls_status check_weight(const ls_run *run)
{
    if (!run->uses_weights || run->has_weight || run->rows == 0)
        return LS_OK;
    return ls_fail(LS_EINVAL,
                   "a batch of step %" PRId64 " has no weight: call ls_run_weigh() for each batch",
                   run->at.step + 1);
}

/* Whether each part has a step of its own. */
static bool are_islands(const ls_run *run)
{
    return run->local != NULL && run->partition.has_shards;
}

/* In one process, or an island: the mean of each batch is weighted by its share of the step's
 * rows. */
static ls_status backward_alone(ls_run *run, ls_tensor *loss, double scale, ls_ddp_step *step)
{
    const double rows =
        (double)(run->uses_weights || are_islands(run) ? run->weight : run->step_rows);

    if (run->n_added == 0 || are_islands(run))
        ls_model_zero_grad(run->model);
    *step =
        (ls_ddp_step){.weight = rows, .more_data = rows > 0, .stop = stop_signal_received() != 0};
    LS_TRY(ls_backward(run->tape, loss, scale * (rows > 0 ? (double)run->weight / rows : 1.0)));
    report_phase(run, PHASE_BACKWARD);
    return LS_OK;
}

/* Multiplies all gradients by a number. */
static ls_status scale_gradients(ls_run *run, double factor)
{
    ls_tensor *scalar;
    int n;
    const ls_named *p = ls_model_parameters(run->model, &n);
    ls_status st;

    LS_TRY(ls_tensor_create(run->device, LS_F64, 0, NULL, &scalar));
    st = ls_tensor_fill(scalar, factor);
    for (int i = 0; i < n && st == LS_OK; i++) {
        ls_tensor *g = ls_grad(p[i].tensor);
        const op_call call = {
            .op = OP_SCALE_BY, .n_in = 2, .n_out = 1, .in = {g, scalar}, .out = {g}};

        if (g != NULL)
            st = device_run(run->device, &call);
    }
    ls_tensor_destroy(scalar);
    return st;
}

/* In one process with several weighed batches a step, whose weights are not known before the last
 * one: sums of gradients, which the sum of the weights divides. */
static ls_status backward_weighed(ls_run *run, ls_tensor *loss, double scale, ls_ddp_step *step)
{
    if (run->n_added == 0) {
        ls_model_zero_grad(run->model);
        run->step_weight = 0;
    }
    run->step_weight += (double)run->weight;
    *step = (ls_ddp_step){.weight = run->step_weight,
                          .more_data = run->step_weight > 0,
                          .stop = stop_signal_received() != 0};
    LS_TRY(ls_backward(run->tape, loss, scale * (double)run->weight));
    if (completes_step(run) && run->step_weight > 0)
        LS_TRY(scale_gradients(run, 1 / run->step_weight));
    report_phase(run, PHASE_BACKWARD);
    return LS_OK;
}

/* Adds the phases of a distributed backward, which began at mark_ns: the wait comes last. */
static void profile_backward(ls_run *run, double wait_s)
{
    const int64_t end_ns = ls_now_ns();
    const int64_t wait_ns = end_ns - (int64_t)(wait_s * 1e9);

    profile_add_phase(&run->profile, phase_name(PHASE_BACKWARD), run->report.mark_ns, wait_ns);
    profile_add_phase(&run->profile, phase_name(PHASE_COMMUNICATION), wait_ns, end_ns);
}

/* Adds the time of the ls_ddp's backward, from mark_ns on, and of its communication. */
static void report_backward(ls_run *run)
{
    ls_ddp_stats stats;

    ls_ddp_get_stats(run->ddp, &stats);
    report_seconds(run, PHASE_BACKWARD, stats.backward_s - run->backward_s);
    report_seconds(run, PHASE_COMMUNICATION, stats.wait_s - run->wait_s);
    profile_backward(run, stats.wait_s - run->wait_s);
    run->backward_s = stats.backward_s;
    run->wait_s = stats.wait_s;
    run->report.mark_ns = ls_now_ns();
}

static ls_status find_loss_scale(ls_run *run, double *scale)
{
    LS_TRY(run_update_scaler(run));
    *scale = run->scaler == NULL ? 1.0 : ls_grad_scaler_scale(run->scaler);
    return LS_OK;
}

/* All ranks stop, unless only those of this machine were asked to. */
static ls_status pass_stop_signal(ls_run *run)
{
    if (stop_signal_received() == 0)
        return LS_OK;
    if (comm_is_leaving(run->comm))
        return ls_fail(LS_ECANCELED, "step %" PRId64 ": this rank leaves the job after %s",
                       run->at.step + 1, signal_list_name(stop_signal_received()));
    ls_ddp_request_stop(run->ddp);
    return LS_OK;
}

static ls_status backward_of_ranks(ls_run *run, ls_tensor *loss, ls_ddp_step *step)
{
    if (run->partition.n == 0)
        return ddp_step_idle(run->ddp, step);
    if (completes_step(run))
        return ls_ddp_backward(run->ddp, run->tape, loss, run->weight, step);
    return ls_ddp_accumulate(run->ddp, run->tape, loss, run->weight);
}

/* Backward and its communication, with the time of each. */
static ls_status backward(ls_run *run, ls_tensor *loss, ls_ddp_step *step)
{
    double scale;

    LS_TRY(find_loss_scale(run, &scale));
    if (run->comm != NULL)
        LS_TRY(pass_stop_signal(run));
    if (run->ddp == NULL && run->uses_weights && run_accumulate(run) > 1)
        return backward_weighed(run, loss, scale, step);
    if (run->ddp == NULL)
        return backward_alone(run, loss, scale, step);
    LS_TRY(ls_ddp_set_loss_scale(run->ddp, scale));
    LS_TRY(backward_of_ranks(run, loss, step));
    report_backward(run);
    return LS_OK;
}

/* Histograms of the gradients that the optimizer uses; --clip-grad-norm has unscaled them. */
static ls_status add_histograms(ls_run *run)
{
    const bool is_scaled = run->scaler != NULL && !(run->flags->clip_grad_norm > 0);
    int n;
    const ls_named *parameters = ls_model_parameters(run->model, &n);

    if (run->flags->histograms == 0 || (run->at.step + 1) % run->flags->histograms != 0 ||
        (run->local != NULL && run->part > 0)) // those of island 0
        return LS_OK;
    return tensorboard_add_histograms(&run->tensorboard, run->at.step + 1, parameters, n,
                                      is_scaled ? ls_grad_scaler_scale(run->scaler) : 1.0);
}

static ls_status update_parameters(ls_run *run)
{
    ls_optimizer_set_lr(run->optimizer, run->state.lr);
    if (run->flags->clip_grad_norm > 0) {
        int n;
        const ls_named *parameters = ls_model_parameters(run->model, &n);
        if (run->scaler != NULL)
            LS_TRY(ls_grad_scaler_unscale(run->scaler));
        LS_TRY(ls_clip_grad_norm(parameters, n, ls_grad, run->flags->clip_grad_norm, NULL));
    }
    LS_TRY(add_histograms(run));
    if (run->scaler == NULL)
        return ls_optimizer_step(run->optimizer);
    run->has_scaled_step = true;
    return ls_grad_scaler_step(run->scaler);
}

/* With shards a step is one batch of each part. */
static void count_batch(ls_run *run, bool is_last)
{
    run->at.batch += is_last || !run->partition.has_shards;
    run->n_added++;
    run->train_s += (double)(run->report.mark_ns - run->step_ns) * 1e-9;
    run->step_ns = run->report.mark_ns; // for programs without ls_run_next()
}

static void count_step(ls_run *run, const ls_ddp_step *step)
{
    run->at.step++;
    run->n_added = 0;
    run->steps_done++;
    run->state.step = run->at.step;
    run->state.stopping = step->stop;
    capsule_confirm(run);
    recover_completed(run);
    audit_end(run);
}

static ls_status set_lr(ls_run *run)
{
    const int64_t step = run_schedule_step(run);
    ls_run_state *s = &run->state;

    if (run->lr == NULL)
        s->lr = ls_schedule_lr(&run->schedule.schedule, step);
    else
        s->lr = run->lr(run->lr_arg, step, run->all_steps);
    if (s->lr >= 0 && isfinite(s->lr))
        return LS_OK;
    return ls_fail(LS_EINVAL, "the learning rate of step %" PRId64 " is %g", step, s->lr);
}

/* Adds the current batch to what is reported. */
static ls_status count_loss(ls_run *run, const ls_tensor *loss)
{
    rank_sums *window = report_window(run);

    LS_TRY(check_weight(run));
    LS_TRY(losses_add(&run->losses, loss, (double)run->weight, &window->loss, &window->rows));
    finite_loss(run, window->loss);
    window->samples += (double)run->rows;
    run->report.progress.samples += (double)run->rows;
    return LS_OK;
}

/* After the gradients of a step are reduced. */
static ls_status end_step(ls_run *run, ls_ddp_step *step)
{
    if (step->more_data) {
        report_device_phase(run, phase_name(PHASE_OPTIMIZER));
        LS_TRY(update_parameters(run));
        report_device_phase(run, NULL);
    }
    report_phase(run, PHASE_OPTIMIZER);
    LS_TRY(run_local_step(run, step));
    run_measure(run);
    count_batch(run, true);
    count_step(run, step);
    LS_TRY(report_step(run));
    report_progress(run);
    progress_step(&run->progress, &(progress_values){.state = &run->state,
                                                     .values = &run->values,
                                                     .epochs = run->flags->epochs,
                                                     .batch = run->at.batch,
                                                     .epoch_batches = run->epoch_batches,
                                                     .ranks = run_size(run)});
    if (run->at.step == run->flags->capsule_step)
        LS_TRY(capsule_leave_asked(run));
    LS_TRY(replay_step(run));
    return profile_step(run);
}

/* Unless an audit has found that results differ: then ls_run_next() does the rest. */
static ls_status end_sound_step(ls_run *run, ls_ddp_step *step)
{
    bool differs;

    LS_TRY(audit_compare(run, &differs));
    return differs ? LS_OK : end_step(run, step);
}

/* A step of a rank that has no shards (--balance), with the operations of the other ranks. */
static ls_status idle_step(ls_run *run)
{
    ls_ddp_step step = {.weight = 0};

    LS_TRY(begin_batch(run));
    set_rows(run, 0);
    run->step_rows = 0;
    if (!run->uses_weights)
        LS_TRY(ls_ddp_begin(run->ddp, 0));
    report_phase(run, PHASE_COMMUNICATION);
    LS_TRY(set_lr(run));
    LS_TRY(recover_begin_sums(run));
    LS_TRY(recover_end_sums(run, backward(run, NULL, &step)));
    return end_sound_step(run, &step);
}

/* Backward of a batch of an audit. */
static ls_status train_audit(ls_run *run, ls_tensor *loss)
{
    double scale;

    LS_TRY(check_weight(run));
    LS_TRY(find_loss_scale(run, &scale));
    LS_TRY(ls_ddp_set_loss_scale(run->ddp, scale));
    return audit_backward(run, loss);
}

static ls_status train_batch(ls_run *run, ls_tensor *loss)
{
    const bool is_last = completes_step(run);
    ls_ddp_step step = {.weight = 0};

    if (run->audit.batch == AUDIT_GIVEN)
        return train_audit(run, loss);
    if (run->n_added == 0) {
        run->step_rows = count_step_rows(run);
        LS_TRY(set_lr(run));
    }
    LS_TRY(count_loss(run, loss));
    report_phase(run, PHASE_FORWARD);
    if (is_last)
        LS_TRY(recover_begin_sums(run));
    LS_TRY(recover_end_sums(run, backward(run, loss, &step)));
    if (is_last)
        return end_sound_step(run, &step);
    if (are_islands(run) && step.more_data)
        LS_TRY(update_parameters(run));
    report_phase(run, PHASE_OPTIMIZER);
    count_batch(run, false);
    return LS_OK;
}

void ls_run_step(ls_run *run, ls_tensor *loss)
{
    bool again;
    ls_status st;

    if (run == NULL || run->failure != LS_OK)
        return;
    if (run->train.set == NULL) {
        run->rows = 1;
        run->part = run->partition.has_shards ? (int)run->n_added : 0;
    }
    if (run->train.set == NULL && !run->has_weight)
        run->weight = 1;
    st = run->is_started ? recover(run, train_batch(run, loss), &again)
                         : ls_fail(LS_EINVAL, "call ls_run_start() before ls_run_step()");
    run->has_weight = false;
    if (st != LS_OK)
        run_fail(run, st);
}

/* --- a step whose shards are computed at the same time --- */

/* Of each shard of this rank: what the run has of the current batch, while other shards run. */
typedef struct shard_batch {
    ls_tape *tape;
    int64_t rows;
    int64_t weight;
    bool has_weight;
} shard_batch;

typedef struct shard_step {
    ls_run *run;
    ls_loss_fn loss;
    void *arg;
    ls_tape *tape; /* of the run */
    shard_batch *batches;
    int64_t data_ns; /* in loaders */
} shard_step;

/* The current batch is that of another part. */
static void change_part(shard_step *s, int part)
{
    ls_run *run = s->run;
    shard_batch *from = &s->batches[run->part];
    const shard_batch *to = &s->batches[part];

    from->rows = run->rows;
    from->weight = run->weight;
    from->has_weight = run->has_weight;
    run->part = part;
    run->tape = to->tape;
    run->rows = to->rows;
    run->weight = to->weight;
    run->has_weight = to->has_weight;
}

static void resume_shard(void *arg, int shard)
{
    shard_step *s = arg;

    change_part(s, shard - s->run->partition.first);
}

static ls_status compute_shard(void *arg, int shard, ls_tape *tape, ls_tensor **loss, int64_t *rows)
{
    shard_step *s = arg;
    ls_run *run = s->run;
    const int64_t start_ns = ls_now_ns();
    ls_batch batch;

    s->batches[shard - run->partition.first].tape = tape;
    resume_shard(s, shard);
    LS_TRY(ls_tape_set_compute(tape, ls_tape_compute(s->tape)));
    replay_watch(run, tape);
    LS_TRY(load_batch(run, &batch));
    s->data_ns += ls_now_ns() - start_ns;
    *loss = s->loss(s->arg, run, &batch);
    LS_TRY(ls_run_status(run));
    LS_TRY(count_loss(run, *loss));
    LS_TRY(pass_stop_signal(run));
    *rows = run->weight;
    // The losses of the others have been counted: shards end their forward in order.
    return run->part == run->partition.n - 1 ? recover_begin_sums(run) : LS_OK;
}

/* Adds the times of loaders and forward. */
static void report_shards(ls_run *run, int64_t data_ns)
{
    const int64_t start_ns = run->report.mark_ns;
    ls_ddp_stats stats;
    int64_t end_ns; /* of forward */

    ls_ddp_get_stats(run->ddp, &stats);
    end_ns = ls_now_ns() - (int64_t)((stats.backward_s - run->backward_s) * 1e9) -
             (int64_t)((stats.wait_s - run->wait_s) * 1e9);
    report_seconds(run, PHASE_DATA, (double)data_ns * 1e-9);
    report_seconds(run, PHASE_FORWARD, (double)(end_ns - start_ns - data_ns) * 1e-9);
    profile_add_phase(&run->profile, phase_name(PHASE_FORWARD), start_ns, end_ns);
    run->report.mark_ns = end_ns;
}

/* No ls_ddp_begin(), which must not come before the gradients of other shards are added. */
static ls_status train_shards(ls_run *run, ls_loss_fn loss, void *arg)
{
    shard_step s = {.run = run, .loss = loss, .arg = arg, .tape = run->tape};
    const shard_calls calls = {compute_shard, resume_shard, &s};
    ls_ddp_step step = {.weight = 0};
    double scale;
    ls_status st;

    LS_TRY(begin_batch(run));
    run->step_rows = count_step_rows(run);
    LS_TRY(set_lr(run));
    LS_TRY(find_loss_scale(run, &scale));
    LS_TRY(ls_ddp_set_loss_scale(run->ddp, scale));
    LS_TRY(LS_NEW(&s.batches, (size_t)run->partition.n, "for the batches of %d shards",
                  run->partition.n));
    report_device_phase(run, phase_name(PHASE_FORWARD));
    run->part = 0;
    st = recover_end_sums(run, ddp_step_shards(run->ddp, &calls, &step));
    run->part = 0;
    run->tape = s.tape;
    ls_free(s.batches);
    LS_TRY(st);
    report_shards(run, s.data_ns);
    report_backward(run);
    return end_step(run, &step);
}

void ls_run_train(ls_run *run, ls_loss_fn loss, void *arg)
{
    ls_batch batch;

    if (run == NULL)
        return;
    if (loss == NULL)
        run_fail(run, ls_fail(LS_EINVAL, "ls_run_train: loss is NULL"));
    // Also with a shard a rank: when ranks are lost, the others have several.
    if (run->ddp != NULL && shards_may_meet(run->ddp)) {
        while (find_next(run, NULL)) {
            bool again;
            const ls_status st = recover(run, train_shards(run, loss, arg), &again);

            if (st != LS_OK)
                run_fail(run, st);
        }
        return;
    }
    while (find_next(run, &batch))
        ls_run_step(run, loss(arg, run, &batch));
}
