/* SPDX-License-Identifier: Apache-2.0 */
/*
 * small_net.h - a small network on one rank, alone or with others: what surrounds the layers that a
 * test is about.
 */
#ifndef TESTS_DDP_SMALL_NET_H
#define TESTS_DDP_SMALL_NET_H

#include <lockstep/ddp.h>
#include <lockstep/optim.h>

#include "base/status.h"

enum { SMALL_NET_LAYERS = 5 };

typedef struct small_net {
    ls_device *device;
    ls_model *model;
    ls_tape *tape;
    ls_layer *layers[SMALL_NET_LAYERS]; /* the test's */
    ls_ddp *ddp;                        /* NULL: a single process */
    ls_optimizer *sgd;
} small_net;

/* One compute thread, an empty model, a tape. small_net_close() also after a failure. */
LS_MUST_USE ls_status small_net_open(small_net *n, const char *device, uint64_t seed);
/* With its layers made: joins the others (comm NULL: there are none), and gets SGD with
 * momentum. */
LS_MUST_USE ls_status small_net_join(small_net *n, ls_comm *comm, const ls_ddp_options *opt,
                                     double lr);
void small_net_close(small_net *n);

/*
 * Rows [first, first + rows) of a step as new tensors, the same on every rank: normal
 * values around `mean` of shape (rows, dims[1], ...), labels below `classes`. dims[0] is
 * overwritten. Resets the tape.
 */
LS_MUST_USE ls_status small_net_rows(small_net *n, int step, int first, int64_t *dims, int n_dims,
                                     int rows, float mean, int classes, ls_tensor **x,
                                     ls_tensor **y);

#endif
