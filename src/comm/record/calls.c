/* SPDX-License-Identifier: Apache-2.0 */
/*
 * calls.c - reports to the hub what this rank has called, for backends that do not compare calls
 * (backend.h, compares_calls). engine.c and watch.c call it.
 *
 * A digest covers all collectives; five times a second a sample of them is sent with it. When there
 * are too many for one message, every second one is dropped, repeatedly, by number: the samples of
 * two ranks then have numbers in common, however different their speed.
 */
#include "comm/record/calls.h"

#include "base/alloc.h"
#include "base/log.h"
#include "base/rng.h"

#define SEND_EVERY_NS (200 * INT64_C(1000000))

struct call_log {
    uint64_t digest;
    uint64_t stride; /* only multiples of it are recorded */
    int64_t next_ns; /* of the next report */
    int n;
    op_stamp stamps[CONTROL_CALLS_MAX];
    uint64_t digests[CONTROL_CALLS_MAX];
};

ls_status calls_create(call_log **out)
{
    LS_TRY(LS_NEW(out, 1, "for the calls of a group"));
    (*out)->stride = 1;
    return LS_OK;
}

static void thin_out(call_log *log)
{
    int n = 0;

    log->stride *= 2;
    for (int i = 0; i < log->n; i++) {
        if (log->stamps[i].sequence % log->stride != 0)
            continue;
        log->stamps[n] = log->stamps[i];
        log->digests[n++] = log->digests[i];
    }
    log->n = n;
}

void calls_note(call_log *log, const op_stamp *s)
{
    const uint64_t kinds = (uint64_t)s->kind | (uint64_t)s->dtype << 8 | (uint64_t)s->redop << 16 |
                           (uint64_t)s->form << 24 | (uint64_t)(uint32_t)s->root << 32;

    log->digest = ls_hash3(log->digest, kinds, s->count);
    if (log->n == CONTROL_CALLS_MAX)
        thin_out(log);
    if (s->sequence % log->stride != 0)
        return;
    log->stamps[log->n] = *s;
    log->digests[log->n++] = log->digest;
}

int64_t calls_next_ns(const call_log *log)
{
    return log->n == 0 ? INT64_MAX : log->next_ns;
}

void calls_send(call_log *log, control *c, int64_t now_ns)
{
    char kept[LS_ERROR_BYTES];

    if (log->n == 0)
        return;
    ls_error_save(kept);
    if (c != NULL && control_called(c, log->stamps, log->digests, log->n) != LS_OK)
        ls_log(LS_LOG_DEBUG, "comm", "calls are not reported to the hub: %s", ls_last_error());
    ls_error_restore(kept);
    log->n = 0;
    log->stride = 1;
    log->next_ns = now_ns + SEND_EVERY_NS;
}
