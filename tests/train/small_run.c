/* SPDX-License-Identifier: Apache-2.0 */
/* small_run.c - runs a training of a small network as a program would, for the tests of runs. */
#include "train/small_run.h"

#include "base/alloc.h"
#include "base/file.h"
#include "base/status.h"
#include "ddp/shard_step.h"
#include "tensor/suite_device.h"
#include "train/card.h"
#include "train/run/run.h"
#include "train/stop_signal.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

ls_train_flags small_flags(const char *dir)
{
    return (ls_train_flags){.epochs = 3,
                            .batch_size = 16,
                            .lr = 0.2,
                            .momentum = 0.9,
                            .data = dir,
                            .device = test_device_name(),
                            .schedule = "cosine"};
}

enum { CHANNELS = 2 };

typedef struct small_net {
    ls_layer *conv, *bn, *fc; /* the first two may be NULL */
    double dropout;
} small_net;

static void make_net(ls_model *model, const small_job *job, small_net *net)
{
    const ls_nn_conv2d_options conv = {.kernel = {3, 3}, .padding = {1, 1}, .no_bias = 1};
    const ls_nn_batch_norm_options bn_relu = {.relu = 1};
    const int classes = job->other_classes > 0 ? job->other_classes : SMALL_CLASSES;
    const int pixels = SMALL_SIDE * SMALL_SIDE;

    *net = (small_net){.dropout = job->dropout};
    if (job->flat_batch_norm)
        net->bn = ls_nn_batch_norm2d(model, "bn", pixels, NULL);
    if (job->batch_norm) {
        net->conv = ls_nn_conv2d(model, "conv", 1, CHANNELS, &conv);
        net->bn = ls_nn_batch_norm2d(model, "bn", CHANNELS, &bn_relu);
    }
    net->fc = ls_nn_linear(model, "fc", job->batch_norm ? CHANNELS * pixels : pixels, classes, 0);
}

static ls_tensor *forward(void *arg, ls_tape *tape, ls_tensor *x)
{
    const small_net *net = arg;

    if (net->conv != NULL)
        x = ls_forward(tape, net->bn, ls_forward(tape, net->conv, x));
    else if (net->bn != NULL)
        x = ls_forward(tape, net->bn, ls_flatten(tape, x));
    return ls_forward(tape, net->fc, ls_dropout(tape, ls_flatten(tape, x), net->dropout));
}

static ls_status open_sets(ls_run *run, const small_job *job)
{
    const ls_train_flags *flags = &job->flags;
    const ls_augment padded = {.size = sizeof(padded),
                               .crop = LS_CROP_PADDED,
                               .height = SMALL_SIDE,
                               .pad = job->pad,
                               .seed = (uint64_t)flags->seed};
    ls_dataset *set;

    if (!flags->evaluate) {
        LS_TRY(ls_dataset_open_mnist(flags->data, "train", &set));
        if (job->pad > 0)
            LS_TRY(ls_dataset_augment(set, &padded));
        LS_TRY(ls_run_train_on_take(run, set));
    }
    if (job->has_no_test_set)
        return LS_OK;
    LS_TRY(ls_dataset_open_mnist(flags->data, "t10k", &set));
    return ls_run_test_on_take(run, set);
}

static ls_status read_weights(const ls_model *model, small_result *r)
{
    size_t at = 0;
    int n;
    const ls_named *parameters = ls_model_parameters(model, &n);

    for (int i = 0; i < n; i++) {
        const size_t count = ls_tensor_count(parameters[i].tensor);
        if (at + count > SMALL_WEIGHTS)
            return LS_OK; /* a network of a test that does not look at them */
        LS_TRY(ls_tensor_read(parameters[i].tensor, r->weights + at, count));
        at += count;
    }
    return LS_OK;
}

static void wait_for_stop(int64_t step)
{
    const struct timespec millisecond = {.tv_nsec = 1000000};

    printf("waiting before step %d\n", (int)step);
    fflush(stdout);
    while (stop_signal_received() == 0)
        nanosleep(&millisecond, NULL);
}

static ls_status spoil(ls_model *model, double by)
{
    int n;
    ls_tensor *t = ls_model_parameters(model, &n)[0].tensor;
    float values[SMALL_WEIGHTS];

    LS_TRY(ls_tensor_read(t, values, ls_tensor_count(t)));
    values[0] += by != 0 ? (float)by : 1.0F;
    return ls_tensor_write(t, values, ls_tensor_count(t));
}

typedef struct loss_args {
    const small_job *job;
    small_net *net;
} loss_args;

static ls_tensor *loss_of(void *arg, ls_run *run, const ls_batch *batch)
{
    const loss_args *a = arg;
    ls_run_state state;
    ls_tensor *loss;

    ls_run_get_state(run, &state);
    if (a->job->stop_at > 0 && state.step + 1 == a->job->stop_at && stop_signal_received() == 0)
        raise(a->job->stop_by != 0 ? a->job->stop_by : SIGTERM);
    if (a->job->kill_at > 0 && state.step + 1 == a->job->kill_at)
        raise(SIGKILL);
    if (a->job->weight != 0)
        ls_run_weigh(run, a->job->weight * batch->rows);
    loss = ls_run_classify(run, forward(a->net, ls_run_tape(run), batch->x), batch->y);
    ls_run_add(run, "loss", loss, (double)batch->rows);
    return loss;
}

/* Of this process, for shard_ns(). */
static const ls_run *balanced;
static const small_job *balanced_job;

