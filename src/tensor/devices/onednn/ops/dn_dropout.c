/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dn_dropout.c - dropout in the layout of the input. The row-major index decides whether an element
 * is dropped, so every layout and every device drops the same elements.
 */
#include "tensor/devices/onednn/dn.h"

#include <math.h>
#include <string.h>

typedef struct drop_work {
    const simd_table *simd;
    drop_run run;
    grid g;
    size_t row_floats; /* of a position of the first dimension */
    converter c;
    size_t bytes; /* of an element */
    const void *x;
    void *y;
} drop_work;

/* Elements of a piece of 16-bit floats on the stack. */
#define PIECE 1024

/* The n elements from `at` on, of which the first has the number of *run. */
static void drop_some(const drop_work *w, const drop_run *run, size_t at, size_t n)
{
    drop_run piece = *run;
    float floats[PIECE];

    if (w->c.widen == NULL) {
        w->simd->dropout(run, (const float *)w->x + at, (float *)w->y + at, n);
        return;
    }
    for (size_t done = 0, more; done < n; done += more) {
        more = n - done < PIECE ? n - done : PIECE;
        piece.first = run->first + done * run->step;
        (void)convert_in(&w->c, w->x, at + done, floats, more);
        w->simd->dropout(&piece, floats, floats, more);
        convert_out(&w->c, floats, w->y, at + done, more);
    }
}

/* device_drops() says that h 2^-53 < drop, and h is an integer. */
drop_run drop_run_of(const op_attrs *a)
{
    return (drop_run){.random = a->random,
                      .threshold = (uint64_t)ceil(a->drop * 0x1p53),
                      .step = 1,
                      .scale = a->drop < 1 ? (float)(1 / (1 - a->drop)) : 0};
}

static void drop_plain(void *arg, size_t begin, size_t end, size_t thread)
{
    const drop_work *w = arg;
    drop_run run = w->run;

    LS_UNUSED(thread);
    run.first = begin;
    drop_some(w, &run, begin, end - begin);
}

/* Planes of positions of neighbouring channels, whose row-major indices are a plane apart. The
 * padding of the last block stays 0. */
static void drop_planes(void *arg, size_t begin, size_t end, size_t thread)
{
    const drop_work *w = arg;
    const size_t inner = w->g.inner;
    const size_t area = w->g.h * w->g.w;
    drop_run run = w->run;

    LS_UNUSED(thread);
    run.step = area;
    for (size_t plane = begin; plane < end; plane++) {
        const size_t c = plane % w->g.blocks * inner;
        const size_t used = w->g.c - c < inner ? w->g.c - c : inner;

        for (size_t i = 0; i < area; i++) {
            const size_t at = (plane * area + i) * inner;

            run.first = (plane / w->g.blocks * w->g.c + c) * area + i;
            drop_some(w, &run, at, used);
            memset((char *)w->y + (at + used) * w->bytes, 0, (inner - used) * w->bytes);
        }
    }
}

/* Whole rows, contiguous in every layout of a grid: all elements of a row have its number. */
static void drop_rows(void *arg, size_t begin, size_t end, size_t thread)
{
    const drop_work *w = arg;
    drop_run run = w->run;

    LS_UNUSED(thread);
    run.step = 0;
    for (run.first = begin; run.first < end; run.first++)
        drop_some(w, &run, run.first * w->row_floats, w->row_floats);
}

ls_status dn_dropout(device_state *self, const op_call *call)
{
    ls_tensor *const x = call->in[0];
    drop_work w = {.simd = self->simd, .run = drop_run_of(&call->attrs)};
    const layout *l;

    if (x->storage->layout != NULL)
        LS_TRY(grid_walkable(x, &w.g));
    l = layout_of(self, x);
    LS_TRY(layout_place(call->out[0], l));
    w.x = dn_data(x);
    w.y = dn_data(call->out[0]);
    w.c = converter_of(self, x->dtype);
    w.bytes = float_bytes(x->dtype);
    w.row_floats = layout_elements(l) / (size_t)x->dims[0];
    if (call->attrs.drops_rows)
        threads_for(self, (size_t)x->dims[0], w.row_floats, drop_rows, &w);
    else if (x->storage->layout == NULL)
        threads_for(self, layout_elements(l), 1, drop_plain, &w);
    else
        threads_for(self, w.g.n * w.g.blocks, w.g.h * w.g.w * w.g.inner, drop_planes, &w);
    return LS_OK;
}
