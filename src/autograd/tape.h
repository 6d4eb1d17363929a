/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tape.h - the internals of a tape, for the operators' files op_*.c.
 *
 * An operator fills a node, asks node_begin() whether it may go on, checks its shapes, and lets
 * node_run() run the kernel and record. Its backward turns dy into gradients of the inputs with the
 * grad_ functions, exactly one for each of the first `n_grad` inputs that needs_grad() names. With
 * several outputs node_run_all() records, and node_grad() gives the gradient of each.
 *
 * autograd/: the tape. Other layers use autograd.h and the public headers; ops/ has the operators.
 */
#ifndef LS_AUTOGRAD_TAPE_H
#define LS_AUTOGRAD_TAPE_H

#include "autograd/autograd.h"
#include "tensor/device.h"

#define NODE_MAX_IN    8
#define NODE_MAX_SAVED 4
#define NODE_OUT       NODE_MAX_IN /* the outputs, in op_class.unused_in_backward */

typedef struct node node;

/* The type of an operator's activations on a tape that computes in 16 bits. */
typedef enum precision_rule {
    PRECISION_OF_INPUTS, /* theirs; float32 if they differ */
    PRECISION_COMPUTE,   /* the tape's */
    PRECISION_WIDE       /* float32 */
} precision_rule;

/* What all nodes of an operator share. */
// NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding): by meaning
typedef struct op_class {
    const char *name;
    const char *inputs[NODE_MAX_IN]; /* names for messages; NULL: "input 1", ... */
    int n_required;                  /* the first n_required inputs must not be NULL */
    int n_typed; /* the first n_typed inputs have one type, float32 or float64 */
    /* With mixed precision: which of them are parameters, in float32 always, as bits; what decides
     * the type of the others, the activations, and of the output. */
    unsigned parameters;
    precision_rule precision;
    int n_grad; /* the first n_grad inputs, but those in `written`, can get a gradient */
    /* What backward does not read: bit i for input i, bit NODE_OUT for the outputs. */
    unsigned unused_in_backward;
    unsigned written; /* the inputs that forward writes in place */
    /* dy: node_grad() of the first output; NULL is possible only with several outputs. */
    ls_status (*backward)(ls_tape *tape, const node *n, ls_tensor *dy);
    /* Recomputes the (unplaced) output with the same bits from the tensors that backward reads.
     * NULL: not possible. */
    ls_status (*recompute)(ls_tape *tape, const node *n);
    bool adds_gradients; /* backward adds value.more_grad of the output, if not NULL, to dy */
} op_class;

/* The members of op_class for one floating-point input with a gradient. */
#define ONE_INPUT .inputs = {"input"}, .n_required = 1, .n_typed = 1, .n_grad = 1

/* Backward reads neither inputs nor outputs. */
#define READS_NOTHING .unused_in_backward = ((1U << (NODE_OUT + 1)) - 1)

/* The contents of a tensor: one version of one storage. */
typedef struct contents {
    const storage *storage;
    uint64_t version;
} contents;

/* A tensor that an operator's backward reads. */
typedef struct dependency {
    ls_tensor *tensor;
    contents seen; /* at forward */
    bool has_grad; /* backward gives it a gradient */
} dependency;

/* What a node owns besides tensors. */
typedef struct node_extra node_extra;
struct node_extra {
    void (*drop)(node_extra *self);
    dependency *inputs; /* beyond those in node.in, any number; NULL elements do not occur */
    int n_inputs;
};

/* One operator as it ran. */
struct node {
    const op_class *class;
    op_attrs attrs;
    int n_in;
    int n_saved; /* the others are NULL */
    ls_tensor *in[NODE_MAX_IN];
    ls_tensor *saved[NODE_MAX_SAVED]; /* kernel outputs for backward; owned by the node */
    ls_tensor *out;                   /* the first output */
    int n_out;
    int first_value;   /* the outputs are values first_value to first_value + n_out - 1 */
    node_extra *extra; /* NULL for most */
    const char *layer; /* autograd_enter() */
    bool records;      /* a backward may follow: save what it needs */
    /* the last member, which record() does not copy: at forward, of the inputs that backward
     * reads */
    contents seen[NODE_MAX_IN];
};

