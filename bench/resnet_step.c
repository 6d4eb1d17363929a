/* SPDX-License-Identifier: Apache-2.0 */
/*
 * resnet_step.c - how long one training step of a ResNet takes (--arch, default resnet50); see step_loop.h.
 */
#include "bench/step_loop.h"
#include "models/resnet.h"

#include <stdio.h>

static int create(ls_model *model, const step_program *p)
{
    char error[256];
    const resnet_arch *arch = resnet_find(p->arch, error, sizeof(error));

    if (arch == NULL) {
        fprintf(stderr, "%s: %s\n", p->name, error);
        return -1;
    }
    resnet_create(model, arch, p->classes, p->net);
    return 0;
}

int main(int argc, char **argv)
{
    resnet net;
    step_program p = {.name = "resnet_step",
                      .channels = 3,
                      .side = 224,
                      .classes = 1000,
                      .n_batches = 1,
                      .batch = 16,
                      .steps = 5,
                      .warmup = 2,
                      .momentum = 0.9,
                      .arch = "resnet50",
                      .net = &net,
                      .create = create,
                      .forward = resnet_forward};

    return step_main(&p, argc, argv);
}
