/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mlp_arrays.c - training steps of an MLP 2-64-64-2 on arrays in memory, in small shuffled batches:
 * what a step costs besides its arithmetic, with a run and its loader. mlp_torch.py is the same
 * program in PyTorch, and compare_mlp runs both.
 */
#include <lockstep/lockstep.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SAMPLES = 4096 };

typedef struct bench {
    ls_train_flags flags;
    int64_t epochs; /* that are timed, after one that is not */
    int json;
    double best_s; /* the shortest epoch */
    double all_s;
    int64_t steps; /* that were timed */
} bench;

static double now_s(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static ls_status give_data(ls_run *run)
{
    static float points[SAMPLES][2];
    static int64_t classes[SAMPLES];
    const ls_array arrays[] = {{{.name = "x", .type = LS_F32, .n_dims = 1, .dims = {2}}, points},
                               {{.name = "y", .type = LS_I64}, classes}};
    ls_dataset *set;

    for (int i = 0; i < SAMPLES; i++) {
        points[i][0] = (float)(i % 64) / 32 - 1;
        points[i][1] = (float)(i / 64) / 32 - 1;
        classes[i] = points[i][0] * points[i][1] > 0;
    }
    LS_TRY(ls_dataset_from_arrays(arrays, 2, SAMPLES, &set));
    return ls_run_train_on_take(run, set);
}

/* The time from the first step of one epoch to that of the next is the time of an epoch. */
static ls_status train(ls_run *run, bench *b)
{
    ls_model *model = ls_run_model(run);
    ls_layer *layers[] = {
        ls_nn_linear(model, "0", 2, 64, 0),  ls_nn_function(model, "1", ls_relu),
        ls_nn_linear(model, "2", 64, 64, 0), ls_nn_function(model, "3", ls_relu),
        ls_nn_linear(model, "4", 64, 2, 0),
    };
    ls_layer *mlp = ls_nn_sequential(model, "mlp", layers, 5);
    ls_run_state state = {.epoch = 0};
    double begin = now_s();
    int64_t epoch = 0;
    ls_batch batch;

    LS_TRY(give_data(run));
    LS_TRY(ls_run_start(run, NULL, NULL));
    while (ls_run_next(run, &batch)) {
        ls_run_get_state(run, &state);
        if (state.epoch != epoch) {
            const double s = now_s() - begin;

            if (epoch > 0) {
                b->all_s += s;
                b->best_s = b->best_s == 0 || s < b->best_s ? s : b->best_s;
            }
            begin += s;
            epoch = state.epoch;
        }
        ls_run_step(run, ls_cross_entropy(ls_run_tape(run),
                                          ls_forward(ls_run_tape(run), mlp, batch.x), batch.y));
    }
    b->steps = (epoch - 1) * ((SAMPLES + b->flags.batch_size - 1) / b->flags.batch_size);
    return LS_OK;
}

static void print_times(const bench *b, const char *device)
{
    const double epoch_steps = (double)b->steps / (double)(b->epochs);
    const double step_us = b->all_s * 1e6 / (double)b->steps;
    const double best_us = b->best_s * 1e6 / epoch_steps;

    printf(b->json ? "{\"name\": \"lockstep\", \"step_us\": %.2f, \"best_us\": %.2f, "
                     "\"batch\": %d, \"device\": \"%s\"}\n"
                   : "a step: %.1f us (best epoch %.1f us; batches of %d; %s)\n",
           step_us, best_us, (int)b->flags.batch_size, device);
}

static ls_status measure(bench *b)
{
    char device[128] = "";
    ls_run *run = NULL;
    ls_status st;

    b->flags.epochs = b->epochs + 2; // the first and the last are not timed
    st = ls_run_open(&b->flags, &run);
    if (st == LS_OK) {
        (void)snprintf(device, sizeof(device), "%s", ls_device_fingerprint(ls_run_device(run)));
        st = train(run, b);
    }
    st = ls_run_close(run, st);
    if (st == LS_OK)
        print_times(b, device);
    return st;
}

int main(int argc, char **argv)
{
    bench b = {.flags = {.batch_size = 16, .optimizer = "sgd", .lr = 0.05, .momentum = 0.9},
               .epochs = 20};

    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";

        if (strcmp(argv[i], "--json") == 0) {
            b.json = 1;
            continue;
        }
        if (strcmp(argv[i], "--batch") == 0)
            b.flags.batch_size = atoi(value);
        else if (strcmp(argv[i], "--epochs") == 0)
            b.epochs = atoi(value);
        else
            b.epochs = 0;
        i++;
    }
    if (b.flags.batch_size < 1 || b.flags.batch_size > SAMPLES || b.epochs < 1) {
        fprintf(stderr, "usage: mlp_arrays [--batch N] [--epochs N] [--json]\n");
        return 2;
    }
    if (measure(&b) == LS_OK)
        return 0;
    fprintf(stderr, "mlp_arrays: %s\n", ls_last_error());
    return 1;
}
