/* SPDX-License-Identifier: Apache-2.0 */
/* dn_compat.c - the calls of dn_compat.h that are equal in oneDNN 2.x and 3.x. */
#include "tensor/devices/onednn/dn_compat.h"

#include "tensor/devices/onednn/dn.h"
#include "tensor/devices/onednn/dn_compat_version.h"

#include <stdio.h>
#include <string.h>

/* --- memory --- */

typedef struct compat_entry {
    struct compat_entry *next;
    compat_desc desc;
} compat_entry;

void compat_list_free(compat_list *list)
{
    while (list->first != NULL) {
        compat_entry *entry = list->first;

        list->first = entry->next;
        compat_desc_destroy(entry->desc);
        dn_host->free(entry);
    }
}

bool compat_desc_equal(compat_desc a, compat_desc b)
{
    return dnnl_memory_desc_equal(a, b) != 0;
}

/* Puts d_take into the list, which destroys it later; NULL gives NULL. */
static compat_desc list_take(compat_list *list, compat_desc d_take)
{
    compat_entry *entry;

    if (d_take == NULL)
        return NULL;
    entry = dn_host->alloc(1, sizeof(*entry));
    if (entry == NULL) {
        compat_desc_destroy(d_take);
        return NULL;
    }
    entry->desc = d_take;
    entry->next = list->first;
    list->first = entry;
    return d_take;
}

static dnnl_data_type_t type_of(ls_dtype type)
{
    if (type == LS_BF16)
        return dnnl_bf16;
    return type == LS_F16 ? dnnl_f16 : dnnl_f32;
}

static compat_desc by_tag(compat_list *list, ls_dtype type, int n_dims, const int64_t *dims,
                          dnnl_format_tag_t tag)
{
    return list_take(list, version_desc_by_tag(type_of(type), n_dims, dims, tag));
}

compat_desc compat_desc_plain(compat_list *list, ls_dtype type, int n_dims, const int64_t *dims)
{
    static const dnnl_format_tag_t tags[COMPAT_MAX_DIMS + 1] = {
        dnnl_format_tag_undef, dnnl_a, dnnl_ab, dnnl_abc, dnnl_abcd, dnnl_abcde, dnnl_abcdef};

    if (n_dims < 1 || n_dims > COMPAT_MAX_DIMS)
        return NULL;
    return by_tag(list, type, n_dims, dims, tags[n_dims]);
}

compat_desc compat_desc_strided(compat_list *list, ls_dtype type, int n_dims, const int64_t *dims,
                                const int64_t *strides)
{
    return list_take(list, version_desc_by_strides(type_of(type), n_dims, dims, strides));
}

compat_desc compat_desc_any(compat_list *list, ls_dtype type, int n_dims, const int64_t *dims)
{
    return by_tag(list, type, n_dims, dims, dnnl_format_tag_any);
}

compat_desc compat_desc_nhwc(compat_list *list, ls_dtype type, const int64_t *dims)
{
    return by_tag(list, type, 4, dims, dnnl_nhwc);
}

compat_desc compat_desc_blocked(compat_list *list, ls_dtype type, const int64_t *dims, int block)
{
    switch (block) {
    case 4:
        return by_tag(list, type, 4, dims, dnnl_nChw4c);
    case 8:
        return by_tag(list, type, 4, dims, dnnl_nChw8c);
    case 16:
        return by_tag(list, type, 4, dims, dnnl_nChw16c);
    default:
        return NULL;
    }
}

size_t compat_desc_bytes(compat_desc d)
{
    return dnnl_memory_desc_get_size(d);
}

ls_dtype compat_desc_type(compat_desc d)
{
    const dnnl_data_type_t type = version_desc_type(d);

    if (type == dnnl_bf16)
        return LS_BF16;
    return type == dnnl_f16 ? LS_F16 : LS_F32;
}

int compat_desc_dims(compat_desc d, int64_t *dims)
{
    return version_desc_dims(d, dims);
}

/* --- operators --- */

static compat_desc as_any(compat_list *list, ls_dtype type, compat_desc d)
{
    int64_t dims[DNNL_MAX_NDIMS];
    const int n_dims = compat_desc_dims(d, dims);

    return compat_desc_any(list, type, n_dims, dims);
}

/* A backward descriptor needs the forward descriptor of the same problem, with any formats. Its
 * weights have the type of the activations, which gradients of weights need not. */
static compat_pd forward_hint(compat_list *list, dnnl_engine_t engine, const compat_problem *p)
{
    compat_problem forward = *p;

    forward.prop = COMPAT_FORWARD;
    forward.bias = NULL;
    forward.src = as_any(list, compat_desc_type(p->src), p->src);
    forward.weights = as_any(list, compat_desc_type(p->src), p->weights);
    forward.dst = as_any(list, compat_desc_type(p->dst), p->dst);
    if (forward.src == NULL || forward.weights == NULL || forward.dst == NULL)
        return NULL;
    return version_pd(engine, &forward, NULL, NULL);
}

static dnnl_primitive_attr_t user_scratch(void)
{
    dnnl_primitive_attr_t attr = NULL;

    if (dnnl_primitive_attr_create(&attr) == dnnl_success)
        (void)dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user);
    return attr;
}

