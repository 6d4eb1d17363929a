/* SPDX-License-Identifier: Apache-2.0 */
/*
 * architectures.h - image classifiers as torchvision builds them: the same names, the same layers,
 * the same parameters in the same order ("layer1.0.downsample.0.weight"), the same initial
 * distributions. Weights go both ways.
 */
#ifndef MODELS_ARCHITECTURES_H
#define MODELS_ARCHITECTURES_H

#include <lockstep/nn.h>

#include <stddef.h>

typedef struct network network;

enum { ARCHITECTURE_LIST_BYTES = 1024 };

/* The number of the architecture with that name. -1 when there is none: `error` (of n bytes) then
 * says so, with the list of those there are in lines of at most 80 columns. */
int architecture_find(const char *name, char *error, size_t n);

/* All names on one line; those with the same beginning share it: "vgg11|13|16|19, ...". */
void architecture_list(char *text, size_t n);

/* Their names, in the order of their numbers; NULL behind the last one. */
const char *architecture_name(int number);

/* Adds the layers of an architecture to an empty model; ls_model_status() tells whether all went
 * well. NULL when there is no memory for the net, which lives until net_destroy(). `side` is the
 * height and width of the images: parameters of the vision transformers depend on it. */
network *net_create(ls_model *model, int number, int classes, int side);
void net_destroy(network *net); /* NULL is allowed */

/* Logits (N, classes) for images (N, 3, H, W). The argument is a net. */
ls_tensor *net_forward(void *net, ls_tape *tape, ls_tensor *images);

#endif
