/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mel.c - mel spectrograms and their inversion over kissfft, for data sets and programs of
 * Tacotron2. Sums are float64, so that the result does not depend on their order to float32.
 */
#include "models/speech/mel.h"

#include <kiss_fftr.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define MAX_HZ       8000.0
#define LOG_FLOOR    1e-5
#define MAX_LOG      20.0 /* exp() of it is far beyond any spectrum of samples in -1..1 */
#define MOMENTUM     0.99
#define TINY         1e-16F
#define PI           3.14159265358979323846
#define HALF_FFT     (MEL_FFT / 2)
#define SLANEY_STEP  (200.0 / 3.0) /* Hz a mel below SLANEY_BREAK, logarithmic above */
#define SLANEY_BREAK 1000.0
#define SLANEY_LOG   (log(6.4) / 27.0)

struct mel_transform {
    kiss_fftr_cfg forward;
    kiss_fftr_cfg inverse;
    float window[MEL_FFT];
    double filters[MEL_BANDS][MEL_BINS];
    int first[MEL_BANDS]; /* bins of a band that are not 0: [first, end) */
    int end[MEL_BANDS];
    double factor[MEL_BANDS][MEL_BANDS]; /* lower Cholesky factor of filters * filters' */
    float frame[MEL_FFT];
    kiss_fft_cpx bins[MEL_BINS];
};

/* --- filters --- */

static double mel_of_hz(double hz)
{
    return hz < SLANEY_BREAK ? hz / SLANEY_STEP
                             : SLANEY_BREAK / SLANEY_STEP + log(hz / SLANEY_BREAK) / SLANEY_LOG;
}

static double hz_of_mel(double mel)
{
    const double at_break = SLANEY_BREAK / SLANEY_STEP;

    return mel < at_break ? mel * SLANEY_STEP : SLANEY_BREAK * exp(SLANEY_LOG * (mel - at_break));
}

/* Slaney's triangles with area 1 over Hz. */
static void fill_filters(mel_transform *m)
{
    const double step = mel_of_hz(MAX_HZ) / (MEL_BANDS + 1);

    for (int b = 0; b < MEL_BANDS; b++) {
        const double low = hz_of_mel(b * step);
        const double mid = hz_of_mel((b + 1) * step);
        const double high = hz_of_mel((b + 2) * step);

        m->first[b] = MEL_BINS;
        for (int k = 0; k < MEL_BINS; k++) {
            const double hz = (double)k * MEL_RATE / MEL_FFT;
            const double rise = (hz - low) / (mid - low);
            const double fall = (high - hz) / (high - mid);
            const double height = fmax(0, fmin(rise, fall));

            m->filters[b][k] = height * 2 / (high - low);
            if (height <= 0)
                continue;
            m->first[b] = m->first[b] < k ? m->first[b] : k;
            m->end[b] = k + 1;
        }
    }
}

static double filter_product(const mel_transform *m, int a, int b)
{
    double sum = 0;

    for (int k = 0; k < MEL_BINS; k++)
        sum += m->filters[a][k] * m->filters[b][k];
    return sum;
}

/* Each band has a bin of its own, so the matrix is positive definite. */
static void factorise(mel_transform *m)
{
    for (int i = 0; i < MEL_BANDS; i++) {
        for (int j = 0; j <= i; j++) {
            double sum = filter_product(m, i, j);

            for (int k = 0; k < j; k++)
                sum -= m->factor[i][k] * m->factor[j][k];
            m->factor[i][j] = i == j ? sqrt(sum) : sum / m->factor[j][j];
        }
    }
}

/* x = (filters * filters')^-1 x. */
static void solve(const mel_transform *m, double x[MEL_BANDS])
{
    for (int i = 0; i < MEL_BANDS; i++) {
        for (int k = 0; k < i; k++)
            x[i] -= m->factor[i][k] * x[k];
        x[i] /= m->factor[i][i];
    }
    for (int i = MEL_BANDS - 1; i >= 0; i--) {
        for (int k = i + 1; k < MEL_BANDS; k++)
            x[i] -= m->factor[k][i] * x[k];
        x[i] /= m->factor[i][i];
    }
}

