/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tape.c - creates and resets tapes, and runs and records the operators of op_*.c.
 *
 * Nodes lie in one array, values in a second one of pointers; both are kept at a reset, so that a
 * repeated step allocates nothing.
 */
#include "autograd/tape.h"

#include "base/alloc.h"
#include "base/text.h"
#include "tensor/op_profile.h"

#include <string.h>

ls_status ls_tape_create(ls_device *device, ls_tape **out)
{
    ls_tape *tape;

    LS_TRY(LS_GIVEN(out));
    if (device == NULL)
        return ls_fail(LS_EINVAL, "tape: the device is NULL");
    LS_TRY(LS_NEW(&tape, 1, "for a tape"));
    tape->device = device;
    device->n_users++;
    tape->is_training = true;
    tape->compute = LS_F32;
    *out = tape;
    return LS_OK;
}

void node_drop(node *n)
{
    for (int i = 0; i < n->n_saved; i++) {
        ls_tensor_destroy(n->saved[i]);
        n->saved[i] = NULL;
    }
    if (n->extra != NULL)
        n->extra->drop(n->extra);
    n->extra = NULL;
}

void ls_tape_reset(ls_tape *tape)
{
    if (tape == NULL)
        return;
    if (tape->n_functions > 0) {
        (void)autograd_fail(tape, ls_fail(LS_EINVAL, "a checkpointed function reset its tape"));
        return;
    }
    for (int i = 0; i < tape->n_nodes; i++)
        node_drop(&tape->nodes[i]);
    for (int i = 0; i < tape->n_values; i++) {
        value *v = tape->values[i];

        v->tensor->extra = NULL;
        ls_tensor_destroy(v->tensor);
        if (v->grad != NULL)
            value_forget_grad(v);
    }
    tape->n_nodes = 0;
    tape->n_values = 0;
    tape->n_passed = 0;
    tape->has_dropped = false;
    memset(tape->casts, 0, sizeof(tape->casts));
    tape->failure = LS_OK;
}

void ls_tape_destroy(ls_tape *tape)
{
    if (tape == NULL)
        return;
    ls_tape_reset(tape);
    ls_tensor_destroy(tape->seed.tensor);
    tape->device->n_users--;
    for (int i = 0; i < tape->values_made; i++)
        ls_free(tape->values[i]);
    ls_free(tape->values);
    ls_free(tape->nodes);
    ls_free(tape);
}

void autograd_keep_statistics(ls_tape *tape)
{
    tape->keeps_statistics = true;
}

void ls_tape_set_training(ls_tape *tape, int training)
{
    if (tape == NULL)
        return;
    if (tape->is_training == (training != 0))
        return;
    ls_tape_reset(tape);
    tape->is_training = training != 0;
}

int ls_tape_training(const ls_tape *tape)
{
    return tape == NULL ? 0 : tape->is_training;
}

ls_status ls_tape_status(ls_tape *tape)
{
    LS_TRY(LS_GIVEN(tape));
    return tape->failure == LS_OK ? LS_OK : ls_fail(tape->failure, "%s", tape->failure_text);
}

void ls_tape_keep(ls_tape *tape, ls_tensor *t)
{
    value *v = value_of(t);

    if (v != NULL && v->tape == tape)
        v->is_retained = true;
}

void ls_tape_on_grad_ready(ls_tape *tape, ls_grad_ready_fn fn, void *arg)
{
    if (tape == NULL)
        return;
    tape->on_ready = fn;
    tape->on_ready_arg = arg;
}

ls_tensor *autograd_fail(ls_tape *tape, ls_status status)
{
    if (tape != NULL && tape->failure == LS_OK) {
        tape->failure = status;
        (void)text_format(tape->failure_text, sizeof(tape->failure_text), "%s", ls_last_error());
    }
    return NULL;
}

bool autograd_has_failed(const ls_tape *tape)
{
    return tape->failure != LS_OK;
}

void autograd_context(ls_tape *tape, const char *where)
{
    if (tape->failure == LS_OK)
        return;
    (void)ls_context(ls_tape_status(tape), "%s", where);
    (void)text_format(tape->failure_text, sizeof(tape->failure_text), "%s", ls_last_error());
}

const char *autograd_enter(ls_tape *tape, const char *layer)
{
    const char *was = tape->layer;

    tape->layer = layer;
    if (tape->device->profile != NULL)
        tape->device->profile->layer = layer;
    return was;
}

/* --- before the kernel --- */

const char *node_tensor_name(const node *n, int i)
{
    static const char *const numbered[NODE_MAX_IN] = {"input 1", "input 2", "input 3", "input 4",
                                                      "input 5", "input 6", "input 7", "input 8"};

    if (i == NODE_OUT)
        return n->n_out == 1 ? "the output" : "an output";
    return n->class->inputs[i] == NULL ? numbered[i] : n->class->inputs[i];
}

static ls_status fail_device(const ls_tape *tape, const char *name, const ls_tensor *t)
{
    char text[TENSOR_TEXT_BYTES];

    return ls_fail(LS_EINVAL, "%s %s is on device %s, but the tape is on %s%s", name,
                   tensor_text(text, sizeof(text), t), t->device->ops->name,
                   t->device->ops == tape->device->ops ? "another device " : "",
                   tape->device->ops->name);
}