/* The tape's record of a tensor that it owns. */
typedef struct value {
    tensor_extra extra;
    ls_tape *tape;
    ls_tensor *tensor;
    /* from backward of its last consumer to backward of its producer; if retained, until reset */
    ls_tensor *grad;
    ls_tensor *more_grad; /* to be added to grad by op_class.adds_gradients, or NULL */
    contents seen;        /* when it was made */
    int n_readers;        /* recorded nodes whose backward has still to read it as an input */
    int number;           /* position in ls_tape.values */
    int node;             /* the node whose output it is; -1: not recorded, or not floating-point */
    bool is_retained;
    bool is_dropped;    /* its memory was released; backward recomputes it */
    bool is_reached;    /* the loss depends on it */
    bool is_recomputed; /* after it was dropped */
} value;

/* Inputs of linear operators with one weight, whose gradients are computed as one product. */
typedef struct collection {
    ls_tensor *x; /* (capacity, I), plain; the first `rows` are in use */
    ls_tensor *dy;
    ls_tensor *bias; /* borrowed; a leaf or NULL */
    int64_t rows;
    int64_t capacity;
    int n_uses; /* operators; 0: there is no collection */
} collection;

/* The record of a tensor that ls_require_grad() was called on. */
typedef struct leaf {
    tensor_extra extra; /* the first member */
    ls_tensor *own;     /* the gradient's memory without a target; NULL until it is needed */
    ls_tensor *target;  /* borrowed */
    const autograd_owner *owner; /* borrowed; NULL: any backward may reach it */
    const char *owner_name;      /* the leaf's name in messages; borrowed */
    bool has_grad;
    bool is_frozen;    /* leaf_of() gives NULL: the tensor is a constant */
    uint64_t backward; /* number of the last backward that reached it */
    int n_pending; /* uses whose gradients this backward has still to add, also collected ones */
    collection collected; /* of the leaf as a weight */
} leaf;

/* A cast on the tape. */
typedef struct cast_result {
    const ls_tensor *from;
    contents seen; /* of `from` */
    ls_tensor *to; /* the tape's */
} cast_result;

/* The gradient of the loss itself: a scalar, filled once for all backwards with that value. */
typedef struct loss_seed {
    ls_tensor *tensor; /* NULL before the first backward */
    double value;
    uint64_t version; /* of its storage, after it was filled */
} loss_seed;

#define CASTS_REMEMBERED 4 /* for operators that read the same input one after the other */

/* Where the random numbers of the next operator come from. */
typedef struct random_state {
    bool is_set;      /* ls_tape_set_random() has been called */
    uint64_t hash;    /* of seed and step */
    uint64_t n_drawn; /* random operators since that call */
} random_state;

/* Results inside a checkpointed function that backward takes instead of computing them again. */
typedef struct retained_results {
    dependency *list; /* `tensor` is owned, and NULL when it was taken */
    int n;
    int capacity;
    int n_taken;
    bool is_filled; /* forward has ended */
} retained_results;

struct ls_tape {
    ls_device *device;
    bool is_training;
    bool checks_nan;
    bool has_found_nan;     /* nan_found was called */
    nan_found_fn nan_found; /* NULL: what the check finds is a failure */
    void *nan_arg;
    bool keeps_statistics; /* batch norms do not change running ones */
    const char *layer;     /* name of the layer whose forward runs; NULL: of none; borrowed */
    ls_dtype compute;
    cast_result casts[CASTS_REMEMBERED]; /* the last ones, a ring */
    unsigned n_casts;
    loss_seed seed;
    ls_status failure;
    char failure_text[LS_ERROR_BYTES];
    node *nodes;
    int n_nodes;
    int nodes_capacity;
    int n_passed;   /* a backward has consumed the first n_passed nodes */
    int passing;    /* the node whose backward runs */
    value **values; /* the first n_values are in use, the others are for later steps */
    int n_values;
    int values_made;
    int values_capacity;
    bool has_dropped;           /* backward may have to recompute a value: value.is_dropped */
    uint64_t backward;          /* number of the last backward */
    const autograd_owner *by;   /* its caller; NULL: not an owner of leaves */
    int n_functions;            /* checkpointed functions that are running, one in another */
    int first_inside;           /* the innermost of them has made the values from this one on */
    int n_recomputing;          /* those of them that backward runs again */
    retained_results *retained; /* of the innermost of them, or NULL */
    bool keeps_steps;           /* of it: ls_tape_keep_steps() */
    ls_grad_ready_fn on_ready;
    void *on_ready_arg;
    random_state random;
};

