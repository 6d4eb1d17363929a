/* SPDX-License-Identifier: Apache-2.0 */
/*
 * run.c - the bookkeeping around a program's own training loop.
 *
 * Ranks may have batches of different numbers: an epoch has as many steps as the rank with the most needs, and a rank that
 * has run out takes part with 0 rows. Everything that decides whether ranks communicate (step counts, stop requests) is
 * therefore agreed on, never local.
 */
#include "train/run.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/rng.h"
#include "comm/comm.h"

#include <lockstep/log.h>

#include <math.h>
#include <string.h>

enum { REPORT_STEPS = 20 }; /* steps between two losses that all ranks have added up */

/* A signal can reach nothing but a global. */
static volatile sig_atomic_t stop_signal;

static void on_stop_signal(int signal_number)
{
    stop_signal = signal_number;
}

int run_rank(const ls_run *run)
{
    return run->comm != NULL ? ls_comm_rank(run->comm) : 0;
}

int run_size(const ls_run *run)
{
    return run->comm != NULL ? ls_comm_size(run->comm) : 1;
}

/* --- life --- */

ls_status ls_run_open(const ls_train_flags *flags, ls_run **out)
{
    const ls_device_options device = {.size = sizeof(device), .name = flags->device};
    ls_run *run = ls_calloc(1, sizeof(*run));
    ls_status st;

    if (run == NULL)
        return ls_fail(LS_ENOMEM, "no memory for a run");
    run->flags = flags;
    run->metrics_fd = -1;
    run->state.accuracy = -1;
    st = ls_device_open(&device, &run->device);
    if (st == LS_OK)
        st = ls_model_create(run->device, (uint64_t)flags->seed, &run->model);
    if (st == LS_OK)
        st = ls_tape_create(run->device, &run->tape);
    if (st != LS_OK)
        return ls_run_close(run, st);
    *out = run;
    return LS_OK;
}

ls_device *ls_run_device(ls_run *run)
{
    return run->device;
}

ls_model *ls_run_model(ls_run *run)
{
    return run->model;
}

ls_tape *ls_run_tape(ls_run *run)
{
    return run->tape;
}

static ls_status take_set(split *s, ls_dataset *set, const char *what)
{
    if (s->set != NULL) {
        ls_dataset_close(set);
        return ls_fail(LS_EINVAL, "the run has a %s set already", what);
    }
    s->set = set;
    return LS_OK;
}

ls_status ls_run_train_on_take(ls_run *run, ls_dataset *set)
{
    return take_set(&run->train, set, "training");
}

ls_status ls_run_test_on_take(ls_run *run, ls_dataset *set)
{
    return take_set(&run->test, set, "test");
}

ls_status ls_run_distribute(ls_run *run, ls_comm *comm, const ls_ddp_options *opt)
{
    ls_ddp_options with_flags = {.size = sizeof(with_flags)};

    if (run->started || run->comm != NULL)
        return ls_fail(LS_EINVAL, "ls_run_distribute comes once, before ls_run_start");
    if (opt != NULL)
        memcpy(&with_flags, opt, opt->size < sizeof(with_flags) ? opt->size : sizeof(with_flags));
    with_flags.size = sizeof(with_flags);
    if (run->flags->check_replicas > 0)
        with_flags.check_replicas = (int)run->flags->check_replicas;
    LS_TRY(ls_ddp_create(comm, run->model, &with_flags, &run->ddp));
    run->comm = comm;
    return LS_OK;
}

static void close_split(split *s)
{
    ls_loader_destroy(s->loader);
    ls_sampler_destroy(s->sampler);
    ls_dataset_close(s->set);
}

static void last_word(ls_run *run)
{
    const double seconds = (double)(ls_now_ms() - run->start_ms) * 1e-3;

    if (run->state.accuracy >= 0)
        progress_line(&run->progress, "test accuracy %.4f after %lld epochs on %d ranks, %.1f s",
                      run->state.accuracy, (long long)run->at.epoch, run_size(run), seconds);
    else
        progress_line(&run->progress, "%lld steps on %d ranks, loss %.4f, %.1f s",
                      (long long)run->at.step, run_size(run), run->state.loss, seconds);
}

