/* SPDX-License-Identifier: Apache-2.0 */
/*
 * op_custom.c - ls_op_run(): operators whose functions belong to the program. They run between the
 * operators of the device, on row-major tensors; the tape does for them what it does for its own.
 */
#include "autograd/tape.h"

#include "base/alloc.h"
#include "base/options.h"
#include "base/text.h"

#include <string.h>

#if LS_OP_MAX_INPUTS > NODE_MAX_IN
#error "a node has fewer inputs than a program may pass"
#endif

/* An operator as it ran; `class` is the node's. */
typedef struct custom {
    node_extra extra;
    op_class class;
    ls_op op;
    void *attrs; /* behind this structure; NULL without */
} custom;

/* The tensors of one call of a function. */
typedef struct tensors {
    const ls_tensor *in[LS_OP_MAX_INPUTS];
    ls_tensor *out[LS_OP_MAX_OUTPUTS];
    const ls_tensor *d_out[LS_OP_MAX_OUTPUTS];
    ls_tensor *d_in[LS_OP_MAX_INPUTS];
} tensors;

static void custom_drop(node_extra *extra)
{
    ls_free(extra);
}

/* --- calls of functions --- */

static ls_op_call call_of(const ls_tape *tape, const custom *c, const tensors *t, int n_in,
                          int n_out)
{
    return (ls_op_call){.attrs = c->attrs,
                        .n_inputs = n_in,
                        .inputs = t->in,
                        .n_outputs = n_out,
                        .queue = ls_device_queue(tape->device)};
}

static ls_status run(ls_op_fn fn, const ls_op_call *call, const char *what)
{
    char before[LS_ERROR_BYTES];

    ls_error_save(before);
    return ls_error_of_program(before, fn(call), what);
}

/* The inputs in plain layout. */
static ls_status take_inputs(const node *n, tensors *t)
{
    void *data;

    for (int i = 0; i < n->n_in; i++) {
        if (n->in[i] != NULL)
            LS_TRY(tensor_plain(n->in[i], &data));
        t->in[i] = n->in[i];
    }
    return LS_OK;
}

/* --- backward --- */

static ls_status take_gradients(ls_tape *tape, const node *n, tensors *t)
{
    void *data;

    for (int i = 0; i < n->n_out; i++) {
        ls_tensor *dy = NULL;

        t->out[i] = node_output(tape, n, i);
        if (!tensor_is_floating(t->out[i]))
            continue;
        LS_TRY(node_grad_or_zeros(tape, n, i, &dy));
        LS_TRY(tensor_plain(dy, &data));
        t->d_out[i] = dy;
    }
    for (int i = 0; i < n->n_in; i++) {
        if (!needs_grad(n->in[i]))
            continue;
        LS_TRY(tensor_like(n->in[i], &t->d_in[i]));
        LS_TRY(tensor_place(t->d_in[i], NULL, 0));
    }
    return LS_OK;
}

static ls_status custom_backward(ls_tape *tape, const node *n, ls_tensor *dy)
{
    const custom *c = (const custom *)(const void *)n->extra;
    tensors t = {.in = {NULL}};
    ls_op_call call = call_of(tape, c, &t, n->n_in, n->n_out);
    ls_status st = take_inputs(n, &t);

    LS_UNUSED(dy);
    call.outputs = t.out;
    call.d_outputs = t.d_out;
    call.d_inputs = t.d_in;
    if (st == LS_OK)
        st = take_gradients(tape, n, &t);
    if (st == LS_OK)
        st = run(c->op.backward, &call, "backward");
    for (int i = 0; i < n->n_in; i++) {
        if (st == LS_OK && t.d_in[i] != NULL)
            st = grad_give(tape, n->in[i], t.d_in[i]);
        else
            ls_tensor_destroy(t.d_in[i]);
    }
    return st;
}

/* --- forward --- */

static const op_class unnamed_class = {.name = "op"};

static ls_status check_op(const ls_op *given, ls_op *op, size_t attrs_bytes, const void *attrs)
{
    LS_TRY(OPTIONS_COPY(ls_op, given, op));
    if (op->name == NULL || op->forward == NULL)
        return ls_fail(LS_EINVAL, "the ls_op is NULL, or lacks its name or forward function");
    if (attrs == NULL && attrs_bytes > 0)
        return ls_fail(LS_EINVAL, "%s: %zu bytes of attributes at NULL", op->name, attrs_bytes);
    return LS_OK;
}