/* --- forward --- */

/* Checks that the tape has not failed, and that the inputs exist, are on its device and have the
 * right types; otherwise marks the tape. With mixed precision replaces inputs by casts of them
 * first. Sets n->records. */
bool node_begin(ls_tape *tape, node *n);

/* Replaces the inputs of the operator as its precision_rule says. False: the tape has
 * been marked. */
bool precision_convert(ls_tape *tape, node *n);

/* Checks the type of typed input `i`, which is not NULL. */
LS_MUST_USE ls_status precision_check(const ls_tape *tape, const node *n, int i);

/* Whether the operator's backward reads input `i`, or the outputs for NODE_OUT. */
static inline bool class_reads(const op_class *class, int i)
{
    return (class->unused_in_backward >> i & 1) == 0;
}

/* Whether input `i` can get a gradient. */
static inline bool class_has_grad(const op_class *class, int i)
{
    return i < class->n_grad && (class->written >> i & 1) == 0;
}

/* The name of input `i`, or of an output for NODE_OUT, in messages. */
const char *node_tensor_name(const node *n, int i);

/* Adds tensor `i` for backward, which the kernel writes as the output behind the node's outputs and
 * tensors 0 to i - 1; does nothing when nothing is recorded. */
LS_MUST_USE ls_status node_save(ls_tape *tape, node *n, int i, ls_dtype type, int n_dims,
                                const int64_t *dims);

/* Runs `op` on the node's inputs and records the node. Returns the output, of shape `dims` and the
 * first input's type. NULL: the tape has been marked. */
ls_tensor *node_run(ls_tape *tape, node *n, op_kind op, int n_dims, const int64_t *dims);

/* The same with the first input's shape. */
ls_tensor *node_run_like(ls_tape *tape, node *n, op_kind op);

/* The same with another type of the output. */
ls_tensor *node_run_as(ls_tape *tape, node *n, op_kind op, ls_dtype type, int n_dims,
                       const int64_t *dims);

/* The same with `n_out` outputs, which are unplaced tensors of tensor_shape(); the tape takes them,
 * also on failure. False: the tape has been marked, and out[] is NULL. */
bool node_run_all(ls_tape *tape, node *n, op_kind op, ls_tensor **out, int n_out);

/* Records the node with an existing output, which the tape takes. */
ls_tensor *node_finish(ls_tape *tape, node *n, ls_tensor *out);

/* The same with `n_out` outputs; as node_run_all(). */
bool node_finish_all(ls_tape *tape, node *n, ls_tensor **out, int n_out);

/* Frees what the node owns besides its outputs. */
void node_drop(node *n);

static inline contents contents_of(const ls_tensor *t)
{
    return (contents){.storage = t->storage, .version = t->storage->version};
}

/* Marks the tape: the operator's name, then this thread's last error. Frees the node's tensors.
 * Returns NULL. */
ls_tensor *node_reject(ls_tape *tape, node *n, ls_status status);

/* The same, for errors whose text lacks the shapes. Destroys the outputs that are not NULL, and
 * makes them NULL. Returns false. */
bool node_reject_all(ls_tape *tape, node *n, ls_tensor **out, int n_out, ls_status status);

/* With ls_tape_check_nan(): LS_EFORMAT if a result of the operator is not finite, or after its
 * backward a gradient that this has written. The text says which. */
LS_MUST_USE ls_status check_nan_results(ls_tape *tape, const node *n, ls_tensor *const *out,
                                        int n_out);
