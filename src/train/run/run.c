/* SPDX-License-Identifier: Apache-2.0 */
/*
 * run.c - opens, starts and closes a run, which owns device, model, data sets and optimizer.
 * Programs call it before and after their loop, which loop.c serves.
 */
#include "train/run/run.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/options.h"
#include "comm/comm.h"
#include "data/sampler.h"
#include "ddp/shard_step.h"
#include "train/finite.h"
#include "train/run/agree.h"

#include <inttypes.h>
#include <string.h>

enum { THREAD_PARTS_MOST = 16 }; /* parts of a rank whose loaders have threads */

/* A process that waits to join the others is no rank yet. */
int run_rank(const ls_run *run)
{
    if (run->comm == NULL)
        return 0;
    return comm_is_new(run->comm) ? -1 : ls_comm_rank(run->comm);
}

int run_size(const ls_run *run)
{
    return run->comm != NULL ? ls_comm_size(run->comm) : 1;
}

void run_set_activity(ls_run *run, const char *text)
{
    if (run->comm != NULL)
        comm_activity(run->comm, text);
}

int64_t run_accumulate(const ls_run *run)
{
    return run->flags->accumulate > 1 && !run->partition.has_shards ? run->flags->accumulate : 1;
}

void run_skip_trained(const ls_run *run, int64_t ranks, int64_t rows, run_position *at)
{
    const int64_t samples = (int64_t)ls_dataset_count(run->train.set);

    if (at->batch > (samples - at->skip) / (ranks * rows))
        at->skip = samples;
    else
        at->skip += at->batch * ranks * rows;
    at->batch = 0;
}

int64_t run_schedule_step(const ls_run *run)
{
    const int64_t rows = run->flags->batch_size * run->partition.n_all;
    const int64_t skipped = run->at.skip > 0 ? run->at.skip / rows : 0;

    return run->at.epoch * run->epoch_steps + (skipped + run->at.batch) / run_accumulate(run);
}

int64_t run_steps_left(const ls_run *run)
{
    const int64_t of_epochs = run->all_steps - run_schedule_step(run);
    const int64_t of_limit = run->flags->steps - run->at.step;
    const int64_t left = run->flags->steps > 0 && of_limit < of_epochs ? of_limit : of_epochs;

    return left > 0 ? left : 0;
}

ls_tensor *run_read_logits(ls_run *run, ls_tensor *logits)
{
    return ls_tape_compute(run->tape) == LS_F32 ? logits : ls_cast(run->tape, logits, LS_F32);
}

ls_status run_update_scaler(ls_run *run)
{
    if (!run->has_scaled_step)
        return LS_OK;
    run->has_scaled_step = false;
    return ls_grad_scaler_update(run->scaler);
}

/* --- life --- */

/* A replay of ranks without shards has the threads that each of them had. */
static ls_status open_device(ls_run *run)
{
    const ls_train_flags *f = run->flags;
    const ls_device_options device = {
        .size = sizeof(device),
        .name = f->device,
        .share_gpu = f->share_gpu,
        .cuda_graph = f->cuda_graph,
        .threads = replay_threads(run),
        .thread_invariant = replay_is_on(run) ? run->replay.has_shards : f->shards > 0,
        .cpu_isa = f->cpu_isa,
    };

    LS_TRY(ls_device_open(&device, &run->device));
    return replay_check_device(run);
}

ls_status ls_run_open(const ls_train_flags *flags, ls_run **out)
{
    ls_run *run;
    ls_status st;

    LS_TRY(LS_GIVEN(flags));
    LS_TRY(LS_GIVEN(out));
    LS_TRY(LS_NEW(&run, 1, "for a run"));
    run->flags = flags;
    run->metrics.fd = -1;
    run->tensorboard.file.fd = -1;
    run->saver.saved_step = -1;
    run->capsule.state_most = CAPSULE_STATE_MOST;
    run->state.accuracy = -1;
    run->state.accuracy5 = -1;
    run->state.best_accuracy = -1;
    run->state.top1 = -1;
    run->state.top5 = -1;
    run->state.seconds_left = -1;
    run->partition = (partition){.n_all = 1, .n = 1};
    st = replay_open(run);
    flags = run->flags; // those of a replay
    if (st == LS_OK)
        st = hyperparameters_check(flags);
    if (st == LS_OK && log_rank() == 0)
        st = save_probe(flags);
    if (st == LS_OK && log_rank() == 0)
        st = metrics_open(&run->metrics, flags->metrics);
    if (st == LS_OK)
        st = profile_open(&run->profile, flags);
    if (st == LS_OK)
        st = open_device(run);
    if (st == LS_OK)
        st = ls_model_create(run->device, (uint64_t)flags->seed, &run->model);
    if (st == LS_OK)
        st = ls_tape_create(run->device, &run->tape);
    if (st == LS_OK)
        st = hyperparameters_set_precision(flags, run->device, run->tape);
    if (st != LS_OK)
        return ls_run_close(run, st);
    replay_watch(run, run->tape);
    *out = run;
    return LS_OK;
}

