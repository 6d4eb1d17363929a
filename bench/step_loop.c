/* SPDX-License-Identifier: Apache-2.0 */
/* step_loop.c - the timed training loop of convnet_step, resnet_step and gpt_step. */
#include "bench/step_loop.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

enum { MAX_BATCHES = 8 };

typedef struct settings {
    int threads;
    const char *device;
    const char *precision;
    int ddp;
    int shards; /* of --ddp; 0: none */
    int barrier;
    int read_every; /* steps between two reads of the loss */
    int json;
} settings;

typedef struct bench {
    settings s;
    step_program *p;
    ls_comm *comm;
    ls_ddp *ddp;
    int n_parts; /* batches of a step: the shards of this rank, else 1 */
    ls_device *device;
    ls_model *model;
    ls_tape *tape;
    ls_optimizer *optimizer;
    ls_grad_scaler *scaler; /* of fp16 */
    size_t free_bytes;      /* of the device's own memory, when it was opened */
    ls_tensor *samples[MAX_BATCHES];
    ls_tensor *targets[MAX_BATCHES];
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

static ls_status make_images(bench *b, uint32_t *seed, ls_tensor **out)
{
    const int64_t dims[4] = {b->p->batch, b->p->channels, b->p->side, b->p->side};
    const size_t count = (size_t)(dims[0] * dims[1] * dims[2] * dims[3]);
    float *pixels = malloc(count * sizeof(*pixels));
    ls_status st = pixels != NULL ? LS_OK : LS_ENOMEM;

    for (size_t k = 0; k < count && st == LS_OK; k++)
        pixels[k] = (float)(noise(seed) % 256) / 255;
    if (st == LS_OK)
        st = ls_tensor_create(b->device, LS_F32, 4, dims, out);
    if (st == LS_OK)
        st = ls_tensor_write(*out, pixels, count);
    free(pixels);
    return st;
}

/* Numbers of classes. */
static ls_status make_labels(bench *b, uint32_t *seed, int n_dims, const int64_t *dims,
                             ls_tensor **out)
{
    const size_t count = (size_t)(n_dims == 2 ? dims[0] * dims[1] : dims[0]);
    int64_t *labels = malloc(count * sizeof(*labels));
    ls_status st = labels != NULL ? LS_OK : LS_ENOMEM;

    for (size_t k = 0; k < count && st == LS_OK; k++)
        labels[k] = noise(seed) % (uint32_t)b->p->classes;
    if (st == LS_OK)
        st = ls_tensor_create(b->device, LS_I64, n_dims, dims, out);
    if (st == LS_OK)
        st = ls_tensor_write(*out, labels, count);
    free(labels);
    return st;
}

static ls_status make_batch(bench *b, int i, uint32_t *seed)
{
    const int64_t n = b->p->batch;
    const int64_t t = b->p->side;

    if (!b->p->is_tokens) {
        LS_TRY(make_images(b, seed, &b->samples[i]));
        return make_labels(b, seed, 1, &n, &b->targets[i]);
    }
    LS_TRY(make_labels(b, seed, 2, (int64_t[]){n, t}, &b->samples[i]));
    return make_labels(b, seed, 1, &(int64_t){n * t}, &b->targets[i]);
}

static ls_status make_optimizer(bench *b)
{
    const ls_sgd_options sgd = {.size = sizeof(sgd), .lr = 0.01, .momentum = b->p->momentum};
    const ls_adam_options adam = {.size = sizeof(adam), .lr = 1e-3, .weight_decay = 0.1};
    int n;
    const ls_named *parameters = ls_model_parameters(b->model, &n);

    return b->p->is_tokens ? ls_adamw_create(parameters, n, ls_grad, &adam, &b->optimizer)
                           : ls_sgd_create(parameters, n, ls_grad, &sgd, &b->optimizer);
}

/* Sets the type that the network computes in. */
static ls_status set_precision(bench *b)
{
    const char *name = b->s.precision;
    ls_status st;

    if (name == NULL || strcmp(name, "fp32") == 0)
        return LS_OK;
    st = ls_tape_set_compute(b->tape, strcmp(name, "bf16") == 0 ? LS_BF16 : LS_F16);
    if (st == LS_OK && strcmp(name, "fp16") == 0)
        st = ls_grad_scaler_create(b->optimizer, NULL, &b->scaler);
    return st;
}

/* With shards the rows of a rank are divided among its shards. */
static ls_status join(bench *b)
{
    const ls_ddp_options options = {.size = sizeof(options), .shards = b->s.shards};

    if (b->s.shards > 0) {
        int first;

        LS_TRY(ls_shard_range(b->s.shards, ls_comm_rank(b->comm), ls_comm_size(b->comm), &first,
                              &b->n_parts));
        b->p->batch = b->p->batch > b->n_parts ? b->p->batch / b->n_parts : 1;
    }
    return ls_ddp_create(b->comm, b->model, &options, &b->ddp);
}

static ls_status set_up(bench *b)
{
    const ls_device_options device = {
        .size = sizeof(device),
        .name = b->s.device,
        .threads = b->s.threads,
        .thread_invariant = b->s.shards > 0,
    };
    size_t total_bytes;
    uint32_t seed = 1;
    ls_status st;

    st = b->s.ddp || b->s.barrier ? ls_init(NULL, &b->comm) : LS_OK;
    if (st == LS_OK)
        st = ls_device_open(&device, &b->device);
    if (st == LS_OK && ls_device_queue(b->device) != NULL)
        st = ls_device_memory(b->device, &b->free_bytes, &total_bytes);
    if (st == LS_OK)
        st = ls_model_create(b->device, 1, &b->model);
    if (st != LS_OK)
        return st;
    if (b->p->create(b->model, b->p) != 0)
        return LS_EINVAL;
    st = ls_model_status(b->model);
    if (st == LS_OK && b->s.ddp)
        st = join(b);
    if (st == LS_OK)
        st = ls_tape_create(b->device, &b->tape);
    if (st == LS_OK)
        st = make_optimizer(b);
    if (st == LS_OK)
        st = set_precision(b);
    for (int i = 0; i < b->p->n_batches && st == LS_OK; i++)
        st = make_batch(b, i, &seed);
    return st;
}

static ls_status backward(bench *b, ls_tensor *loss, int is_last)
{
    const double scale = b->scaler == NULL ? 1 : ls_grad_scaler_scale(b->scaler);
    ls_ddp_step result;
    ls_status st;

    if (b->s.ddp) {
        st = ls_ddp_set_loss_scale(b->ddp, scale);
        if (st == LS_OK && !is_last)
            return ls_ddp_accumulate(b->ddp, b->tape, loss, b->p->batch);
        return st != LS_OK ? st : ls_ddp_backward(b->ddp, b->tape, loss, b->p->batch, &result);
    }
    ls_model_zero_grad(b->model);
    return ls_backward(b->tape, loss, scale);
}

static ls_status update(bench *b)
{
    ls_status st;

    if (b->scaler == NULL)
        return ls_optimizer_step(b->optimizer);
    st = ls_grad_scaler_step(b->scaler);
    return st == LS_OK ? ls_grad_scaler_update(b->scaler) : st;
}

/* Forward and backward of batch `k` of step `i`. */
static ls_status part(bench *b, int i, int k, ls_tensor **loss)
{
    const int is_last = k == b->n_parts - 1;
    const int at = (i * b->n_parts + k) % b->p->n_batches;
    ls_status st = LS_OK;

    ls_tape_reset(b->tape);
    ls_tape_set_random(b->tape, 1, i); /* of dropout */
    if (b->s.ddp && is_last)
        st = ls_ddp_begin(b->ddp, b->p->batch);
    if (st != LS_OK)
        return st;
    *loss = ls_cross_entropy(b->tape, b->p->forward(b->p->net, b->tape, b->samples[at]),
                             b->targets[at]);
    return backward(b, *loss, is_last);
}

/* Step `i`; reads the loss if `reads`. */
static ls_status step(bench *b, int i, int reads)
{
    ls_tensor *loss = NULL;
    ls_status st = b->s.ddp ? ls_ddp_sync_buffers(b->ddp) : LS_OK;

    if (b->s.barrier)
        st = ls_barrier(b->comm, NULL);
    for (int k = 0; k < b->n_parts && st == LS_OK; k++)
        st = part(b, i, k, &loss);
    if (st == LS_OK)
        st = update(b);
    if (st == LS_OK && reads)
        st = ls_tensor_read(loss, &b->loss, 1);
    return st;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;

    return (x > y) - (x < y);
}

/* The most memory used: of the process, or on a stream device what it has allocated there and
 * keeps. */
static long peak_mib(const bench *b)
{
    struct rusage use;
    size_t free_bytes;
    size_t total_bytes;

    if (ls_device_queue(b->device) != NULL)
        return ls_device_memory(b->device, &free_bytes, &total_bytes) == LS_OK
                   ? (long)((b->free_bytes - free_bytes) >> 20)
                   : 0;
    return getrusage(RUSAGE_SELF, &use) == 0 ? use.ru_maxrss / 1024 : 0;
}

/* ms: the n times, in ascending order. */
static void report(const bench *b, const double *ms, int n)
{
    const step_program *p = b->p;
    const int rows = p->batch * b->n_parts;
    const double median = ms[n / 2];
    double total_ms = 0;

    for (int i = 0; i < n; i++)
        total_ms += ms[i];
    if (b->s.json)
        printf("{\"name\": \"lockstep\", \"samples_per_s\": %.2f, \"mean_samples_per_s\": %.2f, "
               "\"step_ms\": %.3f, \"best_ms\": %.3f, \"batch\": %d, \"side\": %d, \"steps\": %d, "
               "\"peak_mib\": %ld, \"device\": \"%s\", \"loss\": %.4f}\n",
               1e3 * rows / median, 1e3 * rows * n / total_ms, median, ms[0], rows, p->side,
               p->steps, peak_mib(b), ls_device_fingerprint(b->device), (double)b->loss);
    else
        printf("lockstep  %.2f samples/s, median step %.2f ms (best %.2f), batch %d of %dx%d, peak "
               "%ld MiB, %s\n",
               1e3 * rows / median, median, ms[0], rows, p->side, p->side, peak_mib(b),
               ls_device_fingerprint(b->device));
}

/* Runs steps first ... first + n - 1 and reads the last loss. */
static ls_status run_steps(bench *b, int first, int n)
{
    ls_status st = LS_OK;

    for (int i = 0; i < n && st == LS_OK; i++)
        st = step(b, first + i, i + 1 == n);
    return st;
}

static ls_status measure(bench *b)
{
    const int n = b->s.read_every;
    const int n_times = b->p->steps / n;
    double *ms = calloc((size_t)n_times, sizeof(*ms));
    ls_status st = ms == NULL ? LS_ENOMEM : run_steps(b, 0, b->p->warmup);

    for (int i = 0; i < n_times && st == LS_OK; i++) {
        const double begin = now_ms();

        st = run_steps(b, i * n, n);
        ms[i] = (now_ms() - begin) / n;
    }
    if (st == LS_OK) {
        qsort(ms, (size_t)n_times, sizeof(*ms), by_size);
        report(b, ms, n_times);
    }
    free(ms);
    return st;
}

static void free_bench(bench *b)
{
    for (int i = 0; i < MAX_BATCHES; i++) {
        ls_tensor_destroy(b->samples[i]);
        ls_tensor_destroy(b->targets[i]);
    }
    ls_grad_scaler_destroy(b->scaler);
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

/* As take_int, for a text. */
static int take_text(char **argv, int *i, const char *name, const char **into)
{
    if (strcmp(argv[*i], name) != 0 || argv[*i + 1] == NULL)
        return 0;
    *into = argv[++*i];
    return 1;
}

static int is_precision(const char *name)
{
    return name == NULL || strcmp(name, "fp32") == 0 || strcmp(name, "bf16") == 0 ||
           strcmp(name, "fp16") == 0;
}

static int parse(int argc, char **argv, step_program *p, settings *s)
{
    *s = (settings){.threads = 1, .read_every = 1};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0)
            s->json = 1;
        else if (strcmp(argv[i], "--ddp") == 0)
            s->ddp = 1;
        else if (strcmp(argv[i], "--barrier") == 0)
            s->barrier = 1;
        else if (!take_text(argv, &i, "--device", &s->device) &&
                 !take_text(argv, &i, "--precision", &s->precision) &&
                 !take_int(argv, &i, "--batch", &p->batch) &&
                 !take_int(argv, &i, "--side", &p->side) &&
                 !take_int(argv, &i, "--steps", &p->steps) &&
                 !take_int(argv, &i, "--warmup", &p->warmup) &&
                 !take_int(argv, &i, "--read-every", &s->read_every) &&
                 !take_int(argv, &i, "--threads", &s->threads) &&
                 !take_int(argv, &i, "--shards", &s->shards) &&
                 !(p->arch != NULL && take_text(argv, &i, "--arch", &p->arch)))
            return 0;
    }
    return is_precision(s->precision) && p->batch > 0 && p->side > 0 && p->warmup >= 0 &&
           s->threads > 0 && s->read_every > 0 && p->steps >= s->read_every && s->shards >= 0 &&
           (s->ddp || s->shards == 0);
}

int step_main(step_program *p, int argc, char **argv)
{
    bench b = {.p = p, .n_parts = 1};
    ls_status st;

    if (!parse(argc, argv, p, &b.s)) {
        fprintf(stderr,
                "usage: %s %s[--batch N] [--side N] [--steps N] [--warmup N] [--read-every N] "
                "[--threads N] [--device NAME] [--precision fp32|bf16|fp16] "
                "[--ddp [--shards V] | --barrier] [--json]\n",
                p->name, p->arch == NULL ? "" : "[--arch NAME] ");
        return 2;
    }
    st = set_up(&b);
    if (st == LS_OK)
        st = measure(&b);
    if (st != LS_OK)
        fprintf(stderr, "%s: %s\n", p->name, ls_last_error());
    free_bench(&b);
    return st == LS_OK ? 0 : 1;
}