ls_status mel_create(mel_transform **out, speech_error *error)
{
    mel_transform *m;

    if (out == NULL)
        return speech_fail(error, LS_EINVAL, "mel_create() needs a pointer to the result");
    *out = NULL;
    m = calloc(1, sizeof(*m));
    if (m != NULL) {
        m->forward = kiss_fftr_alloc(MEL_FFT, 0, NULL, NULL);
        m->inverse = kiss_fftr_alloc(MEL_FFT, 1, NULL, NULL);
    }
    if (m == NULL || m->forward == NULL || m->inverse == NULL) {
        mel_destroy(m);
        return speech_fail(error, LS_ENOMEM, "no memory for a mel transform");
    }
    for (int i = 0; i < MEL_FFT; i++)
        m->window[i] = (float)(0.5 - 0.5 * cos(2 * PI * i / MEL_FFT));
    fill_filters(m);
    factorise(m);
    *out = m;
    return LS_OK;
}

void mel_destroy(mel_transform *m)
{
    if (m == NULL)
        return;
    kiss_fftr_free(m->forward);
    kiss_fftr_free(m->inverse);
    free(m);
}

/* --- from sound --- */

size_t mel_frames(size_t samples)
{
    return samples / MEL_HOP + 1;
}

size_t mel_samples(size_t frames)
{
    return (frames - 1) * MEL_HOP;
}

/* m->bins = the spectrum of frame t of the padded samples. */
static void transform_frame(mel_transform *m, const float *samples, size_t n, size_t t)
{
    const int64_t begin = (int64_t)t * MEL_HOP - HALF_FFT;

    for (int i = 0; i < MEL_FFT; i++) {
        int64_t at = begin + i;

        at = at < 0 ? -at : at;
        at = at >= (int64_t)n ? 2 * ((int64_t)n - 1) - at : at;
        m->frame[i] = m->window[i] * samples[at];
    }
    kiss_fftr(m->forward, m->frame, m->bins);
}

static void mel_of_bins(const mel_transform *m, float *mel)
{
    double magnitudes[MEL_BINS];

    for (int k = 0; k < MEL_BINS; k++)
        magnitudes[k] = sqrt((double)m->bins[k].r * (double)m->bins[k].r +
                             (double)m->bins[k].i * (double)m->bins[k].i);
    for (int b = 0; b < MEL_BANDS; b++) {
        double sum = 0;

        for (int k = m->first[b]; k < m->end[b]; k++)
            sum += magnitudes[k] * m->filters[b][k];
        mel[b] = (float)log(fmax(sum, LOG_FLOOR));
    }
}

ls_status mel_compute(mel_transform *m, const float *samples, size_t n, float *mel,
                      speech_error *error)
{
    if (m == NULL || samples == NULL || mel == NULL)
        return speech_fail(error, LS_EINVAL, "mel_compute() needs a transform, samples and memory");
    if (n < MEL_MIN_SAMPLES || mel_frames(n) > MEL_MAX_FRAMES)
        return speech_fail(error, LS_EINVAL,
                           "a mel spectrogram of %zu samples: needs at least %d and less than %d",
                           n, MEL_MIN_SAMPLES, MEL_MAX_FRAMES * MEL_HOP);
    for (size_t t = 0; t < mel_frames(n); t++) {
        transform_frame(m, samples, n, t);
        mel_of_bins(m, mel + t * MEL_BANDS);
    }
    return LS_OK;
}

/* --- distance --- */

static double frame_distance(const float *a, const float *b)
{
    double sum = 0;

    for (int k = 0; k < MEL_BANDS; k++)
        sum += fabs((double)a[k] - (double)b[k]);
    return sum / MEL_BANDS;
}

/* Costs of the best paths to frame `a` and each frame of b, from those to the frame before it:
 * before[j + 1] for frame j, before[0] for none. */