ls_device *ls_run_device(ls_run *run)
{
    return run == NULL ? NULL : run->device;
}

ls_model *ls_run_model(ls_run *run)
{
    return run == NULL ? NULL : run->model;
}

ls_tape *ls_run_tape(ls_run *run)
{
    return run == NULL ? NULL : run->tape;
}

static ls_status take_set(ls_run *run, split *s, ls_dataset *set, const char *what)
{
    const char *dir = run->flags->data;
    ls_status st = LS_OK;

    if (s->set != NULL)
        st = ls_fail(LS_EINVAL, "the run already has a %s set", what);
    else if (ls_dataset_count(set) == 0)
        st = ls_fail(LS_EINVAL, "the %s set%s%s has no samples", what, dir != NULL ? " in " : "",
                     dir != NULL ? dir : "");
    if (st == LS_OK)
        s->set = set;
    else
        ls_dataset_close(set);
    return st;
}

static ls_status check_set(const ls_run *run, ls_dataset *set)
{
    if (run != NULL && set != NULL)
        return LS_OK;
    ls_dataset_close(set);
    return ls_fail(LS_EINVAL, "the %s is NULL", run == NULL ? "run" : "data set");
}

ls_status ls_run_train_on_take(ls_run *run, ls_dataset *set)
{
    LS_TRY(check_set(run, set));
    return take_set(run, &run->train, set, "training");
}

ls_status ls_run_test_on_take(ls_run *run, ls_dataset *set)
{
    LS_TRY(check_set(run, set));
    return take_set(run, &run->test, set, "test");
}

partition run_find_partition(const ls_run *run, int shards)
{
    const int size = ls_comm_size(run->comm);
    shard_node range;

    if (shards == 0)
        return (partition){.n_all = size, .first = ls_comm_rank(run->comm), .n = 1};
    range = run->ddp != NULL ? ddp_shard_range(run->ddp)
                             : shard_range(shards, ls_comm_rank(run->comm), size);
    return (partition){.n_all = shards, .first = range.first, .n = range.n, .has_shards = true};
}

/* Of a rank in a batch, on average; 0: rows are not divided by speed. */
static int divided_rows(const ls_run *run)
{
    return partition_divides_rows(run->flags) ? (int)run->flags->batch_size : 0;
}

ls_status ls_run_distribute(ls_run *run, ls_comm *comm, const ls_ddp_options *opt)
{
    ls_ddp_options with_flags;
    ls_status st;

    LS_TRY(LS_GIVEN(run));
    if (run->is_started || run->comm != NULL)
        return ls_fail(LS_EINVAL, "call ls_run_distribute() once, before ls_run_start()");
    LS_TRY(OPTIONS_COPY(ls_ddp_options, opt, &with_flags));
    hyperparameters_set_ddp(run->flags, &with_flags);
    if (with_flags.plain_mean && with_flags.shards == 0 && run_accumulate(run) > 1)
        return ls_fail(LS_EINVAL, "--accumulate does not work with plain_mean");
    LS_TRY(LS_GIVEN(comm));
    run->comm = comm;
    run->hook = with_flags.hook;
    st = replay_check_ranks(run);
    if (st == LS_OK)
        st = agree_on_flags(run);
    if (st == LS_OK && run->flags->sync_every > 0 && !run->flags->evaluate)
        st = run_local_distribute(run, &with_flags);
    else if (st == LS_OK && run->flags->balance != NULL)
        st = ddp_create_balanced(comm, run->model, &with_flags, divided_rows(run), &run->ddp);
    else if (st == LS_OK)
        st = ls_ddp_create(comm, run->model, &with_flags, &run->ddp);
    if (st != LS_OK) {
        run->comm = NULL;
        return st;
    }
    run->partition = run_find_partition(run, with_flags.shards);
    return LS_OK;
}

