/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model_steps.c - trains networks for some steps on a device and on a reference device, with the
 * same initial values, batches and dropout masks, and compares losses and gradients.
 *
 *     model_steps [--device NAME] [--reference NAME] [--steps N] [--batch N] [--side N]
 *                 [--tolerance X] [--cuda-graph 0|1] [ARCH...]
 *
 * One JSON object a line for each network ("convnet", or a name of models/architectures.h). The
 * loss of the first step must be within --tolerance. Its gradients (the norm of the difference over
 * the norm of the reference's) have 100 times the tolerance, since a ReLU whose input is rounded to
 * the other side of 0 changes a whole path; the loss of the last step has 300 times the tolerance,
 * since such differences grow while training. With --cuda-graph 1 the device, and not the
 * reference, runs CUDA graphs, and the gradients of the last step count, too; --tolerance 0 asks
 * for equal bits. Exits with 1 if a network fails or differs.
 */
#include "models/architectures.h"
#include "models/convnet.h"

#include <lockstep/optim.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct settings {
    const char *device;
    const char *reference;
    int steps;
    int batch;
    int side;
    double tolerance;
    int cuda_graph;
} settings;

typedef struct trainer {
    ls_device *device;
    ls_model *model;
    ls_tape *tape;
    ls_optimizer *optimizer;
    ls_tensor *images;
    ls_tensor *targets;
    void *net;
    convnet small; /* what `net` points to for "convnet" */
    ls_tensor *(*forward)(void *net, ls_tape *tape, ls_tensor *images);
} trainer;

static const char *const default_networks[] = {"convnet",
                                               "alexnet",
                                               "vgg11_bn",
                                               "resnet18",
                                               "resnet50",
                                               "resnext50_32x4d",
                                               "densenet121",
                                               "squeezenet1_1",
                                               "googlenet",
                                               "inception_v3",
                                               "mobilenet_v2",
                                               "mobilenet_v3_large",
                                               "shufflenet_v2_x1_0",
                                               "mnasnet1_0",
                                               "efficientnet_b0",
                                               "regnet_y_400mf",
                                               "convnext_tiny",
                                               "vit_b_32",
                                               NULL};

