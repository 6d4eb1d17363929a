/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dn_face.c - dn_face.h over oneDNN 2.x or 3.x.
 */
#include "tensor/onednn/dn_face.h"

#include "tensor/onednn/dn.h"
#include "tensor/onednn/dn_face_version.h"

#include <stdio.h>

/* --- memory --- */

typedef struct face_entry {
    struct face_entry *next;
    face_desc desc;
} face_entry;

void face_list_free(face_list *list)
{
    while (list->first != NULL) {
        face_entry *entry = list->first;

        list->first = entry->next;
        face_desc_destroy(entry->desc);
        dn_host->free(entry);
    }
}

bool face_desc_equal(face_desc a, face_desc b)
{
    return dnnl_memory_desc_equal(a, b) != 0;
}

/* Puts d_take into the list, which destroys it later; NULL gives NULL. */
static face_desc list_take(face_list *list, face_desc d_take)
{
    face_entry *entry;

    if (d_take == NULL)
        return NULL;
    entry = dn_host->alloc(1, sizeof(*entry));
    if (entry == NULL) {
        face_desc_destroy(d_take);
        return NULL;
    }
    entry->desc = d_take;
    entry->next = list->first;
    list->first = entry;
    return d_take;
}

static face_desc by_tag(face_list *list, int n_dims, const int64_t *dims, dnnl_format_tag_t tag)
{
    return list_take(list, version_desc_by_tag(n_dims, dims, tag));
}

face_desc face_desc_plain(face_list *list, int n_dims, const int64_t *dims)
{
    static const dnnl_format_tag_t tags[FACE_MAX_DIMS + 1] = {
        dnnl_format_tag_undef, dnnl_a, dnnl_ab, dnnl_abc, dnnl_abcd, dnnl_abcde, dnnl_abcdef};

    if (n_dims < 1 || n_dims > FACE_MAX_DIMS)
        return NULL;
    return by_tag(list, n_dims, dims, tags[n_dims]);
}

face_desc face_desc_strided(face_list *list, int n_dims, const int64_t *dims,
                            const int64_t *strides)
{
    return list_take(list, version_desc_by_strides(n_dims, dims, strides));
}

face_desc face_desc_any(face_list *list, int n_dims, const int64_t *dims)
{
    return by_tag(list, n_dims, dims, dnnl_format_tag_any);
}

face_desc face_desc_nhwc(face_list *list, const int64_t *dims)
{
    return by_tag(list, 4, dims, dnnl_nhwc);
}

face_desc face_desc_blocked(face_list *list, const int64_t *dims, int block)
{
    switch (block) {
    case 4:
        return by_tag(list, 4, dims, dnnl_nChw4c);
    case 8:
        return by_tag(list, 4, dims, dnnl_nChw8c);
    case 16:
        return by_tag(list, 4, dims, dnnl_nChw16c);
    default:
        return NULL;
    }
}

size_t face_desc_bytes(face_desc d)
{
    return dnnl_memory_desc_get_size(d);
}

int face_desc_dims(face_desc d, int64_t *dims)
{
    return version_desc_dims(d, dims);
}

/* --- operators --- */

static face_desc as_any(face_list *list, face_desc d)
{
    int64_t dims[DNNL_MAX_NDIMS];
    const int n_dims = face_desc_dims(d, dims);

    return face_desc_any(list, n_dims, dims);
}

/* A backward wants to see a forward descriptor of the same problem; which formats that one has does not matter. */
static face_pd forward_hint(face_list *list, dnnl_engine_t engine, const face_problem *p)
{
    face_problem forward = *p;

    forward.prop = FACE_FORWARD;
    forward.bias = NULL;
    forward.src = as_any(list, p->src);
    forward.weights = as_any(list, p->weights);
    forward.dst = as_any(list, p->dst);
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

face_pd face_pd_create(face_list *list, dnnl_engine_t engine, const face_problem *problem)
{
    const dnnl_primitive_attr_t attr = user_scratch();
    face_pd hint = NULL;
    face_pd pd = NULL;

    if (attr == NULL)
        return NULL;
    if (problem->prop != FACE_FORWARD)
        hint = forward_hint(list, engine, problem);
    if (problem->prop == FACE_FORWARD || hint != NULL)
        pd = version_pd(engine, problem, attr, hint);
    face_pd_destroy(hint);
    (void)dnnl_primitive_attr_destroy(attr);
    return pd;
}

face_pd face_pd_reorder(dnnl_engine_t engine, face_desc from, face_desc to, bool add)
{
    const dnnl_primitive_attr_t attr = user_scratch();
    dnnl_post_ops_t ops = NULL;
    face_pd pd = NULL;
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

face_pd face_pd_matmul(dnnl_engine_t engine, face_desc a, face_desc b, face_desc dst)
{
    const dnnl_primitive_attr_t attr = user_scratch();
    face_pd pd;

    if (attr == NULL)
        return NULL;
    pd = version_pd_matmul(engine, a, b, dst, attr);
    (void)dnnl_primitive_attr_destroy(attr);
    return pd;
}

void face_pd_destroy(face_pd pd)
{
    if (pd != NULL)
        (void)dnnl_primitive_desc_destroy(pd);
}

face_desc face_pd_desc(face_pd pd, face_prop prop, face_role role)
{
    static const dnnl_query_t forward[] = {
        [FACE_SRC] = dnnl_query_src_md,
        [FACE_WEIGHTS] = dnnl_query_weights_md,
        [FACE_DST] = dnnl_query_dst_md,
    };
    dnnl_query_t what = forward[role];

    if (role == FACE_SRC && prop == FACE_BACKWARD_DATA)
        what = dnnl_query_diff_src_md;
    if (role == FACE_WEIGHTS && prop == FACE_BACKWARD_WEIGHTS)
        what = dnnl_query_diff_weights_md;
    if (role == FACE_DST && prop != FACE_FORWARD)
        what = dnnl_query_diff_dst_md;
    return dnnl_primitive_desc_query_md(pd, what, 0);
}

face_desc face_pd_scratch(face_pd pd)
{
    const face_desc d = dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);

    return d == NULL || face_desc_bytes(d) == 0 ? NULL : d;
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
        // A later version's set is named by the part of it that decides our layouts.
        return ((unsigned)isa & (unsigned)dnnl_cpu_isa_avx512_core) == dnnl_cpu_isa_avx512_core
                   ? "avx512"
                   : "generic";
    }
}
