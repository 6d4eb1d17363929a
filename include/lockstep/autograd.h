/* SPDX-License-Identifier: Apache-2.0 */
/*
 * autograd.h - a tape that records operators as they run, and runs them backward. The operators are
 * those of ops.h and nn_ops.h, and of the program.
 *
 *     ls_tensor *h = ls_max_pool2d(tape, ls_relu(tape, ls_conv2d(tape, x, w, b, NULL)), &pool);
 *
 * Errors     An operator gives NULL when it fails or gets NULL (one with several results writes
 *            NULL to all of them); the first failure stays in the tape with the operator's name and
 *            shapes, and ls_backward() and ls_tape_status() report it.
 * Ownership  Results of operators belong to the tape until ls_tape_reset(); their memory may be
 *            reused as soon as backward has passed it (see ls_tape_keep). The caller's own tensors
 *            must not change until backward or the reset: a backward that reads a tensor that was
 *            written or destroyed since forward is LS_EINVAL and names operator, input and the
 *            function or operator that wrote. (Later writes through a pointer of ls_tensor_data()
 *            or ls_tensor_wrap() are not detected.)
 * Threads    A tape is used by one thread.
 */
#ifndef LOCKSTEP_AUTOGRAD_H
#define LOCKSTEP_AUTOGRAD_H

#include <lockstep/nn_ops.h>

LS_BEGIN_DECLS

/* --- life of a tape --- */

LS_API LS_MUST_USE ls_status ls_tape_create(ls_device *device, ls_tape **out);
LS_API void ls_tape_destroy(ls_tape *tape); /* NULL is allowed */

/* Forgets all operators and values, and clears a failure; the next step reuses the memory. */
LS_API void ls_tape_reset(ls_tape *tape);

/* Training (the default) records operators and uses batch statistics; evaluation does neither. A
 * change of the mode resets the tape. */
LS_API void ls_tape_set_training(ls_tape *tape, int training);
LS_API int ls_tape_training(const ls_tape *tape);

/*
 * Mixed precision: the type of activations, LS_F32 (the default), LS_BF16 or LS_F16. Parameters
 * (weights, biases, running statistics) and their gradients stay float32. With a 16-bit type, as
 * with torch.autocast,
 *   - convolutions, ls_linear, ls_matmul, ls_attention and recurrent cells convert their float32
 *     inputs, such as the batch, to it, but not cell states of LSTMs (PyTorch: those, too);
 *   - losses, softmax, sums, means, cumulative sums, exp, log, pow, rsqrt, reciprocal and softplus
 *     convert 16-bit inputs to float32, and give float32;
 *   - all other operators have the type of their inputs; if these differ, float32.
 * Sums, means and variances are always computed in float32 or float64. The gradient of a value has
 * the value's type. An input that is converted twice in a row is converted once. float64 is never
 * converted. In LS_F16 gradients below 6e-8 become 0: the seed of ls_backward() should be large
 * (ls_grad_scaler of <lockstep/optim.h>). A change resets the tape. LS_EINVAL: another type.
 */
LS_API LS_MUST_USE ls_status ls_tape_set_compute(ls_tape *tape, ls_dtype type);
LS_API ls_dtype ls_tape_compute(const ls_tape *tape); /* LS_F32 for NULL */

/* The first failure since the last reset, or LS_OK; its text becomes this thread's last error. */
LS_API LS_MUST_USE ls_status ls_tape_status(ls_tape *tape);

/* Retains a value, and its gradient if it has one, after backward until the reset. Later operators
 * treat it as a constant. Other tensors and NULL are ignored. */
LS_API void ls_tape_keep(ls_tape *tape, ls_tensor *value);

/* Declares that no later operator reads the value: its memory is reused at once, or after backward
 * has passed its readers. On host devices a batch norm's output is freed at once and recomputed.
 * Ignored: retained values, those of outside in a checkpointed function, other tensors, NULL. */
LS_API void ls_tape_done(ls_tape *tape, ls_tensor *value);

