/* SPDX-License-Identifier: Apache-2.0 */
/* run_power.c - see run_power.h. run.c, loop.c, save.c and resume.c call it. */
#include "train/run/run_power.h"

#include "base/text.h"
#include "ddp/power_sgd.h"
#include "train/run/run.h"

#include <inttypes.h>
#include <string.h>

#define PREFIX "powersgd"

ls_status run_power_rank(const ls_train_flags *f, int *rank)
{
    const char *at = f->compress;
    int64_t value;

    *rank = 0;
    if (at == NULL || !text_starts(at, PREFIX))
        return LS_OK;
    at += strlen(PREFIX);
    if (*at != ':' || text_parse_int(at + 1, "rank", 1, LOW_RANK_MOST, &value) != LS_OK)
        return ls_fail(LS_EINVAL,
                       "--compress %s: needs the rank of the factors, 1 to %d, as powersgd:4",
                       f->compress, LOW_RANK_MOST);
    *rank = (int)value;
    return LS_OK;
}

ls_status run_power_check(const ls_train_flags *f)
{
    const struct {
        int is_given;
        const char *flag, *why;
    } refused[] = {
        {f->sync_every > 0, "--sync-every", "differences are sent as bf16, int8 or int4"},
        {f->shards > 0, "--shards", "what is not sent stays on a rank, not with a shard"},
        {text_equal(hyperparameters_precision(f), "fp16"), "--precision fp16",
         "what is not sent has the scale of its step; bf16 needs none"},
        {state_path_is_set(f->replay), "--replay",
         "a step depends on what earlier ones have not sent"},
    };
    int rank;

    LS_TRY(run_power_rank(f, &rank));
    for (size_t i = 0; i < LS_COUNT_OF(refused) && rank > 0; i++)
        if (refused[i].is_given)
            return ls_fail(LS_EINVAL, "--compress powersgd does not go with %s: %s",
                           refused[i].flag, refused[i].why);
    return LS_OK;
}

ls_status run_power_collect(ls_run *run)
{
    return run->collects_states ? power_collect(run->ddp) : LS_OK;
}

void run_power_drop(ls_run *run)
{
    power_drop(run->ddp);
}

ls_status run_power_list(ls_run *run, name_list *list)
{
    int n;
    const ls_named *items = power_list(run->ddp, &n);

    return name_list_add(list, PREFIX ".", items, n);
}

/* Memory is taken for as much as the file has only. */
ls_status run_power_check_file(const ls_run *run, const ls_checkpoint *file, int64_t ranks)
{
    const int64_t of_rank = power_numbers(run->ddp);
    int64_t n = 0;

    for (int i = 0; i < ls_checkpoint_count(file); i++) {
        ls_checkpoint_entry entry;
        int64_t count = 1;

        LS_TRY(ls_checkpoint_entry_at(file, i, &entry));
        if (!text_starts(entry.name, PREFIX ".error."))
            continue;
        for (int d = 0; d < entry.n_dims; d++) // of an empty tensor they may be any
            if (__builtin_mul_overflow(count, entry.dims[d], &count))
                return ls_fail(LS_EFORMAT, "tensor %d of the state: its shape is too large", i);
        n += count;
    }
    if ((of_rank == 0 && n == 0) || (of_rank > 0 && n % of_rank == 0 && n / of_rank == ranks))
        return LS_OK;
    return ls_fail(LS_EFORMAT,
                   "the state has %" PRId64 " numbers that ranks have not sent, not %" PRId64
                   " of each of %" PRId64 " ranks",
                   n, of_rank, ranks);
}

ls_status run_power_make(ls_run *run, int64_t ranks)
{
    if (ranks > 1 && power_numbers(run->ddp) == 0) // the file has none of them
        ranks = 1;
    return ranks > 0 ? power_make(run->ddp, (int)ranks) : LS_OK;
}

ls_status run_power_begin(ls_run *run)
{
    return power_spread(run->ddp);
}