ls_status ls_run_use_weights(ls_run *run)
{
    LS_TRY(LS_GIVEN(run));
    if (run->is_started)
        return ls_fail(LS_EINVAL, "call ls_run_use_weights() before ls_run_start()");
    run->uses_weights = true;
    return LS_OK;
}

ls_status ls_run_schedule_with(ls_run *run, ls_lr_fn fn, void *arg)
{
    const char *name;

    LS_TRY(LS_GIVEN(run));
    LS_TRY(LS_GIVEN(fn));
    name = run->flags->schedule;
    if (run->is_started)
        return ls_fail(LS_EINVAL, "call ls_run_schedule_with() before ls_run_start()");
    if (name != NULL && !text_equal(name, "constant"))
        return ls_fail(LS_EINVAL, "--schedule %s: the program has a schedule of its own", name);
    run->lr = fn;
    run->lr_arg = arg;
    return LS_OK;
}

ls_status ls_run_group(ls_run *run, const char *pattern, const ls_group_options *opt)
{
    LS_TRY(LS_GIVEN(run));
    LS_TRY(LS_GIVEN(pattern));
    LS_TRY(LS_GIVEN(opt));
    if (run->is_started || run->n_groups == RUN_GROUPS_MAX)
        return ls_fail(LS_EINVAL, "call ls_run_group() before ls_run_start(), at most %d times",
                       RUN_GROUPS_MAX);
    LS_TRY(OPTIONS_COPY(ls_group_options, opt, &run->groups[run->n_groups].options));
    run->groups[run->n_groups++].pattern = pattern;
    return LS_OK;
}

ls_status ls_run_save_also(ls_run *run, const ls_named *items, int n)
{
    LS_TRY(LS_GIVEN(run));
    LS_TRY(LS_GIVEN(items));
    if (run->is_started || run->own != NULL || n < 1)
        return ls_fail(LS_EINVAL, "call ls_run_save_also() once, before ls_run_start(), with at "
                                  "least one item");
    run->own = items;
    run->n_own = n;
    return LS_OK;
}

static ls_status find_lengths(split *s, const char *field, const char *what)
{
    if (s->set == NULL)
        return LS_OK;
    return ls_context(ls_dataset_lengths(s->set, field, &s->lengths), "buckets of the %s set",
                      what);
}

ls_status ls_run_bucket_by_length(ls_run *run, const char *field)
{
    LS_TRY(LS_GIVEN(run));
    if (run->is_started || (run->train.set == NULL && run->test.set == NULL))
        return ls_fail(LS_EINVAL,
                       "call ls_run_bucket_by_length() after the data sets are given and "
                       "before ls_run_start()");
    LS_TRY(find_lengths(&run->train, field, "training"));
    return find_lengths(&run->test, field, "test");
}

void run_close_part(split_part *p)
{
    ls_loader_destroy(p->loader);
    ls_sampler_destroy(p->sampler);
    *p = (split_part){.loader = NULL};
}

static void close_parts(split *s)
{
    for (int i = 0; i < s->n_parts; i++)
        run_close_part(&s->parts[i]);
    ls_free(s->parts);
    s->parts = NULL;
    s->n_parts = 0;
}

static void close_split(split *s)
{
    close_parts(s);
    ls_dataset_close(s->set);
}

static ls_status free_run(ls_run *run)
{
    ls_status st;

    profile_close(run);
    if (run->is_started) {
        run_set_activity(run, NULL);
        stop_signal_restore(&run->signals);
    }
    metrics_close(&run->metrics);
    tensorboard_close(&run->tensorboard);
    history_free(&run->history);
    ls_grad_scaler_destroy(run->scaler);
    losses_close(&run->losses);
    ls_tensor_destroy(run->report.pending);
    ls_free(run->report.windows);
    ls_free(run->report.tests);
    ls_free(run->report.rank_seconds);
    ls_free(run->balance.of_ranks);
    ls_tape_destroy(run->tape);
    audit_close_run(run);
    close_split(&run->train);
    close_split(&run->test);
    if (run->recovery.ddp != run->ddp)
        ls_ddp_destroy(run->recovery.ddp);
    ls_ddp_destroy(run->ddp);
    ls_local_sgd_destroy(run->local); // with the group of the ddp
    ls_optimizer_destroy(run->optimizer);
    recover_close(run);
    capsule_close(run);
    replay_close(run);
    ls_model_destroy(run->model);
    st = ls_device_close(run->device);
    ls_free(run);
    return st;
}

