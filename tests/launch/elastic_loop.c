/* SPDX-License-Identifier: Apache-2.0 */
/*
 * elastic_loop.c - a rank with its own training loop that can recover, and dies as a test requests.
 *
 *     elastic_loop STEPS [MEMBER@STEP:HOW]...    plain as first argument: without ls_ddp_elastic()
 *
 * The process with this number in LOCKSTEP_MEMBER ends in that step: HOW is forward, backward (the
 * step is complete, the update is missing), update (others go on), recovery (of another loss), or
 * stop (SIGSTOP); pass prints a line and ends nothing, hold waits until the file ELASTIC_GATE is
 * there. STEP -1 is its first one. With until=MEMBER the training goes on behind STEPS until a
 * process with at least this number has joined. A step has ELASTIC_SHARDS shards, 4 if that is not
 * set. With ELASTIC_SYNC batch norms are over all shards of a step, and HOW may be norm: the rank's
 * first shard waits in its batch norm for the others. Rank 0 prints the parameters, momentum and
 * running statistics at the end.
 */
#include <lockstep/lockstep.h>

#include <inttypes.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SHARDS_USUAL = 4, ROWS = 3, IN = 6, OUT = 4 };

typedef struct loop {
    ls_device *device;
    ls_model *model;
    ls_tape *tape;
    ls_layer *linear;
    ls_layer *norm;
    ls_ddp *ddp;
    ls_optimizer *sgd;
    ls_comm *comm;
    int64_t step;
    int64_t n_steps;
    int n_shards; /* ELASTIC_SHARDS */
    bool is_synchronized;
    ls_tensor **rows; /* with is_synchronized: x and y of each shard of the step */
    int member;
    int64_t until_member;
    int64_t newest_member; /* of the present ranks */
    bool has_stepped;
    char **ends;
    int n_ends;
} loop;

static void await_gate(void)
{
    const char *gate = getenv("ELASTIC_GATE");

    while (gate != NULL && access(gate, F_OK) != 0)
        (void)usleep(1000);
}

static void end_here(const loop *l, const char *how)
{
    for (int i = 0; i < l->n_ends; i++) {
        char at[32];
        int member;
        int64_t step;

        if (sscanf(l->ends[i], "%d@%" SCNd64 ":%31s", &member, &step, at) != 3 ||
            member != l->member || (step != l->step && (step != -1 || l->has_stepped)) ||
            strcmp(at, how) != 0)
            continue;
        printf("%s of step %" PRId64 "\n", how, l->step);
        (void)fflush(stdout);
        if (strcmp(how, "hold") == 0)
            await_gate();
        else if (strcmp(how, "pass") != 0)
            (void)raise(strcmp(how, "stop") == 0 ? SIGSTOP : SIGKILL);
    }
}

static ls_status make_rows(loop *l, int shard, ls_tensor **x, ls_tensor **y)
{
    const int64_t in[] = {ROWS, IN};
    const int64_t out[] = {ROWS, OUT};
    float values[ROWS * IN];
    uint32_t seed = (uint32_t)(l->step * l->n_shards + shard + 1);

    for (int i = 0; i < ROWS * IN; i++) {
        seed = seed * 1664525U + 1013904223U;
        values[i] = (float)(seed >> 8) / 8388608.0F - 1.0F;
    }
    LS_TRY(ls_tensor_create(l->device, LS_F32, 2, in, x));
    LS_TRY(ls_tensor_write(*x, values, ROWS * IN));
    LS_TRY(ls_tensor_create(l->device, LS_F32, 2, out, y));
    return ls_tensor_write(*y, values, ROWS * OUT);
}

static ls_status run_shard(loop *l, int shard, bool is_last, ls_ddp_step *result)
{
    ls_tensor *x = NULL;
    ls_tensor *y = NULL;
    ls_tensor *loss;
    ls_status st = make_rows(l, shard, &x, &y);

    ls_tape_reset(l->tape);
    ls_tape_set_training(l->tape, 1);
    if (st == LS_OK) {
        loss = ls_mse_loss(l->tape, ls_forward(l->tape, l->norm, ls_forward(l->tape, l->linear, x)),
                           y);
        st = is_last ? ls_ddp_backward(l->ddp, l->tape, loss, ROWS, result)
                     : ls_ddp_accumulate(l->ddp, l->tape, loss, ROWS);
    }
    ls_tape_reset(l->tape);
    ls_tensor_destroy(x);
    ls_tensor_destroy(y);
    return st;
}

static ls_status compute_shard(void *arg, int shard, ls_tape *tape, ls_tensor **loss, int64_t *rows)
{
    loop *l = arg;
    ls_tensor **x = &l->rows[(size_t)2 * (size_t)shard];
    int first;
    int n;

    LS_TRY(ls_shard_range(l->n_shards, ls_comm_rank(l->comm), ls_comm_size(l->comm), &first, &n));
    if (shard > first)
        end_here(l, "norm");
    LS_TRY(make_rows(l, shard, &x[0], &x[1]));
    *loss = ls_mse_loss(tape, ls_forward(tape, l->norm, ls_forward(tape, l->linear, x[0])), x[1]);
    *rows = ROWS;
    return LS_OK;
}

static ls_status run_synchronized(loop *l, ls_ddp_step *result)
{
    ls_status st;

    l->rows = calloc((size_t)l->n_shards, 2 * sizeof(ls_tensor *));
    if (l->rows == NULL)
        return LS_ENOMEM;
    st = ls_ddp_step_shards(l->ddp, compute_shard, l, result);
    for (int i = 0; i < 2 * l->n_shards; i++)
        ls_tensor_destroy(l->rows[i]);
    free(l->rows);
    return st;
}

