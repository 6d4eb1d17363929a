/* SPDX-License-Identifier: Apache-2.0 */
/*
 * describe.c - threads take one image after another and add up integers, so that the result does
 * not depend on their number. `lockstep data` calls it.
 */
#include "data/describe.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/text.h"
#include "base/thread.h"
#include "data/dataset.h"

#include <math.h>
#include <stdatomic.h>

#define PROGRESS_MS 5000

/* Sums over the images of one thread, or of all. */
typedef struct image_sums {
    size_t n_bad;
    size_t n_jpeg;
    size_t n_png;
    int width[2];
    int height[2];
    uint64_t n_pixels;
    uint64_t sums[3];
    uint64_t squares[3];
} image_sums;

typedef struct dataset_scan {
    const ls_dataset *set;
    const describe_options *opt;
    int n_channels;     /* 0: no moments */
    atomic_size_t next; /* index of the next image; relaxed, it orders nothing else */
    atomic_bool stop;   /* relaxed: only saves time */

    ls_mutex lock;
    ls_cond ended;
    int n_running;
    image_sums sum;
    ls_status status;
    char error[LS_ERROR_BYTES];
} dataset_scan;

/* --- one image --- */

static void add_channel(image_sums *t, int c, const uint8_t *bytes, size_t step, size_t n)
{
    uint64_t sum = 0;
    uint64_t squares = 0;

    for (size_t i = 0; i < n; i++) {
        const uint64_t v = bytes[i * step];

        sum += v;
        squares += v * v;
    }
    t->sums[c] += sum;
    t->squares[c] += squares;
}

static ls_status add_pixels(const dataset_scan *s, image_reader *r, image_sums *t)
{
    const image_box all = {0, 0, r->width, r->height};
    const size_t n = (size_t)r->width * (size_t)r->height;
    image_view view;

    if (r->format == IMAGE_PLANES) {
        for (int c = 0; c < s->n_channels; c++)
            add_channel(t, c, r->bytes + (size_t)c * n, 1, n);
    } else {
        LS_TRY(image_decode(r, &all, 1, 0, &view));
        for (int y = 0; y < view.height; y++)
            for (int c = 0; c < s->n_channels; c++)
                add_channel(t, c, view.pixels + (size_t)y * view.stride + c, 4, (size_t)view.width);
    }
    t->n_pixels += n;
    return LS_OK;
}

static void widen_range(int range[2], int low, int high)
{
    range[0] = range[0] == 0 || low < range[0] ? low : range[0];
    range[1] = high > range[1] ? high : range[1];
}

static ls_status scan_image(const dataset_scan *s, size_t index, image_reader *r, image_sums *t)
{
    LS_TRY(s->set->images->open(s->set, index, r));
    if (s->n_channels > 0)
        LS_TRY(add_pixels(s, r, t));
    t->n_jpeg += r->format == IMAGE_JPEG;
    t->n_png += r->format == IMAGE_PNG;
    widen_range(t->width, r->width, r->width);
    widen_range(t->height, r->height, r->height);
    return LS_OK;
}

/* --- the threads --- */

static void add_sums(dataset_scan *s, const image_sums *t)
{
    s->sum.n_bad += t->n_bad;
    s->sum.n_jpeg += t->n_jpeg;
    s->sum.n_png += t->n_png;
    s->sum.n_pixels += t->n_pixels;
    if (t->width[0] > 0) {
        widen_range(s->sum.width, t->width[0], t->width[1]);
        widen_range(s->sum.height, t->height[0], t->height[1]);
    }
    for (int c = 0; c < 3; c++) {
        s->sum.sums[c] += t->sums[c];
        s->sum.squares[c] += t->squares[c];
    }
}

/* A broken image or a file that is gone (most are dangling links) is counted and reported; any
 * other failure stops the scan. */
static void record_failure(dataset_scan *s, ls_status st, image_sums *t)
{
    ls_mutex_lock(&s->lock);
    if (st == LS_EFORMAT || st == LS_ENOTFOUND) {
        t->n_bad++;
        if (s->opt->bad != NULL)
            s->opt->bad(s->opt->arg, ls_last_error());
    } else if (s->status == LS_OK) {
        s->status = st;
        text_format(s->error, sizeof(s->error), "%s", ls_last_error());
        atomic_store_explicit(&s->stop, true, memory_order_relaxed);
    }
    ls_mutex_unlock(&s->lock);
}