ls_status ls_run_status(const ls_run *run)
{
    LS_TRY(LS_GIVEN(run));
    return run->failure == LS_OK ? LS_OK : ls_fail(run->failure, "%s", run->failure_text);
}

ls_status ls_run_close(ls_run *run, ls_status st)
{
    char why[LS_ERROR_BYTES];
    ls_status closed;

    if (run == NULL)
        return st;
    if (st == LS_OK && run->failure != LS_OK)
        st = ls_fail(run->failure, "%s", run->failure_text);
    if (st == LS_OK && run->is_started && !replay_is_on(run))
        summary_print(run);
    if (st == LS_OK && run->is_started)
        st = replay_end(run);
    if (st == LS_OK)
        st = finite_end(run);
    if (st == LS_OK && run->saver.has_failed)
        st = ls_fail(LS_EIO, "%s", run->saver.failure);
    text_format(why, sizeof(why), "%s", ls_last_error());
    closed = free_run(run);
    return st == LS_OK ? closed : ls_fail(st, "%s", why);
}

/* --- start --- */

static ls_bad_images bad_images_of(const ls_train_flags *flags, bool training)
{
    if (flags->bad_images == NULL || text_equal(flags->bad_images, "fail"))
        return LS_BAD_IMAGES_FAIL;
    return training ? LS_BAD_IMAGES_REPLACE : LS_BAD_IMAGES_LEAVE_OUT;
}

/* The rest of an epoch that another number of ranks has begun has their buckets. */
static int64_t bucket_rows(const ls_run *run, const split *s, bool training)
{
    if (s->lengths == NULL)
        return 0;
    if (training && run->at.skip > 0 && run->at.bucket_rows > 0)
        return run->at.bucket_rows;
    return run->flags->batch_size * run->partition.n_all;
}

/* The loaders of many parts have no threads: they read when their batch is needed. */
static int64_t loader_threads(const ls_run *run)
{
    const int64_t workers = run->flags->workers;
    const int n = run->partition.n;

    if (n > THREAD_PARTS_MOST)
        return -1;
    return workers > n ? workers / n : workers > 0;
}

int64_t run_batch_rows(const ls_run *run, int number)
{
    const int *rows = ddp_rows(run->ddp);

    return rows != NULL ? rows[number] : run->flags->batch_size;
}

/* Of a part that has none; its sampler may have had other rows. */
static ls_status open_loader(ls_run *run, const split *s, bool training, int number, int threads,
                             split_part *out)
{
    const bool drop_last = run->flags->drop_last && training;
    const ls_loader_options loader = {
        .size = sizeof(loader),
        .device = run->device,
        .dataset = s->set,
        .sampler = out->sampler,
        .batch_size = (int)run_batch_rows(run, number),
        .drop_last = drop_last,
        .threads = threads,
        .prefetch = run->partition.n > 1 ? 1 : 0,
        .bad_images = bad_images_of(run->flags, training),
    };

    if (ddp_rows(run->ddp) != NULL)
        LS_TRY(sampler_divide(out->sampler, ddp_rows(run->ddp), drop_last));
    return ls_loader_create(&loader, &out->loader);
}

ls_status run_open_part(ls_run *run, const split *s, bool training, int number, int threads,
                        split_part *out)
{
    const ls_sampler_options sampler = {
        .size = sizeof(sampler),
        .count = ls_dataset_count(s->set),
        .rank = number,
        .world_size = run->partition.n_all,
        .seed = (uint64_t)run->flags->seed,
        .no_shuffle = run->flags->no_shuffle || !training,
        .mode = training ? LS_SAMPLER_PAD : LS_SAMPLER_UNEVEN,
        .skip = training ? (size_t)run->at.skip : 0,
        .lengths = s->lengths,
        .bucket_rows = (size_t)bucket_rows(run, s, training),
    };

    LS_TRY(ls_sampler_create(&sampler, &out->sampler));
    return open_loader(run, s, training, number, threads, out);
}

static ls_status open_own_part(ls_run *run, const split *s, bool training, int i)
{
    return run_open_part(run, s, training, run->partition.first + i, (int)loader_threads(run),
                         &s->parts[i]);
}

