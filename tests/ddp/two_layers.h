/* SPDX-License-Identifier: Apache-2.0 */
/* two_layers.h - the network of the tests of ls_ddp: two linear layers on one rank's small_net, and
 * a step of it on chosen rows. */
#ifndef TESTS_DDP_TWO_LAYERS_H
#define TESTS_DDP_TWO_LAYERS_H

#include "ddp/small_net.h"

enum { IN = 7, HIDDEN = 9, OUT = 3 };

/* layers: first, second; on the device of the suite, or another one. small_net_close() also after a
 * failure. */
LS_MUST_USE ls_status net_open(small_net *n, uint64_t seed);
LS_MUST_USE ls_status net_open_on(const char *device, small_net *n, uint64_t seed);
/* Collective with a `comm`; NULL: a single process. */
LS_MUST_USE ls_status net_join(small_net *n, ls_comm *comm, const ls_ddp_options *opt);

/* A backward from the mean loss over `rows` rows. */
typedef ls_status (*backward_fn)(small_net *n, ls_tensor *loss, int64_t rows, ls_ddp_step *step);

LS_MUST_USE ls_status ddp_backward(small_net *n, ls_tensor *loss, int64_t rows, ls_ddp_step *step);
LS_MUST_USE ls_status ddp_accumulate(small_net *n, ls_tensor *loss, int64_t rows,
                                     ls_ddp_step *step);
/* Of a single process; forgets the gradients first. */
LS_MUST_USE ls_status plain_backward(small_net *n, ls_tensor *loss, int64_t rows,
                                     ls_ddp_step *step);

/* Forward and backward of rows [first, first + rows) of a step, which are the same on every rank.
 * Every second step is checkpointed. */
LS_MUST_USE ls_status rows_through(small_net *n, backward_fn backward, int step, int first,
                                   int rows, ls_ddp_step *result);

enum { VALUES_MOST = 256 };

/* All parameters as one array of at most VALUES_MOST. */
LS_MUST_USE ls_status read_parameters(small_net *n, float *out, size_t *count);

#endif
