/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dn_binary.c - functions of two tensors that are broadcast, repeats of one, selection, and sums
 * over parts of one. What networks do to images, in any layout, is in dn_broadcast.c; here all
 * tensors are plain, and the inner loops run along the last dimension of broadcast_dims, in pieces.
 * The order of a sum depends on the shapes alone, so the number of threads does not change the
 * bits.
 */
#include "tensor/devices/onednn/dn.h"
#include "tensor/formulas/broadcast.h"

#include <string.h>

enum {
    PIECE = 512,          /* floats of each operand on the stack */
    PART_FLOATS = 1 << 15 /* of a sum of everything, which is added up in parts */
};

enum { FIRST, SECOND, THIRD, OUT, OPERANDS };

/* The elements of FIRST, SECOND, THIRD (NULL: not read) and, for sums, OUT over one shape. */
typedef struct binary_work {
    const simd_table *simd;
    binary_term term;
    broadcast_dims dims;
    const float *in[OUT];
    float *out;   /* of that shape */
    double *sums; /* at the steps of OUT */
    int split;    /* sums: the dimension that threads or parts divide */
    size_t part;  /* positions of it in a part of a sum of everything */
    /* NULL: FIRST itself */
    void (*compute)(const struct binary_work *w, const float *const *in, float *out, size_t n);
} binary_work;

static void compute_value(const binary_work *w, const float *const *in, float *out, size_t n)
{
    w->simd->binary(w->term.f, w->term.p, in[FIRST], in[SECOND], out, n);
}

static void compute_slope(const binary_work *w, const float *const *in, float *out, size_t n)
{
    w->simd->binary_slope(&w->term, in[FIRST], in[SECOND], in[THIRD], out, n);
}

static void compute_copy(const binary_work *w, const float *const *in, float *out, size_t n)
{
    LS_UNUSED(w);
    memcpy(out, in[FIRST], n * sizeof(*out));
}

/* The tensors over the shape of `shape`; at least one dimension. */
static ls_status open_work(binary_work *w, device_state *self, const op_call *call,
                           const ls_tensor *shape)
{
    const ls_tensor *over[OPERANDS] = {NULL};

    for (int k = 0; k < call->n_in; k++) {
        void *data = NULL;

        if (call->in[k] != NULL)
            LS_TRY(dn_host->tensor_plain(call->in[k], &data));
        w->in[k] = data;
        over[k] = call->in[k];
    }
    over[OUT] = call->out[0];
    LS_TRY(dn_host->tensor_place(call->out[0], NULL, 0));
    w->simd = self->simd;
    w->term = (binary_term){call->attrs.binary, call->attrs.operand, (float)call->attrs.value};
    w->dims = broadcast_over(shape, over, OPERANDS);
    if (w->dims.n == 0)
        w->dims.size[w->dims.n++] = 1;
    return LS_OK;
}

static size_t run_of(const binary_work *w)
{
    return w->dims.size[w->dims.n - 1];
}

/* The runs of all dimensions but the last. */
static size_t count_runs(const broadcast_dims *d)
{
    size_t n = 1;

    for (int i = 0; i < d->n - 1; i++)
        n *= d->size[i];
    return n;
}

/* n elements of each operand, `inside` positions behind `at`: in place, or one repeated. An absent
 * operand is FIRST. */
static void read_piece(const binary_work *w, const size_t *at, size_t inside, size_t n,
                       float buffers[OUT][PIECE], const float **in)
{
    for (int k = 0; k < OUT; k++) {
        const float *elements = w->in[k] == NULL ? NULL : w->in[k] + at[k];

        if (elements == NULL) {
            // NOLINTNEXTLINE(clang-analyzer-core.uninitialized.Assign): it has elements
            in[k] = in[FIRST];
        } else if (w->dims.step[k][w->dims.n - 1] != 0) {
            in[k] = elements + inside;
        } else {
            for (size_t i = 0; i < n; i++)
                buffers[k][i] = elements[0];
            in[k] = buffers[k];
        }
    }
}

/* --- element by element --- */