/* 1: an operator whose result has NaN or infinity fails with LS_EFORMAT, and so does a backward
 * that makes such a gradient. The text names operator, tensor, element and, with layers of
 * <lockstep/nn.h>, the layer; so the first failure is the cause of a loss that is NaN. Gradients
 * are not checked on a tape that computes in LS_F16: ls_grad_scaler skips steps that overflow. Each
 * result is copied and read, which is slow, but changes no results. 0 (the default): no check. */
LS_API void ls_tape_check_nan(ls_tape *tape, int on);

/* --- gradients --- */

/* Makes `t`, owned by the caller, float32 or float64, a leaf whose gradient backward computes; also
 * one that ls_model_freeze() has frozen. */
LS_API LS_MUST_USE ls_status ls_require_grad(ls_tensor *t);

/* The gradient of a leaf, row-major, or of a retained value; NULL when there is none. Borrowed:
 * valid until the leaf is destroyed (the tape is reset). */
LS_API ls_tensor *ls_grad(const ls_tensor *t);

/* Forgets a leaf's gradient: the next backward writes it, later ones add to it. */
LS_API void ls_zero_grad(ls_tensor *t);

/* d(seed * loss)/d(leaf) for all leaves; `loss` has one element and stays readable until the
 * reset. With mean losses, seeding with the number of rows gives sums over samples. A parameter
 * that an ls_ddp reduces is LS_EINVAL: call ls_ddp_backward(). Backward consumes all operators
 * recorded so far, also those that the loss does not depend on; operators of another backward may
 * follow. Returns the tape's first failure; after a failure the gradients are undefined. */
LS_API LS_MUST_USE ls_status ls_backward(ls_tape *tape, ls_tensor *loss, double seed);

/* Called during ls_backward() in the order in which the gradients of leaves become complete, once
 * per leaf and backward, not for leaves without influence on the loss. A failure ends backward. */
typedef ls_status (*ls_grad_ready_fn)(void *arg, ls_tensor *leaf);
LS_API void ls_tape_on_grad_ready(ls_tape *tape, ls_grad_ready_fn fn, void *arg); /* NULL: none */

/* --- operators of the program --- */

#define LS_OP_MAX_INPUTS  8
#define LS_OP_MAX_OUTPUTS 8

typedef struct ls_op_shape {
    ls_dtype type;
    int n_dims;
    int64_t dims[LS_MAX_DIMS];
} ls_op_shape;

/* What a function of an ls_op gets; all pointers are valid during the call. All tensors are
 * row-major and on the tape's device. */
typedef struct ls_op_call {
    const void *attrs; /* the copy of ls_op_run()'s; NULL without */
    int n_inputs;
    const ls_tensor *const *inputs; /* elements are NULL where ls_op_run() got NULL */
    int n_outputs;
    ls_op_shape *shapes;       /* shape fills them; else NULL */
    ls_tensor *const *outputs; /* forward writes all elements, backward reads; in shape NULL */
    /* backward: gradients of the outputs, 0 without influence on the loss, NULL of integers */
    const ls_tensor *const *d_outputs;
    /* backward writes all elements of those that are not NULL: the gradients of the inputs */
    ls_tensor *const *d_inputs;
    ls_queue *queue; /* of a stream device; NULL on host devices */
} ls_op_call;

typedef ls_status (*ls_op_fn)(const ls_op_call *call);

/*
 * An operator in C. The functions run in the thread that calls ls_op_run() or the backward. On
 * host devices they read ls_tensor_data_const() and write ls_tensor_data(). On a stream device they
 * queue their work in call->queue, on ls_tensor_address_const() and ls_tensor_address(), which the
 * host must not dereference, and need not wait for it; or they copy with ls_tensor_read() and
 * ls_tensor_write(), which wait. A status other than LS_OK makes the operator fail, with the text
 * of the function of this library that gave it.
 */
typedef struct ls_op {
    size_t size;      /* sizeof(ls_op) */
    const char *name; /* in messages; borrowed until the tape's reset */
    /* Checks the inputs and fills call->shapes[0..n_outputs). NULL: all outputs have type and shape
     * of the first input. */
    ls_op_fn shape;
    ls_op_fn forward;
    /* NULL: no gradient passes the operator. ls_grad_check() compares it with differences. */
    ls_op_fn backward;
} ls_op;

