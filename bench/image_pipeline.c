/* SPDX-License-Identifier: Apache-2.0 */
/*
 * image_pipeline.c - how many images a second one core reads, decodes and augments for training: a
 * loader without threads over an image folder, in passes over all of it, the quickest and the
 * median of which are printed. bench/compare_images runs it beside torchvision.
 */
#include <lockstep/lockstep.h>

#include "bench_flags.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { MAX_PASSES = 100 };

typedef struct options {
    const char *data;
    int64_t image_size;
    int64_t batch;
    int64_t passes;
    int64_t threads;
    int full_decode;
    int evaluate;
    int json;
    int help;
} options;

static double seconds(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;

    return (x > y) - (x < y);
}

/* One pass over the set; *rate is in images a second. */
static ls_status measure(ls_loader *loader, uint64_t epoch, double *rate)
{
    const double start = seconds();
    int64_t n = 0;
    ls_batch b;

    if (ls_loader_start(loader, epoch, 0) != LS_OK)
        return LS_EINTERNAL;
    do {
        const ls_status st = ls_loader_next(loader, &b);

        if (st != LS_OK)
            return st;
        n += b.rows;
    } while (b.rows > 0);
    *rate = (double)n / (seconds() - start);
    return LS_OK;
}

static ls_status run(const options *o, ls_device *device, ls_dataset *set, double *rates)
{
    const ls_sampler_options sampling = {.size = sizeof(sampling), .count = ls_dataset_count(set)};
    ls_augment augment;
    ls_sampler *sampler = NULL;
    ls_loader *loader = NULL;
    ls_status st;

    ls_augment_imagenet(!o->evaluate, (int)o->image_size, &augment);
    augment.full_decode = o->full_decode;
    st = ls_dataset_augment(set, &augment);
    if (st == LS_OK)
        st = ls_sampler_create(&sampling, &sampler);
    if (st == LS_OK) {
        const ls_loader_options loading = {.size = sizeof(loading),
                                           .device = device,
                                           .dataset = set,
                                           .sampler = sampler,
                                           .batch_size = (int)o->batch,
                                           .threads = o->threads == 0 ? -1 : (int)o->threads};

        st = ls_loader_create(&loading, &loader);
    }
    for (int64_t i = -1; i < o->passes && st == LS_OK; i++) // the first one warms up
        st = measure(loader, (uint64_t)(i + 1), &rates[i < 0 ? 0 : i]);
    ls_loader_destroy(loader);
    ls_sampler_destroy(sampler);
    return st;
}

static ls_status open_and_run(const options *o, double *rates)
{
    const ls_device_options opening = {.size = sizeof(opening), .name = "cpu_ref", .threads = 1};
    ls_device *device = NULL;
    ls_dataset *set = NULL;
    ls_status st = ls_device_open(&opening, &device);

    if (st == LS_OK)
        st = ls_dataset_open_folder(o->data, NULL, &set);
    if (st == LS_OK)
        st = run(o, device, set, rates);
    ls_dataset_close(set);
    ls_device_close(device);
    return st;
}

int main(int argc, char **argv)
{
    options o = {.data = NULL, .image_size = 224, .batch = 16, .passes = 5};
    const ls_flag table[] = {
        {"data", 0, LS_FLAG_TEXT, &o.data, 0, 0, "`DIR` image folder, DIR/CLASS/*.jpg"},
        {"image-size", 0, LS_FLAG_INT, &o.image_size, 1, 4096,
         "`PIXELS` height and width of samples"},
        {"batch", 0, LS_FLAG_INT, &o.batch, 1, 65536, "rows of a batch"},
        {"passes", 0, LS_FLAG_INT, &o.passes, 1, MAX_PASSES, "over all images"},
        {"threads", 'j', LS_FLAG_INT, &o.threads, 0, 256, "that read; 0: the one that asks"},
        {"full-decode", 0, LS_FLAG_BOOL, &o.full_decode, 0, 0, "never decode at a smaller size"},
        {"evaluate", 0, LS_FLAG_BOOL, &o.evaluate, 0, 0, "resize and centre crop"},
        {"json", 0, LS_FLAG_BOOL, &o.json, 0, 0, "print JSON"},
        {"help", 'h', LS_FLAG_BOOL, &o.help, 0, 0, "print this text"},
    };
    const ls_flags flags = {.size = sizeof(flags),
                            .program = "image_pipeline",
                            .usage = "--data DIR [flags]",
                            .summary = "Images a second through decoding and augmentation.",
                            .tables = {table},
                            .n = {sizeof(table) / sizeof(table[0])}};
    double rates[MAX_PASSES];
    ls_status st = bench_flags(&flags, argc, argv, &o.help);

    if (st == LS_OK && o.help)
        return 0;
    if (st == LS_OK)
        st = open_and_run(&o, rates);
    if (st != LS_OK) {
        (void)fprintf(stderr, "image_pipeline: %s\n", ls_last_error());
        return 1;
    }
    qsort(rates, (size_t)o.passes, sizeof(rates[0]), ascending);
    (void)printf(o.json ? "{\"images_per_s\": %.1f, \"best\": %.1f}\n"
                        : "%.1f images/s, best pass %.1f\n",
                 rates[o.passes / 2], rates[o.passes - 1]);
    return 0;
}
