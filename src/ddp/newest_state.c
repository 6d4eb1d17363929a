/* SPDX-License-Identifier: Apache-2.0 */
/* newest_state.c - see newest_state.h. elastic.c calls it. */
#include "ddp/newest_state.h"

static int find_source(const state_record *records, int n)
{
    int source = -1;

    for (int i = 0; i < n; i++)
        if (records[i].has_state && (source < 0 || records[i].step > records[source].step))
            source = i;
    return source;
}

ls_status newest_state_find(const state_record *records, int n, newest_state *out)
{
    *out = (newest_state){.source = find_source(records, n)};
    if (out->source < 0)
        return ls_fail(LS_EPEER, "no rank has the state of the training any more");
    out->step = records[out->source].step;
    for (int i = 0; i < n; i++) {
        if (records[i].shape != records[out->source].shape)
            return ls_fail(LS_EMISMATCH,
                           "the state of rank %d has other parts than that of rank %d: all ranks "
                           "must run the same program with the same flags",
                           i, out->source);
        if (records[i].has_state && records[i].step < out->step - 1)
            return ls_fail(LS_EMISMATCH,
                           "rank %d has completed %lld steps and rank %d %lld: they can differ by "
                           "one only",
                           i, (long long)records[i].step, out->source, (long long)out->step);
        out->n_behind += records[i].has_state && records[i].step < out->step;
        out->n_without += !records[i].has_state;
    }
    out->is_sent = out->n_behind + out->n_without > 0;
    return LS_OK;
}
