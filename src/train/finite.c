/* SPDX-License-Identifier: Apache-2.0 */
/* finite.c - see finite.h. report.c, save.c, resume.c and run.c call it. */
#include "train/finite.h"

#include "train/run.h"
#include "train/state_file.h"

#include <lockstep/log.h>

#include "tensor/tensor.h"

#include <inttypes.h>

#define ADVICE                                                                                     \
    "; --check-nan names the first operator whose result is not finite, a lower --lr or "          \
    "--clip-grad-norm may prevent it"

/* --- tensors --- */

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

/* --- the loss of reports --- */

/* Below 0: never. The gradient scaler of fp16 has a limit of its own. */
static int64_t limit_of(const ls_run *run)
{
    if (run->scaler != NULL)
        return -1;
    return run->flags->nan_limit != 0 ? run->flags->nan_limit : NAN_LIMIT;
}

ls_status finite_report(ls_run *run, double loss)
{
    const int64_t limit = limit_of(run);
    int64_t *n = &run->report.n_not_finite;

    *n = isfinite(loss) ? 0 : *n + 1;
    if (*n > 0 && run_rank(run) == 0)
        ls_log(LS_LOG_WARN, "train", "the loss is %g at step %" PRId64, loss, run->at.step);
    if (*n == 0 || limit < 0 || *n < limit)
        return LS_OK;
    return ls_fail(LS_EFORMAT,
                   "the loss was not finite in %" PRId64 " reports in a row, the last at step "
                   "%" PRId64 " (--nan-limit)" ADVICE,
                   *n, run->at.step);
}

ls_status finite_end(const ls_run *run)
{
    if (run->report.n_not_finite == 0 || limit_of(run) < 0)
        return LS_OK;
    return ls_fail(LS_EFORMAT, "the run ended with a loss that is not finite" ADVICE);
}

/* --- files --- */

ls_status finite_to_save(ls_run *run)
{
    name_list state = {0};
    const char *name = NULL;
    ls_status st;

    // With fp16 the loss of a step that the scaler skips may overflow.
    if (run->report.n_not_finite > 0 && run->scaler == NULL)
        return ls_fail(LS_EFORMAT, "the loss is not finite");
    st = state_list(run->model, run->optimizer, NULL, NULL, 0, &state);
    if (st == LS_OK)
        st = finite_check(state.items, state.n, &name);
    if (st == LS_OK && name != NULL)
        st = ls_fail(LS_EFORMAT, "%s has an element that is NaN or infinite", name);
    name_list_free(&state);
    return st;
}
