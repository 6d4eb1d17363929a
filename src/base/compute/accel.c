/* SPDX-License-Identifier: Apache-2.0 */
/*
 * accel.c - the list of the process's accelerators, and the calls of their functions. Devices,
 * tensors, the loader, ddp and collectives call them.
 */
#include "base/compute/accel.h"

#include "base/thread.h"

#include <stdatomic.h>

/* Changed under the lock; a list is never freed while a reader may be in it: modules unregister
 * when nothing uses their memory any more. */
static ls_mutex lock = {PTHREAD_MUTEX_INITIALIZER};
static _Atomic(accel *) first;

void accel_register(accel *a)
{
    ls_mutex_lock(&lock);
    a->next = atomic_load_explicit(&first, memory_order_relaxed);
    atomic_store_explicit(&first, a, memory_order_release);
    ls_mutex_unlock(&lock);
}

void accel_add_user(accel *a, accel_user *user)
{
    ls_mutex_lock(&lock);
    user->next = a->users;
    a->users = user;
    ls_mutex_unlock(&lock);
}

void accel_remove_user(accel *a, accel_user *user)
{
    ls_mutex_lock(&lock);
    for (accel_user **at = &a->users; *at != NULL; at = &(*at)->next) {
        if (*at == user) {
            *at = user->next;
            break;
        }
    }
    ls_mutex_unlock(&lock);
}

static accel_user *take_user(accel *a)
{
    accel_user *user;

    ls_mutex_lock(&lock);
    user = a->users;
    if (user != NULL)
        a->users = user->next;
    ls_mutex_unlock(&lock);
    return user;
}

void accel_close_users(accel *a)
{
    accel_user *user;

    while ((user = take_user(a)) != NULL)
        user->close(user);
}

void accel_unregister(accel *a)
{
    accel *before;

    accel_close_users(a);
    ls_mutex_lock(&lock);
    before = atomic_load_explicit(&first, memory_order_relaxed);
    if (before == a) {
        atomic_store_explicit(&first, a->next, memory_order_release);
    } else {
        while (before != NULL && before->next != a)
            before = before->next;
        if (before != NULL)
            before->next = a->next;
    }
    ls_mutex_unlock(&lock);
}

accel *accel_of(const void *p)
{
    if (atomic_load_explicit(&first, memory_order_acquire) == NULL || p == NULL)
        return NULL;
    ls_mutex_lock(&lock);
    accel *a = atomic_load_explicit(&first, memory_order_relaxed);
    accel *of_card = NULL;

    while (a != NULL) {
        const accel_owner owner = a->ops->owner(a, p);

        if (owner == ACCEL_OWN)
            break;
        if (owner == ACCEL_SAME_CARD)
            of_card = a;
        a = a->next;
    }
    ls_mutex_unlock(&lock);
    return a != NULL ? a : of_card;
}

void *accel_alloc(accel *a, size_t bytes)
{
    return a->ops->alloc(a, bytes);
}

void accel_free(accel *a, void *block)
{
    if (block != NULL)
        a->ops->free(a, block);
}

void *accel_alloc_host(accel *a, size_t bytes)
{
    return a->ops->alloc_host(a, bytes);
}

void accel_free_host(accel *a, void *block)
{
    if (block != NULL)
        a->ops->free_host(a, block);
}

ls_status accel_copy(ls_queue *queue, void *dst, const void *src, size_t bytes,
                     accel_direction direction)
{
    return bytes == 0 ? LS_OK : queue->accel->ops->copy(queue, dst, src, bytes, direction);
}

ls_status accel_fill(ls_queue *queue, void *dst, int byte, size_t bytes)
{
    return bytes == 0 ? LS_OK : queue->accel->ops->fill(queue, dst, byte, bytes);
}

ls_status accel_call(ls_queue *queue, void (*fn)(void *arg), void *arg)
{
    return queue->accel->ops->call(queue, fn, arg);
}

ls_status accel_event_create(accel *a, bool timed, accel_event **out)
{
    return a->ops->event_create(a, timed, out);
}

void accel_event_destroy(accel_event *event)
{
    if (event != NULL)
        event->accel->ops->event_destroy(event);
}

ls_status accel_event_record(accel_event *event, ls_queue *queue)
{
    return event->accel->ops->event_record(event, queue);
}

ls_status accel_queue_wait(ls_queue *queue, accel_event *event, const char *what)
{
    return event->accel->ops->queue_wait(queue, event, what);
}

ls_status accel_event_wait(accel_event *event, const char *what)
{
    return event->accel->ops->event_wait(event, what);
}

ls_status accel_synchronize(accel *a, const char *what)
{
    return a->ops->synchronize(a, what);
}

ls_status accel_event_test(accel_event *event, bool *done)
{
    return event->accel->ops->event_test(event, done);
}

ls_status accel_event_ns(accel_event *event, int64_t *ns)
{
    return event->accel->ops->event_ns(event, ns);
}

ls_status accel_memory(accel *a, size_t *free_bytes, size_t *total_bytes)
{
    return a->ops->memory(a, free_bytes, total_bytes);
}
