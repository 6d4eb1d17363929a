/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weights.c - the gradients of parameters, which kernels write straight into the memory of leaves,
 * for the backwards of op_*.c. The uses of one weight by several small linear operators of
 * a backward, such as the steps of a recurrent cell, are collected and computed as one product.
 */
#include "autograd/tape.h"

/* The gradient of one of two parameters, as the output of a kernel. */
typedef struct grad_slot {
    ls_tensor *in; /* NULL: there is no such parameter */
    ls_tensor *into;
    bool is_leafs; /* `into` is the leaf's own gradient, else a temporary tensor */
    bool adds;     /* `into` has a gradient to add to */
} grad_slot;

static ls_status slot_open(grad_slot *slot, bool may_share)
{
    ls_tensor *in = slot->in;
    const leaf *l = leaf_of(in);

    if (in == NULL)
        return LS_OK;
    if (may_share && l != NULL) {
        slot->is_leafs = true;
        slot->adds = l->has_grad;
        return leaf_grad_memory(in, &slot->into);
    }
    LS_TRY(tensor_like(in, &slot->into));
    return tensor_place(slot->into, NULL, 0);
}

static ls_status slot_close(ls_tape *tape, grad_slot *slot, int n_uses)
{
    ls_tensor *g = slot->into;

    if (slot->in == NULL)
        return LS_OK;
    slot->into = NULL;
    return slot->is_leafs ? leaf_passed(tape, slot->in, n_uses) : grad_give(tape, slot->in, g);
}

static void slot_drop(grad_slot *slot)
{
    if (!slot->is_leafs)
        ls_tensor_destroy(slot->into);
}

/* Opens both, and makes them agree on whether the kernel adds: there is one flag for the two. */
static ls_status slots_open(grad_slot *slots, op_call *call, int first)
{
    LS_TRY(slot_open(&slots[0], true));
    LS_TRY(slot_open(&slots[1], slots[1].in != slots[0].in));
    call->accumulate = slots[0].adds || slots[1].adds;
    for (int i = 0; i < 2; i++) {
        if (call->accumulate && slots[i].into != NULL && !slots[i].adds)
            LS_TRY(tensor_zero(slots[i].into));
        call->out[first + i] = slots[i].into;
    }
    return LS_OK;
}

/* grad_run_weights() for n_uses uses of leaves at once. */
static ls_status run_weights(ls_tape *tape, op_call *call, int first, ls_tensor *weight,
                             ls_tensor *bias, int n_uses)
{
    grad_slot slots[2] = {{.in = weight}, {.in = bias}};
    ls_status st = slots_open(slots, call, first);

    if (st == LS_OK)
        st = device_run(tape->device, call);
    if (st == LS_OK)
        st = slot_close(tape, &slots[0], n_uses);
    if (st == LS_OK)
        st = slot_close(tape, &slots[1], n_uses);
    slot_drop(&slots[0]);
    slot_drop(&slots[1]);
    return st;
}

ls_status grad_run_weights(ls_tape *tape, op_call *call, int first, ls_tensor *weight,
                           ls_tensor *bias)
{
    return run_weights(tape, call, first, weight, bias, 1);
}

ls_status grad_run_norm(ls_tape *tape, op_call *call, ls_tensor *const *in)
{
    ls_tensor *dx = NULL;
    ls_status st;

    if (needs_grad(in[0]))
        LS_TRY(tensor_like(in[0], &dx));
    call->out[0] = dx;
    st = grad_run_weights(tape, call, 1, in[1], in[2]);
    if (st != LS_OK) {
        ls_tensor_destroy(dx);
        return st;
    }
    return dx == NULL ? LS_OK : grad_give(tape, in[0], dx);
}

/* --- collected products --- */

/* Operators on more rows use the processor as well as a product of several of them. */
#define COLLECT_MAX_ROWS 512
/* Of x and dy for one weight; then the product is computed, and the collection begins anew. The
 * number does not depend on which uses are still to come: checkpointing gives the same bits. */
#define COLLECT_MAX_BYTES ((size_t)16 << 20)

/* The tensor of rows begin to begin + n - 1 of the plain matrix `whole`. */
static ls_status rows_of(ls_tape *tape, const ls_tensor *whole, int64_t begin, int64_t n,
                         ls_tensor **out)
{
    // NOLINTNEXTLINE(clang-analyzer-core.NullDereference): there is a matrix
    LS_TRY(tensor_shape(tape->device, whole->dtype, 2, (int64_t[]){n, whole->dims[1]}, out));
    tensor_share(*out, whole);
    (*out)->offset += (size_t)(begin * whole->dims[1]) * ls_dtype_size(whole->dtype);
    return LS_OK;
}

/* Copies the matrix t into `whole` from row `begin` on. */
static ls_status copy_rows(ls_tape *tape, const ls_tensor *whole, int64_t begin, ls_tensor *t)
{
    op_call call = {.op = OP_COPY, .n_in = 1, .n_out = 1, .in = {t}};
    ls_status st;

    LS_TRY(rows_of(tape, whole, begin, t->dims[0], &call.out[0]));
    st = device_run(tape->device, &call);
    ls_tensor_destroy(call.out[0]);
    return st;
}

