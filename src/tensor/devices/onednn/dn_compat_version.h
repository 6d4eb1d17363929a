/* SPDX-License-Identifier: Apache-2.0 */
/* dn_compat_version.h - the functions that dn_compat.c needs for each major version of oneDNN. */
#ifndef LS_TENSOR_DEVICES_ONEDNN_DN_COMPAT_VERSION_H
#define LS_TENSOR_DEVICES_ONEDNN_DN_COMPAT_VERSION_H

#include "tensor/devices/onednn/dn_compat.h"

/* Freed with compat_desc_destroy(). NULL: no memory, or the tag does not fit. */
compat_desc version_desc_by_tag(dnnl_data_type_t type, int n_dims, const int64_t *dims,
                                dnnl_format_tag_t tag);

compat_desc version_desc_by_strides(dnnl_data_type_t type, int n_dims, const int64_t *dims,
                                    const int64_t *strides);

int version_desc_dims(compat_desc d, int64_t *dims);
dnnl_data_type_t version_desc_type(compat_desc d);

/* As compat_pd_create, with `hint` a forward's descriptor for backwards. */
compat_pd version_pd(dnnl_engine_t engine, const compat_problem *p, dnnl_primitive_attr_t attr,
                     compat_pd hint);

compat_pd version_pd_matmul(dnnl_engine_t engine, compat_desc a, compat_desc b, compat_desc dst,
                            dnnl_primitive_attr_t attr);

/* dst = 1 * dst + result. */
dnnl_status_t version_append_sum(dnnl_post_ops_t ops);

/* The name of an instruction set that only this major version has; NULL: another one. */
const char *version_isa(dnnl_cpu_isa_t isa);

/* oneDNN counts dilation from 0. */
static inline void version_spatial(const compat_problem *p, dnnl_dims_t stride,
                                   dnnl_dims_t dilation, dnnl_dims_t padding)
{
    for (int i = 0; i < 2; i++) {
        stride[i] = p->stride[i];
        dilation[i] = p->dilation[i] - 1;
        padding[i] = p->padding[i];
    }
}

#endif
