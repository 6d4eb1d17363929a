/* SPDX-License-Identifier: Apache-2.0 */
/* gpt.h - GPT-2 (Radford et al. 2019), with the structure and tensor names of Hugging Face. */
#ifndef MODELS_GPT_H
#define MODELS_GPT_H

#include <lockstep/lockstep.h>

enum { GPT_MOST_LAYERS = 64, GPT_BLOCK_TENSORS = 12 };

typedef struct gpt_config {
    const char *prefix; /* of all names: "", or "transformer." as in files of GPT2LMHeadModel */
    int64_t layers, heads, width, context /* most tokens of a sample */, vocab;
    double dropout;
} gpt_config;

typedef struct gpt {
    gpt_config config;
    ls_tensor *tokens, *positions; /* (vocab, width), (context, width) */
    ls_tensor *blocks[GPT_MOST_LAYERS][GPT_BLOCK_TENSORS];
    ls_tensor *norm[2];
} gpt;

/* Adds the parameters to the model, whose status reports a failure. */
void gpt_create(ls_model *model, const gpt_config *config, gpt *out);

/* Token ids (N,T) to logits (N * T, vocab). */
ls_tensor *gpt_forward(const gpt *net, ls_tape *tape, ls_tensor *ids);

/* The float32 logits of the token behind token ids (1,T); `net` is a gpt. For generate(). */
ls_tensor *gpt_next(void *net, ls_tape *tape, ls_tensor *ids);

#endif