static void extend_paths(const float *a, const float *b, size_t frames_b, const double *before,
                         double *costs)
{
    costs[0] = INFINITY;
    for (size_t j = 0; j < frames_b; j++) {
        const double here = frame_distance(a, b + j * MEL_BANDS);

        costs[j + 1] = fmin(before[j] + 2 * here, here + fmin(before[j + 1], costs[j]));
    }
}

ls_status mel_distance(const float *a, size_t frames_a, const float *b, size_t frames_b,
                       double *out, speech_error *error)
{
    const size_t width = frames_b + 1;
    double *costs;

    if (frames_a < 1 || frames_b < 1 || frames_a > MEL_MAX_FRAMES || frames_b > MEL_MAX_FRAMES)
        return speech_fail(error, LS_EINVAL, "distance of %zu and %zu mel frames: needs 1 to %d",
                           frames_a, frames_b, MEL_MAX_FRAMES);
    costs = malloc(2 * width * sizeof(*costs));
    if (costs == NULL)
        return speech_fail(error, LS_ENOMEM, "no memory to compare mel frames");
    costs[0] = 0;
    for (size_t j = 1; j < width; j++)
        costs[j] = INFINITY;
    for (size_t i = 0; i < frames_a; i++)
        extend_paths(a + i * MEL_BANDS, b, frames_b, costs + i % 2 * width,
                     costs + (i + 1) % 2 * width);
    *out = costs[frames_a % 2 * width + frames_b] / (double)(frames_a + frames_b);
    free(costs);
    return LS_OK;
}

/* --- to sound --- */

typedef struct griffin_lim {
    mel_transform *m;
    size_t frames;
    size_t n;             /* samples */
    float *magnitudes;    /* (T,MEL_BINS) */
    kiss_fft_cpx *phases; /* (T,MEL_BINS): of length 1 */
    kiss_fft_cpx *last;   /* (T,MEL_BINS): spectrum of the previous iteration's sound */
    float *sum;           /* the padded sound: frames added up */
    float *weight;        /* the squared windows added up */
    float *samples;
} griffin_lim;

static void free_state(griffin_lim *g)
{
    free(g->magnitudes);
    free(g->phases);
    free(g->last);
    free(g->sum);
    free(g->weight);
}

static bool allocate_state(griffin_lim *g)
{
    const size_t padded = g->n + MEL_FFT;

    g->magnitudes = calloc(g->frames * MEL_BINS, sizeof(*g->magnitudes));
    g->phases = calloc(g->frames * MEL_BINS, sizeof(*g->phases));
    g->last = calloc(g->frames * MEL_BINS, sizeof(*g->last));
    g->sum = calloc(padded, sizeof(*g->sum));
    g->weight = calloc(padded, sizeof(*g->weight));
    return g->magnitudes != NULL && g->phases != NULL && g->last != NULL && g->sum != NULL &&
           g->weight != NULL;
}

/* The magnitudes of one frame: filters' * (filters * filters')^-1 * exp(mel). */
static void invert_filters(const mel_transform *m, const float *mel, float *magnitudes)
{
    double x[MEL_BANDS];
    double sums[MEL_BINS] = {0};

    for (int b = 0; b < MEL_BANDS; b++)
        x[b] = exp((double)mel[b]);
    solve(m, x);
    for (int b = 0; b < MEL_BANDS; b++)
        for (int k = m->first[b]; k < m->end[b]; k++)
            sums[k] += x[b] * m->filters[b][k];
    for (int k = 0; k < MEL_BINS; k++)
        magnitudes[k] = (float)fmax(0, sums[k]);
}

/* splitmix64 */
static double next_uniform(uint64_t *state)
{
    uint64_t v = *state += 0x9E3779B97F4A7C15U;

    v = (v ^ v >> 30) * 0xBF58476D1CE4E5B9U;
    v = (v ^ v >> 27) * 0x94D049BB133111EBU;
    return (double)((v ^ v >> 31) >> 11) * 0x1p-53;
}

