/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tacotron2_step.c - how long a training step of Tacotron2 with NVIDIA's sizes takes: forward,
 * backward, clipping, Adam; and the peak memory of the process. step_torch.py is the same program
 * in PyTorch, and compare_step runs both. With --ddp the process is a rank of a job (ddp_cost).
 */
#include <lockstep/lockstep.h>

#include "bench_flags.h"
#include "models/tacotron2.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

enum { MAX_STEPS = 1000 };

typedef struct bench {
    int64_t batch, ids, frames, steps, warmup, checkpoint_steps, threads;
    const char *device_name;
    const char *precision;
    int ddp;
    int json;
    int help;
    ls_comm *comm; /* of --ddp */
    ls_ddp *joined;
    ls_device *device;
    ls_model *model;
    ls_tape *tape;
    ls_optimizer *optimizer;
    tacotron2 net;
    tacotron2_batch data;
    double ms[MAX_STEPS];
} bench;

static double now_ms(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static ls_status make(bench *b, ls_dtype type, int64_t d1, int64_t d2, double value,
                      ls_tensor **out)
{
    LS_TRY(ls_tensor_create(b->device, type, d2 > 0 ? 3 : 2, (int64_t[]){b->batch, d1, d2}, out));
    return ls_tensor_fill(*out, value);
}

static ls_status write_symbols(ls_tensor *text)
{
    const size_t n = (size_t)ls_tensor_count(text);
    int64_t *ids = malloc(n * sizeof(*ids));
    uint32_t state = 1;
    ls_status st;

    if (ids == NULL)
        return LS_ENOMEM;
    for (size_t i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        ids[i] = 1 + (state >> 8) % 147;
    }
    st = ls_tensor_write(text, ids, n);
    free(ids);
    return st;
}

/* Sentences of equal length. */
static ls_status make_data(bench *b)
{
    LS_TRY(make(b, LS_I64, b->ids, 0, 0, &b->data.text));
    LS_TRY(write_symbols(b->data.text));
    LS_TRY(make(b, LS_U8, 1, b->ids, 0, &b->data.text_padding));
    LS_TRY(make(b, LS_F32, b->frames, b->net.config.n_mel_channels, 0, &b->data.mel));
    LS_TRY(ls_tensor_normal(b->data.mel, -4, 1, 2));
    LS_TRY(make(b, LS_U8, b->frames, 1, 0, &b->data.mel_padding));
    LS_TRY(make(b, LS_F32, b->frames, 1, 0, &b->data.gate));
    LS_TRY(ls_tensor_create(b->device, LS_I64, 1, &b->batch, &b->data.text_lengths));
    return ls_tensor_fill(b->data.text_lengths, (double)b->ids);
}

static ls_status prepare(bench *b)
{
    const ls_device_options options = {
        .size = sizeof(options), .name = b->device_name, .threads = (int)b->threads};
    const ls_adam_options adam = {.size = sizeof(adam), .lr = 1e-3, .weight_decay = 1e-6};
    tacotron2_config config;
    const ls_named *parameters;
    int n;

    tacotron2_defaults(&config);
    config.checkpoint_steps = b->checkpoint_steps;
    if (b->ddp)
        LS_TRY(ls_init(NULL, &b->comm));
    LS_TRY(ls_device_open(&options, &b->device));
    LS_TRY(ls_model_create(b->device, 1, &b->model));
    LS_TRY(ls_tape_create(b->device, &b->tape));
    if (strcmp(b->precision, "bf16") == 0)
        LS_TRY(ls_tape_set_compute(b->tape, LS_BF16));
    LS_TRY(tacotron2_create(b->model, &config, &b->net));
    if (b->ddp)
        LS_TRY(ls_ddp_create(b->comm, b->model, NULL, &b->joined));
    parameters = ls_model_parameters(b->model, &n);
    LS_TRY(ls_adam_create(parameters, n, ls_grad, &adam, &b->optimizer));
    return make_data(b);
}

static ls_status backward(bench *b, ls_tensor *loss)
{
    ls_ddp_step result;

    if (b->ddp)
        return ls_ddp_backward(b->joined, b->tape, loss, b->batch, &result);
    ls_model_zero_grad(b->model);
    return ls_backward(b->tape, loss, 1);
}

static ls_status step(bench *b, int64_t number)
{
    tacotron2_output out;
    const ls_named *parameters;
    int n;

    ls_tape_reset(b->tape);
    ls_tape_set_random(b->tape, 1, number);
    if (b->ddp) {
        LS_TRY(ls_ddp_sync_buffers(b->joined));
        LS_TRY(ls_ddp_begin(b->joined, b->batch));
    }
    LS_TRY(tacotron2_forward(&b->net, b->tape, &b->data, &out));
    LS_TRY(backward(b, tacotron2_loss(b->tape, &out, &b->data)));
    parameters = ls_model_parameters(b->model, &n);
    LS_TRY(ls_clip_grad_norm(parameters, n, ls_grad, 1, NULL));
    LS_TRY(ls_optimizer_step(b->optimizer));
    return ls_device_synchronize(b->device);
}

static ls_status run(bench *b)
{
    LS_TRY(prepare(b));
    for (int64_t i = 0; i < b->warmup + b->steps; i++) {
        const double begin = now_ms();

        LS_TRY(step(b, i));
        if (i >= b->warmup)
            b->ms[i - b->warmup] = now_ms() - begin;
    }
    return LS_OK;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void report(bench *b)
{
    const size_t n = (size_t)b->steps;
    struct rusage use = {.ru_maxrss = 0};
    double median, total = 0;

    for (size_t i = 0; i < n; i++)
        total += b->ms[i];
    qsort(b->ms, n, sizeof(b->ms[0]), compare);
    median = b->ms[n / 2];
    (void)getrusage(RUSAGE_SELF, &use);
    printf(b->json ? "{\"name\": \"lockstep\", \"step_ms\": %.1f, \"best_ms\": %.1f, "
                     "\"samples_per_s\": %.4f, \"mean_samples_per_s\": %.4f, "
                     "\"peak_mib\": %.0f, \"device\": \"%s\"}\n"
                   : "median %.1f ms, best %.1f ms, %.4f sentences/s, mean %.4f sentences/s, "
                     "peak %.0f MiB; %s\n",
           median, b->ms[0], (double)b->batch * 1e3 / median,
           (double)b->batch * (double)n * 1e3 / total, (double)use.ru_maxrss / 1024,
           ls_device_fingerprint(b->device));
}

static ls_status parse(bench *b, int argc, char **argv)
{
    const ls_flag table[] = {
        {"batch", 0, LS_FLAG_INT, &b->batch, 1, 1024, "sentences"},
        {"ids", 0, LS_FLAG_INT, &b->ids, 1, 4096, "symbols of a sentence"},
        {"frames", 0, LS_FLAG_INT, &b->frames, 1, 4096, "mel frames of a sentence"},
        {"steps", 0, LS_FLAG_INT, &b->steps, 1, MAX_STEPS, "measured steps"},
        {"warmup", 0, LS_FLAG_INT, &b->warmup, 0, MAX_STEPS, "steps before them"},
        {"checkpoint-steps", 0, LS_FLAG_INT, &b->checkpoint_steps, 0, 64,
         "decoder steps that are computed again together; 0: none"},
        {"threads", 0, LS_FLAG_INT, &b->threads, 1, 1024, "compute threads"},
        {"precision", 0, LS_FLAG_TEXT, &b->precision, 0, 0, "`fp32|bf16` compute type"},
        {"device", 0, LS_FLAG_TEXT, &b->device_name, 0, 0, "`NAME` compute device"},
        {"ddp", 0, LS_FLAG_BOOL, &b->ddp, 0, 0, "train with the other ranks of the job"},
        {"json", 0, LS_FLAG_BOOL, &b->json, 0, 0, "print one JSON object"},
        {"help", 'h', LS_FLAG_BOOL, &b->help, 0, 0, "print this text"},
    };
    const ls_flags flags = {.size = sizeof(flags),
                            .program = "tacotron2_step",
                            .usage = "[flags]",
                            .summary = "Times training steps of Tacotron2.",
                            .tables = {table},
                            .n = {sizeof(table) / sizeof(table[0])}};

    return bench_flags(&flags, argc, argv, &b->help);
}

int main(int argc, char **argv)
{
    static bench b = {.batch = 16,
                      .ids = 80,
                      .frames = 400,
                      .steps = 3,
                      .warmup = 1,
                      .checkpoint_steps = 20,
                      .threads = 1,
                      .precision = "fp32"};
    ls_status st = parse(&b, argc, argv);

    if (st == LS_OK && b.help)
        return 0;
    if (st == LS_OK)
        st = run(&b);
    if (st == LS_OK)
        report(&b);
    else
        fprintf(stderr, "tacotron2_step: %s\n", ls_last_error());
    ls_optimizer_destroy(b.optimizer);
    ls_tape_destroy(b.tape);
    ls_tensor_destroy(b.data.text);
    ls_tensor_destroy(b.data.text_lengths);
    ls_tensor_destroy(b.data.text_padding);
    ls_tensor_destroy(b.data.mel);
    ls_tensor_destroy(b.data.mel_padding);
    ls_tensor_destroy(b.data.gate);
    tacotron2_destroy(&b.net);
    ls_ddp_destroy(b.joined);
    ls_model_destroy(b.model);
    ls_device_close(b.device);
    ls_comm_destroy(b.comm);
    return st == LS_OK ? 0 : 1;
}