static void compute_range(void *arg, size_t begin, size_t end, size_t thread)
{
    const binary_work *w = arg;
    const size_t run = run_of(w);
    size_t inside = begin % run;
    broadcast_walk walk = broadcast_walk_from(&w->dims, w->dims.n - 1, begin / run);
    float buffers[OUT][PIECE];

    LS_UNUSED(thread);
    while (begin < end) {
        const size_t left = run - inside < end - begin ? run - inside : end - begin;
        const size_t n = left < PIECE ? left : PIECE;
        const float *in[OUT];

        read_piece(w, walk.at, inside, n, buffers, in);
        w->compute(w, in, w->out + begin, n);
        begin += n;
        inside += n;
        if (inside == run) {
            inside = 0;
            broadcast_next(&w->dims, w->dims.n - 1, &walk);
        }
    }
}

static void compute_all(const device_state *self, binary_work *w, const op_call *call)
{
    w->out = dn_data(call->out[0]);
    threads_for(self, count_runs(&w->dims) * run_of(w), 1, compute_range, w);
}

static ls_status binary_repeated(device_state *self, const op_call *call)
{
    ls_tensor *const y = call->out[0];
    const op_binary f = call->attrs.binary;
    binary_work w = {.compute = compute_value};

    for (int i = 0; i < 2 && (f == BINARY_ADD || f == BINARY_MUL); i++) {
        if (broadcast_is_whole(call->in[i], y) && planes_fit(y, call->in[1 - i]))
            return planes_apply(self, call->in[i], call->in[1 - i], f == BINARY_MUL, y);
    }
    LS_TRY(open_work(&w, self, call, y));
    compute_all(self, &w, call);
    return LS_OK;
}

ls_status dn_binary(device_state *self, const op_call *call)
{
    return broadcast_is_whole(call->in[0], call->in[1]) ? dn_binary_alike(self, call)
                                                        : binary_repeated(self, call);
}

ls_status dn_expand(device_state *self, const op_call *call)
{
    binary_work w = {.compute = compute_copy};

    LS_TRY(open_work(&w, self, call, call->out[0]));
    compute_all(self, &w, call);
    return LS_OK;
}

/* --- selection --- */

/* The mask is 0 or 1 in THIRD. */
static void compute_select(const binary_work *w, const float *const *in, float *out, size_t n)
{
    LS_UNUSED(w);
    for (size_t i = 0; i < n; i++)
        out[i] = in[THIRD][i] != 0 ? in[SECOND][i] : in[FIRST][i];
}

/* The mask as floats, 1 where x is replaced, and `other`, or the number in its place. */
static ls_status open_mask(const op_call *call, ls_tensor **memory, ls_tensor **other)
{
    const ls_tensor *mask = call->in[2];
    const size_t n = mask->count;
    const uint8_t *bytes;
    float *floats;
    void *data;

    LS_TRY(dn_host->tensor_plain(call->in[2], &data));
    bytes = data;
    LS_TRY(dn_host->tensor_shape(mask->device, LS_F32, mask->n_dims, mask->dims, memory));
    LS_TRY(dn_host->tensor_place(*memory, NULL, 0));
    floats = dn_data(*memory);
    for (size_t i = 0; i < n; i++)
        floats[i] = (bytes[i] != 0) != call->attrs.reverse ? 1 : 0;
    *other = call->in[1];
    if (*other != NULL)
        return LS_OK;
    LS_TRY(dn_host->tensor_shape(mask->device, LS_F32, 0, NULL, other));
    LS_TRY(dn_host->tensor_place(*other, NULL, 0));
    *(float *)dn_data(*other) = (float)call->attrs.value;
    return LS_OK;
}

ls_status dn_select(device_state *self, const op_call *call)
{
    binary_work w = {.compute = compute_select};
    op_call with = *call;
    ls_status st;

    with.in[1] = NULL;
    with.in[2] = NULL;
    st = open_mask(call, &with.in[2], &with.in[1]);
    if (st == LS_OK)
        st = open_work(&w, self, &with, call->out[0]);
    if (st == LS_OK)
        compute_all(self, &w, call);
    if (with.in[1] != call->in[1])
        dn_host->tensor_destroy(with.in[1]);
    dn_host->tensor_destroy(with.in[2]);
    return st;
}

/* --- sums --- */

