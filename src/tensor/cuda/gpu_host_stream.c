/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_host_stream.c - the streams and events of gpu.h in host memory, for tests. A stream runs its
 * work when it is queued; or, with gpu_host.delay_us, in order by a thread, some of it after a
 * random time: so a missing wait becomes a wrong result. gpu_host.c, gpu_host_graph.c and the
 * tests' versions of the libraries queue work through it.
 */
#include "tensor/cuda/gpu_host_graph.h"

#include "base/status.h"
#include "tensor/cuda/cuda_internal.h"

#include <signal.h>
#include <time.h>

#define PACED_MOST 16 /* pieces of work that are delayed, or not, one after the other */

struct gpu_event {
    int card;
    int64_t ns;         /* of the stream's thread until it has happened */
    gpu_stream *stream; /* a delayed one, in which it was recorded; NULL: it has happened */
    uint64_t number;    /* of its piece of work there */
};

/* Of the work of all delayed streams; not held while work runs. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

static void wait_until_done(const gpu_stream *stream, uint64_t number)
{
    pthread_mutex_lock(&lock);
    while (stream->n_done < number)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
}

/* --- the thread of a stream --- */

/* A linear congruential generator (Knuth, MMIX); the upper bits are the better ones. */
static uint64_t draw(gpu_stream *s, uint64_t below)
{
    s->random = s->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (s->random >> 33) % below;
}

static void let_time_pass(gpu_stream *s)
{
    uint64_t us;

    if (s->n_paced == 0) {
        s->n_paced = 1 + (unsigned)draw(s, PACED_MOST);
        s->is_slow = draw(s, 2) == 1;
    }
    s->n_paced--;
    us = draw(s, gpu_host_state()->delay_us + 1);
    if (s->is_slow)
        (void)nanosleep(&(struct timespec){.tv_sec = (time_t)(us / 1000000),
                                           .tv_nsec = (long)(us % 1000000) * 1000},
                        NULL);
}

/* A failure ends the use of the card, as an error of a kernel does with CUDA. */
static void run_first(gpu_stream *s, gpu_host_node *n)
{
    let_time_pass(s);
    if (gpu_host_check_lost() == HOST_OK && n->work.run(n->work.args) != HOST_OK)
        gpu_host_lose();
}

