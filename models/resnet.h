/* SPDX-License-Identifier: Apache-2.0 */
/*
 * resnet.h - ResNet-18, -34, -50, -101 and -152 as torchvision builds them: the same layers, the same names in the same order
 * ("layer1.0.downsample.0.weight"), the same initial distributions. The stride of a bottleneck is in its 3x3 convolution.
 */
#ifndef MODELS_RESNET_H
#define MODELS_RESNET_H

#include <lockstep/nn.h>

#include <stddef.h>

enum { RESNET_MAX_BLOCKS = 50 };

typedef struct resnet_arch {
    const char *name; /* "resnet50" */
    int bottleneck;   /* blocks of 1x1, 3x3, 1x1 convolutions; else of two 3x3 ones */
    int depth[4];     /* blocks of each stage */
} resnet_arch;

/* The architecture of that name. NULL when there is none: `error` (of n bytes) then lists those there are. */
const resnet_arch *resnet_find(const char *name, char *error, size_t n);

typedef struct resnet_block {
    ls_layer *conv[3], *bn[3]; /* the third only in bottlenecks */
    ls_layer *downsample[2];   /* convolution and batch norm of the shortcut; NULL: x itself */
} resnet_block;

typedef struct resnet {
    const resnet_arch *arch;
    ls_layer *conv1, *bn1, *fc;
    resnet_block blocks[RESNET_MAX_BLOCKS];
    int n_blocks;
} resnet;

/* Adds its layers to `model`; ls_model_status() tells whether all went well. */
void resnet_create(ls_model *model, const resnet_arch *arch, int num_classes, resnet *net);

/* Logits (N, num_classes) for images (N, 3, H, W) of any size from 1; `net` is a resnet. */
ls_tensor *resnet_forward(void *net, ls_tape *tape, ls_tensor *images);

#endif