static int64_t shard_ns(int rank, int64_t step)
{
    if (balanced_job->kill_in_change > 0 && ddp_has_new_partition(balanced->ddp) &&
        ddp_balancer(balanced->ddp)->n_changes == balanced_job->kill_in_change)
        raise(SIGKILL);
    return balanced_job->shard_ns(rank, step);
}

static void read_partition(const ls_run *run, small_result *r)
{
    const balancer *b = ddp_balancer(run->ddp);
    const int *rows = ddp_rows(run->ddp);

    r->n_changes = b == NULL ? 0 : b->n_changes;
    r->n_shards = run->partition.n;
    r->n_rows = rows == NULL ? 0 : rows[run_rank(run)];
}

/* What the job has each row take. */
static void wait_for_rows(const ls_run *run, const small_job *job, int64_t rows)
{
    const int64_t us = run_rank(run) < 2 ? rows * job->row_us[run_rank(run)] : 0;
    const struct timespec time = {.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000};

    if (us > 0)
        nanosleep(&time, NULL);
}

static void stop_if_divided(const ls_run *run, const small_job *job)
{
    const int *rows = ddp_rows(run->ddp);

    if (job->stop_when_divided && rows != NULL && 2 * rows[0] >= 3 * rows[1])
        raise(SIGTERM);
}

static ls_status train(ls_run *run, const small_job *job, small_result *r)
{
    const ls_ddp_options ddp = {.size = sizeof(ddp),
                                .plain_mean = job->plain_mean,
                                .first_bucket_bytes = job->bucket_bytes,
                                .bucket_bytes = job->bucket_bytes};
    ls_batch batch;
    small_net net;
    loss_args args = {job, &net};
    int64_t before;

    if (job->state_most > 0)
        run->capsule.state_most = job->state_most;
    make_net(ls_run_model(run), job, &net);
    LS_TRY(open_sets(run, job));
    if (job->comm != NULL)
        LS_TRY(ls_run_distribute(run, job->comm, &ddp));
    if (job->shard_ns != NULL) {
        balanced = run;
        balanced_job = job;
        run->balance.shard_ns = shard_ns;
    }
    if (job->weight != 0 && !job->forgets_weights)
        LS_TRY(ls_run_use_weights(run));
    if (job->is_one_call)
        LS_TRY(ls_run_declare(run, "loss"));
    LS_TRY(ls_run_start(run, forward, &net));
    if (job->is_one_call)
        ls_run_train(run, loss_of, &args);
    while (ls_run_next(run, &batch)) {
        ls_tensor *logits = forward(&net, ls_run_tape(run), batch.x);
        wait_for_rows(run, job, batch.rows);
        stop_if_divided(run, job);
        for (int64_t i = 0; i < batch.rows; i++)
            r->n_seen[batch.indices[i]]++;
        ls_run_get_state(run, &r->state);
        before = r->state.step;
        if (job->stop_at > 0 && r->state.step + 1 == job->stop_at)
            raise(job->stop_by != 0 ? job->stop_by : SIGTERM);
        if (job->leave_at > 0 && r->state.step + 1 == job->leave_at)
            return LS_OK;
        if (job->exit_at > 0 && r->state.step + 1 == job->exit_at)
            exit(0);
        if (job->kill_at > 0 && r->state.step + 1 == job->kill_at)
            raise(SIGKILL);
        if (job->wait_at > 0 && r->state.step + 1 == job->wait_at)
            wait_for_stop(job->wait_at);
        if (job->lose_at > 0 && r->state.step + 1 == job->lose_at)
            LS_TRY(card_lose());
        if (job->weight != 0 && before >= job->weigh_from)
            ls_run_weigh(run, job->weight * batch.rows);
        ls_run_step(run, ls_run_classify(run, logits, batch.y));
        ls_run_get_state(run, &r->state);
        if (job->spoil_at > 0 && r->state.step == job->spoil_at)
            LS_TRY(spoil(ls_run_model(run), job->spoil_by));
        if (r->state.step > before)
            r->lr[before % SMALL_STEPS] = r->state.lr;
    }
    ls_run_get_state(run, &r->state);
    r->value = ls_run_value(run, "loss", 0);
    read_partition(run, r);
    return read_weights(ls_run_model(run), r);
}

small_result small_run(const small_job *job)
{
    small_result r;
    ls_run *run = NULL;

    memset(&r, 0, sizeof(r));
    r.status = ls_run_open(&job->flags, &run);
    if (r.status == LS_OK)
        r.status = train(run, job, &r);
    r.status = ls_run_close(run, r.status);
    if (r.status != LS_OK)
        snprintf(r.error, sizeof(r.error), "%s", ls_last_error());
    return r;
}

small_result small_run_captured(const small_job *job, int fd, char *text, size_t n)
{
    const int real = dup(fd);
    const int kept = memfd_create("captured", MFD_CLOEXEC);
    small_result r;
    ssize_t got;

    dup2(kept, fd);
    r = small_run(job);
    dup2(real, fd);
    got = pread(kept, text, n - 1, 0);
    text[got > 0 ? got : 0] = 0;
    close(kept);
    close(real);
    return r;
}

void small_assert_same_file(const char *a, const char *b)
{
    char *bytes[2];
    size_t n[2];

    assert_int_equal(file_read(a, 1 << 20, &bytes[0], &n[0]), LS_OK);
    assert_int_equal(file_read(b, 1 << 20, &bytes[1], &n[1]), LS_OK);
    assert_int_equal(n[0], n[1]);
    assert_memory_equal(bytes[0], bytes[1], n[0]);
    ls_free(bytes[0]);
    ls_free(bytes[1]);
}
