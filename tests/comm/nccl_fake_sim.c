/* SPDX-License-Identifier: Apache-2.0 */
/* nccl_fake_sim.c - see nccl_fake_stream.h. The `native` of a queue of sim is the ls_queue. */
#include "comm/nccl_fake_stream.h"

#include "base/accel.h"

static accel *accel_behind(void *stream)
{
    return ((ls_queue *)stream)->accel;
}

void *fake_alloc_host(void *stream, size_t bytes)
{
    accel *a = accel_behind(stream);

    return a->ops->alloc_host(a, bytes);
}

void fake_free_host(void *stream, void *block)
{
    accel *a = accel_behind(stream);

    a->ops->free_host(a, block);
}

bool fake_copy_to_host(void *stream, void *dst, const void *src, size_t bytes)
{
    return accel_behind(stream)->ops->copy(stream, dst, src, bytes, ACCEL_TO_HOST) == LS_OK;
}

bool fake_copy_to_device(void *stream, void *dst, const void *src, size_t bytes)
{
    return accel_behind(stream)->ops->copy(stream, dst, src, bytes, ACCEL_TO_DEVICE) == LS_OK;
}

bool fake_call(void *stream, void (*fn)(void *arg), void *arg)
{
    return accel_behind(stream)->ops->call(stream, fn, arg) == LS_OK;
}

void *fake_mark(void *stream)
{
    accel *a = accel_behind(stream);
    accel_event *event = NULL;

    if (a->ops->event_create(a, false, &event) != LS_OK)
        return NULL;
    if (a->ops->event_record(event, stream) == LS_OK)
        return event;
    a->ops->event_destroy(event);
    return NULL;
}

bool fake_is_past(void *stream, void *mark)
{
    bool done = false;

    return accel_behind(stream)->ops->event_test(mark, &done) != LS_OK || done;
}

void fake_free_mark(void *stream, void *mark)
{
    if (mark != NULL)
        accel_behind(stream)->ops->event_destroy(mark);
}

/* A copy of all of it can be queued. */
bool fake_has_memory(void *stream, void *start, size_t bytes)
{
    accel *a = accel_behind(stream);
    void *host = fake_alloc_host(stream, bytes);
    bool is_there = host != NULL;

    is_there = is_there && fake_copy_to_host(stream, host, start, bytes) &&
               a->ops->synchronize(a, "fake NCCL: registered memory") == LS_OK;
    fake_free_host(stream, host);
    return is_there;
}
