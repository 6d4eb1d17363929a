/* SPDX-License-Identifier: Apache-2.0 */
/* rank_count.c - reads --nproc-per-node for lockstep run and lockstep join. */
#include "cli/run/rank_count.h"

#include "base/text.h"
#include "diagnose/checks/check.h"
#include "host/cores.h"

static const char flag[] = "--nproc-per-node (a number, or auto, cpu or gpu)";

static ls_status count_gpus(int *n)
{
    char why[LS_ERROR_BYTES];
    const ls_status st = check_count_gpus(check_this_machine(), n);

    if (st == LS_OK)
        return LS_OK;
    ls_error_save(why);
    return ls_fail(LS_EINVAL, "--nproc-per-node gpu: %s; auto or cpu starts one rank per core",
                   why);
}

ls_status rank_count_read(const char *text, int *n)
{
    const bool is_auto = text_equal(text, "auto");
    char kept[LS_ERROR_BYTES];
    int64_t number;

    if (text_equal(text, "gpu"))
        return count_gpus(n);
    if (text_equal(text, "xpu"))
        return ls_fail(LS_EUNSUPPORTED,
                       "--nproc-per-node xpu: Intel GPUs are not detected; give their number");
    ls_error_save(kept);
    if (is_auto && check_count_gpus(check_this_machine(), n) == LS_OK)
        return LS_OK;
    ls_error_restore(kept);
    if (is_auto || text_equal(text, "cpu")) {
        *n = ls_usable_cores(NULL);
        return LS_OK;
    }
    LS_TRY(text_parse_int(text, flag, 1, RANK_COUNT_MOST, &number));
    *n = (int)number;
    return LS_OK;
}