/* Replaces the loaders that there are. */
static ls_status open_split(ls_run *run, split *s, bool training)
{
    const int n = run->partition.n;

    close_parts(s);
    LS_TRY(LS_NEW(&s->parts, (size_t)n + 1, "for the loaders of %d shards", n));
    s->n_parts = n;
    for (int i = 0; i < n; i++)
        LS_TRY(open_own_part(run, s, training, i));
    return LS_OK;
}

static ls_status divide_training_set(ls_run *run)
{
    audit_close_reader(run);
    LS_TRY(open_split(run, &run->train, true));
    run->sampler_skip = run->at.skip;
    run->bucket_rows = bucket_rows(run, &run->train, true);
    run->epoch_batches = 0;
    for (int i = 0; i < run->partition.n; i++) {
        const int64_t batches = (int64_t)ls_loader_batches(run->train.parts[i].loader);

        run->epoch_batches = batches > run->epoch_batches ? batches : run->epoch_batches;
    }
    if (run->comm == NULL)
        return LS_OK;
    comm_label(run->comm, "steps of an epoch");
    return ls_all_reduce(run->comm, &run->epoch_batches, &run->epoch_batches, 1, LS_I64, LS_MAX,
                         NULL);
}

ls_status run_divide_epoch(ls_run *run)
{
    if (run->at.skip == run->sampler_skip)
        return LS_OK;
    run->report.bad_seen[0] = 0; // the new loader counts from 0
    return divide_training_set(run);
}

static const char *part_word(const ls_run *run)
{
    return run->partition.has_shards ? "shard" : "rank";
}

static ls_status open_training_set(ls_run *run)
{
    LS_TRY(divide_training_set(run));
    run->epoch_steps = (run->epoch_batches + run_accumulate(run) - 1) / run_accumulate(run);
    if (run->epoch_steps == 0)
        return ls_fail(LS_EINVAL,
                       "--drop-last drops the only batch: %zu training samples on %d %s%s are less "
                       "than a batch of %" PRId64 " rows per %s",
                       ls_dataset_count(run->train.set), run->partition.n_all, part_word(run),
                       text_plural(run->partition.n_all), run->flags->batch_size, part_word(run));
    return LS_OK;
}

static ls_status open_splits(ls_run *run)
{
    if (run->flags->evaluate && run->test.set == NULL)
        return ls_fail(LS_EINVAL, "--evaluate needs a test set");
    if (run->train.set != NULL)
        LS_TRY(open_training_set(run));
    if (run->test.set != NULL)
        LS_TRY(open_split(run, &run->test, false));
    return LS_OK;
}

static ls_status prepare_training(ls_run *run)
{
    const ls_train_flags *f = run->flags;

    LS_TRY(hyperparameters_count_steps("--epochs", f->epochs, run->epoch_steps, &run->all_steps));
    LS_TRY(hyperparameters_count_steps("--start-epoch", f->start_epoch, run->epoch_steps,
                                       &run->at.step));
    LS_TRY(hyperparameters_make_schedule(f, run->epoch_steps, run->all_steps, &run->schedule));
    LS_TRY(hyperparameters_make_optimizer(f, run->model, &run->optimizer));
    for (int i = 0; i < run->n_groups; i++)
        LS_TRY(ls_optimizer_group(run->optimizer, run->groups[i].pattern, &run->groups[i].options));
    LS_TRY(run_local_open(run));
    LS_TRY(save_agree(run));
    return hyperparameters_make_scaler(f, run->ddp != NULL ? f->batch_size : 1, run->optimizer,
                                       &run->scaler);
}

/* The last step whose lines stay in the files; -1: none. */
static int64_t last_step(const ls_run *run)
{
    return run->is_resumed ? run->at.step - recover_repeats_end(run) : -1;
}

/* An evaluation of a saved run keeps all lines. */
static ls_status begin_metrics(ls_run *run)
{
    const ls_train_flags *f = run->flags;

    if (run_rank(run) != 0)
        metrics_close(&run->metrics);
    else if (run->metrics.fd < 0)
        LS_TRY(metrics_open(&run->metrics, f->metrics));
    if (f->evaluate && f->resume != NULL)
        return metrics_begin(&run->metrics, INT64_MAX);
    return metrics_begin(&run->metrics, last_step(run));
}

static ls_status begin_tensorboard(ls_run *run)
{
    if (run->flags->tensorboard == NULL || run_rank(run) != 0)
        return LS_OK;
    return tensorboard_begin(&run->tensorboard, run->flags, last_step(run));
}