LS_MUST_USE ls_status check_nan_gradients(ls_tape *tape, const node *n);
/* The same for a leaf whose gradient is complete, before it is handed over: its receiver may change
 * it in another thread. */
LS_MUST_USE ls_status check_nan_leaf(ls_tape *tape, const ls_tensor *t);

/* `t`, with its dimensions before the last two repeated to those of `dims`, of n_dims in all. NULL:
 * the tape has been marked. */
ls_tensor *leading_expand(ls_tape *tape, ls_tensor *t, int n_dims, const int64_t *dims);

/* Random numbers for an operator that drops with probability p: sets attrs.drop, unless the tape
 * evaluates and the operator does not drop in evaluation, and attrs.random. */
LS_MUST_USE ls_status node_draw(ls_tape *tape, node *n, double p, bool in_evaluation);

/* Broadcasts the shape `dims` with another one; false if they do not fit. */
bool shape_broadcast(int64_t *dims, int *n_dims, const int64_t *other, int n_other);

/* --- the records of tensors --- */

/* NULL when it is not a tape's value. */
static inline value *value_of(const ls_tensor *t)
{
    return t == NULL || t->extra == NULL || !t->extra->of_tape ? NULL : (value *)(void *)t->extra;
}

/* That of a recorded node's first output. */
static inline value *node_value(const node *n)
{
    return (value *)(void *)n->out->extra;
}

/* NULL when it is not a leaf; that may be frozen. */
static inline leaf *leaf_record_of(const ls_tensor *t)
{
    return t == NULL || t->extra == NULL || t->extra->of_tape ? NULL : (leaf *)(void *)t->extra;
}

/* NULL when it is not a leaf, or frozen. */
static inline leaf *leaf_of(const ls_tensor *t)
{
    leaf *l = leaf_record_of(t);

    return l == NULL || l->is_frozen ? NULL : l;
}

/* A value that a backward has passed is a constant. */
static inline bool value_is_live(const value *v)
{
    return v->node >= v->tape->n_passed;
}

/* Whether a backward would give it a gradient; false for NULL. */
static inline bool needs_grad(const ls_tensor *in)
{
    const value *v = value_of(in);

    return v != NULL ? value_is_live(v) : leaf_of(in) != NULL;
}

/* --- backward --- */

/* The inputs of a node: those in node.in, which may be NULL, and those in node.extra. */
static inline int node_input_count(const node *n)
{
    return n->n_in + (n->extra == NULL ? 0 : n->extra->n_inputs);
}

static inline ls_tensor *node_input(const node *n, int i)
{
    return i < n->n_in ? n->in[i] : n->extra->inputs[i - n->n_in].tensor;
}

/* Whether the node's backward gives input `i` a gradient. */
static inline bool node_input_has_grad(const node *n, int i)
{
    return i < n->n_in ? class_has_grad(n->class, i) : n->extra->inputs[i - n->n_in].has_grad;
}

/* Whether the node's backward reads input `i`. */
static inline bool node_input_is_read(const node *n, int i)
{
    return i >= n->n_in || class_reads(n->class, i);
}

/* Output `i` of a recorded node. */
static inline ls_tensor *node_output(const ls_tape *tape, const node *n, int i)
{
    return tape->values[n->first_value + i]->tensor;
}

/* The gradient of output `i`; NULL: the loss does not depend on that output. */
static inline ls_tensor *node_grad(const ls_tape *tape, const node *n, int i)
{
    return tape->values[n->first_value + i]->grad;
}

/* The same with zeros in place of NULL. Borrowed until this node's backward ends. */
LS_MUST_USE ls_status node_grad_or_zeros(ls_tape *tape, const node *n, int i, ls_tensor **out);

/* A tensor of shape `dims` over the elements of `t`, which becomes plain. */
LS_MUST_USE ls_status tensor_share_as(ls_tape *tape, ls_tensor *t, int n_dims, const int64_t *dims,
                                      ls_tensor **out);

