/* SPDX-License-Identifier: Apache-2.0 */
/*
 * architectures.h - torchvision's image classifiers: the same names, layers, order of parameters
 * ("layer1.0.downsample.0.weight") and initial distributions. Each loads weights that the other has
 * saved.
 */
#ifndef MODELS_ARCHITECTURES_H
#define MODELS_ARCHITECTURES_H

#include <lockstep/nn.h>

#include <stddef.h>

typedef struct network network;

enum { ARCHITECTURE_LIST_BYTES = 1024 };

/* The index of an architecture. -1 when there is none of that name: `error` (of n bytes) then lists
 * the known ones, in lines of at most 80 columns. */
int architecture_find(const char *name, char *error, size_t n);

/* All names on one line, common prefixes once: "vgg11|13|16|19, ...". */
void architecture_list(char *text, size_t n);

/* The name of an index; NULL after the last one. */
const char *architecture_name(int number);

/* Adds the layers of an architecture to an empty model; ls_model_status() returns a failure. NULL
 * when out of memory; free the net with net_destroy(). `side` is the height and width of the
 * images: parameters of the vision transformers depend on it. */
network *net_create(ls_model *model, int number, int classes, int side);
void net_destroy(network *net); /* NULL is allowed */

/* Logits (N, classes) for images (N, 3, H, W); `net` is a network. */
ls_tensor *net_forward(void *net, ls_tape *tape, ls_tensor *images);

#endif