ls_status run_open_again(ls_run *run)
{
    ls_status st;

    tensorboard_close(&run->tensorboard);
    run->is_resumed = true;
    st = begin_metrics(run);
    if (st != LS_OK) {
        metrics_close(&run->metrics);
        LS_TRY(save_failed(run, st, "the lines of --metrics"));
    }
    st = begin_tensorboard(run);
    return st == LS_OK ? LS_OK : save_failed(run, st, "the events of --tensorboard");
}

ls_status run_open_files(ls_run *run)
{
    LS_TRY(history_open(&run->history));
    progress_init(&run->progress, true, run->flags->print_freq, run->device);
    return run_open_again(run);
}

/* ls_run_start() may be called again after it has failed. */
static ls_status open_sums(ls_run *run)
{
    const size_t n = (size_t)run->partition.n + 1; // one also on a rank without parts

    ls_free(run->report.windows);
    ls_free(run->report.tests);
    ls_free(run->report.rank_seconds);
    run->report.rank_seconds = NULL; // the next report makes one for the ranks of its group
    run->report.windows = ls_calloc(n, sizeof(*run->report.windows));
    run->report.tests = ls_calloc(n, sizeof(*run->report.tests));
    if (run->report.windows == NULL || run->report.tests == NULL)
        return ls_fail(LS_ENOMEM, "no memory for the sums of %d shards", run->partition.n);
    return LS_OK;
}

/* With another number of parts an epoch has another number of steps. */
static ls_status count_steps_again(ls_run *run)
{
    const int64_t skip = run->at.skip;
    ls_status st;

    run->at.skip = 0;
    st = open_training_set(run);
    run->at.skip = skip;
    LS_TRY(st);
    LS_TRY(hyperparameters_count_steps("--epochs", run->flags->epochs, run->epoch_steps,
                                       &run->all_steps));
    LS_TRY(hyperparameters_make_schedule(run->flags, run->epoch_steps, run->all_steps,
                                         &run->schedule));
    return run_divide_epoch(run);
}

ls_status run_divide_again(ls_run *run)
{
    close_parts(&run->train);
    close_parts(&run->test);
    run->report.window = (rank_sums){.loss = 0};
    run->report.bad_seen[0] = run->report.bad_seen[1] = 0;
    LS_TRY(open_sums(run));
    if (run->train.set != NULL)
        LS_TRY(run->partition.has_shards ? divide_training_set(run) : count_steps_again(run));
    return run->test.set != NULL ? open_split(run, &run->test, false) : LS_OK;
}

/* The parts of run->partition instead of those of `before`. */
static ls_status move_split(ls_run *run, split *s, bool training, const partition *before)
{
    const partition *now = &run->partition;
    split_part *parts;

    if (s->parts == NULL)
        return LS_OK;
    LS_TRY(LS_NEW(&parts, (size_t)now->n + 1, "for the loaders of %d shards", now->n));
    for (int i = 0; i < s->n_parts; i++) {
        const int at = before->first + i - now->first;

        if (at >= 0 && at < now->n)
            parts[at] = s->parts[i];
        else
            run_close_part(&s->parts[i]);
    }
    ls_free(s->parts);
    s->parts = parts;
    s->n_parts = now->n;
    for (int i = 0; i < now->n; i++) {
        if (parts[i].loader != NULL)
            continue;
        LS_TRY(open_own_part(run, s, training, i));
        if (training && run->is_in_epoch)
            LS_TRY(
                ls_loader_start(parts[i].loader, (uint64_t)run->at.epoch, (size_t)run->at.batch));
    }
    return LS_OK;
}

static ls_status move_sums(ls_run *run, const partition *before, rank_sums *own)
{
    LS_TRY(open_sums(run));
    LS_TRY(partition_move(before, &run->partition, run->comm, own, run->report.windows));
    run->report.window = run->report.windows[0];
    return LS_OK;
}

ls_status run_change_partition(ls_run *run, const partition *to)
{
    const partition before = run->partition;
    rank_sums *own = run->report.windows;
    ls_status st;

    run->report.window.bad += report_bad_images(&run->train, &run->report.bad_seen[0]);
    own[0] = run->report.window;
    run->report.windows = NULL;
    run->partition = *to;
    st = move_sums(run, &before, own);
    ls_free(own);
    LS_TRY(st);
    LS_TRY(move_split(run, &run->train, true, &before));
    LS_TRY(move_split(run, &run->test, false, &before));
    for (int i = 0; i < 2; i++) // what the loaders that stay have counted is reported
        (void)report_bad_images(i == 0 ? &run->train : &run->test, &run->report.bad_seen[i]);
    return LS_OK;
}

