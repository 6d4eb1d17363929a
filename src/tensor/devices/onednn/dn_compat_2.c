/* SPDX-License-Identifier: Apache-2.0 */
/* dn_compat_2.c - dn_compat_version.h for oneDNN 2.x. */
#include "tensor/devices/onednn/dn_compat_version.h"

#include "tensor/devices/onednn/dn.h"

#include <string.h>

#if DNNL_VERSION_MAJOR != 2
#error "this file is for oneDNN 2.x"
#endif

compat_desc version_desc_by_tag(dnnl_data_type_t type, int n_dims, const int64_t *dims,
                                dnnl_format_tag_t tag)
{
    dnnl_memory_desc_t d;

    if (dnnl_memory_desc_init_by_tag(&d, n_dims, dims, type, tag) != dnnl_success)
        return NULL;
    return compat_desc_copy(&d);
}

compat_desc version_desc_by_strides(dnnl_data_type_t type, int n_dims, const int64_t *dims,
                                    const int64_t *strides)
{
    dnnl_memory_desc_t d;

    if (dnnl_memory_desc_init_by_strides(&d, n_dims, dims, type, strides) != dnnl_success)
        return NULL;
    return compat_desc_copy(&d);
}

compat_desc compat_desc_copy(compat_desc d)
{
    dnnl_memory_desc_t *copy;

    if (d == NULL)
        return NULL;
    copy = dn_host->alloc(1, sizeof(*copy));
    if (copy != NULL)
        *copy = *d;
    return copy;
}

void compat_desc_destroy(compat_desc d)
{
    dn_host->free((void *)(uintptr_t)d);
}

int version_desc_dims(compat_desc d, int64_t *dims)
{
    memcpy(dims, d->dims, (size_t)d->ndims * sizeof(*dims));
    return d->ndims;
}

dnnl_data_type_t version_desc_type(compat_desc d)
{
    return d->data_type;
}

static dnnl_status_t convolution_desc(const compat_problem *p, dnnl_convolution_desc_t *d)
{
    dnnl_dims_t stride;
    dnnl_dims_t dilation;
    dnnl_dims_t padding;

    version_spatial(p, stride, dilation, padding);
    switch (p->prop) {
    case COMPAT_BACKWARD_DATA:
        return dnnl_dilated_convolution_backward_data_desc_init(d, dnnl_convolution_direct, p->src,
                                                                p->weights, p->dst, stride,
                                                                dilation, padding, padding);
    case COMPAT_BACKWARD_WEIGHTS:
        return dnnl_dilated_convolution_backward_weights_desc_init(
            d, dnnl_convolution_direct, p->src, p->weights, p->bias, p->dst, stride, dilation,
            padding, padding);
    default:
        return dnnl_dilated_convolution_forward_desc_init(
            d, dnnl_forward_training, dnnl_convolution_direct, p->src, p->weights, p->bias, p->dst,
            stride, dilation, padding, padding);
    }
}

static dnnl_status_t inner_product_desc(const compat_problem *p, dnnl_inner_product_desc_t *d)
{
    switch (p->prop) {
    case COMPAT_BACKWARD_DATA:
        return dnnl_inner_product_backward_data_desc_init(d, p->src, p->weights, p->dst);
    case COMPAT_BACKWARD_WEIGHTS:
        return dnnl_inner_product_backward_weights_desc_init(d, p->src, p->weights, p->bias,
                                                             p->dst);
    default:
        return dnnl_inner_product_forward_desc_init(d, dnnl_forward_training, p->src, p->weights,
                                                    p->bias, p->dst);
    }
}

compat_pd version_pd(dnnl_engine_t engine, const compat_problem *p, dnnl_primitive_attr_t attr,
                     compat_pd hint)
{
    union {
        dnnl_convolution_desc_t convolution;
        dnnl_inner_product_desc_t inner_product;
    } d;
    compat_pd pd = NULL;
    const dnnl_status_t st =
        p->spatial ? convolution_desc(p, &d.convolution) : inner_product_desc(p, &d.inner_product);

    if (st != dnnl_success ||
        dnnl_primitive_desc_create(&pd, &d, attr, engine, hint) != dnnl_success)
        return NULL;
    return pd;
}

compat_pd version_pd_matmul(dnnl_engine_t engine, compat_desc a, compat_desc b, compat_desc dst,
                            dnnl_primitive_attr_t attr)
{
    dnnl_matmul_desc_t d;
    compat_pd pd = NULL;

    if (dnnl_matmul_desc_init(&d, a, b, NULL, dst) != dnnl_success ||
        dnnl_primitive_desc_create(&pd, &d, attr, engine, NULL) != dnnl_success)
        return NULL;
    return pd;
}

dnnl_status_t version_append_sum(dnnl_post_ops_t ops)
{
    return dnnl_post_ops_append_sum(ops, 1.0F);
}

const char *version_isa(dnnl_cpu_isa_t isa)
{
    switch (isa) {
    case dnnl_cpu_isa_avx512_mic:
    case dnnl_cpu_isa_avx512_mic_4ops:
        return "avx512_mic";
    default:
        return NULL;
    }
}