static void *stream_main(void *arg)
{
    gpu_stream *s = arg;

    pthread_mutex_lock(&lock);
    while (s->first != NULL || !s->is_ending) {
        gpu_host_node *n = s->first;

        if (n == NULL) {
            pthread_cond_wait(&changed, &lock);
            continue;
        }
        pthread_mutex_unlock(&lock);
        run_first(s, n);
        pthread_mutex_lock(&lock);
        s->first = n->next;
        if (s->first == NULL)
            s->end = &s->first;
        cu_host->free(n);
        s->n_done++;
        pthread_cond_broadcast(&changed);
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

/* Signals are not for this thread. */
static bool start_thread(gpu_stream *s)
{
    sigset_t all;
    sigset_t before;
    bool started;

    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    started = pthread_create(&s->thread, NULL, stream_main, s) == 0;
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}

/* --- work --- */

/* *number: of the piece of work. */
static gpu_error push(gpu_stream *stream, const gpu_host_work *work, uint64_t *number)
{
    gpu_host_node *n = gpu_host_copy_work(work);

    if (n == NULL)
        return HOST_OUT_OF_MEMORY;
    pthread_mutex_lock(&lock);
    *stream->end = n;
    stream->end = &n->next;
    *number = ++stream->n_queued;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return HOST_OK;
}

gpu_error gpu_host_run(gpu_stream *stream, const gpu_host_work *work)
{
    uint64_t number;

    return stream->is_delayed ? push(stream, work, &number) : work->run(work->args);
}

gpu_error gpu_host_queue(gpu_stream *stream, const gpu_host_work *work)
{
    gpu_error e = HOST_OK;

    if (stream->recorded != NULL)
        return gpu_host_record(stream, work);
    if (work->counter != NULL)
        e = gpu_host_count(stream->card, work->counter);
    return e == HOST_OK ? gpu_host_run(stream, work) : e;
}

/* --- streams --- */

gpu_error gpu_stream_create(gpu_stream **out, bool high_priority)
{
    const gpu_host *state = gpu_host_state();
    gpu_stream *s = gpu_host_make(sizeof(*s), &gpu_host_state()->n_streams);

    *out = s;
    if (s == NULL)
        return HOST_OUT_OF_MEMORY;
    s->card = gpu_host_card();
    s->end = &s->first;
    s->random = state->seed * 2 + high_priority;
    s->is_delayed = state->delay_us > 0 && start_thread(s);
    return gpu_host_check_lost();
}

gpu_error gpu_stream_destroy(gpu_stream *stream)
{
    if (stream->is_delayed) {
        pthread_mutex_lock(&lock);
        stream->is_ending = true;
        pthread_cond_broadcast(&changed);
        pthread_mutex_unlock(&lock);
        pthread_join(stream->thread, NULL);
    }
    gpu_host_unmake(stream, &gpu_host_state()->n_streams);
    return gpu_host_check_lost();
}

gpu_error gpu_stream_synchronize(gpu_stream *stream)
{
    const gpu_error e = gpu_host_refuse_stream(stream);
    uint64_t number;

    if (e != HOST_OK)
        return e;
    pthread_mutex_lock(&lock);
    number = stream->n_queued;
    pthread_mutex_unlock(&lock);
    wait_until_done(stream, number);
    return gpu_host_check_lost();
}

/* A recording of an event. */
typedef struct recording {
    gpu_stream *stream;
    uint64_t number;
} recording;

static gpu_error run_wait(const void *args)
{
    const recording *r = args;

    wait_until_done(r->stream, r->number);
    return HOST_OK;
}

gpu_error gpu_stream_wait_event(gpu_stream *stream, gpu_event *event)
{
    const recording r = {event->stream, event->number};
    gpu_error e = gpu_host_refuse_stream(stream);

    if (e == HOST_OK && r.stream != NULL)
        e = gpu_host_run(stream,
                         &(gpu_host_work){.run = run_wait, .args = &r, .args_bytes = sizeof(r)});
    return e == HOST_OK ? gpu_host_check_lost() : e;
}

/* --- events --- */

gpu_error gpu_event_create(gpu_event **out, bool timed)
{
    LS_UNUSED(timed);
    *out = gpu_host_make(sizeof(**out), &gpu_host_state()->n_events);
    if (*out == NULL)
        return HOST_OUT_OF_MEMORY;
    (*out)->card = gpu_host_card();
    return gpu_host_check_lost();
}

gpu_error gpu_event_destroy(gpu_event *event)
{
    gpu_host_unmake(event, &gpu_host_state()->n_events);
    return gpu_host_check_lost();
}

static gpu_error run_stamp(const void *args)
{
    gpu_event *event = *(gpu_event *const *)args;
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    event->ns = now.tv_sec * INT64_C(1000000000) + now.tv_nsec + gpu_host_state()->clock_ns;
    return HOST_OK;
}

gpu_error gpu_event_record(gpu_event *event, gpu_stream *stream)
{
    // NOLINTNEXTLINE(bugprone-sizeof-expression): a pointer is passed
    const gpu_host_work stamp = {.run = run_stamp, .args = &event, .args_bytes = sizeof(event)};
    gpu_error e = gpu_host_refuse_stream(stream);

    if (e != HOST_OK)
        return e;
    if (event->card != stream->card)
        return HOST_WRONG_CARD;
    event->stream = stream->is_delayed ? stream : NULL;
    e = stream->is_delayed ? push(stream, &stamp, &event->number) : run_stamp(&event);
    return e == HOST_OK ? gpu_host_check_lost() : e;
}

gpu_error gpu_event_query(gpu_event *event, bool *done)
{
    pthread_mutex_lock(&lock);
    *done = event->stream == NULL || event->stream->n_done >= event->number;
    pthread_mutex_unlock(&lock);
    return gpu_host_check_lost();
}

gpu_error gpu_event_synchronize(gpu_event *event)
{
    if (event->stream != NULL)
        wait_until_done(event->stream, event->number);
    return gpu_host_check_lost();
}

gpu_error gpu_event_elapsed_ms(gpu_event *start, gpu_event *end, float *out)
{
    if (start->ns == 0 || end->ns == 0)
        return HOST_NOT_RECORDED;
    *out = (float)((double)(end->ns - start->ns) / 1e6);
    return gpu_host_check_lost();
}
