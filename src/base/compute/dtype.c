/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dtype.c - sizes and names of the element types, and the version of the library; part of the
 * public API.
 */
#include <lockstep/base.h>

static const struct {
    size_t size;
    const char *name;
} types[LS_DTYPE_COUNT] = {
    [LS_I8] = {1, "int8"},     [LS_U8] = {1, "uint8"},    [LS_I32] = {4, "int32"},
    [LS_I64] = {8, "int64"},   [LS_F16] = {2, "float16"}, [LS_BF16] = {2, "bfloat16"},
    [LS_F32] = {4, "float32"}, [LS_F64] = {8, "float64"},
};

static int is_type(ls_dtype type)
{
    return (unsigned)type < LS_DTYPE_COUNT;
}

size_t ls_dtype_size(ls_dtype type)
{
    return is_type(type) ? types[type].size : 0;
}

const char *ls_dtype_name(ls_dtype type)
{
    return is_type(type) ? types[type].name : "?";
}

#define TEXT_OF(number) #number
#define DOTTED(a, b, c) TEXT_OF(a) "." TEXT_OF(b) "." TEXT_OF(c)

const char *ls_version(void)
{
    return DOTTED(LS_VERSION_MAJOR, LS_VERSION_MINOR, LS_VERSION_PATCH);
}
