/* SPDX-License-Identifier: Apache-2.0 */
/* op_profile.c - records of operators for --profile. device.c runs them in between. */
#include "tensor/op_profile.h"

#include "base/alloc.h"
#include "base/clock.h"

#include <string.h>

enum { FIRST_CAPACITY = 1024 };

/* --- records --- */

static bool reserve(op_profile *p)
{
    const int wanted = p->capacity == 0 ? FIRST_CAPACITY : 2 * p->capacity;
    op_record *grown;

    if (p->n < p->capacity)
        return true;
    if (p->n >= OP_PROFILE_RECORDS)
        return false;
    grown = ls_realloc(p->records, (size_t)wanted, sizeof(*grown));
    if (grown == NULL)
        return false;
    p->records = grown;
    p->capacity = wanted;
    return true;
}

void op_profile_free(op_profile *p)
{
    ls_free(p->records);
    *p = (op_profile){0};
}

static void append_shapes(op_record *r, ls_tensor *const *tensors, int n, const char *separator)
{
    for (int i = 0; i < n; i++) {
        char dims[TENSOR_TEXT_BYTES];
        const size_t used = strlen(r->shapes);

        if (tensors[i] == NULL)
            continue;
        (void)text_format(r->shapes + used, sizeof(r->shapes) - used, "%s%s", separator,
                          tensor_dims_text(dims, sizeof(dims), tensors[i]));
        separator = " x ";
    }
}

/* The first three inputs and the first output: the others are statistics and scalars. */
static void describe(op_record *r, const op_call *call)
{
    append_shapes(r, call->in, call->n_in < 3 ? call->n_in : 3, "");
    for (int i = 0; i < call->n_out; i++) {
        if (call->out[i] != NULL) {
            append_shapes(r, &call->out[i], 1, " -> ");
            return;
        }
    }
}

static void add(op_profile *p, op_record *r, const op_call *calls, int n)
{
    if (!reserve(p)) {
        p->n_dropped++;
        return;
    }
    for (int i = 0; i < n; i++) {
        const op_cost cost = op_cost_of(&calls[i]);

        r->cost.flops += cost.flops;
        r->cost.bytes += cost.bytes;
    }
    if (n == 1)
        describe(r, calls);
    text_format(r->layer, sizeof(r->layer), "%s", p->layer == NULL ? "" : p->layer);
    p->records[p->n++] = *r;
}

void op_profile_begin(op_profile *p, op_record *r, const op_call *calls, int n)
{
    *r = (op_record){.op = calls[0].op, .n_calls = n, .step = p->step, .phase = p->phase};
    p->suspended_ns = 0;
    r->start_ns = ls_now_ns();
}

void op_profile_end(op_profile *p, op_record *r, const op_call *calls, ls_status status)
{
    r->end_ns = ls_now_ns();
    r->start_ns += p->suspended_ns;
    p->suspended_ns = 0;
    if (status == LS_OK)
        add(p, r, calls, r->n_calls);
}