static void free_run(ls_run *run)
{
    if (run->started) {
        sigaction(SIGTERM, &run->old_term, NULL);
        sigaction(SIGINT, &run->old_int, NULL);
    }
    metrics_close(run);
    ls_optimizer_destroy(run->optimizer);
    ls_tape_destroy(run->tape);
    close_split(&run->train);
    close_split(&run->test);
    ls_ddp_destroy(run->ddp);
    ls_model_destroy(run->model);
    ls_device_close(run->device);
    ls_free(run);
}

ls_status ls_run_close(ls_run *run, ls_status st)
{
    char why[LS_ERROR_BYTES];

    if (run == NULL)
        return st;
    if (st == LS_OK && run->failure != LS_OK)
        st = ls_fail(run->failure, "%s", run->failure_text);
    if (st == LS_OK && run->started && run->train.set != NULL)
        last_word(run);
    text_format(why, sizeof(why), "%s", ls_last_error());
    free_run(run);
    return st == LS_OK ? LS_OK
                       : ls_fail(st, "%s", why); /* freeing may have had something to say, too */
}

/* --- start --- */

static ls_status open_split(ls_run *run, split *s, bool training)
{
    const ls_sampler_options sampler = {
        .size = sizeof(sampler),
        .count = ls_dataset_count(s->set),
        .rank = run_rank(run),
        .world_size = run_size(run),
        .seed = (uint64_t)run->flags->seed,
        .no_shuffle = run->flags->no_shuffle || !training,
        .mode = training ? LS_SAMPLER_PAD : LS_SAMPLER_UNEVEN,
    };

    LS_TRY(ls_sampler_create(&sampler, &s->sampler));
    const ls_loader_options loader = {
        .size = sizeof(loader),
        .device = run->device,
        .dataset = s->set,
        .sampler = s->sampler,
        .batch_size = (int)run->flags->batch_size,
        .threads = (int)run->flags->workers,
    };
    return ls_loader_create(&loader, &s->loader);
}

static ls_status agree_on_epoch_steps(ls_run *run)
{
    run->epoch_steps = (int64_t)ls_loader_batches(run->train.loader);
    if (run->comm != NULL)
        LS_TRY(ls_all_reduce(run->comm, &run->epoch_steps, &run->epoch_steps, 1, LS_I64, LS_MAX,
                             NULL));
    return LS_OK;
}

static int64_t total_steps(const ls_run *run)
{
    const int64_t all = run->flags->epochs * run->epoch_steps;

    return run->flags->steps > 0 && run->flags->steps < all ? run->flags->steps : all;
}

static ls_status set_schedule(ls_run *run)
{
    const char *name = run->flags->schedule != NULL ? run->flags->schedule : "constant";
    ls_schedule *s = &run->schedule;

    *s = (ls_schedule){.base_lr = run->flags->lr};
    if (text_equal(name, "constant")) {
        s->kind = LS_SCHEDULE_CONSTANT;
    } else if (text_equal(name, "step")) {
        s->kind = LS_SCHEDULE_STEP;
        s->step = (run->flags->epochs + 2) / 3 * run->epoch_steps;
        s->step = s->step > 0 ? s->step : 1;
    } else if (text_equal(name, "cosine")) {
        s->kind = LS_SCHEDULE_COSINE;
        s->total = total_steps(run) > 0 ? total_steps(run) : 1;
    } else {
        return ls_fail(LS_EINVAL, "--schedule %s: constant, step or cosine", name);
    }
    return LS_OK;
}

static ls_status make_optimizer(ls_run *run)
{
    const ls_train_flags *f = run->flags;
    const ls_sgd_options sgd = {
        .size = sizeof(sgd), .lr = f->lr, .momentum = f->momentum, .weight_decay = f->weight_decay};
    int n;
    const ls_named *parameters = ls_model_parameters(run->model, &n);

    return ls_sgd_create(parameters, n, ls_grad, &sgd, &run->optimizer);
}

static void take_signals(ls_run *run)
{
    struct sigaction action;

    memset(&action, 0, sizeof(action));
    action.sa_handler = on_stop_signal;
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    stop_signal = 0;
    sigaction(SIGTERM, &action, &run->old_term);
    sigaction(SIGINT, &action, &run->old_int);
}