static ls_status check_input(const ls_tape *tape, const node *n, int i)
{
    char text[TENSOR_TEXT_BYTES];
    const ls_tensor *t = n->in[i];
    const value *v = value_of(t);

    if (t == NULL)
        return i >= n->class->n_required ? LS_OK
                                         : ls_fail(LS_EINVAL, "%s is NULL", node_tensor_name(n, i));
    if (t->device != tape->device)
        return fail_device(tape, node_tensor_name(n, i), t);
    if (v != NULL && v->tape != tape)
        return ls_fail(LS_EINVAL, "%s %s belongs to another tape", node_tensor_name(n, i),
                       tensor_text(text, sizeof(text), t));
    if (t->storage == NULL)
        return ls_fail(LS_EINVAL, "%s %s was released by backward; ls_tape_keep() retains it",
                       node_tensor_name(n, i), tensor_text(text, sizeof(text), t));
    return LS_OK;
}

/* Checks the types. Sets n->records. */
static ls_status read_inputs(const ls_tape *tape, node *n)
{
    const op_class *class = n->class;
    bool records = false;

    for (int i = 0; i < n->n_in; i++) {
        const ls_tensor *t = n->in[i];

        if (t == NULL)
            continue;
        // NOLINTNEXTLINE(clang-analyzer-core.NullDereference): the first is required
        if (i < class->n_typed && (t->dtype != LS_F32 || n->in[0]->dtype != LS_F32))
            LS_TRY(precision_check(tape, n, i));
        records = records || (class_has_grad(class, i) && needs_grad(t));
    }
    n->records = n->records || (records && tape->is_training);
    return LS_OK;
}

bool node_begin(ls_tape *tape, node *n)
{
    ls_status st = LS_OK;

    if (tape == NULL) {
        (void)ls_fail(LS_EINVAL, "%s: the tape is NULL", n->class->name);
        return false;
    }
    if (tape->failure != LS_OK)
        return false;
    for (int i = 0; i < n->n_in && st == LS_OK; i++)
        st = check_input(tape, n, i);
    if (st == LS_OK && n->class->n_typed > 0 && tape->compute != LS_F32 &&
        !precision_convert(tape, n))
        return false;
    if (st == LS_OK)
        st = read_inputs(tape, n);
    if (st != LS_OK)
        (void)node_reject(tape, n, st);
    return st == LS_OK;
}

ls_status node_save(ls_tape *tape, node *n, int i, ls_dtype type, int n_dims, const int64_t *dims)
{
    if (!n->records)
        return LS_OK;
    LS_TRY(tensor_shape(tape->device, type, n_dims, dims, &n->saved[i]));
    if (n->n_saved <= i)
        n->n_saved = i + 1;
    return LS_OK;
}

ls_tensor *node_reject(ls_tape *tape, node *n, ls_status status)
{
    status = ls_context(status, "%s", n->class->name);
    node_drop(n);
    return autograd_fail(tape, status);
}

/* As node_reject, for errors whose text lacks the shapes. */
static ls_tensor *reject_with_shapes(ls_tape *tape, node *n, ls_status status)
{
    char text[NODE_MAX_IN * TENSOR_TEXT_BYTES] = "";

    for (int i = 0; i < n->n_in; i++) {
        char one[TENSOR_TEXT_BYTES];
        const size_t used = strlen(text);

        (void)text_format(text + used, sizeof(text) - used, "%s%s", i == 0 ? "" : ", ",
                          tensor_dims_text(one, sizeof(one), n->in[i]));
    }
    status = ls_context(status, "%s of %s", n->class->name, text);
    node_drop(n);
    return autograd_fail(tape, status);
}

bool shape_broadcast(int64_t *dims, int *n_dims, const int64_t *other, int n_other)
{
    const int n = n_other > *n_dims ? n_other : *n_dims;

    for (int d = n - 1; d >= 0; d--) {
        const int theirs = d - (n - n_other);
        const int before = d - (n - *n_dims);
        const int64_t size = theirs < 0 ? 1 : other[theirs];
        const int64_t was = before < 0 ? 1 : dims[before];

        if (size != was && size != 1 && was != 1)
            return false;
        dims[d] = was == 1 ? size : was;
    }
    *n_dims = n;
    return true;
}

/* --- after it --- */

static ls_status reserve_node(ls_tape *tape)
{
    const int wanted = tape->nodes_capacity == 0 ? 32 : 2 * tape->nodes_capacity;
    node *grown;

    if (tape->n_nodes < tape->nodes_capacity)
        return LS_OK;
    grown = ls_realloc(tape->nodes, (size_t)wanted, sizeof(*grown));
    if (grown == NULL)
        return ls_fail(LS_ENOMEM, "no memory for %d operators on a tape", wanted);
    tape->nodes = grown;
    tape->nodes_capacity = wanted;
    return LS_OK;
}

