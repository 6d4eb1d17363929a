/* SPDX-License-Identifier: Apache-2.0 */
/*
 * convnet_step.c - how long one training step of the ConvNet takes, batches in memory: forward, backward, SGD.
 *
 *     convnet_step [--batch N] [--steps N] [--warmup N] [--threads N] [--device NAME] [--ddp | --barrier] [--json]
 *
 * With --ddp it takes its place in a job, and every rank reports its own rate. With --barrier the ranks of a job train
 * apart, and only meet before each step.
 */
#include "models/convnet.h"

#include <lockstep/comm.h>
#include <lockstep/ddp.h>
#include <lockstep/optim.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { N_BATCHES = 8, IMAGE = 28 * 28, CLASSES = 10 };

typedef struct settings {
    int batch;
    int steps;
    int warmup;
    int threads;
    const char *device;
    int ddp;
    int barrier;
    int json;
} settings;

typedef struct bench {
    settings s;
    ls_comm *comm;
    ls_ddp *ddp;
    ls_device *device;
    ls_model *model;
    convnet net;
    ls_tape *tape;
    ls_optimizer *optimizer;
    ls_tensor *images[N_BATCHES];
    ls_tensor *targets[N_BATCHES];
    float loss;
} bench;

static double now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
}

static uint32_t noise(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static ls_status make_batch(bench *b, int i, uint32_t *seed)
{
    const int64_t n = b->s.batch;
    float *pixels;
    int64_t *labels;
    ls_status st;

    st = ls_tensor_create(b->device, LS_F32, 4, (int64_t[]){n, 1, 28, 28}, &b->images[i]);
    if (st == LS_OK)
        st = ls_tensor_create(b->device, LS_I64, 1, &n, &b->targets[i]);
    if (st != LS_OK)
        return st;
    pixels = ls_tensor_data(b->images[i]);
    labels = ls_tensor_data(b->targets[i]);
    for (int64_t k = 0; k < n * IMAGE; k++)
        pixels[k] = (float)(noise(seed) % 256) / 255;
    for (int64_t k = 0; k < n; k++)
        labels[k] = noise(seed) % CLASSES;
    return LS_OK;
}

static ls_status set_up(bench *b)
{
    const ls_device_options device = {
        .size = sizeof(device), .name = b->s.device, .threads = b->s.threads};
    const ls_sgd_options sgd = {.size = sizeof(sgd), .lr = 0.01};
    const ls_named *parameters;
    uint32_t seed = 1;
    ls_status st;
    int n;

    st = b->s.ddp || b->s.barrier ? ls_init(NULL, &b->comm) : LS_OK;
    if (st == LS_OK)
        st = ls_device_open(&device, &b->device);
    if (st == LS_OK)
        st = ls_model_create(b->device, 1, &b->model);
    if (st != LS_OK)
        return st;
    convnet_create(b->model, CLASSES, &b->net);
    st = ls_model_status(b->model);
    if (st == LS_OK && b->s.ddp)
        st = ls_ddp_create(b->comm, b->model, NULL, &b->ddp);
    if (st == LS_OK)
        st = ls_tape_create(b->device, &b->tape);
    parameters = ls_model_parameters(b->model, &n);
    if (st == LS_OK)
        st = ls_sgd_create(parameters, n, ls_grad, &sgd, &b->optimizer);
    for (int i = 0; i < N_BATCHES && st == LS_OK; i++)
        st = make_batch(b, i, &seed);
    return st;
}

static ls_status backward(bench *b, ls_tensor *loss)
{
    ls_ddp_step result;

    if (b->s.ddp)
        return ls_ddp_backward(b->ddp, b->tape, loss, b->s.batch, &result);
    ls_model_zero_grad(b->model);
    return ls_backward(b->tape, loss, 1);
}

static ls_status step(bench *b, int i)
{
    ls_tensor *loss;
    ls_status st;

    ls_tape_reset(b->tape);
    st = b->s.ddp ? ls_ddp_sync_buffers(b->ddp) : LS_OK;
    if (b->s.barrier)
        st = ls_barrier(b->comm, NULL);
    if (st != LS_OK)
        return st;
    loss = ls_cross_entropy(b->tape, convnet_forward(&b->net, b->tape, b->images[i % N_BATCHES]),
                            b->targets[i % N_BATCHES]);
    st = backward(b, loss);
    if (st == LS_OK)
        st = ls_optimizer_step(b->optimizer);
    if (st == LS_OK)
        st = ls_tensor_read(loss, &b->loss, 1);
    return st;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;

    return (x > y) - (x < y);
}

static void report(const bench *b, double *ms)
{
    double rate;
    double total_ms = 0;

    for (int i = 0; i < b->s.steps; i++)
        total_ms += ms[i];
    qsort(ms, (size_t)b->s.steps, sizeof(*ms), by_size);
    rate = 1e3 * b->s.batch / ms[b->s.steps / 2];
    if (b->s.json)
        printf("{\"name\": \"lockstep\", \"samples_per_s\": %.1f, \"mean_samples_per_s\": %.1f, "
               "\"step_ms\": %.3f, \"best_ms\": %.3f, "
               "\"batch\": %d, \"steps\": %d, \"device\": \"%s\", \"loss\": %.4f}\n",
               rate, 1e3 * b->s.batch * b->s.steps / total_ms, ms[b->s.steps / 2], ms[0],
               b->s.batch, b->s.steps, ls_device_fingerprint(b->device), (double)b->loss);
    else
        printf("lockstep  %.0f samples/s, median step %.2f ms (best %.2f), batch %d, %s\n", rate,
               ms[b->s.steps / 2], ms[0], b->s.batch, ls_device_fingerprint(b->device));
}

static ls_status measure(bench *b)
{
    double *ms = malloc((size_t)b->s.steps * sizeof(*ms));
    ls_status st = LS_OK;

    if (ms == NULL)
        return LS_ENOMEM;
    for (int i = 0; i < b->s.warmup && st == LS_OK; i++)
        st = step(b, i);
    for (int i = 0; i < b->s.steps && st == LS_OK; i++) {
        const double begin = now_ms();

        st = step(b, i);
        ms[i] = now_ms() - begin;
    }
    if (st == LS_OK)
        report(b, ms);
    free(ms);
    return st;
}

static void tear_down(bench *b)
{
    for (int i = 0; i < N_BATCHES; i++) {
        ls_tensor_destroy(b->images[i]);
        ls_tensor_destroy(b->targets[i]);
    }
    ls_optimizer_destroy(b->optimizer);
    ls_tape_destroy(b->tape);
    ls_ddp_destroy(b->ddp);
    ls_model_destroy(b->model);
    ls_device_close(b->device);
    ls_comm_destroy(b->comm);
}

/* Reads "--NAME N" into *into; false when the argument is another one. */
static int take_int(char **argv, int *i, const char *name, int *into)
{
    if (strcmp(argv[*i], name) != 0 || argv[*i + 1] == NULL)
        return 0;
    *into = (int)strtol(argv[++*i], NULL, 10);
    return 1;
}

static int parse(int argc, char **argv, settings *s)
{
    *s = (settings){.batch = 100, .steps = 200, .warmup = 20, .threads = 1};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0)
            s->json = 1;
        else if (strcmp(argv[i], "--ddp") == 0)
            s->ddp = 1;
        else if (strcmp(argv[i], "--barrier") == 0)
            s->barrier = 1;
        else if (strcmp(argv[i], "--device") == 0 && i + 1 < argc)
            s->device = argv[++i];
        else if (!take_int(argv, &i, "--batch", &s->batch) &&
                 !take_int(argv, &i, "--steps", &s->steps) &&
                 !take_int(argv, &i, "--warmup", &s->warmup) &&
                 !take_int(argv, &i, "--threads", &s->threads))
            return 0;
    }
    return s->batch > 0 && s->steps > 0 && s->warmup >= 0 && s->threads > 0;
}

int main(int argc, char **argv)
{
    bench b = {.device = NULL};
    ls_status st;

    if (!parse(argc, argv, &b.s)) {
        fprintf(stderr, "usage: convnet_step [--batch N] [--steps N] [--warmup N] [--threads N] "
                        "[--device NAME] [--ddp | --barrier] [--json]\n");
        return 2;
    }
    st = set_up(&b);
    if (st == LS_OK)
        st = measure(&b);
    if (st != LS_OK)
        fprintf(stderr, "convnet_step: %s\n", ls_last_error());
    tear_down(&b);
    return st == LS_OK ? 0 : 1;
}