compat_pd compat_pd_create(compat_list *list, dnnl_engine_t engine, const compat_problem *problem)
{
    const dnnl_primitive_attr_t attr = user_scratch();
    compat_pd hint = NULL;
    compat_pd pd = NULL;

    if (attr == NULL)
        return NULL;
    if (problem->prop != COMPAT_FORWARD)
        hint = forward_hint(list, engine, problem);
    if (problem->prop == COMPAT_FORWARD || hint != NULL)
        pd = version_pd(engine, problem, attr, hint);
    compat_pd_destroy(hint);
    (void)dnnl_primitive_attr_destroy(attr);
    return pd;
}

compat_pd compat_pd_reorder(dnnl_engine_t engine, compat_desc from, compat_desc to, bool add)
{
    const dnnl_primitive_attr_t attr = user_scratch();
    dnnl_post_ops_t ops = NULL;
    compat_pd pd = NULL;
    dnnl_status_t st = attr == NULL ? dnnl_out_of_memory : dnnl_success;

    if (st == dnnl_success && add) {
        st = dnnl_post_ops_create(&ops);
        if (st == dnnl_success)
            st = version_append_sum(ops);
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

compat_pd compat_pd_matmul(dnnl_engine_t engine, compat_desc a, compat_desc b, compat_desc dst)
{
    const dnnl_primitive_attr_t attr = user_scratch();
    compat_pd pd;

    if (attr == NULL)
        return NULL;
    pd = version_pd_matmul(engine, a, b, dst, attr);
    (void)dnnl_primitive_attr_destroy(attr);
    return pd;
}

void compat_pd_destroy(compat_pd pd)
{
    if (pd != NULL)
        (void)dnnl_primitive_desc_destroy(pd);
}

compat_desc compat_pd_desc(compat_pd pd, compat_prop prop, compat_role role)
{
    static const dnnl_query_t forward[] = {
        [COMPAT_SRC] = dnnl_query_src_md,
        [COMPAT_WEIGHTS] = dnnl_query_weights_md,
        [COMPAT_DST] = dnnl_query_dst_md,
    };
    dnnl_query_t what = forward[role];

    if (role == COMPAT_SRC && prop == COMPAT_BACKWARD_DATA)
        what = dnnl_query_diff_src_md;
    if (role == COMPAT_WEIGHTS && prop == COMPAT_BACKWARD_WEIGHTS)
        what = dnnl_query_diff_weights_md;
    if (role == COMPAT_DST && prop != COMPAT_FORWARD)
        what = dnnl_query_diff_dst_md;
    return dnnl_primitive_desc_query_md(pd, what, 0);
}

compat_desc compat_pd_scratch(compat_pd pd)
{
    const compat_desc d = dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);

    return d == NULL || compat_desc_bytes(d) == 0 ? NULL : d;
}

const char *compat_pd_name(compat_pd pd)
{
    const char *name = "?";

    (void)dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, &name);
    return name;
}

/* --- the library --- */

void compat_version(char *buf, size_t n)
{
    const dnnl_version_t *v = dnnl_version();

    (void)snprintf(buf, n, "%d.%d.%d", v->major, v->minor, v->patch);
}

bool compat_set_isa(const char *name)
{
    static const struct {
        const char *name;
        dnnl_cpu_isa_t isa;
    } limits[] = {{"avx2", dnnl_cpu_isa_avx2},
                  {"avx512", dnnl_cpu_isa_avx512_core},
                  {"avx512_bf16", dnnl_cpu_isa_avx512_core_bf16},
                  {"amx", dnnl_cpu_isa_avx512_core_amx}};
    dnnl_cpu_isa_t isa = dnnl_cpu_isa_sse41; // baseline

    for (size_t i = 0; i < LS_COUNT_OF(limits); i++) {
        if (strcmp(name, limits[i].name) == 0)
            isa = limits[i].isa;
    }
    // It fails where a primitive or a question for the set has fixed the limit already.
    (void)dnnl_set_max_cpu_isa(isa);
    return dnnl_get_effective_cpu_isa() == isa;
}

/* A set has the bits of those that it contains. */
static bool has_set(dnnl_cpu_isa_t isa, dnnl_cpu_isa_t part)
{
    return ((unsigned)isa & (unsigned)part) == (unsigned)part;
}

const char *compat_isa(void)
{
    const dnnl_cpu_isa_t isa = dnnl_get_effective_cpu_isa();
    const char *name = version_isa(isa);

    if (name != NULL)
        return name;
    switch (isa) {
    case dnnl_cpu_isa_sse41:
        return "sse41";
    case dnnl_cpu_isa_avx:
        return "avx";
    case dnnl_cpu_isa_avx2:
        return "avx2";
    case dnnl_cpu_isa_avx2_vnni:
        return "avx2_vnni";
    case dnnl_cpu_isa_avx512_core:
        return "avx512_core";
    case dnnl_cpu_isa_avx512_core_vnni:
        return "avx512_core_vnni";
    case dnnl_cpu_isa_avx512_core_bf16:
        return "avx512_core_bf16";
    case dnnl_cpu_isa_avx512_core_amx:
        return "avx512_core_amx";
    default:
        // A set of a later version: its part that decides our layouts.
        if (has_set(isa, dnnl_cpu_isa_avx512_core_amx))
            return "avx512_core_amx";
        return has_set(isa, dnnl_cpu_isa_avx512_core) ? "avx512" : "generic";
    }
}

bool compat_has_bf16(void)
{
    return has_set(dnnl_get_effective_cpu_isa(), dnnl_cpu_isa_avx512_core_bf16);
}
