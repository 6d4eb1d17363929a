/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_nan.c - ls_tape_check_nan(): finds the first operator whose result or gradient is not
 * finite. It reads copies, so that results, layouts and versions are those of a run without it.
 */
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

/* LS_EFORMAT: the tensor `name` of the operator is not finite. `inputs`: says which of these are
 * not, too. */
static ls_status check_tensor(const node *n, const char *name, const ls_tensor *t, bool inputs)
{
    char text[TENSOR_TEXT_BYTES];
    char more[LS_ERROR_BYTES] = "";
    scan s;

    LS_TRY(scan_tensor(t, &s));
    if (!s.found)
        return LS_OK;
    for (int i = 0; inputs && i < n->n_in; i++) {
        scan in;
        const size_t used = strlen(more);

        LS_TRY(scan_tensor(n->in[i], &in));
        if (in.found)
            (void)text_format(more + used, sizeof(more) - used, "; %s has %s at element %zu",
                              node_tensor_name(n, i), in.is_nan ? "nan" : "inf", in.index);
    }
    return ls_fail(LS_EFORMAT, "%s %s has %s at element %zu%s", name,
                   tensor_text(text, sizeof(text), t), s.is_nan ? "nan" : "inf", s.index,
                   inputs && more[0] == '\0' ? "; the inputs are finite" : more);
}

void ls_tape_check_nan(ls_tape *tape, int on)
{
    if (tape != NULL)
        tape->checks_nan = on != 0;
}

ls_status check_nan_results(const node *n, ls_tensor *const *out, int n_out)
{
    for (int i = 0; i < n_out; i++)
        LS_TRY(check_tensor(n, "the result", out[i], true));
    return LS_OK;
}

/* Overflow in 16 bits is not an error there: ls_grad_scaler skips the step. */
ls_status check_nan_gradients(const ls_tape *tape, const node *n)
{
    char name[64];

    for (int i = 0; i < n->n_in && tape->compute != LS_F16; i++) {
        const value *v = value_of(n->in[i]);
        const leaf *l = leaf_of(n->in[i]);
        const ls_tensor *g = v == NULL ? NULL : v->grad;

        if (!node_input_has_grad(n, i) || !needs_grad(n->in[i]))
            continue;
        if (l != NULL && l->has_grad)
            g = autograd_grad_memory(n->in[i]);
        (void)text_format(name, sizeof(name), "the gradient of %s", node_tensor_name(n, i));
        LS_TRY(check_tensor(n, name, g, false));
    }
    return LS_OK;
}