/* Another loader in place of that of this rank's part. */
static ls_status divide_split(ls_run *run, split *s, bool training)
{
    split_part *part;

    if (s->parts == NULL)
        return LS_OK;
    part = &s->parts[0];
    ls_loader_destroy(part->loader);
    part->loader = NULL;
    part->batch = (ls_batch){.rows = 0}; // it was in the loader's memory
    LS_TRY(open_loader(run, s, training, run->partition.first, (int)loader_threads(run), part));
    return training && run->is_in_epoch
               ? ls_loader_start(part->loader, (uint64_t)run->at.epoch, (size_t)run->at.batch)
               : LS_OK;
}

ls_status run_change_rows(ls_run *run)
{
    run->report.window.bad += report_bad_images(&run->train, &run->report.bad_seen[0]);
    run->report.bad_seen[0] = run->report.bad_seen[1] = 0; // the new loaders count from 0
    ls_tape_reset(run->tape);                              // it refers to the batch
    LS_TRY(divide_split(run, &run->train, true));
    return divide_split(run, &run->test, false);
}

/* Otherwise each rank of the job would train a model of its own, and write the same files. */
static ls_status check_distributed(const ls_run *run)
{
    const int n = run->comm == NULL ? comm_job_size() : 1;

    if (n == 1)
        return LS_OK;
    return ls_fail(LS_EINVAL,
                   "this job has %d ranks, and the program trains on each of them alone: call "
                   "ls_run_distribute() before ls_run_start(); for a run of its own on each rank "
                   "with a group of one rank, of ls_comm_split()",
                   n);
}

static ls_status check_start(const ls_run *run, ls_forward_fn forward)
{
    LS_TRY(LS_GIVEN(run));
    LS_TRY(check_distributed(run));
    LS_TRY(ls_model_status(run->model));
    if (run->flags->shards > 0 && run->comm == NULL)
        return ls_fail(LS_EINVAL, "--shards needs a program that calls ls_run_distribute()");
    if (run->flags->balance != NULL && run->train.set == NULL && !run->flags->evaluate)
        return ls_fail(LS_EINVAL, "--balance needs a program that calls ls_run_train_on_take(): "
                                  "its ranks take batches from ls_run_next()");
    if (partition_divides_rows(run->flags) && run->comm == NULL)
        return ls_fail(LS_EINVAL, "--balance rows needs a program that calls ls_run_distribute()");
    if (replay_is_on(run) && run->train.set == NULL)
        return ls_fail(LS_EINVAL, "--replay needs a program that calls ls_run_train_on_take()");
    LS_TRY(audit_check_run(run));
    if (run->test.set != NULL && forward == NULL && run->evaluate == NULL)
        return ls_fail(LS_EINVAL, "a test set needs a forward function");
    return LS_OK;
}

ls_status ls_run_start(ls_run *run, ls_forward_fn forward, void *arg)
{
    LS_TRY(check_start(run, forward));
    run->forward = forward;
    run->forward_arg = arg;
    LS_TRY(agree_on_data(run));
    LS_TRY(open_sums(run));
    LS_TRY(open_splits(run));
    run->at.epoch = run->flags->start_epoch;
    LS_TRY(prepare_training(run));
    if (run_rank(run) == 0)
        LS_TRY(history_open(&run->history));
    progress_init(&run->progress, run_rank(run) == 0, run->flags->print_freq, run->device);
    LS_TRY(resume_load(run));
    LS_TRY(begin_metrics(run));
    LS_TRY(begin_tensorboard(run));
    stop_signal_install(&run->signals);
    run->is_started = true;
    LS_TRY(recover_begin(run));
    run_set_activity(run, "training");
    run->start_ms = ls_now_ms();
    run->report.mark_ns = ls_now_ns();
    run->step_ns = run->report.mark_ns;
    run->state.epoch = run->at.epoch;
    run->state.step = run->at.step;
    run->state.best_epoch = run->at.best_epoch;
    return profile_step(run);
}

void ls_run_get_state(const ls_run *run, ls_run_state *out)
{
    if (run == NULL || out == NULL)
        return;
    *out = run->state;
}