static ls_status run_shards(loop *l, ls_ddp_step *result)
{
    int first;
    int n;

    if (l->is_synchronized)
        return run_synchronized(l, result);
    LS_TRY(ls_shard_range(l->n_shards, ls_comm_rank(l->comm), ls_comm_size(l->comm), &first, &n));
    for (int i = 0; i < n; i++)
        LS_TRY(run_shard(l, first + i, i + 1 == n, result));
    return LS_OK;
}

static ls_status run_step(loop *l)
{
    ls_ddp_step result;

    LS_TRY(ls_ddp_sync_buffers(l->ddp));
    end_here(l, "forward");
    end_here(l, "stop");
    end_here(l, "pass");
    end_here(l, "hold");
    LS_TRY(run_shards(l, &result));
    end_here(l, "backward");
    if (l->until_member > 0) {
        l->newest_member = l->member;
        LS_TRY(
            ls_all_reduce(l->comm, &l->newest_member, &l->newest_member, 1, LS_I64, LS_MAX, NULL));
    }
    LS_TRY(ls_optimizer_step(l->sgd));
    l->step++;
    l->has_stepped = true;
    end_here(l, "update");
    return LS_OK;
}

static ls_status train(loop *l)
{
    while (l->step < l->n_steps || l->newest_member < l->until_member) {
        if (l->until_member > 0)
            (void)usleep(2000); // the job without a loss does all steps again
        ls_status st = run_step(l);
        int again;

        if (st != LS_OK)
            end_here(l, "recovery");
        LS_TRY(ls_ddp_recover(l->ddp, st, &again));
        if (again)
            LS_TRY(ls_optimizer_loaded(l->sgd));
    }
    return ls_barrier(l->comm, NULL);
}

static ls_status print(const ls_named *list, int n)
{
    for (int i = 0; i < n; i++) {
        float values[64];
        const size_t count = list[i].tensor != NULL ? ls_tensor_count(list[i].tensor) : 0;

        if (count == 0 || ls_tensor_dtype(list[i].tensor) != LS_F32)
            continue;
        LS_TRY(ls_tensor_read(list[i].tensor, values, count));
        for (size_t k = 0; k < count; k++) {
            uint32_t bits;

            memcpy(&bits, &values[k], sizeof(bits));
            printf(" %08" PRIx32, bits);
        }
    }
    return LS_OK;
}

static ls_status open_net(loop *l)
{
    const ls_device_options device = {
        .size = sizeof(device), .name = "cpu_ref", .threads = 1, .thread_invariant = 1};
    const ls_ddp_options ddp = {
        .size = sizeof(ddp), .shards = l->n_shards, .sync_batch_norm = l->is_synchronized};
    const ls_sgd_options sgd = {.size = sizeof(sgd), .lr = 0.05, .momentum = 0.9};
    const ls_named *parameters;
    int n;

    LS_TRY(ls_device_open(&device, &l->device));
    LS_TRY(ls_model_create(l->device, 1, &l->model));
    LS_TRY(ls_tape_create(l->device, &l->tape));
    l->linear = ls_nn_linear(l->model, "linear", IN, OUT, 0);
    l->norm = ls_nn_batch_norm1d(l->model, "norm", OUT, NULL);
    LS_TRY(ls_ddp_create(l->comm, l->model, &ddp, &l->ddp));
    parameters = ls_model_parameters(l->model, &n);
    return ls_sgd_create(parameters, n, ls_grad, &sgd, &l->sgd);
}

static ls_status run(loop *l, bool is_plain)
{
    ls_elastic_options elastic = {.size = sizeof(elastic), .step = &l->step};
    const ls_named *state;
    int n;

    LS_TRY(ls_init(NULL, &l->comm));
    LS_TRY(open_net(l));
    elastic.state = ls_optimizer_state(l->sgd, &elastic.n_state);
    if (!is_plain)
        LS_TRY(ls_ddp_elastic(l->ddp, &elastic));
    LS_TRY(ls_optimizer_loaded(l->sgd));
    LS_TRY(train(l));
    if (ls_comm_rank(l->comm) != 0)
        return LS_OK;
    printf("steps %" PRId64 " state", l->step);
    state = ls_model_state(l->model, &n);
    LS_TRY(print(state, n));
    LS_TRY(print(elastic.state, elastic.n_state));
    printf("\n");
    return LS_OK;
}

int main(int argc, char **argv)
{
    const bool is_plain = argc > 1 && strcmp(argv[1], "plain") == 0;
    const int first = is_plain ? 2 : 1;
    const char *member = getenv("LOCKSTEP_MEMBER");
    const char *shards = getenv("ELASTIC_SHARDS");
    loop l = {.member = member != NULL ? (int)strtol(member, NULL, 10) : -1,
              .n_shards = shards != NULL ? (int)strtol(shards, NULL, 10) : SHARDS_USUAL,
              .is_synchronized = getenv("ELASTIC_SYNC") != NULL};
    ls_status st;

    if (argc <= first)
        return 2;
    l.n_steps = strtol(argv[first], NULL, 10);
    l.ends = argv + first + 1;
    l.n_ends = argc - first - 1;
    for (int i = 0; i < l.n_ends; i++)
        if (strncmp(l.ends[i], "until=", 6) == 0)
            l.until_member = strtol(l.ends[i] + 6, NULL, 10);
    st = run(&l, is_plain);
    if (st != LS_OK)
        (void)fprintf(stderr, "elastic_loop: %s\n", ls_last_error());
    ls_optimizer_destroy(l.sgd);
    ls_ddp_destroy(l.ddp);
    ls_tape_destroy(l.tape);
    ls_model_destroy(l.model);
    if (l.device != NULL && ls_device_close(l.device) != LS_OK)
        st = LS_EINTERNAL;
    ls_comm_destroy(l.comm);
    return st == LS_OK ? 0 : 1;
}