/* Makes memory for n more values. */
static ls_status reserve_values(ls_tape *tape, int n)
{
    while (tape->values_made < tape->n_values + n) {
        value *v;

        if (tape->values_made == tape->values_capacity) {
            const int wanted = tape->values_capacity == 0 ? 32 : 2 * tape->values_capacity;
            // NOLINTNEXTLINE(bugprone-sizeof-expression): the elements are pointers
            value **grown = ls_realloc(tape->values, (size_t)wanted, sizeof(*grown));

            if (grown == NULL)
                return ls_fail(LS_ENOMEM, "no memory for %d values on a tape", wanted);
            tape->values = grown;
            tape->values_capacity = wanted;
        }
        LS_TRY(LS_NEW(&v, 1, "for a value on a tape"));
        tape->values[tape->values_made++] = v;
    }
    return LS_OK;
}

/* Makes the tape the owner of `out`; reserve_values() has been called. */
static void own_value(ls_tape *tape, ls_tensor *out, int node_index)
{
    value *v = tape->values[tape->n_values];

    *v = (value){.extra = {.of_tape = true},
                 .tape = tape,
                 .tensor = out,
                 .seen = contents_of(out),
                 .number = tape->n_values++,
                 .node = tensor_is_floating(out) ? node_index : -1};
    out->extra = &v->extra;
}

/* Adds the node, whose outputs are the tape's last n_out values, to the tape. Notes the versions of
 * the tensors that its backward will read. */
static void record(ls_tape *tape, const node *run, int n_out)
{
    node *n = &tape->nodes[tape->n_nodes++];

    memcpy(n, run, offsetof(node, seen));
    n->layer = tape->layer;
    n->n_out = n_out;
    n->first_value = tape->n_values - n_out;
    n->out = tape->values[n->first_value]->tensor;
    for (int i = 0; i < n->n_in; i++) {
        value *v = value_of(n->in[i]);

        if (n->in[i] == NULL || !class_reads(n->class, i))
            continue;
        n->seen[i] = contents_of(n->in[i]);
        if (v != NULL)
            v->n_readers++;
    }
    for (int i = n->n_in; i < node_input_count(n); i++) {
        value *v = value_of(node_input(n, i));

        if (v != NULL)
            v->n_readers++;
    }
}

bool node_reject_all(ls_tape *tape, node *n, ls_tensor **out, int n_out, ls_status status)
{
    for (int i = 0; i < n_out; i++) {
        ls_tensor_destroy(out[i]);
        out[i] = NULL;
    }
    (void)reject_with_shapes(tape, n, status);
    return false;
}

bool node_finish_all(ls_tape *tape, node *n, ls_tensor **out, int n_out)
{
    ls_status st = reserve_values(tape, n_out);

    if (st == LS_OK && tape->checks_nan)
        st = check_nan_results(tape, n, out, n_out);
    if (st == LS_OK && n->records)
        st = reserve_node(tape);
    if (st != LS_OK)
        return node_reject_all(tape, n, out, n_out, st);
    for (int i = 0; i < n_out; i++)
        own_value(tape, out[i], n->records ? tape->n_nodes : -1);
    if (n->records)
        record(tape, n, n_out);
    return true;
}

ls_tensor *node_finish(ls_tape *tape, node *n, ls_tensor *out)
{
    return node_finish_all(tape, n, &out, 1) ? out : NULL;
}

bool node_run_all(ls_tape *tape, node *n, op_kind op, ls_tensor **out, int n_out)
{
    op_call call = {.op = op, .attrs = n->attrs, .n_in = n->n_in, .n_out = n_out + n->n_saved};
    ls_status st;

    LS_ASSERT(n_out + NODE_MAX_SAVED <= OP_MAX_TENSORS);
    memcpy(call.in, n->in, sizeof(n->in));
    // NOLINTNEXTLINE(bugprone-sizeof-expression): the elements are pointers
    memcpy(call.out, out, (size_t)n_out * sizeof(*out));
    memcpy(call.out + n_out, n->saved, sizeof(n->saved));
    st = device_run(tape->device, &call);
    if (st != LS_OK)
        return node_reject_all(tape, n, out, n_out, st);
    return node_finish_all(tape, n, out, n_out);
}

ls_tensor *node_run_like(ls_tape *tape, node *n, op_kind op)
{
    ls_tensor *out = NULL;
    const ls_status st = tensor_like(n->in[0], &out);

    if (st != LS_OK)
        return reject_with_shapes(tape, n, st);
    return node_run_all(tape, n, op, &out, 1) ? out : NULL;
}

ls_tensor *node_run_as(ls_tape *tape, node *n, op_kind op, ls_dtype type, int n_dims,
                       const int64_t *dims)
{
    ls_tensor *out = NULL;
    const ls_status st = tensor_shape(tape->device, type, n_dims, dims, &out);

    if (st != LS_OK)
        return reject_with_shapes(tape, n, st);
    return node_run_all(tape, n, op, &out, 1) ? out : NULL;
}

ls_tensor *node_run(ls_tape *tape, node *n, op_kind op, int n_dims, const int64_t *dims)
{
    return node_run_as(tape, n, op, n->in[0]->dtype, n_dims, dims);
}
