/* SPDX-License-Identifier: Apache-2.0 */
/*
 * generate.c - writes text from a language model, for examples/gpt.c. It draws by softmax
 * probabilities without computing them: the largest of the sums of each logit and a random number
 * of the standard Gumbel distribution has that distribution (Gumbel 1954; Maddison, Tarlow and
 * Minka 2014).
 */
#include "models/generate.h"
#include "models/utf8.h"

#include <lockstep/train.h>

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* --- drawing --- */

static int compare_descending(const void *a, const void *b)
{
    const float x = *(const float *)a;
    const float y = *(const float *)b;

    return (x < y) - (x > y);
}

/* splitmix64 (Steele, Lea and Flood 2014). */
static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += 0x9E3779B97F4A7C15U;

    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9U;
    z = (z ^ z >> 27) * 0x94D049BB133111EBU;
    return z ^ z >> 31;
}

static double next_gumbel(uint64_t *state)
{
    const double uniform = ((double)(next_random(state) >> 11) + 0.5) * 0x1p-53;

    return -log(-log(uniform));
}

int64_t generate_draw(const generation *g, const float *logits, size_t n, int64_t position,
                      float *sorted)
{
    const bool is_limited = g->top_k > 0 && (uint64_t)g->top_k < n;
    uint64_t state = (uint64_t)g->seed;
    double best = -HUGE_VAL;
    float least = -INFINITY;
    size_t index = 0;

    state = next_random(&state) + (uint64_t)position;
    state = next_random(&state); // neighbouring positions have unrelated numbers
    if (is_limited) {
        memcpy(sorted, logits, n * sizeof(*sorted));
        qsort(sorted, n, sizeof(*sorted), compare_descending);
        least = sorted[g->top_k - 1];
    }
    for (size_t i = 0; i < n; i++) {
        const double score = (double)logits[i] + g->temperature * next_gumbel(&state);

        if (logits[i] >= least && score > best) {
            best = score;
            index = i;
        }
    }
    return (int64_t)index;
}

/* --- text --- */

/* What one generate() works with. */
typedef struct writer {
    const generation *g;
    ls_device *device;
    ls_tape *tape;
    generate_fn next;
    void *net;
    int64_t *ids;
    float *logits; /* twice as many as there are tokens */
    FILE *out;
    char pending[4]; /* bytes of a character that is not complete */
    size_t n_pending;
} writer;

static ls_status draw_from(const writer *w, const ls_tensor *logits, int64_t position)
{
    const size_t n = (size_t)bpe_count(w->g->tokens);

    LS_TRY(ls_tape_status(w->tape));
    LS_TRY(ls_tensor_read(logits, w->logits, n));
    w->ids[position] = generate_draw(w->g, w->logits, n, position, w->logits + n);
    return LS_OK;
}

/* Sets ids[n] by those before it. */
static ls_status add_token(const writer *w, int64_t n)
{
    const int64_t t = n < w->g->context ? n : w->g->context;
    ls_tensor *input;
    ls_status st;

    LS_TRY(ls_tensor_create(w->device, LS_I64, 2, (int64_t[]){1, t}, &input));
    st = ls_tensor_write(input, w->ids + n - t, (size_t)t);
    if (st == LS_OK)
        st = draw_from(w, w->next(w->net, w->tape, input), n);
    ls_tape_reset(w->tape);
    ls_tensor_destroy(input);
    return st;
}

/* Writes the first n bytes of w->pending, a character, or a question mark in place of bytes that
 * are none or that could change a terminal. */
static void write_character(writer *w, size_t n, uint32_t c)
{
    if (n == 0 || (c < 0x20 && c != '\n') || (c >= 0x7F && c < 0xA0))
        (void)fputc('?', w->out);
    else
        (void)fwrite(w->pending, 1, n, w->out);
    n = n > 0 ? n : 1;
    w->n_pending -= n;
    memmove(w->pending, w->pending + n, w->n_pending);
}

/* Writes what is complete of w->pending; all of it at the end. */
static void write_pending(writer *w, bool is_end)
{
    while (w->n_pending > 0) {
        const unsigned char first = (unsigned char)w->pending[0];
        const size_t needed = first < 0xC2 || first > 0xF4 ? 1
                              : first < 0xE0               ? 2
                              : first < 0xF0               ? 3
                                                           : 4;
        uint32_t c = 0;
        size_t n;

        if (w->n_pending < needed && !is_end)
            return;
        n = utf8_decode(w->pending, w->n_pending, &c);
        write_character(w, n, c);
    }
}

static void write_token(writer *w, int64_t id)
{
    size_t n;
    const char *bytes = bpe_token(w->g->tokens, id, &n);

    for (size_t i = 0; i < n; i++) {
        w->pending[w->n_pending++] = bytes[i];
        write_pending(w, false);
    }
    (void)fflush(w->out);
}

static ls_status write_text(writer *w, int64_t n_prompt)
{
    for (int64_t i = 0; i < n_prompt + w->g->length; i++) {
        if (i >= n_prompt)
            LS_TRY(add_token(w, i));
        write_token(w, w->ids[i]);
    }
    write_pending(w, true);
    (void)fputc('\n', w->out);
    (void)fflush(w->out);
    return LS_OK;
}

ls_status generate(const generation *g, ls_device *device, ls_tape *tape, generate_fn next,
                   void *net, FILE *out)
{
    writer w = {.g = g, .device = device, .tape = tape, .next = next, .net = net, .out = out};
    int64_t *prompt;
    size_t n;
    ls_status st;

    LS_TRY(bpe_encode(g->tokens, g->prompt, strlen(g->prompt), &prompt, &n));
    if (n == 0)
        return ls_train_refuse("the prompt is empty: a network continues at least one token");
    ls_tape_set_training(tape, 0);
    ls_tape_reset(tape);
    w.ids = realloc(prompt, (n + (size_t)g->length) * sizeof(*prompt));
    w.logits = malloc(2 * (size_t)bpe_count(g->tokens) * sizeof(*w.logits));
    if (w.ids == NULL || w.logits == NULL)
        st = ls_train_refuse("no memory for a text of %lld tokens", (long long)g->length);
    else
        st = write_text(&w, (int64_t)n);
    free(w.ids != NULL ? w.ids : prompt);
    free(w.logits);
    return st;
}
