/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dn_face.c - dn_face.h over oneDNN 2.x.
 */
#include "tensor/onednn/dn_face.h"

#include <stdio.h>
#include <string.h>

#if DNNL_VERSION_MAJOR != 2
#error "this file speaks to oneDNN 2.x"
#endif

/* --- memory --- */

static bool by_tag(face_desc *d, int n_dims, const int64_t *dims, dnnl_format_tag_t tag)
{
    return dnnl_memory_desc_init_by_tag(d, n_dims, dims, dnnl_f32, tag) == dnnl_success;
}

bool face_desc_plain(face_desc *d, int n_dims, const int64_t *dims)
{
    static const dnnl_format_tag_t tags[FACE_MAX_DIMS + 1] = {
        dnnl_format_tag_undef, dnnl_a, dnnl_ab, dnnl_abc, dnnl_abcd, dnnl_abcde, dnnl_abcdef};

    return n_dims >= 1 && n_dims <= FACE_MAX_DIMS && by_tag(d, n_dims, dims, tags[n_dims]);
}

bool face_desc_any(face_desc *d, int n_dims, const int64_t *dims)
{
    return by_tag(d, n_dims, dims, dnnl_format_tag_any);
}

bool face_desc_nhwc(face_desc *d, const int64_t *dims)
{
    return by_tag(d, 4, dims, dnnl_nhwc);
}

bool face_desc_blocked(face_desc *d, const int64_t *dims, int block)
{
    switch (block) {
    case 4:
        return by_tag(d, 4, dims, dnnl_nChw4c);
    case 8:
        return by_tag(d, 4, dims, dnnl_nChw8c);
    case 16:
        return by_tag(d, 4, dims, dnnl_nChw16c);
    default:
        return false;
    }
}

bool face_desc_equal(const face_desc *a, const face_desc *b)
{
    return dnnl_memory_desc_equal(a, b) != 0;
}

size_t face_desc_bytes(const face_desc *d)
{
    return dnnl_memory_desc_get_size(d);
}

int face_desc_dims(const face_desc *d, int64_t *dims)
{
    memcpy(dims, d->dims, (size_t)d->ndims * sizeof(*dims));
    return d->ndims;
}

/* --- operators --- */

/* oneDNN counts dilation from 0. */
static void spatial_arguments(const face_problem *p, dnnl_dims_t stride, dnnl_dims_t dilation,
                              dnnl_dims_t padding)
{
    for (int i = 0; i < 2; i++) {
        stride[i] = p->stride[i];
        dilation[i] = p->dilation[i] - 1;
        padding[i] = p->padding[i];
    }
}

static dnnl_status_t convolution_desc(const face_problem *p, dnnl_convolution_desc_t *d)
{
    const face_desc *bias = p->has_bias ? &p->bias : NULL;
    dnnl_dims_t stride;
    dnnl_dims_t dilation;
    dnnl_dims_t padding;

    spatial_arguments(p, stride, dilation, padding);
    switch (p->prop) {
    case FACE_BACKWARD_DATA:
        return dnnl_dilated_convolution_backward_data_desc_init(d, dnnl_convolution_direct, &p->src,
                                                                &p->weights, &p->dst, stride,
                                                                dilation, padding, padding);
    case FACE_BACKWARD_WEIGHTS:
        return dnnl_dilated_convolution_backward_weights_desc_init(
            d, dnnl_convolution_direct, &p->src, &p->weights, bias, &p->dst, stride, dilation,
            padding, padding);
    default:
        return dnnl_dilated_convolution_forward_desc_init(
            d, dnnl_forward_training, dnnl_convolution_direct, &p->src, &p->weights, bias, &p->dst,
            stride, dilation, padding, padding);
    }
}

static dnnl_status_t inner_product_desc(const face_problem *p, dnnl_inner_product_desc_t *d)
{
    const face_desc *bias = p->has_bias ? &p->bias : NULL;

    switch (p->prop) {
    case FACE_BACKWARD_DATA:
        return dnnl_inner_product_backward_data_desc_init(d, &p->src, &p->weights, &p->dst);
    case FACE_BACKWARD_WEIGHTS:
        return dnnl_inner_product_backward_weights_desc_init(d, &p->src, &p->weights, bias,
                                                             &p->dst);
    default:
        return dnnl_inner_product_forward_desc_init(d, dnnl_forward_training, &p->src, &p->weights,
                                                    bias, &p->dst);
    }
}

static face_pd create(dnnl_engine_t engine, const face_problem *p, dnnl_primitive_attr_t attr,
                      face_pd hint)
{
    union {
        dnnl_convolution_desc_t convolution;
        dnnl_inner_product_desc_t inner_product;
    } d;
    face_pd pd = NULL;
    const dnnl_status_t st =
        p->spatial ? convolution_desc(p, &d.convolution) : inner_product_desc(p, &d.inner_product);

    if (st != dnnl_success ||
        dnnl_primitive_desc_create(&pd, &d, attr, engine, hint) != dnnl_success)
        return NULL;
    return pd;
}

