/* SPDX-License-Identifier: Apache-2.0 */
/* dn_compat_3.c - dn_compat_version.h for oneDNN 3.x. */
#include "tensor/devices/onednn/dn_compat_version.h"

#include <string.h>

#if DNNL_VERSION_MAJOR != 3
#error "this file is for oneDNN 3.x"
#endif

compat_desc version_desc_by_tag(dnnl_data_type_t type, int n_dims, const int64_t *dims,
                                dnnl_format_tag_t tag)
{
    dnnl_memory_desc_t d = NULL;

    if (dnnl_memory_desc_create_with_tag(&d, n_dims, dims, type, tag) != dnnl_success)
        return NULL;
    return d;
}

compat_desc version_desc_by_strides(dnnl_data_type_t type, int n_dims, const int64_t *dims,
                                    const int64_t *strides)
{
    dnnl_memory_desc_t d = NULL;

    if (dnnl_memory_desc_create_with_strides(&d, n_dims, dims, type, strides) != dnnl_success)
        return NULL;
    return d;
}

compat_desc compat_desc_copy(compat_desc d)
{
    dnnl_memory_desc_t copy = NULL;

    return d != NULL && dnnl_memory_desc_clone(&copy, d) == dnnl_success ? copy : NULL;
}

void compat_desc_destroy(compat_desc d)
{
    if (d != NULL)
        (void)dnnl_memory_desc_destroy((dnnl_memory_desc_t)(uintptr_t)d);
}

int version_desc_dims(compat_desc d, int64_t *dims)
{
    const dnnl_dims_t *own = NULL;
    int n_dims = 0;

    (void)dnnl_memory_desc_query(d, dnnl_query_ndims_s32, &n_dims);
    if (n_dims > 0 && dnnl_memory_desc_query(d, dnnl_query_dims, &own) == dnnl_success)
        memcpy(dims, *own, (size_t)n_dims * sizeof(*dims));
    return n_dims;
}

dnnl_data_type_t version_desc_type(compat_desc d)
{
    dnnl_data_type_t type = dnnl_data_type_undef;

    (void)dnnl_memory_desc_query(d, dnnl_query_data_type, &type);
    return type;
}

static dnnl_status_t convolution(dnnl_engine_t engine, const compat_problem *p,
                                 dnnl_primitive_attr_t attr, compat_pd hint, compat_pd *pd)
{
    dnnl_dims_t stride;
    dnnl_dims_t dilation;
    dnnl_dims_t padding;

    version_spatial(p, stride, dilation, padding);
    switch (p->prop) {
    case COMPAT_BACKWARD_DATA:
        return dnnl_convolution_backward_data_primitive_desc_create(
            pd, engine, dnnl_convolution_direct, p->src, p->weights, p->dst, stride, dilation,
            padding, padding, hint, attr);
    case COMPAT_BACKWARD_WEIGHTS:
        return dnnl_convolution_backward_weights_primitive_desc_create(
            pd, engine, dnnl_convolution_direct, p->src, p->weights, p->bias, p->dst, stride,
            dilation, padding, padding, hint, attr);
    default:
        return dnnl_convolution_forward_primitive_desc_create(
            pd, engine, dnnl_forward_training, dnnl_convolution_direct, p->src, p->weights, p->bias,
            p->dst, stride, dilation, padding, padding, attr);
    }
}

static dnnl_status_t inner_product(dnnl_engine_t engine, const compat_problem *p,
                                   dnnl_primitive_attr_t attr, compat_pd hint, compat_pd *pd)
{
    switch (p->prop) {
    case COMPAT_BACKWARD_DATA:
        return dnnl_inner_product_backward_data_primitive_desc_create(
            pd, engine, p->src, p->weights, p->dst, hint, attr);
    case COMPAT_BACKWARD_WEIGHTS:
        return dnnl_inner_product_backward_weights_primitive_desc_create(
            pd, engine, p->src, p->weights, p->bias, p->dst, hint, attr);
    default:
        return dnnl_inner_product_forward_primitive_desc_create(
            pd, engine, dnnl_forward_training, p->src, p->weights, p->bias, p->dst, attr);
    }
}

compat_pd version_pd(dnnl_engine_t engine, const compat_problem *p, dnnl_primitive_attr_t attr,
                     compat_pd hint)
{
    compat_pd pd = NULL;
    const dnnl_status_t st = p->spatial ? convolution(engine, p, attr, hint, &pd)
                                        : inner_product(engine, p, attr, hint, &pd);

    return st == dnnl_success ? pd : NULL;
}

compat_pd version_pd_matmul(dnnl_engine_t engine, compat_desc a, compat_desc b, compat_desc dst,
                            dnnl_primitive_attr_t attr)
{
    compat_pd pd = NULL;

    if (dnnl_matmul_primitive_desc_create(&pd, engine, a, b, NULL, dst, attr) != dnnl_success)
        return NULL;
    return pd;
}

dnnl_status_t version_append_sum(dnnl_post_ops_t ops)
{
    return dnnl_post_ops_append_sum(ops, 1.0F, 0, dnnl_data_type_undef);
}

const char *version_isa(dnnl_cpu_isa_t isa)
{
    switch (isa) {
    case dnnl_cpu_isa_avx2_vnni_2:
        return "avx2_vnni_2";
    case dnnl_cpu_isa_avx512_core_fp16:
        return "avx512_core_fp16";
    case dnnl_cpu_isa_avx512_core_amx_fp16:
        return "avx512_core_amx_fp16";
    default:
        return NULL;
    }
}
