/* SPDX-License-Identifier: Apache-2.0 */
/*
 * run_finite.c - a run whose loss or weights are NaN or infinite: it stops, says where to look, and
 * does not replace what it has saved. report.c, save.c and run.c call it.
 */
#include "train/run/run.h"

#include <lockstep/log.h>

#include "train/finite.h"
#include "train/state/state_file.h"

#include <inttypes.h>

#define ADVICE                                                                                     \
    "; --check-nan names the first operator whose result is not finite, a lower --lr or "          \
    "--clip-grad-norm may prevent it"

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
