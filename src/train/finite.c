/* SPDX-License-Identifier: Apache-2.0 */
/* finite.c - see finite.h. values.c, load_weights.c and run_finite.c call it. */
#include "train/finite.h"

#include "tensor/tensor.h"

/* The exponent of a finite float32 is not all ones. */
static ls_status check_f32(void *arg, const void *piece, size_t bytes)
{
    const uint32_t *bits = piece;
    bool *is_finite = arg;
    uint32_t n_special = 0;

    for (size_t i = 0; i < bytes / sizeof(*bits); i++)
        n_special |= (bits[i] & 0x7f800000U) == 0x7f800000U;
    *is_finite = *is_finite && n_special == 0;
    return LS_OK;
}

static ls_status check_f64(void *arg, const void *piece, size_t bytes)
{
    const double *values = piece;
    bool *is_finite = arg;

    for (size_t i = 0; i < bytes / sizeof(*values); i++)
        *is_finite = *is_finite && isfinite(values[i]);
    return LS_OK;
}

ls_status finite_check(const ls_named *items, int n, const char **name)
{
    *name = NULL;
    for (int i = 0; i < n && *name == NULL; i++) {
        const ls_tensor *t = items[i].tensor;
        bool is_finite = true;

        if (t != NULL && ls_tensor_dtype(t) == LS_F32)
            LS_TRY(tensor_read_pieces(t, check_f32, &is_finite));
        else if (t != NULL && ls_tensor_dtype(t) == LS_F64)
            LS_TRY(tensor_read_pieces(t, check_f64, &is_finite));
        if (!is_finite)
            *name = items[i].name;
    }
    return LS_OK;
}