/* Adds to `sums` the terms at positions [begin, end) of the dimension w->split. */
static void sum_box(const binary_work *w, size_t begin, size_t end, double *sums)
{
    const int last = w->dims.n - 1;
    broadcast_dims d = w->dims;
    broadcast_walk walk = {{0}, {0}};
    float buffers[OUT][PIECE];
    float terms[PIECE];

    d.size[w->split] = end - begin;
    for (int k = 0; k < OPERANDS; k++)
        walk.at[k] = begin * d.step[k][w->split];
    for (size_t left = count_runs(&d); left > 0; left--, broadcast_next(&d, last, &walk)) {
        for (size_t at = 0; at < d.size[last]; at += PIECE) {
            const size_t n = d.size[last] - at < PIECE ? d.size[last] - at : PIECE;
            const float *in[OUT];

            read_piece(w, walk.at, at, n, buffers, in);
            if (w->compute != NULL)
                w->compute(w, in, terms, n);
            if (d.step[OUT][last] != 0)
                w->simd->accumulate(w->compute != NULL ? terms : in[FIRST],
                                    sums + walk.at[OUT] + at, n);
            else
                sums[walk.at[OUT]] += w->simd->sum(w->compute != NULL ? terms : in[FIRST], n);
        }
    }
}

static void sum_range(void *arg, size_t begin, size_t end, size_t thread)
{
    const binary_work *w = arg;

    LS_UNUSED(thread);
    if (end > begin)
        sum_box(w, begin, end, w->sums);
}

/* Parts of a sum of everything. */
static void sum_parts(void *arg, size_t begin, size_t end, size_t thread)
{
    const binary_work *w = arg;
    const size_t size = w->dims.size[w->split];

    LS_UNUSED(thread);
    for (size_t i = begin; i < end; i++) {
        const size_t after = (i + 1) * w->part;

        sum_box(w, i * w->part, after < size ? after : size, w->sums + i);
    }
}

/* Adds up to w->sums[0 .. n). */
static ls_status sum_all(const device_state *self, binary_work *w, ls_device *device, size_t n,
                         ls_tensor **memory)
{
    const size_t run = run_of(w);
    const size_t total = count_runs(&w->dims) * run;
    size_t n_parts = 0;
    float *floats;

    while (w->split < w->dims.n && w->dims.step[OUT][w->split] == 0)
        w->split++;
    if (w->split == w->dims.n) {
        const size_t inner = total / w->dims.size[0];

        w->split = 0;
        w->part = inner < PART_FLOATS ? PART_FLOATS / inner : 1;
        n_parts = (w->dims.size[0] + w->part - 1) / w->part;
    }
    if (n_parts > n)
        n = n_parts;
    LS_TRY(dn_floats(device, 2 * n, memory, &floats));
    memset(floats, 0, 2 * n * sizeof(*floats));
    w->sums = (double *)(void *)floats;
    if (n_parts == 0) {
        threads_for(self, w->dims.size[w->split], total / w->dims.size[w->split], sum_range, w);
        return LS_OK;
    }
    threads_for(self, n_parts, total / n_parts, sum_parts, w);
    for (size_t i = 1; i < n_parts; i++)
        w->sums[0] += w->sums[i];
    return LS_OK;
}

/* Whether dn_broadcast.c has this sum: *factor is NULL where nothing is multiplied. */
static bool is_planes(const op_call *call, ls_tensor **factor)
{
    const op_attrs *a = &call->attrs;
    const bool is_sum = a->binary == BINARY_ADD || (a->binary == BINARY_SUB && a->operand == 0);

    *factor = a->binary == BINARY_MUL ? call->in[2 - a->operand] : NULL;
    return (is_sum || (*factor != NULL && broadcast_is_whole(*factor, call->in[0]))) &&
           call->out[0]->count > 1 && planes_fit(call->in[0], call->out[0]);
}

ls_status dn_reduce(device_state *self, const op_call *call)
{
    ls_tensor *const y = call->out[0];
    binary_work w = {.compute = call->attrs.binary == BINARY_ADD ? NULL : compute_slope};
    const size_t n = y->count;
    ls_tensor *memory = NULL;
    ls_tensor *factor;
    ls_status st;
    float *out;

    if (is_planes(call, &factor))
        return planes_sum(self, call->in[0], factor, call->attrs.scale, y);
    LS_TRY(open_work(&w, self, call, call->in[0]));
    if (broadcast_is_whole(y, call->in[0]) && call->attrs.scale == 1) {
        w.compute = w.compute == NULL ? compute_copy : w.compute;
        compute_all(self, &w, call);
        return LS_OK;
    }
    st = sum_all(self, &w, y->device, n, &memory);
    out = dn_data(y);
    for (size_t i = 0; i < n && st == LS_OK; i++)
        out[i] = (float)(call->attrs.scale * w.sums[i]);
    dn_host->tensor_destroy(memory);
    return st;
}