static void scan_thread(void *arg)
{
    dataset_scan *s = arg;
    image_reader r = {0};
    image_sums t = {0};

    while (!atomic_load_explicit(&s->stop, memory_order_relaxed)) {
        const size_t index = atomic_fetch_add_explicit(&s->next, 1, memory_order_relaxed);
        ls_status st;

        if (index >= s->set->count)
            break;
        st = scan_image(s, index, &r, &t);
        if (st != LS_OK)
            record_failure(s, st, &t);
    }
    image_reader_free(&r);
    ls_mutex_lock(&s->lock);
    add_sums(s, &t);
    s->n_running--;
    ls_cond_signal(&s->ended);
    ls_mutex_unlock(&s->lock);
}

static void wait_for_threads(dataset_scan *s)
{
    ls_mutex_lock(&s->lock);
    while (s->n_running > 0) {
        const bool is_signalled = ls_cond_wait(&s->ended, &s->lock, ls_deadline_ms(PROGRESS_MS));
        const size_t next = atomic_load_explicit(&s->next, memory_order_relaxed);

        if (!is_signalled && s->opt->progress != NULL)
            s->opt->progress(s->opt->arg, next < s->set->count ? next : s->set->count,
                             s->set->count);
    }
    ls_mutex_unlock(&s->lock);
}

static ls_status run_threads(dataset_scan *s)
{
    const int n = s->opt->threads > 0 ? s->opt->threads : 1;
    ls_thread *threads;
    ls_status st = LS_OK;

    LS_TRY(LS_NEW(&threads, (size_t)n, "for %d threads", n));
    for (int i = 0; i < n && st == LS_OK; i++) {
        ls_mutex_lock(&s->lock);
        s->n_running++;
        ls_mutex_unlock(&s->lock);
        st = ls_thread_start(&threads[i], "ls-describe", scan_thread, s);
        if (st != LS_OK) {
            atomic_store_explicit(&s->stop, true, memory_order_relaxed);
            ls_mutex_lock(&s->lock);
            s->n_running--;
            ls_mutex_unlock(&s->lock);
        }
    }
    wait_for_threads(s);
    for (int i = 0; i < n; i++)
        ls_thread_join(&threads[i]);
    ls_free(threads);
    if (st == LS_OK && s->status != LS_OK)
        return ls_fail(s->status, "%s", s->error);
    return st;
}

/* --- facts --- */

static void fill_facts(const dataset_scan *s, dataset_facts *f)
{
    const double n = (double)s->sum.n_pixels;

    f->count = s->set->count;
    f->n_others = s->set->n_others;
    f->n_beside = s->set->n_beside;
    f->n_dangling = s->set->n_dangling;
    f->n_bad = s->sum.n_bad;
    f->n_jpeg = s->sum.n_jpeg;
    f->n_png = s->sum.n_png;
    for (int i = 0; i < 2; i++) {
        f->width[i] = s->sum.width[i];
        f->height[i] = s->sum.height[i];
    }
    f->n_channels = s->n_channels;
    f->has_moments = s->n_channels > 0 && s->sum.n_pixels > 0;
    for (int c = 0; c < s->n_channels && f->has_moments; c++) {
        const double mean = (double)s->sum.sums[c] / n;
        const double variance = (double)s->sum.squares[c] / n - mean * mean;

        f->mean[c] = mean / 255.0;
        f->std[c] = sqrt(variance > 0.0 ? variance : 0.0) / 255.0;
    }
}

static ls_status count_classes(const ls_dataset *d, dataset_facts *f)
{
    LS_TRY(LS_NEW(&f->classes, (size_t)d->classes, "for %d classes", d->classes));
    f->n_classes = d->classes;
    for (size_t i = 0; i < d->count; i++)
        f->classes[d->images->label(d, i)]++;
    return LS_OK;
}

ls_status dataset_describe(const ls_dataset *d, const describe_options *opt, dataset_facts *out)
{
    dataset_scan s = {.set = d, .opt = opt};
    ls_status st;

    *out = (dataset_facts){.is_quick = opt->is_quick};
    if (!opt->is_quick && d->dims[0] <= 3)
        s.n_channels = (int)d->dims[0];
    ls_mutex_init(&s.lock);
    ls_cond_init(&s.ended);
    st = run_threads(&s);
    ls_cond_destroy(&s.ended);
    ls_mutex_destroy(&s.lock);
    LS_TRY(st);
    fill_facts(&s, out);
    return count_classes(d, out);
}

void dataset_facts_free(dataset_facts *f)
{
    ls_free(f->classes);
    f->classes = NULL;
}
