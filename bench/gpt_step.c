/* SPDX-License-Identifier: Apache-2.0 */
/* gpt_step.c - how long one training step of GPT-2 takes, with 6 layers of 6 heads, 384 wide, and
 * 256 tokens of 256 (--side); see step_loop.h. */
#include "bench/step_loop.h"
#include "models/gpt.h"

static int create(ls_model *model, step_program *p)
{
    const gpt_config config = {.prefix = "",
                               .layers = 6,
                               .heads = 6,
                               .width = 384,
                               .context = p->side,
                               .vocab = p->classes};

    gpt_create(model, &config, p->net);
    return 0;
}

static ls_tensor *forward(void *net, ls_tape *tape, ls_tensor *ids)
{
    return gpt_forward(net, tape, ids);
}

int main(int argc, char **argv)
{
    static gpt net;
    step_program p = {.name = "gpt_step",
                      .side = 256,
                      .classes = 256,
                      .is_tokens = 1,
                      .n_batches = 1,
                      .batch = 8,
                      .steps = 5,
                      .warmup = 2,
                      .net = &net,
                      .create = create,
                      .forward = forward};

    return step_main(&p, argc, argv);
}