/* Gives *whole memory for `capacity` rows of t's size, and copies its first `rows` rows. */
static ls_status grow(ls_tape *tape, ls_tensor **whole, int64_t rows, int64_t capacity,
                      const ls_tensor *t)
{
    ls_tensor *was = *whole;
    ls_tensor *filled = NULL;
    ls_tensor *larger;
    ls_status st;

    LS_TRY(tensor_shape(tape->device, t->dtype, 2, (int64_t[]){capacity, t->dims[1]}, &larger));
    st = tensor_place(larger, NULL, 0);
    if (st == LS_OK && rows > 0)
        st = rows_of(tape, was, 0, rows, &filled);
    if (st == LS_OK && rows > 0)
        st = copy_rows(tape, larger, 0, filled);
    ls_tensor_destroy(filled);
    if (st != LS_OK) {
        ls_tensor_destroy(larger);
        return st;
    }
    ls_tensor_destroy(was);
    *whole = larger;
    return LS_OK;
}

/* The most rows that a collection of such operators holds. */
static int64_t most_rows(const ls_tensor *x, const ls_tensor *dy)
{
    const size_t row = (size_t)(x->dims[1] + dy->dims[1]) * ls_dtype_size(x->dtype);

    return (int64_t)(COLLECT_MAX_BYTES / (row + 1));
}

/* Memory for the uses that are known to come. Checkpointed functions make more of them known as
 * they are passed: a collection that grows takes twice its memory, and all that one may have if
 * half of that is not enough, so that few blocks of other sizes stay behind. */
static int64_t capacity_for(const collection *c, int64_t wanted, int64_t most)
{
    if (wanted < 2 * c->capacity)
        wanted = 2 * c->capacity;
    return wanted > most / 2 ? most : wanted;
}

/* Adds x and dy, `n` rows, to the collection. */
static ls_status collect(ls_tape *tape, leaf *l, ls_tensor *x, ls_tensor *dy)
{
    collection *c = &l->collected;
    const int64_t n = x->dims[0];
    const int64_t most = most_rows(x, dy);

    if (c->x == NULL || c->rows + n > c->capacity) {
        const int64_t capacity = capacity_for(c, c->rows + n * (l->n_pending - c->n_uses), most);

        LS_TRY(grow(tape, &c->x, c->rows, capacity, x));
        LS_TRY(grow(tape, &c->dy, c->rows, capacity, dy));
        c->capacity = capacity;
    }
    LS_TRY(copy_rows(tape, c->x, c->rows, x));
    LS_TRY(copy_rows(tape, c->dy, c->rows, dy));
    c->rows += n;
    c->n_uses++;
    return LS_OK;
}

void weights_forget(leaf *l)
{
    ls_tensor_destroy(l->collected.x);
    ls_tensor_destroy(l->collected.dy);
    l->collected = (collection){.n_uses = 0};
}

ls_status weights_flush(ls_tape *tape, ls_tensor *weight)
{
    leaf *l = leaf_of(weight);
    op_call call = {.op = OP_LINEAR_BACKWARD_WEIGHTS, .n_in = 2, .n_out = 2};
    collection c;
    ls_status st;

    LS_ASSERT(l != NULL);
    c = l->collected;
    l->collected = (collection){.n_uses = 0};
    st = rows_of(tape, c.x, 0, c.rows, &call.in[0]);
    if (st == LS_OK)
        st = rows_of(tape, c.dy, 0, c.rows, &call.in[1]);
    if (st == LS_OK)
        st = run_weights(tape, &call, 0, weight, c.bias, c.n_uses);
    ls_tensor_destroy(call.in[0]);
    ls_tensor_destroy(call.in[1]);
    ls_tensor_destroy(c.x);
    ls_tensor_destroy(c.dy);
    return st;
}

/* Whether the operator can join what is collected for its weight. */
static bool joins(const collection *c, const ls_tensor *x, const ls_tensor *dy,
                  const ls_tensor *bias)
{
    return c->bias == bias && c->x->dtype == x->dtype && c->rows + x->dims[0] <= most_rows(x, dy);
}

ls_status grad_run_linear(ls_tape *tape, ls_tensor *x, ls_tensor *dy, ls_tensor *weight,
                          ls_tensor *bias)
{
    op_call call = {.op = OP_LINEAR_BACKWARD_WEIGHTS, .n_in = 2, .n_out = 2, .in = {x, dy}};
    leaf *l = leaf_of(weight);

    if (l != NULL && l->collected.n_uses > 0 && !joins(&l->collected, x, dy, bias))
        LS_TRY(weights_flush(tape, weight));
    // The gradient of a bias that an operator made must be given before that operator's backward.
    if (l == NULL || l->n_pending == 1 || (bias != NULL && leaf_of(bias) == NULL) ||
        x->dims[0] > COLLECT_MAX_ROWS || x->dims[0] > most_rows(x, dy))
        return grad_run_weights(tape, &call, 0, weight, bias);
    l->collected.bias = bias;
    LS_TRY(collect(tape, l, x, dy));
    return l->n_pending == l->collected.n_uses ? weights_flush(tape, weight) : LS_OK;
}
