/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rank.c - a rank of a simulated job: a training loop over the public interface, as docs/elastic.md
 * has it for own loops. Everything below is production code: joining, collectives over TCP, DDP
 * with shards, recovery, seats.
 *
 * The model has one weight for each shard. The gradient of a step is, for shard s, s + 1, and one
 * more in odd steps; all others have none there. So the weights say how often each shard was
 * counted. In some seeds a buffer counts the steps: shard 0 adds 1, and the others spoil it,
 * because what they leave must not stay.
 */
#include "sim/sim.h"

#include "base/status.h"

#include <lockstep/autograd.h>
#include <lockstep/elastic.h>
#include <lockstep/nn.h>
#include <lockstep/ops.h>
#include <lockstep/optim.h>

#include <inttypes.h>
#include <math.h>
#include <poll.h>
#include <stdlib.h>

enum {
    SHARDS_MAX = 32,
    SAVE_STEPS = 10, /* from one save to the next, */
    SAVE_MS = 300,   /* and how long one takes */
    OPERATION_MS = 120000
};

typedef struct training {
    ls_comm *comm;
    ls_device *device;
    ls_model *model;
    ls_layer *linear;
    ls_tensor *count; /* NULL: none */
    ls_tape *tape;
    ls_ddp *ddp;
    ls_optimizer *sgd;
    int64_t step;
    ls_tensor *inputs[SHARDS_MAX];
} training;

static ls_status change_buffer(const training *t, int shard)
{
    float count;

    if (t->count == NULL)
        return LS_OK;
    LS_TRY(ls_tensor_read(t->count, &count, 1));
    count += shard == 0 ? 1 : 1000;
    return ls_tensor_write(t->count, &count, 1);
}

static ls_status compute_shard(void *arg, int shard, ls_tape *tape, ls_tensor **loss, int64_t *rows)
{
    training *t = arg;
    const int n = W->spec->n_shards;
    const int64_t dims[] = {1, n};
    float values[SHARDS_MAX] = {0};

    // The mean over the shards has a share of 1/n of it.
    values[shard] = (float)(n * (shard + 1 + (int)(t->step % 2)));
    LS_TRY(ls_tensor_create(t->device, LS_F32, 2, dims, &t->inputs[shard]));
    LS_TRY(ls_tensor_write(t->inputs[shard], values, (size_t)n));
    LS_TRY(change_buffer(t, shard));
    *loss = ls_sum(tape, ls_forward(tape, t->linear, t->inputs[shard]), NULL, 0, 0);
    *rows = 1;
    return LS_OK;
}

static int member(void)
{
    const char *text = getenv("LOCKSTEP_MEMBER");

    return (int)strtol(text != NULL ? text : getenv("LOCKSTEP_RANK"), NULL, 10);
}

static ls_status check_weights(const training *t)
{
    int n_parameters;
    ls_tensor *weights = ls_model_parameters(t->model, &n_parameters)[0].tensor;
    const int n = W->spec->n_shards;
    float values[SHARDS_MAX];

    LS_TRY(ls_tensor_read(weights, values, (size_t)n));
    for (int i = 0; i < n; i++) {
        const double counted = -(double)(t->step * (i + 1) + t->step / 2);

        if (fabs((double)values[i] - counted) > 0.4)
            world_fail("after step %" PRId64 " the weight of shard %d is %g, not %g", t->step, i,
                       (double)values[i], counted);
    }
    history_step(member(), (int)t->step,
                 ls_hash_bytes(values, (size_t)n * sizeof(float), W->spec->seed));
    return LS_OK;
}

static ls_status check_buffer(const training *t)
{
    float count;

    if (t->count == NULL)
        return LS_OK;
    LS_TRY(ls_tensor_read(t->count, &count, 1));
    if (count != (float)t->step)
        world_fail("before step %" PRId64 " the buffer is %g", t->step + 1, (double)count);
    return LS_OK;
}