/*
 * outputs = op(inputs), recorded as any operator: as torch.autograd.Function. Integer inputs and
 * outputs have no gradient. Inputs may have different types, and keep them with mixed precision.
 * attrs_bytes of attrs are copied. All outputs are NULL on failure. LS_EINVAL: op or its size or
 * functions are wrong, more than LS_OP_MAX_INPUTS or _OUTPUTS.
 */
LS_API void ls_op_run(ls_tape *tape, const ls_op *op, const void *attrs, size_t attrs_bytes,
                      ls_tensor *const *inputs, int n_inputs, ls_tensor **outputs, int n_outputs);

/* --- checkpointing activations --- */

/* A part of a network: writes all outputs, made with operators on `tape`. Called once more by
 * backward, with the same inputs and arg, where it must do the same. It only calls operators (and
 * ls_tape_checkpoint()): no backward, no reset. */
typedef void (*ls_tape_checkpoint_fn)(ls_tape *tape, ls_tensor *const *inputs, ls_tensor **outputs,
                                      void *arg);

/*
 * outputs[0..n_outputs) = fn(inputs[0..n_inputs)), as torch.utils.checkpoint: the memory of all
 * values that fn makes besides the outputs is released at once (but those of ls_tape_keep()), and
 * backward runs fn again to have them. For the time of one more forward a network of n such parts
 * needs the memory of one part and of n outputs.
 * Gradients have the bits that they have without checkpointing, and become ready in the same order:
 * dropout draws the same numbers again. Batch norm updates its running statistics once (PyTorch
 * does so twice). Other state that fn changes, it changes twice.
 * The outputs of fn may be any tensors, its leaves need not be inputs. arg: arg_bytes are copied;
 * with arg_bytes 0 it is passed as it is and must stay valid until backward or the reset. An output
 * that the loss does not depend on counts as one with gradient 0. In evaluation fn runs once. All
 * outputs are NULL on failure; LS_EINVAL if fn does something else in backward.
 */
LS_API void ls_tape_checkpoint(ls_tape *tape, ls_tape_checkpoint_fn fn, void *arg, size_t arg_bytes,
                               ls_tensor *const *inputs, int n_inputs, ls_tensor **outputs,
                               int n_outputs);

/*
 * In a function of ls_tape_checkpoint(), with keep not 0: the states and gates of the LSTM and GRU
 * steps that follow stay in memory, and backward uses them instead of computing them and their
 * products again: 6 N H values an LSTM step, 5 N H a GRU step, and N H more with lengths. Gradients
 * have the same bits. It holds until the next call or the end of the function, not in functions
 * that this one checkpoints. Default: 0. It allocates nothing and cannot fail; where no such
 * function runs, or with tape NULL, it does nothing. The function must call it at the same places
 * in forward and in backward: otherwise backward fails with LS_EINVAL, as it does when a result
 * that was retained has been overwritten.
 */
LS_API void ls_tape_keep_steps(ls_tape *tape, int keep);

/* --- measuring --- */

/* correct[i] = number of rows whose target is among the k[i] largest of logits (N,K), float32 or
 * float64; targets int64 (N) in [0,K). Of equal logits the first counts as larger (torch.topk takes
 * any of them), and NaN as larger than all numbers (as torch.topk does). k over K counts as K. */
LS_API LS_MUST_USE ls_status ls_top_k_correct(const ls_tensor *logits, const ls_tensor *targets,
                                              const int *k, int n, int64_t *correct);

/* --- checking derivatives --- */

/* A scalar function of its inputs, built with operators on `tape`. */
typedef ls_tensor *(*ls_grad_check_fn)(ls_tape *tape, ls_tensor *const *inputs, void *arg);

/* Compares backward with central differences, in float64 on the inputs' device, at every element of
 * every input that requires a gradient; inputs are float64. *worst (may be NULL): the largest
 * relative difference; derivatives below 1e-3 are compared relative to 1e-3. LS_EFORMAT names input
 * and element when the difference is over `tolerance`. */
LS_API LS_MUST_USE ls_status ls_grad_check(ls_grad_check_fn fn, void *arg, ls_tensor *const *inputs,
                                           int n_inputs, double tolerance, double *worst);

LS_END_DECLS

#endif
