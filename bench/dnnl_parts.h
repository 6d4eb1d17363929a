/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dnnl_parts.h - the part of oneDNN's C API that a CNN's training needs, one face over 2.x and 3.x.
 * Everything lives until the process ends.
 */
#ifndef BENCH_DNNL_PARTS_H
#define BENCH_DNNL_PARTS_H

#include <oneapi/dnnl/dnnl.h>

#include <stdlib.h>
#include <string.h>

typedef dnnl_primitive_desc_t part; /* NULL: oneDNN has no implementation */

#if DNNL_VERSION_MAJOR == 2
typedef const dnnl_memory_desc_t *part_desc;
#else
typedef const_dnnl_memory_desc_t part_desc;
#endif

/* Sizes of a window in both directions, and of the padding on the second side, which need not be
 * that of the first. */
typedef struct part_window {
    dnnl_dims_t kernel;
    dnnl_dims_t stride;
    dnnl_dims_t before;
    dnnl_dims_t after;
} part_window;

static const dnnl_dims_t part_dense = {0, 0};

static inline part_desc part_desc_of(int n_dims, const dnnl_dim_t *dims, dnnl_format_tag_t tag)
{
    dnnl_dims_t all = {0}; // oneDNN's parameter is an array of this size
#if DNNL_VERSION_MAJOR == 2
    dnnl_memory_desc_t *d = malloc(sizeof(*d));

    memcpy(all, dims, (size_t)n_dims * sizeof(*dims));
    if (d == NULL || dnnl_memory_desc_init_by_tag(d, n_dims, all, dnnl_f32, tag) != dnnl_success)
        return NULL;
#else
    dnnl_memory_desc_t d;

    memcpy(all, dims, (size_t)n_dims * sizeof(*dims));
    if (dnnl_memory_desc_create_with_tag(&d, n_dims, all, dnnl_f32, tag) != dnnl_success)
        return NULL;
#endif
    return d;
}

static inline part_desc part_query(part p, dnnl_query_t what)
{
    return p == NULL ? NULL : dnnl_primitive_desc_query_md(p, what, 0);
}

#if DNNL_VERSION_MAJOR == 2
static inline part part_make(dnnl_engine_t engine, dnnl_status_t described, const void *description,
                             part hint)
{
    part p;

    if (described != dnnl_success ||
        dnnl_primitive_desc_create(&p, description, NULL, engine, hint) != dnnl_success)
        return NULL;
    return p;
}
#endif

/* prop: dnnl_forward_training, dnnl_backward_data or dnnl_backward_weights; the descriptions are
 * then those of the gradients. */
static inline part part_conv(dnnl_engine_t engine, dnnl_prop_kind_t prop, part_desc src,
                             part_desc weights, part_desc dst, const part_window *w, part hint)
{
#if DNNL_VERSION_MAJOR == 2
    dnnl_convolution_desc_t d;
    dnnl_status_t st;

    if (prop == dnnl_backward_data)
        st = dnnl_convolution_backward_data_desc_init(&d, dnnl_convolution_direct, src, weights,
                                                      dst, w->stride, w->before, w->after);
    else if (prop == dnnl_backward_weights)
        st = dnnl_convolution_backward_weights_desc_init(&d, dnnl_convolution_direct, src, weights,
                                                         NULL, dst, w->stride, w->before, w->after);
    else
        st = dnnl_convolution_forward_desc_init(&d, prop, dnnl_convolution_direct, src, weights,
                                                NULL, dst, w->stride, w->before, w->after);
    return part_make(engine, st, &d, hint);
#else
    dnnl_status_t st;
    part p;

    if (prop == dnnl_backward_data)
        st = dnnl_convolution_backward_data_primitive_desc_create(
            &p, engine, dnnl_convolution_direct, src, weights, dst, w->stride, part_dense,
            w->before, w->after, hint, NULL);
    else if (prop == dnnl_backward_weights)
        st = dnnl_convolution_backward_weights_primitive_desc_create(
            &p, engine, dnnl_convolution_direct, src, weights, NULL, dst, w->stride, part_dense,
            w->before, w->after, hint, NULL);
    else
        st = dnnl_convolution_forward_primitive_desc_create(
            &p, engine, prop, dnnl_convolution_direct, src, weights, NULL, dst, w->stride,
            part_dense, w->before, w->after, NULL);
    return st == dnnl_success ? p : NULL;
#endif
}

/* hint NULL: forward. */
static inline part part_norm(dnnl_engine_t engine, part_desc x, int relu, part hint)
{
    const unsigned flags = dnnl_use_scale | dnnl_use_shift | (relu ? dnnl_fuse_norm_relu : 0);
#if DNNL_VERSION_MAJOR == 2
    dnnl_batch_normalization_desc_t d;

    if (hint == NULL)
        return part_make(
            engine,
            dnnl_batch_normalization_forward_desc_init(&d, dnnl_forward_training, x, 1e-5F, flags),
            &d, NULL);
    return part_make(
        engine, dnnl_batch_normalization_backward_desc_init(&d, dnnl_backward, x, x, 1e-5F, flags),
        &d, hint);
#else
    dnnl_status_t st;
    part p;

    if (hint == NULL)
        st = dnnl_batch_normalization_forward_primitive_desc_create(
            &p, engine, dnnl_forward_training, x, x, 1e-5F, flags, NULL);
    else
        st = dnnl_batch_normalization_backward_primitive_desc_create(
            &p, engine, dnnl_backward, x, x, x, 1e-5F, flags, hint, NULL);
    return st == dnnl_success ? p : NULL;
#endif
}

static inline part part_pool(dnnl_engine_t engine, dnnl_alg_kind_t kind, part_desc x, part_desc y,
                             const part_window *w, part hint)
{
#if DNNL_VERSION_MAJOR == 2
    dnnl_pooling_v2_desc_t d;

    if (hint == NULL)
        return part_make(engine,
                         dnnl_pooling_v2_forward_desc_init(&d, dnnl_forward_training, kind, x, y,
                                                           w->stride, w->kernel, part_dense,
                                                           w->before, w->after),
                         &d, NULL);
    return part_make(engine,
                     dnnl_pooling_v2_backward_desc_init(&d, kind, x, y, w->stride, w->kernel,
                                                        part_dense, w->before, w->after),
                     &d, hint);
#else
    dnnl_status_t st;
    part p;

    if (hint == NULL)
        st = dnnl_pooling_forward_primitive_desc_create(&p, engine, dnnl_forward_training, kind, x,
                                                        y, w->stride, w->kernel, part_dense,
                                                        w->before, w->after, NULL);
    else
        st = dnnl_pooling_backward_primitive_desc_create(&p, engine, kind, x, y, w->stride,
                                                         w->kernel, part_dense, w->before, w->after,
                                                         hint, NULL);
    return st == dnnl_success ? p : NULL;
#endif
}

#endif
