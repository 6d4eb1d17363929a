/* SPDX-License-Identifier: Apache-2.0 */
/* convnet_step.c - how long one training step of the ConvNet takes; see step_loop.h. */
#include "bench/step_loop.h"
#include "models/convnet.h"

static int create(ls_model *model, step_program *p)
{
    convnet_create(model, p->classes, p->net);
    return 0;
}

int main(int argc, char **argv)
{
    convnet net;
    step_program p = {.name = "convnet_step",
                      .channels = 1,
                      .side = 28,
                      .classes = 10,
                      .n_batches = 8,
                      .batch = 100,
                      .steps = 200,
                      .warmup = 20,
                      .net = &net,
                      .create = create,
                      .forward = convnet_forward};

    return step_main(&p, argc, argv);
}