static ls_status run_step(training *t)
{
    ls_ddp_step result;
    ls_status st;

    (void)poll(NULL, 0, W->spec->step_ms);
    LS_TRY(ls_ddp_sync_buffers(t->ddp));
    LS_TRY(check_buffer(t));
    st = ls_ddp_step_shards(t->ddp, compute_shard, t, &result);
    for (int i = 0; i < SHARDS_MAX; i++) {
        ls_tensor_destroy(t->inputs[i]);
        t->inputs[i] = NULL;
    }
    LS_TRY(st);
    LS_TRY(ls_optimizer_step(t->sgd));
    t->step++;
    return check_weights(t);
}

/* Only a rank of the present group may write files. */
static ls_status save(training *t)
{
    if (t->step % SAVE_STEPS != 0 || ls_comm_rank(t->comm) != 0)
        return LS_OK;
    (void)poll(NULL, 0, SAVE_MS);
    LS_TRY(ls_ddp_check_seat(t->ddp));
    history_save((int)t->step);
    return LS_OK;
}

static ls_status train(training *t)
{
    for (;;) {
        const bool is_last = t->step >= W->spec->n_steps;
        ls_status st = is_last ? ls_barrier(t->comm, NULL) : run_step(t);
        int again;

        if (st == LS_OK && !is_last)
            st = save(t);
        LS_TRY(ls_ddp_recover(t->ddp, st, &again));
        if (again)
            LS_TRY(ls_optimizer_loaded(t->sgd));
        else if (is_last)
            return LS_OK;
    }
}

static ls_status begin(training *t)
{
    const ls_init_options init = {
        .size = sizeof(init), .timeout_ms = OPERATION_MS, .join_timeout_ms = JOIN_MS};
    const ls_device_options device = {.size = sizeof(device), .name = "cpu_ref", .threads = 1};
    const ls_ddp_options ddp = {.size = sizeof(ddp), .shards = W->spec->n_shards};
    const ls_sgd_options sgd = {.size = sizeof(sgd), .lr = 1};
    const float zeros[SHARDS_MAX] = {0};
    const int64_t one = 1;
    ls_elastic_options elastic = {.size = sizeof(elastic), .step = &t->step};
    const ls_named *parameters;
    int n;

    LS_TRY(ls_init(&init, &t->comm));
    LS_TRY(ls_device_open(&device, &t->device));
    LS_TRY(ls_model_create(t->device, 1, &t->model));
    LS_TRY(ls_tape_create(t->device, &t->tape));
    t->linear = ls_nn_linear(t->model, "linear", W->spec->n_shards, 1, 1);
    if (W->spec->has_buffer)
        t->count = ls_nn_buffer(t->model, "count", LS_F32, 1, &one);
    parameters = ls_model_parameters(t->model, &n);
    LS_TRY(ls_model_status(t->model));
    LS_TRY(ls_tensor_write(parameters[0].tensor, zeros, (size_t)W->spec->n_shards));
    LS_TRY(ls_ddp_create(t->comm, t->model, &ddp, &t->ddp));
    LS_TRY(ls_sgd_create(parameters, n, ls_grad, &sgd, &t->sgd));
    elastic.state = ls_optimizer_state(t->sgd, &elastic.n_state);
    LS_TRY(ls_ddp_elastic(t->ddp, &elastic));
    return ls_optimizer_loaded(t->sgd);
}

static void end(training *t)
{
    ls_optimizer_destroy(t->sgd);
    ls_ddp_destroy(t->ddp);
    ls_tape_destroy(t->tape);
    ls_model_destroy(t->model);
    ls_device_close(t->device);
    ls_comm_destroy(t->comm);
}

int job_rank(int local_rank, void *arg)
{
    training t = {0};
    ls_status st;

    (void)local_rank;
    (void)arg;
    history_begin((int)strtol(getenv("LOCKSTEP_GENERATION"), NULL, 10));
    st = begin(&t);
    if (st == LS_OK)
        st = train(&t);
    if (st == LS_OK)
        history_finish();
    else
        history_error(W->current, ls_last_error());
    end(&t);
    if (W->current->n_blocks > 0)
        world_fail("%s ends with %" PRIu64 " blocks of memory", W->current->name,
                   W->current->n_blocks);
    return st;
}