ls_status ls_run_start(ls_run *run, ls_forward_fn forward, void *arg)
{
    LS_TRY(ls_model_status(run->model));
    if (run->test.set != NULL && forward == NULL)
        return ls_fail(LS_EINVAL, "a test set needs a forward function to be evaluated with");
    run->forward = forward;
    run->forward_arg = arg;
    if (run->train.set != NULL) {
        LS_TRY(open_split(run, &run->train, true));
        LS_TRY(agree_on_epoch_steps(run));
    }
    if (run->test.set != NULL)
        LS_TRY(open_split(run, &run->test, false));
    LS_TRY(set_schedule(run));
    LS_TRY(make_optimizer(run));
    LS_TRY(resume_load(run));
    LS_TRY(metrics_open(run));
    progress_init(&run->progress, run_rank(run));
    take_signals(run);
    run->started = true;
    run->start_ms = ls_now_ms();
    run->state.epoch = run->at.epoch;
    run->state.step = run->at.step;
    return LS_OK;
}

/* --- the loop --- */

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

static ls_status begin_epoch(ls_run *run)
{
    LS_TRY(ls_loader_start(run->train.loader, (uint64_t)run->at.epoch, (size_t)run->at.batch));
    run->in_epoch = true;
    run->epoch_start_ns = ls_now_ns();
    run->epoch_samples = 0;
    run->state.epoch = run->at.epoch;
    return LS_OK;
}

/* The loss since the last report, as the mean over all ranks' rows. Collective. */
static ls_status update_loss(ls_run *run)
{
    double sums[2] = {run->loss_sum, run->loss_rows};
    const double seconds = (double)(ls_now_ns() - run->epoch_start_ns) * 1e-9;

    if (run->comm != NULL)
        LS_TRY(ls_all_reduce(run->comm, sums, sums, 2, LS_F64, LS_SUM, NULL));
    if (sums[1] > 0)
        run->state.loss = sums[0] / sums[1];
    run->loss_sum = 0;
    run->loss_rows = 0;
    run->state.samples_per_s = seconds > 0 ? run->epoch_samples / seconds : 0;
    if (!isfinite(run->state.loss))
        ls_log(LS_LOG_WARN, "train", "the loss is %g at step %lld", run->state.loss,
               (long long)run->at.step);
    return LS_OK;
}

/* What has been done since the mark has this name in the flight recorder; the next phase begins here. */
static void end_phase(ls_run *run, const char *name)
{
    const int64_t now_ns = ls_now_ns();

    if (run->comm != NULL)
        comm_phase(run->comm, name, run->mark_ns, now_ns);
    run->mark_ns = now_ns;
}

static ls_status end_epoch(ls_run *run)
{
    run->mark_ns = ls_now_ns();
    LS_TRY(update_loss(run));
    run->in_epoch = false;
    run->at.epoch++;
    run->at.batch = 0;
    if (run->test.set != NULL)
        LS_TRY(evaluate(run));
    end_phase(run, "evaluation");
    LS_TRY(metrics_write(run, run->test.set != NULL ? run->state.accuracy : -1));
    if (run->test.set != NULL)
        progress_line(&run->progress,
                      "epoch %lld/%lld  loss %.4f  test accuracy %.4f  %.0f samples/s",
                      (long long)run->at.epoch, (long long)run->flags->epochs, run->state.loss,
                      run->state.accuracy, run->state.samples_per_s);
    else
        progress_line(&run->progress, "epoch %lld/%lld  loss %.4f  %.0f samples/s",
                      (long long)run->at.epoch, (long long)run->flags->epochs, run->state.loss,
                      run->state.samples_per_s);
    LS_TRY(resume_save(run));
    end_phase(run, "save");
    return LS_OK;
}

/* A stop that all ranks have agreed on, or the step limit: the state is kept where it stands. */
static ls_status end_early(ls_run *run)
{
    LS_TRY(update_loss(run));
    if (run->ddp != NULL)
        LS_TRY(ls_ddp_sync_buffers(run->ddp));
    if (run->state.stopping)
        progress_line(&run->progress, "stopping at step %lld as asked", (long long)run->at.step);
    return resume_save(run);
}

