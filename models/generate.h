/* SPDX-License-Identifier: Apache-2.0 */
/*
 * generate.h - text from a language model, token by token: by temperature and top-k sampling of its
 * logits. The model is a function, so that any network can be used.
 */
#ifndef MODELS_GENERATE_H
#define MODELS_GENERATE_H

#include "models/bpe.h"

#include <lockstep/autograd.h>

#include <stdio.h>

typedef struct generation {
    const bpe *tokens;
    const char *prompt; /* at least one token */
    int64_t length;     /* tokens behind the prompt */
    int64_t context;    /* the network reads so many of the last tokens */
    double temperature; /* logits are divided by it; 0: always the largest */
    int64_t top_k;      /* only the k largest logits, and those equal to the last; 0: all */
    int64_t seed;
} generation;

/* Token ids (1,T) to the float32 logits, of any shape, of the token behind them. */
typedef ls_tensor *(*generate_fn)(void *net, ls_tape *tape, ls_tensor *ids);

/* Writes the prompt and `length` tokens behind it, in evaluation mode, as UTF-8. A question mark is
 * in place of a byte that is no UTF-8, and of a control character other than the end of a line,
 * which could change a terminal. The text depends on `g` and the logits only. LS_EINVAL: the prompt
 * is empty, or there is no memory. */
LS_MUST_USE ls_status generate(const generation *g, ls_device *device, ls_tape *tape,
                               generate_fn next, void *net, FILE *out);

/* The index of one of the n >= 1 logits, by the probabilities softmax(logits / temperature). It
 * depends on `g`, the logits and `position`, the number of the draw, only. `sorted` is memory for n
 * numbers. */
int64_t generate_draw(const generation *g, const float *logits, size_t n, int64_t position,
                      float *sorted);

#endif