static void start(griffin_lim *g, const float *mel, uint64_t seed)
{
    for (size_t t = 0; t < g->frames; t++) {
        invert_filters(g->m, mel + t * MEL_BANDS, g->magnitudes + t * MEL_BINS);
        for (int i = 0; i < MEL_FFT; i++)
            g->weight[t * MEL_HOP + (size_t)i] += g->m->window[i] * g->m->window[i];
    }
    for (size_t i = 0; i < g->frames * MEL_BINS; i++) {
        const double angle = 2 * PI * next_uniform(&seed);

        g->phases[i] = (kiss_fft_cpx){(float)cos(angle), (float)sin(angle)};
    }
}

/* g->samples = the sound of the magnitudes with the current phases. */
static void to_samples(griffin_lim *g)
{
    mel_transform *m = g->m;

    memset(g->sum, 0, (g->n + MEL_FFT) * sizeof(*g->sum));
    for (size_t t = 0; t < g->frames; t++) {
        for (size_t k = 0; k < MEL_BINS; k++) {
            const size_t at = t * MEL_BINS + k;

            m->bins[k] = (kiss_fft_cpx){g->magnitudes[at] * g->phases[at].r,
                                        g->magnitudes[at] * g->phases[at].i};
        }
        kiss_fftri(m->inverse, m->bins, m->frame);
        for (size_t i = 0; i < MEL_FFT; i++)
            g->sum[t * MEL_HOP + i] += m->window[i] * m->frame[i] / MEL_FFT;
    }
    for (size_t i = 0; i < g->n; i++)
        g->samples[i] = g->sum[i + HALF_FFT] / g->weight[i + HALF_FFT];
}

/* New phases of one frame, whose spectrum is in m->bins. */
static void update_phases(griffin_lim *g, size_t t)
{
    const float keep = (float)(MOMENTUM / (1 + MOMENTUM));

    for (size_t k = 0; k < MEL_BINS; k++) {
        const size_t at = t * MEL_BINS + k;
        const kiss_fft_cpx now = g->m->bins[k];
        const float re = now.r - keep * g->last[at].r;
        const float im = now.i - keep * g->last[at].i;
        const float length = hypotf(re, im) + TINY;

        g->phases[at] = (kiss_fft_cpx){re / length, im / length};
        g->last[at] = now;
    }
}

static ls_status check_mel(const float *mel, size_t frames, speech_error *error)
{
    if (frames < MEL_MIN_FRAMES || frames > MEL_MAX_FRAMES)
        return speech_fail(error, LS_EINVAL, "sound of %zu mel frames: needs %d to %d", frames,
                           MEL_MIN_FRAMES, MEL_MAX_FRAMES);
    for (size_t i = 0; i < frames * MEL_BANDS; i++)
        if (!isfinite(mel[i]) || mel[i] > (float)MAX_LOG)
            return speech_fail(error, LS_EINVAL,
                               "frame %zu, band %zu of a log mel spectrogram is %g, expected at "
                               "most %g",
                               i / MEL_BANDS, i % MEL_BANDS, (double)mel[i], MAX_LOG);
    return LS_OK;
}

ls_status mel_invert(mel_transform *m, const float *mel, size_t frames, int iterations,
                     uint64_t seed, float *samples, speech_error *error)
{
    griffin_lim g = {.m = m, .frames = frames, .n = mel_samples(frames), .samples = samples};
    ls_status st;

    if (m == NULL || mel == NULL || samples == NULL || iterations < 0)
        return speech_fail(error, LS_EINVAL,
                           "mel_invert() needs a transform, a spectrogram, memory and a number of "
                           "iterations");
    st = check_mel(mel, frames, error);
    if (st != LS_OK)
        return st;
    if (allocate_state(&g)) {
        start(&g, mel, seed);
        to_samples(&g);
        for (int i = 0; i < iterations; i++) {
            for (size_t t = 0; t < frames; t++) {
                transform_frame(m, samples, g.n, t);
                update_phases(&g, t);
            }
            to_samples(&g);
        }
    } else {
        st = speech_fail(error, LS_ENOMEM, "no memory to invert %zu mel frames", frames);
    }
    free_state(&g);
    return st;
}