static ls_status check_tensors(const ls_op *op, ls_tensor *const *in, int n_in, ls_tensor **out,
                               int n_out)
{
    if (n_in >= 0 && n_in <= LS_OP_MAX_INPUTS && (n_in == 0 || in != NULL) && n_out >= 1 &&
        n_out <= LS_OP_MAX_OUTPUTS && out != NULL)
        return LS_OK;
    return ls_fail(LS_EINVAL,
                   "%s: %d inputs at %s, %d outputs at %s; up to %d inputs and 1 to %d outputs are "
                   "supported",
                   op->name, n_in, in == NULL ? "NULL" : "inputs", n_out,
                   out == NULL ? "NULL" : "outputs", LS_OP_MAX_INPUTS, LS_OP_MAX_OUTPUTS);
}

static ls_status custom_create(const ls_op *op, const void *attrs, size_t attrs_bytes, int n_in,
                               custom **out)
{
    const size_t head = (sizeof(custom) + 15) / 16 * 16;
    custom *c = attrs_bytes > SIZE_MAX - head ? NULL : ls_calloc(1, head + attrs_bytes);

    if (c == NULL)
        return ls_fail(LS_ENOMEM, "no memory for %zu bytes of attributes of %s", attrs_bytes,
                       op->name);
    c->extra.drop = custom_drop;
    c->op = *op;
    c->class = (op_class){
        .name = op->name, .n_grad = op->backward == NULL ? 0 : n_in, .backward = custom_backward};
    if (attrs_bytes > 0) {
        c->attrs = (char *)c + head;
        memcpy(c->attrs, attrs, attrs_bytes);
    }
    *out = c;
    return LS_OK;
}

static ls_status find_shapes(const ls_op_call *call, const custom *c)
{
    const ls_tensor *like = call->n_inputs > 0 ? call->inputs[0] : NULL;

    if (c->op.shape != NULL)
        return run(c->op.shape, call, "shape");
    if (like == NULL)
        return ls_fail(LS_EINVAL, "without a shape function the first input must not be NULL");
    for (int i = 0; i < call->n_outputs; i++) {
        call->shapes[i] = (ls_op_shape){.type = like->dtype, .n_dims = like->n_dims};
        memcpy(call->shapes[i].dims, like->dims, sizeof(like->dims));
    }
    return LS_OK;
}

static ls_status make_outputs(ls_tape *tape, ls_op_call call, const custom *c, ls_tensor **out)
{
    ls_op_shape shapes[LS_OP_MAX_OUTPUTS] = {{.n_dims = 0}};

    call.shapes = shapes;
    LS_TRY(find_shapes(&call, c));
    for (int i = 0; i < call.n_outputs; i++) {
        LS_TRY(ls_context(
            tensor_shape(tape->device, shapes[i].type, shapes[i].n_dims, shapes[i].dims, &out[i]),
            "output %d", i));
        LS_TRY(tensor_place(out[i], NULL, 0));
    }
    return LS_OK;
}

static ls_status run_forward(ls_tape *tape, const node *n, const custom *c, ls_tensor **out,
                             int n_out)
{
    tensors t = {.in = {NULL}};
    ls_op_call call = call_of(tape, c, &t, n->n_in, n_out);

    LS_TRY(take_inputs(n, &t));
    LS_TRY(make_outputs(tape, call, c, out));
    call.outputs = out;
    LS_TRY(run(c->op.forward, &call, "forward"));
    for (int i = 0; i < n_out; i++)
        tensor_written(out[i], "ls_op_run()");
    return LS_OK;
}

void ls_op_run(ls_tape *tape, const ls_op *op, const void *attrs, size_t attrs_bytes,
               ls_tensor *const *inputs, int n_inputs, ls_tensor **outputs, int n_outputs)
{
    node n = {.class = &unnamed_class};
    custom *c = NULL;
    ls_op known;
    ls_status st;

    for (int i = 0; outputs != NULL && i < n_outputs; i++)
        outputs[i] = NULL;
    if (!node_begin(tape, &n))
        return;
    st = check_op(op, &known, attrs_bytes, attrs);
    if (st == LS_OK)
        st = check_tensors(&known, inputs, n_inputs, outputs, n_outputs);
    if (st == LS_OK)
        st = custom_create(&known, attrs, attrs_bytes, n_inputs, &c);
    if (st != LS_OK) {
        (void)node_reject(tape, &n, st);
        return;
    }
    n = (node){.class = &c->class, .n_in = n_inputs, .extra = &c->extra};
    for (int i = 0; i < n_inputs; i++)
        n.in[i] = inputs[i];
    if (!node_begin(tape, &n))
        return;
    st = run_forward(tape, &n, c, outputs, n_outputs);
    if (st != LS_OK)
        (void)node_reject_all(tape, &n, outputs, n_outputs, st);
    else if (node_finish_all(tape, &n, outputs, n_outputs) && !n.records)
        node_drop(&n);
}
