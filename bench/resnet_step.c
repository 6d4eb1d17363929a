/* SPDX-License-Identifier: Apache-2.0 */
/*
 * resnet_step.c - how long one training step of a network takes (--arch, default resnet50); see
 * step_loop.h.
 */
#include "bench/step_loop.h"
#include "models/architectures.h"

#include <stdio.h>

static int create(ls_model *model, step_program *p)
{
    char error[ARCHITECTURE_LIST_BYTES + 128];
    const int arch = architecture_find(p->arch, error, sizeof(error));

    if (arch < 0) {
        fprintf(stderr, "%s: %s\n", p->name, error);
        return -1;
    }
    p->net = net_create(model, arch, p->classes, p->side);
    return p->net == NULL;
}

int main(int argc, char **argv)
{
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
                      .create = create,
                      .forward = net_forward};
    const int code = step_main(&p, argc, argv);

    net_destroy(p.net);
    return code;
}
