/* SPDX-License-Identifier: Apache-2.0 */
/*
 * op_full.c - constants that the tape makes: ls_full() and ls_padding_mask(). Zeros and padding are
 * written in the order of the device's operators.
 */
#include "autograd/tape.h"

#include "base/alloc.h"

static const op_class full_class = {.name = "full", .unused_in_backward = 1U << NODE_OUT};

static ls_status write_value(ls_tensor *t, double number)
{
    LS_TRY(tensor_place(t, NULL, 0));
    return number == 0 ? tensor_zero(t) : ls_tensor_fill(t, number);
}

ls_tensor *ls_full(ls_tape *tape, ls_dtype type, int n_dims, const int64_t *dims, double number)
{
    node n = {.class = &full_class};
    ls_tensor *t = NULL;
    ls_status st;

    if (!node_begin(tape, &n))
        return NULL;
    st = tensor_shape(tape->device, type, n_dims, dims, &t);
    if (st == LS_OK)
        st = write_value(t, number);
    if (st == LS_OK)
        return node_finish(tape, &n, t);
    ls_tensor_destroy(t);
    return node_reject(tape, &n, st);
}

static const op_class padding_class = {.name = "padding_mask",
                                       .inputs = {"lengths"},
                                       .n_required = 1,
                                       .unused_in_backward = 1U << NODE_OUT | 1U << 0};

/* `mask` has n rows of `length`. */
static ls_status mark_padding(const int64_t *lengths, size_t n, int64_t length, uint8_t *mask)
{
    for (size_t i = 0; i < n; i++) {
        if (lengths[i] < 0 || lengths[i] > length)
            return ls_fail(LS_EINVAL, "lengths[%zu] is %lld; it must be 0 to %lld", i,
                           (long long)lengths[i], (long long)length);
        for (int64_t t = lengths[i]; t < length; t++)
            mask[i * (size_t)length + (size_t)t] = 1;
    }
    return LS_OK;
}

/* Reads the lengths on the host. */
static ls_status write_padding(const ls_tensor *lengths, int64_t length, ls_tensor *mask)
{
    const size_t n = ls_tensor_count(lengths);
    const size_t count = ls_tensor_count(mask);
    int64_t *host = ls_calloc(n + 1, sizeof(*host));
    uint8_t *marks = ls_calloc(count + 1, 1);
    ls_status st = host == NULL || marks == NULL
                       ? ls_fail(LS_ENOMEM, "no memory for a mask of %zu elements", count)
                       : ls_tensor_read(lengths, host, n);

    if (st == LS_OK)
        st = mark_padding(host, n, length, marks);
    if (st == LS_OK)
        st = tensor_place(mask, NULL, 0);
    if (st == LS_OK)
        st = ls_tensor_write(mask, marks, count);
    ls_free(host);
    ls_free(marks);
    return st;
}

ls_tensor *ls_padding_mask(ls_tape *tape, ls_tensor *lengths, int64_t length)
{
    node n = {.class = &padding_class, .n_in = 1, .in = {lengths}};
    char text[TENSOR_TEXT_BYTES];
    ls_tensor *mask = NULL;
    ls_status st;

    if (!node_begin(tape, &n))
        return NULL;
    if (lengths->dtype != LS_I64 || lengths->n_dims != 1 || length < 0)
        return node_reject(tape, &n,
                           ls_fail(LS_EINVAL, "lengths %s of at most %lld; they must be (N) int64",
                                   tensor_text(text, sizeof(text), lengths), (long long)length));
    st = tensor_shape(tape->device, LS_U8, 2, (int64_t[]){lengths->dims[0], length}, &mask);
    if (st == LS_OK)
        st = write_padding(lengths, length, mask);
    if (st == LS_OK)
        return node_finish(tape, &n, mask);
    ls_tensor_destroy(mask);
    return node_reject(tape, &n, st);
}
