/* SPDX-License-Identifier: Apache-2.0 */
/*
 * run_finite.c - a run whose loss or weights are NaN or infinite: it stops, says where to look, and
 * does not replace what it has saved. report.c, save.c and run.c call it.
 */
#include "train/run/run.h"

#include <lockstep/log.h>

#include "base/alloc.h"
#include "comm/comm.h"
#include "tensor/device.h"
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

void finite_loss(ls_run *run, double sum)
{
    if (run->report.bad_step == 0 && !isfinite(sum) && ls_device_queue(run->device) == NULL)
        run->report.bad_step = run->at.step + 1;
}

/* Sent as LS_I64. */
typedef struct bad_record {
    int64_t step; /* of the rank's first loss that is not finite since the last report; 0: none */
    int64_t n;    /* bad reports in a row before this one; fewer where a recovery repeats one */
} bad_record;

static void add_record(report_bad *bad, const bad_record *one, int rank)
{
    bad->n = one->n < bad->n ? one->n : bad->n;
    if (one->step == 0 || (bad->first_step > 0 && one->step >= bad->first_step))
        return;
    bad->first_step = one->step;
    bad->first_rank = rank;
}

/* Counts a bad report, and finds the first bad step of all ranks with the first of a row. Reports
 * themselves are sums, which find no minimum. Collective. */
static ls_status count_bad(ls_run *run)
{
    report_bad *bad = &run->report.bad;
    const int n = run_size(run);
    const bad_record own = {run->report.bad_step, bad->n};
    report_bad first = {.n = bad->n};
    bad_record *all;
    ls_status st = LS_OK;

    LS_TRY(LS_NEW(&all, (size_t)n, "for the losses of %d ranks", n));
    all[0] = own;
    if (run->comm != NULL) {
        comm_label(run->comm, "losses that are not finite");
        st = ls_all_gather(run->comm, &own, all, 2, LS_I64, NULL);
    }
    for (int i = 0; i < n; i++)
        add_record(&first, &all[i], i);
    ls_free(all);
    LS_TRY(st);
    if (first.n == 0)
        *bad = first;
    bad->n = first.n + 1;
    run->report.bad_step = 0;
    return LS_OK;
}

/* Where the loss became so, and the first tensor that is so now; replicas have the same. */
static ls_status describe(ls_run *run, char *text, size_t bytes)
{
    const report_bad *bad = &run->report.bad;
    char where[64] = "";
    name_list state = {0};
    const char *name = NULL;
    ls_status st;

    if (bad->first_step > 0)
        text_format(where, sizeof(where), ", first at step %" PRId64 " on rank %" PRId64,
                    bad->first_step, bad->first_rank);
    st = state_list(run->model, run->optimizer, NULL, NULL, 0, &state);
    if (st == LS_OK)
        st = finite_check(state.items, state.n, &name);
    text_format(text, bytes, "%s; %s%s", where,
                name != NULL ? name : "weights and the state of the optimizer",
                name != NULL ? " has an element that is NaN or infinite" : " are finite");
    name_list_free(&state);
    return st;
}

ls_status finite_report(ls_run *run, double loss)
{
    const int64_t limit = limit_of(run);
    report_bad *bad = &run->report.bad;
    char text[LS_ERROR_BYTES];

    if (isfinite(loss)) {
        *bad = (report_bad){0};
        run->report.bad_step = 0;
        return LS_OK;
    }
    LS_TRY(count_bad(run));
    if (bad->n == 1 && run->scaler == NULL) // with fp16 losses of skipped steps overflow
        LS_TRY(capsule_leave(run, "the loss is not finite"));
    LS_TRY(describe(run, text, sizeof(text)));
    if (run_rank(run) == 0)
        ls_log(LS_LOG_WARN, "train", "the loss is %g at step %" PRId64 "%s%s", loss, run->at.step,
               text, bad->n == 1 ? run->capsule.note : "");
    if (limit < 0 || bad->n < limit)
        return LS_OK;
    return ls_fail(LS_EFORMAT,
                   "the loss was not finite in %" PRId64 " reports in a row, the last at step "
                   "%" PRId64 " (--nan-limit)%s" ADVICE "%s",
                   bad->n, run->at.step, text, run->capsule.note);
}

ls_status finite_end(const ls_run *run)
{
    if (run->report.bad.n == 0 || limit_of(run) < 0)
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
    if (run->report.bad.n > 0 && run->scaler == NULL)
        return ls_fail(LS_EFORMAT, "the loss is not finite");
    st = state_list(run->model, run->optimizer, NULL, NULL, 0, &state);
    if (st == LS_OK && run->collects_states)
        st = run_local_list(run, &state);
    if (st == LS_OK && run->collects_states)
        st = run_power_list(run, &state);
    if (st == LS_OK)
        st = finite_check(state.items, state.n, &name);
    if (st == LS_OK && name != NULL)
        st = ls_fail(LS_EFORMAT, "%s has an element that is NaN or infinite", name);
    name_list_free(&state);
    return st;
}