/* Ranks drop different elements. */
static uint64_t rank_seed(const ls_run *run)
{
    return ls_hash3((uint64_t)run->flags->seed, (uint64_t)run_rank(run), 0);
}

static ls_status next_batch(ls_run *run, ls_batch *batch)
{
    if (run->in_epoch && run->at.batch >= run->epoch_steps)
        LS_TRY(end_epoch(run));
    if (run->at.epoch >= run->flags->epochs) {
        run->finished = true;
        return LS_OK;
    }
    if (run->state.stopping || (run->flags->steps > 0 && run->at.step >= run->flags->steps)) {
        run->finished = true;
        return end_early(run);
    }
    if (!run->in_epoch)
        LS_TRY(begin_epoch(run));
    if (run->ddp != NULL)
        LS_TRY(ls_ddp_sync_buffers(run->ddp));
    ls_tape_set_training(run->tape, 1);
    ls_tape_reset(run->tape);
    ls_tape_set_random(run->tape, rank_seed(run), run->at.step);
    run->mark_ns = ls_now_ns();
    LS_TRY(ls_loader_next(run->train.loader, batch));
    end_phase(run, "data");
    run->rows = batch->rows;
    return LS_OK;
}

int ls_run_next(ls_run *run, ls_batch *batch)
{
    ls_status st;

    if (run->failure != LS_OK || run->finished)
        return 0;
    st = run->train.loader != NULL
             ? next_batch(run, batch)
             : ls_fail(LS_EINVAL, "ls_run_next needs a training set and ls_run_start");
    if (st != LS_OK)
        fail_run(run, st);
    return run->failure == LS_OK && !run->finished;
}

static ls_status backward(ls_run *run, ls_tensor *loss, ls_ddp_step *step)
{
    if (run->ddp != NULL) {
        if (stop_signal != 0)
            ls_ddp_request_stop(run->ddp);
        return ls_ddp_backward(run->ddp, run->tape, loss, run->rows, step);
    }
    ls_model_zero_grad(run->model);
    *step = (ls_ddp_step){
        .weight = (double)run->rows, .more_data = run->rows > 0, .stop = stop_signal != 0};
    return ls_backward(run->tape, loss, 1.0);
}

static ls_status train_step(ls_run *run, ls_tensor *loss)
{
    double value = 0;
    ls_ddp_step step;

    if (loss != NULL && ls_tensor_dtype(loss) == LS_F32) {
        float value32 = 0;
        LS_TRY(ls_tensor_read(loss, &value32, 1));
        value = (double)value32;
    } else if (loss != NULL) {
        LS_TRY(ls_tensor_read(loss, &value, 1));
    }
    run->state.lr = ls_schedule_lr(&run->schedule, run->at.step);
    end_phase(run, "forward");
    LS_TRY(backward(run, loss, &step));
    run->mark_ns = ls_now_ns();
    if (step.more_data) {
        ls_optimizer_set_lr(run->optimizer, run->state.lr);
        LS_TRY(ls_optimizer_step(run->optimizer));
    }
    end_phase(run, "optimizer");
    run->at.step++;
    run->at.batch++;
    run->state.step = run->at.step;
    run->state.stopping = step.stop;
    run->epoch_samples += step.weight;
    run->loss_sum += value * (double)run->rows;
    run->loss_rows += (double)run->rows;
    if (run->at.step % REPORT_STEPS == 0) {
        LS_TRY(update_loss(run));
        LS_TRY(metrics_write(run, -1));
    }
    progress_step(&run->progress, &run->state, run->flags->epochs, run->at.batch, run->epoch_steps);
    return LS_OK;
}

void ls_run_step(ls_run *run, ls_tensor *loss)
{
    ls_status st;

    if (run->failure != LS_OK)
        return;
    if (run->train.set == NULL)
        run->rows = 1;
    st = run->started ? train_step(run, loss)
                      : ls_fail(LS_EINVAL, "ls_run_step comes after ls_run_start");
    if (st != LS_OK)
        fail_run(run, st);
}

void ls_run_get_state(const ls_run *run, ls_run_state *out)
{
    *out = run->state;
}
