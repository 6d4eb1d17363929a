/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dn_broadcast.c - a + b and a * b with b repeated to the shape of a, and the sums that are the
 * gradient of b, for dn_binary.c.
 *
 * If b has one number for each channel, of all samples or of each, a may have any layout of
 * (N,C,H,W); otherwise all tensors are plain. In both cases planes of rows of `lanes` floats share
 * a row of b, as in batch norm, whose loops compute y = (a - 0) b + 0 and y = (a - 0) 1 + b. One
 * thread sums an element of db, so the number of threads does not change the bits.
 */
#include "tensor/devices/onednn/dn.h"

#include <string.h>

/* b along y's dimensions: repeated `outer` times as a whole, each of its `mid` elements `inner`
 * times. */
typedef struct repeats {
    size_t outer;
    size_t mid;
    size_t inner;
} repeats;

/* False if b is broadcast along dimensions in between as well. */
static bool repeats_of(const ls_tensor *y, const ls_tensor *b, repeats *out)
{
    const int lacks = y->n_dims - b->n_dims;

    *out = (repeats){1, 1, 1};
    for (int d = 0; d < y->n_dims; d++) {
        const size_t size = (size_t)y->dims[d];
        const bool is_there = d >= lacks && b->dims[d - lacks] != 1;

        if (is_there && out->inner > 1)
            return false;
        if (is_there)
            out->mid *= size;
        else if (out->mid > 1)
            out->inner *= size;
        else
            out->outer *= size;
    }
    return true;
}

bool planes_fit(const ls_tensor *whole, const ls_tensor *part)
{
    repeats r;

    return part->n_dims <= whole->n_dims && repeats_of(whole, part, &r);
}

/* Plane i, of rows * lanes floats, uses part i % period of b: `lanes` elements, or the rest of the
 * c elements of each `blocks` parts. */
typedef struct planes {
    size_t n;
    size_t rows;
    size_t lanes;
    size_t period;
    size_t c;
    size_t blocks;
} planes;

static ls_status planes_of(ls_tensor *y, const ls_tensor *b, planes *out)
{
    void *data;
    repeats r;
    grid g;

    (void)repeats_of(y, b, &r);
    if (y->n_dims == 4 && r.inner == (size_t)(y->dims[2] * y->dims[3]) &&
        (r.mid == (size_t)y->dims[1] || r.mid == (size_t)(y->dims[0] * y->dims[1]))) {
        LS_TRY(grid_walkable(y, &g));
        *out = (planes){.n = g.n * g.blocks,
                        .rows = g.h * g.w,
                        .lanes = g.inner,
                        .period = r.mid == g.c ? g.blocks : g.n * g.blocks,
                        .c = g.c,
                        .blocks = g.blocks};
        return LS_OK;
    }
    LS_TRY(dn_host->tensor_plain(y, &data));
    if (r.inner > 1)
        *out = (planes){r.outer * r.mid, .rows = r.inner, .lanes = 1, .period = r.mid, 1, 1};
    else
        *out = (planes){r.outer, .rows = 1, .lanes = r.mid, .period = 1, .c = r.mid, .blocks = 1};
    return LS_OK;
}

/* First element and size of part i of b. */
static size_t part_at(const planes *p, size_t i, size_t *used)
{
    const size_t first = i % p->blocks * p->lanes;

    *used = p->c - first < p->lanes ? p->c - first : p->lanes;
    return i / p->blocks * p->c + first;
}

typedef struct broadcast_work {
    const simd_table *simd;
    planes p;
    bool multiplies;
    double scale;   /* backward */
    const float *a; /* backward: NULL where nothing is multiplied */
    const float *dy;
    float *out;
    const float *zeros; /* a row of each */
    const float *ones;
    float *parts; /* the rows of b; backward: a row each of sums, products and doubles */
} broadcast_work;

/* Allocates `each` floats for each part, a row of zeros and a row of ones. */
static ls_status make_rows(ls_device *device, broadcast_work *w, size_t each, ls_tensor **memory)
{
    const size_t lanes = w->p.lanes;
    float *floats;

    LS_TRY(dn_floats(device, w->p.period * each + 2 * lanes, memory, &floats));
    w->parts = floats;
    floats += w->p.period * each;
    memset(floats, 0, lanes * sizeof(*floats));
    w->zeros = floats;
    for (size_t i = 0; i < lanes; i++)
        floats[lanes + i] = 1;
    w->ones = floats + lanes;
    return LS_OK;
}

/* --- forward --- */

