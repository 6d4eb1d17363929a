/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_phases.c - the phases of a program on its device (device_phases.h). ddp and train mark
 * them; a failure to do so is logged and costs the phase only.
 */
#include "comm/device/device_phases.h"

#include "base/alloc.h"
#include "base/compute/accel.h"
#include "base/log.h"
#include "comm/comm.h"
#include "comm/device/accel_use.h"

/* Phases in the order of the calls: n pending ones from `first`, then the open one. */
typedef struct device_phase {
    const char *name;
    ls_queue *queue;
    accel_event *start; /* of the owner of `queue`; used again for later phases */
    accel_event *end;
} device_phase;

typedef struct device_phases {
    device_phase slots[DEVICE_PHASES_PENDING + 1];
    size_t first;
    size_t n;
    bool is_open;
} device_phases;

static device_phase *slot_at(device_phases *p, size_t i)
{
    return &p->slots[(p->first + i) % LS_COUNT_OF(p->slots)];
}

static void drop(ls_comm *comm)
{
    ls_log(LS_LOG_DEBUG, "comm", "a phase of the device is not recorded: %s", ls_last_error());
    recorder_drop_device_phase(comm->engine->parts.recorder);
}

/* The first pending phase leaves the ring. */
static void remove_first(device_phases *p)
{
    p->first = (p->first + 1) % LS_COUNT_OF(p->slots);
    p->n--;
}

/* Records the phases whose events have happened. */
static void read_pending(ls_comm *comm)
{
    device_phases *p = comm->phases;

    while (p->n > 0) {
        const device_phase *d = slot_at(p, 0);
        int64_t start_ns = 0;
        int64_t end_ns = 0;
        bool done = false;
        ls_status st = accel_event_test(d->end, &done);

        if (st == LS_OK && !done)
            return;
        if (st == LS_OK)
            st = accel_event_ns(d->start, &start_ns);
        if (st == LS_OK)
            st = accel_event_ns(d->end, &end_ns);
        if (st == LS_OK)
            recorder_device_phase(comm->engine->parts.recorder, d->name, start_ns, end_ns);
        else
            drop(comm);
        remove_first(p);
    }
}

static ls_status record_event(accel_event **event, ls_queue *queue)
{
    if (*event != NULL && (*event)->accel != queue->accel) {
        accel_event_destroy(*event);
        *event = NULL;
    }
    if (*event == NULL)
        LS_TRY(accel_event_create(queue->accel, true, event));
    return accel_event_record(*event, queue);
}

static void end_open(ls_comm *comm)
{
    device_phases *p = comm->phases;
    device_phase *d = slot_at(p, p->n);

    p->is_open = false;
    if (record_event(&d->end, d->queue) == LS_OK)
        p->n++;
    else
        drop(comm);
}

static ls_status begin(ls_comm *comm, ls_queue *queue, const char *name)
{
    device_phases *p = comm->phases;
    device_phase *d = slot_at(p, p->n);

    if (p->n == DEVICE_PHASES_PENDING)
        return ls_fail(LS_ENOMEM, "%d phases have not ended yet", DEVICE_PHASES_PENDING);
    LS_TRY(accel_use_begin(comm->engine, queue->accel));
    LS_TRY(record_event(&d->start, queue));
    d->name = name;
    d->queue = queue;
    p->is_open = true;
    return LS_OK;
}

static void change_phase(ls_comm *comm, ls_queue *queue, const char *name)
{
    if (comm->phases == NULL)
        comm->phases = ls_calloc(1, sizeof(*comm->phases));
    if (comm->phases == NULL) {
        drop(comm);
        return;
    }
    if (comm->phases->is_open)
        end_open(comm);
    read_pending(comm);
    if (name != NULL && begin(comm, queue, name) != LS_OK)
        drop(comm);
}

void comm_device_phase(ls_comm *comm, ls_queue *queue, const char *name)
{
    engine *e = comm->engine;
    char kept[LS_ERROR_BYTES];

    if (!e->parts.is_traced || queue == NULL || e->is_forked)
        return;
    ls_error_save(kept);
    engine_enter(e);
    change_phase(comm, queue, name);
    engine_leave(e);
    ls_error_restore(kept);
}

void device_phases_close(ls_comm *comm)
{
    device_phases *p = comm->phases;

    if (p == NULL)
        return;
    read_pending(comm);
    for (; p->n > 0; remove_first(p))
        drop(comm);
    for (size_t i = 0; i < LS_COUNT_OF(p->slots); i++) {
        accel_event_destroy(p->slots[i].start);
        accel_event_destroy(p->slots[i].end);
    }
    ls_free(p);
    comm->phases = NULL;
}
