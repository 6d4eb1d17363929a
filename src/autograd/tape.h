/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tape.h - the inside of a tape, for the operator families.
 *
 * An operator fills a node, asks node_begin() whether it may go on, checks its shapes, and lets node_run() run the
 * kernel and record. Its backward turns dy into gradients of the inputs with the grad_ functions, exactly one for each of the
 * first `n_grad` inputs that needs_grad() names.
 */
#ifndef LS_AUTOGRAD_TAPE_H
#define LS_AUTOGRAD_TAPE_H

#include "autograd/autograd.h"
#include "tensor/device.h"

#define NODE_MAX_IN    5
#define NODE_MAX_SAVED 3
#define NODE_OUT       NODE_MAX_IN /* the output, in op_class.unused_in_backward */

typedef struct node node;

/* What all nodes of an operator share. */
typedef struct op_class {
    const char *name;
    int n_required; /* inputs that must not be NULL: the first ones */
    int n_typed;    /* inputs that have the first one's type, float32 or float64: the first ones */
    int n_grad;     /* inputs that can get a gradient: the first ones */
    /* What backward does not read: bit i for input i, bit NODE_OUT for the output. */
    unsigned unused_in_backward;
    ls_status (*backward)(ls_tape *tape, const node *n, ls_tensor *dy);
    /* Makes the (unplaced) output again, bit by bit, from what backward reads; NULL: cannot. */
    ls_status (*recompute)(ls_tape *tape, const node *n);
} op_class;

/* What a tensor held: one write of one storage. */
typedef struct contents {
    const storage *storage;
    uint64_t version;
} contents;

/* One operator as it ran. */
struct node {
    const op_class *class;
    op_attrs attrs;
    int n_in;
    ls_tensor *in[NODE_MAX_IN];
    ls_tensor *saved[NODE_MAX_SAVED]; /* made by the kernel for backward; the node's own */
    ls_tensor *out;
    contents seen[NODE_MAX_IN + 1]; /* of what backward reads: the inputs, the output */
    bool records;                   /* a backward may come: what it needs must be saved */
};

/* What hangs on a tensor that a tape owns. */
typedef struct value {
    tensor_extra extra;
    ls_tape *tape;
    ls_tensor *tensor;
    ls_tensor
        *grad; /* while backward is between its first consumer and its producer; longer when kept */
    int node;  /* that made it, -1 when nothing was recorded */
    bool is_retained;
    bool is_dropped;    /* given back, to be made again for backward */
    bool is_reached;    /* the loss depends on it */
    bool is_recomputed; /* it was dropped, and its elements are those of forward again */
} value;

/* What hangs on a tensor that ls_require_grad() was called on. */
typedef struct leaf {
    tensor_extra extra;
    ls_tensor *own;    /* the gradient's memory unless there is a target; NULL until it is needed */
    ls_tensor *target; /* borrowed */
    const autograd_owner *owner; /* borrowed; NULL: any backward may reach it */
    const char *owner_name;      /* what the owner calls it; borrowed */
    bool has_grad;
    uint64_t backward; /* number of the last backward that reached it */
    int n_pending;     /* uses which that backward has not passed yet */
} leaf;

struct ls_tape {
    ls_device *device;
    bool is_training;
    ls_status failure;
    char failure_text[LS_ERROR_BYTES];
    node *nodes;
    int n_nodes;
    int nodes_capacity;
    int n_passed;   /* nodes that a backward has consumed: the first ones */
    value **values; /* the first n_values are in use, the others wait for the next step */
    int n_values;
    int values_made;
    int values_capacity;
    uint64_t backward; /* number of the last one */
    ls_grad_ready_fn on_ready;
    void *on_ready_arg;
    bool has_random;   /* ls_tape_set_random has been called */
    uint64_t random;   /* of it */
    uint64_t n_random; /* random operators since then */
};

/* --- forward --- */

/* Checks that the tape has not failed and that the inputs are there, on its device and of fitting types; otherwise marks the
 * tape. Decides n->records. */
bool node_begin(ls_tape *tape, node *n);

/* Input `i` of the node, or its output for NODE_OUT, when its backward reads that; else NULL. */
const ls_tensor *node_tensor(const node *n, int i);

/* Makes room for the kernel's output `i` + 1, a tensor for backward alone; does nothing when nothing is recorded. */
LS_MUST_USE ls_status node_save(ls_tape *tape, node *n, int i, ls_dtype type, int n_dims,
                                const int64_t *dims);

/* Runs `op` on the node's inputs; gives its output, shaped `dims` and of the first input's type, and records the node. NULL:
 * the tape has been marked. */
ls_tensor *node_run(ls_tape *tape, node *n, op_kind op, int n_dims, const int64_t *dims);

/* Records the node with an output that is made already and becomes the tape's. */
ls_tensor *node_finish(ls_tape *tape, node *n, ls_tensor *out);

/* Marks the tape: the operator's name, then this thread's last error. Frees what the node holds. Gives NULL. */
ls_tensor *node_reject(ls_tape *tape, node *n, ls_status status);

/* --- backward --- */

bool needs_grad(const ls_tensor *in); /* NULL gives false */

/* An unplaced tensor of in's shape, for a kernel to place. */
LS_MUST_USE ls_status grad_shape(ls_tape *tape, const ls_tensor *in, ls_tensor **out);

/* Adds `g` to the gradient of `in`; takes g over, also when it fails. */
LS_MUST_USE ls_status grad_give(ls_tape *tape, ls_tensor *in, ls_tensor *g);

/* Whether the gradient of the node's output is read by nobody after this node's backward. */
bool grad_may_be_reused(const node *n);

/* Makes again what the backward of `n` reads and ls_tape_done() has dropped. */
LS_MUST_USE ls_status done_restore(ls_tape *tape, const node *n);

/* Runs `call`, whose output `i` is (unplaced) the gradient of `in`, and gives it. */
LS_MUST_USE ls_status grad_run(ls_tape *tape, op_call *call, int i, ls_tensor *in);

/* Runs `call`, whose outputs `first` and `first` + 1 are the placed gradients of `weight` and `bias` (may be NULL):
 * straight into leaves' gradients where these are leaves. */
LS_MUST_USE ls_status grad_run_weights(ls_tape *tape, op_call *call, int first, ls_tensor *weight,
                                       ls_tensor *bias);

/* Runs `call`, whose outputs are the gradients of in[0] (skipped where it is not wanted) and of the
 * weight in[1] and bias in[2], as grad_run_weights() gives them. */
LS_MUST_USE ls_status grad_run_norm(ls_tape *tape, op_call *call, ls_tensor *const *in);

/* ls_add() of unequal shapes. */
ls_tensor *broadcast_add(ls_tape *tape, ls_tensor *a, ls_tensor *b);

/* --- leaves --- */

leaf *leaf_of(const ls_tensor *t);   /* NULL when it is none */
value *value_of(const ls_tensor *t); /* NULL when it is none */

/* Where the leaf's gradient is written, made when there is none yet. */
LS_MUST_USE ls_status leaf_grad_memory(ls_tensor *t, ls_tensor **out);

#endif