/* Adds `g` to the gradient of `in`; takes g, also on failure. */
LS_MUST_USE ls_status grad_give(ls_tape *tape, ls_tensor *in, ls_tensor *g);

/* The same without taking g, which has the shape of `in`, and without a copy where possible. */
LS_MUST_USE ls_status grad_give_same(ls_tape *tape, ls_tensor *in, ls_tensor *g);

/* Whether the gradient of the node's first output is not read after this node's backward. */
bool grad_may_be_reused(const node *n);

/* Whether the loss depends on an output of the node. */
bool node_is_reached(const ls_tape *tape, const node *n);

/* The two walks of a backward over nodes `first` to `last`: counts the uses of the leaves that the
 * reached ones read; runs their backwards, and releases all. */
LS_MUST_USE ls_status reach_nodes(ls_tape *tape, int first, int last);
LS_MUST_USE ls_status pass_nodes(ls_tape *tape, int first, int last);

/* Releases the memory that only this node's backward needs. */
void node_release(ls_tape *tape, node *n);

/* Recomputes the values that the backward of `n` reads and ls_tape_done() has dropped. */
LS_MUST_USE ls_status done_restore(ls_tape *tape, const node *n);

/* Whether an operator inside a checkpointed function adds its results to the retained ones. */
static inline bool adds_retained(const ls_tape *tape)
{
    return tape->keeps_steps && !tape->retained->is_filled;
}

/* Whether it takes them from there. */
static inline bool takes_retained(const ls_tape *tape)
{
    return tape->keeps_steps && tape->retained->is_filled;
}

LS_MUST_USE ls_status retained_add(ls_tape *tape, const ls_tensor *t);

/* Gives the unplaced t the elements of the next retained result. */
LS_MUST_USE ls_status retained_take(ls_tape *tape, ls_tensor *t);

/* Destroys the gradient of a value. */
void value_forget_grad(value *v);

/* Runs `call`, whose output `i` is the (unplaced) gradient of `in`, and adds it to that. */
LS_MUST_USE ls_status grad_run(ls_tape *tape, op_call *call, int i, ls_tensor *in);

/* Runs `op` with the node's attributes on a and b (NULL: on a alone); its output is the gradient of
 * the node's first input. If b is dy, `op` may reuse its memory. */
LS_MUST_USE ls_status grad_run_op(ls_tape *tape, const node *n, op_kind op, ls_tensor *a,
                                  ls_tensor *b);

/* Runs `call`, whose outputs `first` and `first` + 1 are the placed gradients of `weight` and
 * `bias` (may be NULL). The kernel writes gradients of leaves directly into their memory. */
LS_MUST_USE ls_status grad_run_weights(ls_tape *tape, op_call *call, int first, ls_tensor *weight,
                                       ls_tensor *bias);

/* The gradients of `weight` (O,I) and `bias` (O, may be NULL) of y = x W^T + b from x (N,I) and dy
 * (N,O), which it copies where more uses of the weight follow in this backward: then one product
 * computes the gradients of all, at the last use. */
LS_MUST_USE ls_status grad_run_linear(ls_tape *tape, ls_tensor *x, ls_tensor *dy, ls_tensor *weight,
                                      ls_tensor *bias);

/* Runs `call`, whose outputs are the gradients of in[0] (skipped if not needed) and, as in
 * grad_run_weights(), of the weight in[1] and bias in[2]. */
LS_MUST_USE ls_status grad_run_norm(ls_tape *tape, op_call *call, ls_tensor *const *in);

/* --- leaves --- */

/* The memory of the leaf's gradient, allocated at first use. */
LS_MUST_USE ls_status leaf_grad_memory(ls_tensor *t, ls_tensor **out);

/* `n_uses` uses of the leaf have been passed; after the last one its gradient is complete. */
LS_MUST_USE ls_status leaf_passed(ls_tape *tape, ls_tensor *t, int n_uses);

/* Computes what grad_run_linear() has collected for the leaf `weight`. */
LS_MUST_USE ls_status weights_flush(ls_tape *tape, ls_tensor *weight);

/* Frees it, after a backward that failed. */
void weights_forget(leaf *l);

#endif
