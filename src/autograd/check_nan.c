/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_nan.c - ls_tape_check_nan(): finds the first operator whose result or gradient is not
 * finite. It reads copies, so that results, layouts and versions are those of a run without it.
 */
#include "autograd/autograd.h"
#include "autograd/tape.h"
#include "base/text.h"

#include <string.h>

/* The first element that is not finite. */
typedef struct scan {
    ls_dtype type;
    size_t n_seen;
    bool found;
    bool is_nan;
    size_t index;
} scan;

/* The bits of the largest finite number's magnitude, plus 1: infinity. NaN is above it. */
static uint64_t infinity_of(ls_dtype type)
{
    switch (type) {
    case LS_F16:
        return 0x7C00;
    case LS_BF16:
        return 0x7F80;
    case LS_F32:
        return 0x7F800000;
    default:
        return UINT64_C(0x7FF0000000000000);
    }
}

/* Without the sign. */
static uint64_t magnitude_at(const void *elements, size_t i, size_t size)
{
    uint64_t bits = 0;

    memcpy(&bits, (const char *)elements + i * size, size); // little-endian
    return bits & (UINT64_MAX >> (65 - 8 * size));
}

static ls_status scan_piece(void *arg, const void *piece, size_t bytes)
{
    scan *s = arg;
    const size_t size = ls_dtype_size(s->type);
    const uint64_t infinity = infinity_of(s->type);

    for (size_t i = 0; i < bytes / size && !s->found; i++) {
        const uint64_t magnitude = magnitude_at(piece, i, size);

        if (magnitude < infinity)
            continue;
        s->found = true;
        s->is_nan = magnitude > infinity;
        s->index = s->n_seen + i;
    }
    s->n_seen += bytes / size;
    return LS_OK;
}

static ls_status scan_tensor(const ls_tensor *t, scan *out)
{
    op_call call = {.op = OP_COPY, .n_in = 1, .n_out = 1};
    ls_tensor src;
    ls_status st;

    *out = (scan){.type = t == NULL ? LS_F32 : t->dtype};
    if (!tensor_is_floating(t) || t->storage == NULL || ls_tensor_count(t) == 0)
        return LS_OK;
    src = *t;
    call.in[0] = &src;
    LS_TRY(tensor_like(t, &call.out[0]));
    st = tensor_place(call.out[0], NULL, 0);
    if (st == LS_OK)
        st = device_run(t->device, &call);
    if (st == LS_OK)
        st = tensor_read_pieces(call.out[0], scan_piece, out);
    ls_tensor_destroy(call.out[0]);
    return st;
}

#define NAN_HAS " has nan at element "
#define INF_HAS " has inf at element "

static const char *has_text(const scan *s)
{
    return s->is_nan ? NAN_HAS : INF_HAS;
}

/* A tensor that an operator has written. */
typedef struct written {
    const char *name;
    const ls_tensor *tensor;
    bool is_result; /* of the forward: the text says which inputs are not finite, too */
} written;

/* The tape's function, with a text like that of a failure. */
static void give_finding(ls_tape *tape, const node *n, const written *w, const scan *s)
{
    const char *layer = w->is_result ? tape->layer : n->layer;
    char text[LS_ERROR_BYTES];

    text_format(text, sizeof(text), "%s%s%s%s: %s", layer != NULL ? layer : "",
                layer != NULL ? ": " : "", n->class->name, w->is_result ? "" : " backward",
                ls_last_error());
    tape->has_found_nan = true;
    tape->nan_found(tape->nan_arg, &(nan_finding){.text = text,
                                                  .element = s->index,
                                                  .tensor = w->tensor,
                                                  .is_result = w->is_result});
}

/* LS_EFORMAT: it is not finite. */
static ls_status check_tensor(ls_tape *tape, const node *n, const written *w)
{
    char text[TENSOR_TEXT_BYTES];
    char more[LS_ERROR_BYTES] = "";
    ls_status st;
    scan s;

    LS_TRY(scan_tensor(w->tensor, &s));
    if (!s.found)
        return LS_OK;
    for (int i = 0; w->is_result && i < n->n_in; i++) {
        scan in;
        const size_t used = strlen(more);

        LS_TRY(scan_tensor(n->in[i], &in));
        if (in.found)
            (void)text_format(more + used, sizeof(more) - used, "; %s%s%zu", node_tensor_name(n, i),
                              has_text(&in), in.index);
    }
    st = ls_fail(LS_EFORMAT, "%s %s%s%zu%s", w->name, tensor_text(text, sizeof(text), w->tensor),
                 has_text(&s), s.index,
                 w->is_result && more[0] == '\0' ? "; the inputs are finite" : more);
    if (tape->nan_found == NULL)
        return st;
    give_finding(tape, n, w, &s);
    return LS_OK;
}

bool check_nan_is_cause(const char *text)
{
    return strstr(text, NAN_HAS) != NULL || strstr(text, INF_HAS) != NULL;
}

void ls_tape_check_nan(ls_tape *tape, int on)
{
    if (tape != NULL)
        tape->checks_nan = on != 0;
}

void autograd_watch_nan(ls_tape *tape, nan_found_fn fn, void *arg)
{
    tape->checks_nan = fn != NULL;
    tape->nan_found = fn;
    tape->nan_arg = arg;
    tape->has_found_nan = false;
}

ls_status check_nan_results(ls_tape *tape, const node *n, ls_tensor *const *out, int n_out)
{
    for (int i = 0; i < n_out && !tape->has_found_nan; i++)
        LS_TRY(check_tensor(tape, n, &(written){"the result", out[i], true}));
    return LS_OK;
}

/* Overflow in 16 bits is not an error there: ls_grad_scaler skips the step. */
static bool checks_gradients(const ls_tape *tape)
{
    return tape->checks_nan && tape->compute != LS_F16 && !tape->has_found_nan;
}

static ls_status check_gradient(ls_tape *tape, const node *n, const char *of, const ls_tensor *g)
{
    char name[64];

    (void)text_format(name, sizeof(name), "the gradient of %s", of);
    return check_tensor(tape, n, &(written){name, g, false});
}

ls_status check_nan_gradients(ls_tape *tape, const node *n)
{
    for (int i = 0; i < n->n_in && checks_gradients(tape); i++) {
        const value *v = value_of(n->in[i]);
        const leaf *l = leaf_of(n->in[i]);
        const ls_tensor *g = v == NULL ? NULL : v->grad;

        if (!node_input_has_grad(n, i) || !needs_grad(n->in[i]))
            continue;
        if (l != NULL && l->n_pending == 0)
            continue; // check_nan_leaf()
        if (l != NULL && l->has_grad)
            g = autograd_grad_memory(n->in[i]);
        LS_TRY(check_gradient(tape, n, node_tensor_name(n, i), g));
    }
    return LS_OK;
}

ls_status check_nan_leaf(ls_tape *tape, const ls_tensor *t)
{
    const node *n = &tape->nodes[tape->passing];
    int i = 0;

    if (!checks_gradients(tape))
        return LS_OK;
    while (i < n->n_in && n->in[i] != t)
        i++;
    // Gradients of linear layers are collected, and may be complete in another operator.
    return check_gradient(tape, n,
                          i < n->n_in ? node_tensor_name(n, i) : "an earlier operator's weight",
                          autograd_grad_memory(t));
}