static uint32_t noise(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/* --- one trainer --- */

static ls_status make_batch(trainer *t, const settings *s, int channels, int side, int classes)
{
    const int64_t dims[4] = {s->batch, channels, side, side};
    const size_t count = (size_t)s->batch * (size_t)channels * (size_t)side * (size_t)side;
    float *pixels = malloc(count * sizeof(*pixels));
    int64_t *labels = malloc((size_t)s->batch * sizeof(*labels));
    ls_status st = pixels != NULL && labels != NULL ? LS_OK : LS_ENOMEM;
    uint32_t seed = 7;

    for (size_t i = 0; i < count && st == LS_OK; i++)
        pixels[i] = (float)(noise(&seed) % 256) / 128 - 1;
    for (int i = 0; i < s->batch && st == LS_OK; i++)
        labels[i] = noise(&seed) % (uint32_t)classes;
    if (st == LS_OK)
        st = ls_tensor_create(t->device, LS_F32, 4, dims, &t->images);
    if (st == LS_OK)
        st = ls_tensor_create(t->device, LS_I64, 1, dims, &t->targets);
    if (st == LS_OK)
        st = ls_tensor_write(t->images, pixels, count);
    if (st == LS_OK)
        st = ls_tensor_write(t->targets, labels, (size_t)s->batch);
    free(pixels);
    free(labels);
    return st;
}

/* The layers of network `name`; LS_EINVAL after it has printed that there is no such network. */
static ls_status make_network(trainer *t, const char *name, const settings *s)
{
    char error[ARCHITECTURE_LIST_BYTES + 128];
    int arch;

    if (strcmp(name, "convnet") == 0) {
        convnet_create(t->model, 10, &t->small);
        t->net = &t->small;
        t->forward = convnet_forward;
        return make_batch(t, s, 1, 28, 10);
    }
    arch = architecture_find(name, error, sizeof(error));
    if (arch < 0) {
        fprintf(stderr, "model_steps: %s\n", error);
        return LS_EINVAL;
    }
    t->net = net_create(t->model, arch, 10, s->side);
    t->forward = net_forward;
    return t->net == NULL ? LS_ENOMEM : make_batch(t, s, 3, s->side, 10);
}

static ls_status open_trainer(trainer *t, const ls_device_options *options, const char *name,
                              const settings *s)
{
    const ls_sgd_options sgd = {.size = sizeof(sgd), .lr = 0.001, .momentum = 0.9};
    ls_status st = ls_device_open(options, &t->device);
    const ls_named *parameters;
    int n;

    if (st == LS_OK)
        st = ls_model_create(t->device, 1, &t->model);
    if (st == LS_OK)
        st = make_network(t, name, s);
    if (st == LS_OK)
        st = ls_model_status(t->model);
    if (st == LS_OK)
        st = ls_tape_create(t->device, &t->tape);
    if (st != LS_OK)
        return st;
    parameters = ls_model_parameters(t->model, &n);
    return ls_sgd_create(parameters, n, ls_grad, &sgd, &t->optimizer);
}

static void close_trainer(trainer *t)
{
    ls_tensor_destroy(t->images);
    ls_tensor_destroy(t->targets);
    ls_optimizer_destroy(t->optimizer);
    ls_tape_destroy(t->tape);
    ls_model_destroy(t->model);
    if (t->net != &t->small)
        net_destroy(t->net);
    if (ls_device_close(t->device) != LS_OK)
        fprintf(stderr, "model_steps: %s\n", ls_last_error());
}

/* Forward and backward of one step; the parameters are not updated yet. */
static ls_status compute(trainer *t, int step, float *loss)
{
    ls_tensor *out;
    ls_status st;

    ls_tape_reset(t->tape);
    ls_tape_set_random(t->tape, 1, step);
    ls_model_zero_grad(t->model);
    out = ls_cross_entropy(t->tape, t->forward(t->net, t->tape, t->images), t->targets);
    st = ls_backward(t->tape, out, 1);
    return st == LS_OK ? ls_tensor_read(out, loss, 1) : st;
}

/* --- comparing --- */

/* Adds the squares of the difference, and of b, of the gradient of parameter `i`. */
static ls_status add_squares(const trainer *a, const trainer *b, int i, double *sums)
{
    int n;
    ls_tensor *ga = ls_grad(ls_model_parameters(a->model, &n)[i].tensor);
    ls_tensor *gb = ls_grad(ls_model_parameters(b->model, &n)[i].tensor);
    const size_t count = ls_tensor_count(gb);
    float *va = malloc(count * sizeof(*va));
    float *vb = malloc(count * sizeof(*vb));
    ls_status st = va != NULL && vb != NULL ? LS_OK : LS_ENOMEM;

    if (st == LS_OK)
        st = ls_tensor_read(ga, va, count);
    if (st == LS_OK)
        st = ls_tensor_read(gb, vb, count);
    for (size_t k = 0; k < count && st == LS_OK; k++) {
        const double difference = (double)va[k] - (double)vb[k];

        sums[0] += difference * difference;
        sums[1] += (double)vb[k] * (double)vb[k];
    }
    free(va);
    free(vb);
    return st;
}

static ls_status gradient_difference(const trainer *a, const trainer *b, double *out)
{
    double sums[2] = {0, 0};
    ls_status st = LS_OK;
    int n;

    (void)ls_model_parameters(b->model, &n);
    for (int i = 0; i < n && st == LS_OK; i++)
        st = add_squares(a, b, i, sums);
    *out = sqrt(sums[0] / (sums[1] > 0 ? sums[1] : 1));
    return st;
}

static double relative(double a, double b)
{
    return fabs(a - b) / (fabs(b) > 1e-6 ? fabs(b) : 1e-6);
}

/* Trains both; 1 when they agree. NaN does not agree. */
static int compare(trainer *a, trainer *b, const char *name, const settings *s)
{
    float loss_a = 0;
    float loss_b = 0;
    double gradients = 0;
    double difference = 0;
    double first = 0;
    ls_status st = LS_OK;
    int agrees;

    for (int i = 0; i < s->steps && st == LS_OK; i++) {
        st = compute(a, i, &loss_a);
        if (st == LS_OK)
            st = compute(b, i, &loss_b);
        if (st == LS_OK && i == 0)
            first = relative((double)loss_a, (double)loss_b);
        if (st == LS_OK && (i == 0 || (s->cuda_graph && i == s->steps - 1))) {
            st = gradient_difference(a, b, &difference);
            gradients = difference <= gradients ? gradients : difference; // NaN stays
        }
        if (st == LS_OK)
            st = ls_optimizer_step(a->optimizer);
        if (st == LS_OK)
            st = ls_optimizer_step(b->optimizer);
    }
    if (st != LS_OK)
        return 0;
    agrees = first <= s->tolerance && gradients <= 100 * s->tolerance &&
             relative((double)loss_a, (double)loss_b) <= 300 * s->tolerance;
    printf("{\"network\": \"%s\", \"agrees\": %s, \"first_loss\": %.3g, \"gradients\": %.3g, "
           "\"last_loss\": %.3g, \"steps\": %d, \"tolerance\": %g, \"device\": \"%s\", "
           "\"reference\": \"%s\"}\n",
           name, agrees ? "true" : "false", first, gradients,
           relative((double)loss_a, (double)loss_b), s->steps, s->tolerance,
           ls_device_fingerprint(a->device), ls_device_fingerprint(b->device));
    return agrees;
}

static int check_network(const char *name, const settings *s)
{
    trainer a = {.device = NULL};
    trainer b = {.device = NULL};
    const ls_device_options options = {
        .size = sizeof(options), .name = s->device, .cuda_graph = s->cuda_graph};
    const ls_device_options reference = {.size = sizeof(reference), .name = s->reference};
    ls_status st = open_trainer(&a, &options, name, s);
    int agrees = 0;

    if (st == LS_OK)
        st = open_trainer(&b, &reference, name, s);
    if (st == LS_OK)
        agrees = compare(&a, &b, name, s);
    if (!agrees)
        fprintf(stderr, "model_steps: %s: %s\n", name,
                ls_last_error()[0] != '\0' ? ls_last_error() : "the devices differ");
    close_trainer(&a);
    close_trainer(&b);
    (void)fflush(stdout);
    return agrees;
}

/* Reads one flag with its value; 0 when it is not one. */
static int parse_flag(const char *flag, const char *value, settings *s)
{
    if (strcmp(flag, "--device") == 0)
        s->device = value;
    else if (strcmp(flag, "--reference") == 0)
        s->reference = value;
    else if (strcmp(flag, "--steps") == 0)
        s->steps = (int)strtol(value, NULL, 10);
    else if (strcmp(flag, "--batch") == 0)
        s->batch = (int)strtol(value, NULL, 10);
    else if (strcmp(flag, "--side") == 0)
        s->side = (int)strtol(value, NULL, 10);
    else if (strcmp(flag, "--tolerance") == 0)
        s->tolerance = strtod(value, NULL);
    else if (strcmp(flag, "--cuda-graph") == 0)
        s->cuda_graph = (int)strtol(value, NULL, 10);
    else
        return 0;
    return s->steps > 0 && s->batch > 0 && s->side > 0 && s->tolerance >= 0;
}

int main(int argc, char **argv)
{
    settings s = {.device = "cuda",
                  .reference = "cpu",
                  .steps = 20,
                  .batch = 8,
                  .side = 96,
                  .tolerance = 1e-4};
    const char *const *names = default_networks;
    int first = 1;
    int failed = 0;

    while (first < argc && strncmp(argv[first], "--", 2) == 0) {
        if (first + 1 == argc || !parse_flag(argv[first], argv[first + 1], &s)) {
            fprintf(stderr,
                    "usage: model_steps [--device NAME] [--reference NAME] [--steps N] "
                    "[--batch N] [--side N] [--tolerance X] [--cuda-graph 0|1] [ARCH...]\n");
            return 2;
        }
        first += 2;
    }
    if (first < argc)
        names = (const char *const *)&argv[first];
    for (int i = 0; names[i] != NULL; i++)
        failed += !check_network(names[i], &s);
    return failed > 0;
}