static void broadcast_range(void *arg, size_t begin, size_t end, size_t thread)
{
    const broadcast_work *w = arg;
    const size_t floats = w->p.rows * w->p.lanes;

    LS_UNUSED(thread);
    for (size_t i = begin; i < end; i++) {
        const float *part = w->parts + i % w->p.period * w->p.lanes;
        const bn_lanes row = {.mean = w->zeros,
                              .scale = w->multiplies ? part : w->ones,
                              .bias = w->multiplies ? w->zeros : part};
        const float *a = w->a + i * floats;
        float *y = w->out + i * floats;

        if (w->p.lanes > 1)
            w->simd->bn_apply(a, NULL, y, false, w->p.rows, w->p.lanes, &row);
        else if (w->multiplies)
            w->simd->shift_scale(a, 0, part[0], y, floats);
        else
            w->simd->shift(a, -part[0], 0, y, floats);
    }
}

/* The parts of b, padded with zeros. */
static void fill_parts(const broadcast_work *w, const float *b)
{
    for (size_t i = 0; i < w->p.period; i++) {
        float *part = w->parts + i * w->p.lanes;
        size_t used;
        const size_t at = part_at(&w->p, i, &used);

        memcpy(part, b + at, used * sizeof(*part));
        memset(part + used, 0, (w->p.lanes - used) * sizeof(*part));
    }
}

ls_status planes_apply(device_state *self, ls_tensor *whole, ls_tensor *part, bool multiplies,
                       ls_tensor *y)
{
    broadcast_work w = {.simd = self->simd, .multiplies = multiplies};
    ls_tensor *memory = NULL;
    void *b;

    LS_TRY(planes_of(whole, part, &w.p));
    LS_TRY(dn_host->tensor_plain(part, &b));
    LS_TRY(layout_place(y, layout_of(self, whole)));
    LS_TRY(make_rows(whole->device, &w, w.p.lanes, &memory));
    fill_parts(&w, b);
    w.a = dn_data(whole);
    w.out = dn_data(y);
    threads_for(self, w.p.n, w.p.rows * w.p.lanes, broadcast_range, &w);
    dn_host->tensor_destroy(memory);
    return LS_OK;
}

/* --- backward --- */

#define SUM_ROWS 64 /* that are added up as floats; their sums are added as doubles */

/* One part of b; a NULL: the sums of dy. */
static void sum_part(const broadcast_work *w, size_t part, double *sums, float *rows)
{
    const size_t lanes = w->p.lanes;
    const size_t floats = w->p.rows * lanes;
    const bn_lanes none = {.mean = w->zeros, .scale = w->zeros, .bias = w->zeros};

    for (size_t i = part; i < w->p.n; i += w->p.period) {
        const float *dy = w->dy + i * floats;
        const float *a = w->a == NULL ? dy : w->a + i * floats;

        if (lanes == 1) {
            sums[0] += w->a == NULL ? w->simd->sum(dy, floats) : w->simd->dot(a, dy, floats);
            continue;
        }
        for (size_t r = 0; r < w->p.rows; r += SUM_ROWS) {
            const size_t n = w->p.rows - r < SUM_ROWS ? w->p.rows - r : SUM_ROWS;

            w->simd->bn_sums(a + r * lanes, dy + r * lanes, NULL, false, n, lanes, &none, rows,
                             rows + lanes);
            w->simd->accumulate(w->a == NULL ? rows : rows + lanes, sums, lanes);
        }
    }
}

static void sums_range(void *arg, size_t begin, size_t end, size_t thread)
{
    const broadcast_work *w = arg;
    const size_t lanes = w->p.lanes;

    LS_UNUSED(thread);
    for (size_t i = begin; i < end; i++) {
        double *sums = (double *)(void *)(w->parts + i * 4 * lanes);
        size_t used;
        const size_t at = part_at(&w->p, i, &used);

        memset(sums, 0, lanes * sizeof(*sums));
        sum_part(w, i, sums, (float *)(void *)(sums + lanes));
        for (size_t k = 0; k < used; k++)
            w->out[at + k] = (float)(w->scale * sums[k]);
    }
}

ls_status planes_sum(device_state *self, ls_tensor *x, ls_tensor *factor, double scale,
                     ls_tensor *sums)
{
    broadcast_work w = {.simd = self->simd, .scale = scale};
    ls_tensor *memory = NULL;
    ls_tensor *moved = NULL;
    void *data = NULL;
    ls_status st;

    LS_TRY(planes_of(x, sums, &w.p));
    if (w.p.rows == 1 && w.p.period == 1) { // contiguous rows are one plane
        w.p.rows = w.p.n;
        w.p.n = 1;
    }
    LS_TRY(dn_host->tensor_place(sums, NULL, 0));
    LS_TRY(make_rows(x->device, &w, 4 * w.p.lanes, &memory));
    st = factor == NULL ? LS_OK : layout_arrange(self, factor, layout_of(self, x), &moved, &data);
    if (st == LS_OK) {
        w.a = data;
        w.dy = dn_data(x);
        w.out = dn_data(sums);
        threads_for(self, w.p.period, w.p.n / w.p.period * w.p.rows * w.p.lanes, sums_range, &w);
    }
    dn_host->tensor_destroy(moved);
    dn_host->tensor_destroy(memory);
    return st;
}
