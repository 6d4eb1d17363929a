/* SPDX-License-Identifier: Apache-2.0 */
/*
 * local_copy.h - the state of an island, model and optimizer, in one block of memory: for islands
 * that are not the current one of their rank, for other ranks, and for files.
 */
#ifndef LS_DDP_LOCAL_COPY_H
#define LS_DDP_LOCAL_COPY_H

#include <lockstep/nn.h>
#include <lockstep/optim.h>

#include "base/status.h"

/* What the state of an island consists of. */
typedef struct local_layout {
    ls_device *device;
    ls_optimizer *optimizer;
    ls_named *live;  /* of model and optimizer: the current island's */
    size_t *offsets; /* of each in a copy */
    int n;
    size_t bytes;
} local_layout;

typedef struct local_copy {
    char *memory;
    ls_named *items; /* named "model.NAME" and "optimizer.NAME", over `memory` */
    int n;
} local_copy;

LS_MUST_USE ls_status local_layout_open(ls_model *model, ls_optimizer *optimizer,
                                        local_layout *out);
void local_layout_close(local_layout *l);

LS_MUST_USE ls_status local_copy_create(const local_layout *l, local_copy **out);
void local_copy_destroy(local_copy *c); /* NULL is allowed */

/* Copies the current island's state to c, and back. */
LS_MUST_USE ls_status local_copy_store(const local_layout *l, local_copy *c);
LS_MUST_USE ls_status local_copy_load(const local_layout *l, const local_copy *c);

#endif