/* A backward wants to see a forward descriptor of the same problem; which formats that one has does not matter. */
static face_pd forward_hint(dnnl_engine_t engine, const face_problem *p)
{
    face_problem forward = *p;

    forward.prop = FACE_FORWARD;
    forward.has_bias = false;
    if (!face_desc_any(&forward.src, p->src.ndims, p->src.dims) ||
        !face_desc_any(&forward.weights, p->weights.ndims, p->weights.dims) ||
        !face_desc_any(&forward.dst, p->dst.ndims, p->dst.dims))
        return NULL;
    return create(engine, &forward, NULL, NULL);
}

static dnnl_primitive_attr_t user_scratch(void)
{
    dnnl_primitive_attr_t attr = NULL;

    if (dnnl_primitive_attr_create(&attr) == dnnl_success)
        (void)dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user);
    return attr;
}

face_pd face_pd_create(dnnl_engine_t engine, const face_problem *problem)
{
    const dnnl_primitive_attr_t attr = user_scratch();
    face_pd hint = NULL;
    face_pd pd = NULL;

    if (attr == NULL)
        return NULL;
    if (problem->prop != FACE_FORWARD)
        hint = forward_hint(engine, problem);
    if (problem->prop == FACE_FORWARD || hint != NULL)
        pd = create(engine, problem, attr, hint);
    face_pd_destroy(hint);
    (void)dnnl_primitive_attr_destroy(attr);
    return pd;
}

face_pd face_pd_reorder(dnnl_engine_t engine, const face_desc *from, const face_desc *to, bool add)
{
    const dnnl_primitive_attr_t attr = user_scratch();
    dnnl_post_ops_t ops = NULL;
    face_pd pd = NULL;
    dnnl_status_t st = attr == NULL ? dnnl_out_of_memory : dnnl_success;

    if (st == dnnl_success && add) {
        st = dnnl_post_ops_create(&ops);
        if (st == dnnl_success)
            st = dnnl_post_ops_append_sum(ops, 1.0F);
        if (st == dnnl_success)
            st = dnnl_primitive_attr_set_post_ops(attr, ops);
    }
    if (st == dnnl_success)
        st = dnnl_reorder_primitive_desc_create(&pd, from, engine, to, engine, attr);
    if (ops != NULL)
        (void)dnnl_post_ops_destroy(ops);
    if (attr != NULL)
        (void)dnnl_primitive_attr_destroy(attr);
    return st == dnnl_success ? pd : NULL;
}

void face_pd_destroy(face_pd pd)
{
    if (pd != NULL)
        (void)dnnl_primitive_desc_destroy(pd);
}

void face_pd_desc(face_pd pd, face_prop prop, face_role role, face_desc *out)
{
    static const dnnl_query_t forward[] = {
        [FACE_SRC] = dnnl_query_src_md,
        [FACE_WEIGHTS] = dnnl_query_weights_md,
        [FACE_DST] = dnnl_query_dst_md,
        [FACE_SCRATCH] = dnnl_query_scratchpad_md,
    };
    dnnl_query_t what = forward[role];
    const face_desc *d;

    if (role == FACE_SRC && prop == FACE_BACKWARD_DATA)
        what = dnnl_query_diff_src_md;
    if (role == FACE_WEIGHTS && prop == FACE_BACKWARD_WEIGHTS)
        what = dnnl_query_diff_weights_md;
    if (role == FACE_DST && prop != FACE_FORWARD)
        what = dnnl_query_diff_dst_md;
    d = dnnl_primitive_desc_query_md(pd, what, 0);
    if (d == NULL)
        memset(out, 0, sizeof(*out));
    else
        *out = *d;
}

const char *face_pd_name(face_pd pd)
{
    const char *name = "?";

    (void)dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, &name);
    return name;
}

/* --- the library --- */

void face_version(char *buf, size_t n)
{
    const dnnl_version_t *v = dnnl_version();

    (void)snprintf(buf, n, "%d.%d.%d", v->major, v->minor, v->patch);
}

const char *face_isa(void)
{
    switch (dnnl_get_effective_cpu_isa()) {
    case dnnl_cpu_isa_sse41:
        return "sse41";
    case dnnl_cpu_isa_avx:
        return "avx";
    case dnnl_cpu_isa_avx2:
        return "avx2";
    case dnnl_cpu_isa_avx2_vnni:
        return "avx2_vnni";
    case dnnl_cpu_isa_avx512_mic:
    case dnnl_cpu_isa_avx512_mic_4ops:
        return "avx512_mic";
    case dnnl_cpu_isa_avx512_core:
        return "avx512_core";
    case dnnl_cpu_isa_avx512_core_vnni:
        return "avx512_core_vnni";
    case dnnl_cpu_isa_avx512_core_bf16:
        return "avx512_core_bf16";
    case dnnl_cpu_isa_avx512_core_amx:
        return "avx512_core_amx";
    default:
        return "generic";
    }
}
