/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_host_stream.c - the streams and events of gpu.h in host memory, for tests. A stream runs its
 * work when it is queued; or, with gpu_host.delay_us, a thread runs it in order. Before a piece of
 * work the thread may let time pass, or wait until the other streams cannot go on or until a wait
 * needs the work: so a missing wait becomes a wrong result. gpu_host.c, gpu_host_graph.c and the
 * tests' versions of the libraries queue work through it.
 */
#include "devices/gpu_host_internal.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/status.h"
#include "tensor/devices/cuda/runtime/cuda_internal.h"

#include <string.h>
#include <time.h>

struct gpu_event {
    int card;
    int64_t ns;         /* of the stream's thread until it has happened */
    gpu_stream *stream; /* a delayed one, in which it was recorded; NULL: it has happened */
    uint64_t number;    /* of its piece of work there */
};

/* Of the work of all delayed streams; not held while work runs. */
static ls_mutex lock = {PTHREAD_MUTEX_INITIALIZER};
static ls_cond changed = {PTHREAD_COND_INITIALIZER};
static gpu_stream *streams;  /* delayed ones */
static bool is_after_others; /* a stream waits in PACE_AFTER_OTHERS */

/* --- demands, under the lock --- */

static void demand(gpu_stream *stream, uint64_t number)
{
    if (stream->n_demanded >= number)
        return;
    stream->n_demanded = number;
    ls_cond_broadcast(&changed);
}

static bool others_rest(const gpu_stream *s)
{
    for (const gpu_stream *other = streams; other != NULL; other = other->next) {
        if (other != s && other->card == s->card && other->first != NULL && !other->is_blocked)
            return false;
    }
    return true;
}

/* --- the thread of a stream, under the lock except where it says so --- */

static void draw_pace(gpu_stream *s)
{
    static const gpu_host_pace paces[] = {PACE_AT_ONCE,     PACE_AT_ONCE,   PACE_AT_ONCE,
                                          PACE_DELAYED,     PACE_ON_DEMAND, PACE_ON_DEMAND,
                                          PACE_AFTER_OTHERS};

    s->pace = paces[ls_rng_below(&s->rng, LS_COUNT_OF(paces))];
    s->pace_left = 1 + ls_rng_below(&s->rng, 16);
    s->held_until = ls_deadline_ms(1 + (int64_t)s->delay_us * 40 / 1000);
}

/* Sleeps with the lock released. */
static void sleep_randomly(gpu_stream *s)
{
    const uint64_t us = ls_rng_below(&s->rng, s->delay_us + 1);

    ls_mutex_unlock(&lock);
    (void)nanosleep(&(struct timespec){.tv_sec = (time_t)(us / 1000000),
                                       .tv_nsec = (long)(us % 1000000) * 1000},
                    NULL);
    ls_mutex_lock(&lock);
}

static bool is_needed(const gpu_stream *s)
{
    return s->n_demanded > s->n_done || s->is_ending;
}

/* Waits until the other streams cannot go on. One stream at a time. */
static void let_others_run(const gpu_stream *s)
{
    is_after_others = true;
    for (gpu_stream *other = streams; other != NULL; other = other->next) {
        if (other->card == s->card)
            demand(other, other->n_queued);
    }
    while (!others_rest(s) && ls_cond_wait(&changed, &lock, s->held_until))
        ;
    is_after_others = false;
}

/* Lets time pass before the first piece of work. */
static void hold_first(gpu_stream *s)
{
    if (s->pace_left == 0)
        draw_pace(s);
    s->pace_left--;
    if (s->pace == PACE_DELAYED) {
        sleep_randomly(s);
    } else if (s->pace == PACE_ON_DEMAND) {
        while (!is_needed(s) && ls_cond_wait(&changed, &lock, s->held_until))
            ;
    } else if (s->pace == PACE_AFTER_OTHERS && !is_after_others) {
        let_others_run(s);
    }
}

/* Without the lock. A failure ends the use of the card, as an error of a kernel does with CUDA. */
static void execute(const gpu_host_node *n)
{
    if (gpu_host_check_lost() == HOST_OK && n->work.run(n->work.args) != HOST_OK)
        gpu_host_lose();
}

static void run_first(gpu_stream *s)
{
    gpu_host_node *n = s->first;

    hold_first(s);
    ls_mutex_unlock(&lock);
    execute(n);
    ls_mutex_lock(&lock);
    s->first = n->next;
    if (s->first == NULL)
        s->end = &s->first;
    s->n_done++;
    ls_cond_broadcast(&changed);
    ls_free(n);
}

static void stream_main(void *arg)
{
    gpu_stream *s = arg;

    ls_mutex_lock(&lock);
    while (s->first != NULL || !s->is_ending) {
        if (s->first != NULL)
            run_first(s);
        else
            (void)ls_cond_wait(&changed, &lock, ls_deadline_ms(-1));
    }
    ls_mutex_unlock(&lock);
}

/* --- work --- */

/* *number: of the piece of work. */
static gpu_error push(gpu_stream *stream, const gpu_host_work *work, uint64_t *number)
{
    gpu_host_node *n = gpu_host_copy_work(work);

    if (n == NULL)
        return HOST_OUT_OF_MEMORY;
    ls_mutex_lock(&lock);
    *stream->end = n;
    stream->end = &n->next;
    *number = ++stream->n_queued;
    ls_cond_broadcast(&changed);
    ls_mutex_unlock(&lock);
    return HOST_OK;
}

static gpu_error run_now(const gpu_host_work *work)
{
    _Alignas(32) unsigned char args[GPU_ARGS_MAX + 64];

    LS_ASSERT(work->args_bytes <= sizeof(args));
    memcpy(args, work->args, work->args_bytes);
    gpu_host_translate(args, work->args_bytes);
    return work->run(args);
}

gpu_error gpu_host_run(gpu_stream *stream, const gpu_host_work *work)
{
    uint64_t number;

    return stream->delay_us > 0 ? push(stream, work, &number) : run_now(work);
}

gpu_error gpu_host_queue(gpu_stream *stream, const gpu_host_work *work)
{
    gpu_error e = HOST_OK;

    if (stream->recorded != NULL)
        return gpu_host_record(stream, work);
    if (gpu_host_records_only() && work->counter != &gpu_host_state()->n_copies)
        return HOST_OK;
    if (work->counter != NULL)
        e = gpu_host_count(stream->card, work->counter);
    return e == HOST_OK ? gpu_host_run(stream, work) : e;
}

static bool copies(const gpu_stream *s, const char *start, size_t bytes)
{
    const gpu_host_node *n = s->first;

    while (n != NULL && !((const char *)n->work.host < start + bytes &&
                          start < (const char *)n->work.host + n->work.host_bytes))
        n = n->next;
    return n != NULL;
}

bool gpu_host_is_copied(const void *start, size_t bytes)
{
    const gpu_stream *s;

    ls_mutex_lock(&lock);
    s = streams;
    while (s != NULL && !copies(s, start, bytes))
        s = s->next;
    ls_mutex_unlock(&lock);
    return s != NULL;
}

/* A host's wait, which the work is needed for. */
static void wait_until_done(gpu_stream *stream, uint64_t number)
{
    ls_mutex_lock(&lock);
    demand(stream, number);
    while (stream->n_done < number)
        (void)ls_cond_wait(&changed, &lock, ls_deadline_ms(-1));
    ls_mutex_unlock(&lock);
}

/* --- streams --- */

/* A forked child has none of its parent's threads, which may hold locks. */
static void begin_child(void)
{
    ls_mutex_init(&lock);
    ls_cond_init(&changed);
    streams = NULL;
    is_after_others = false;
    gpu_host_free_locks();
    gpu_host_free_memory_lock();
}

static void watch_forks(void)
{
    (void)pthread_atfork(NULL, NULL, begin_child);
}

static void add_stream(gpu_stream *s)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    (void)pthread_once(&once, watch_forks);
    ls_mutex_lock(&lock);
    s->next = streams;
    streams = s;
    ls_mutex_unlock(&lock);
}

static void remove_stream(gpu_stream *s)
{
    gpu_stream **link = &streams;

    ls_mutex_lock(&lock);
    while (*link != s)
        link = &(*link)->next;
    *link = s->next;
    ls_mutex_unlock(&lock);
}

gpu_error gpu_stream_create(gpu_stream **out, bool high_priority)
{
    const gpu_host *state = gpu_host_state();
    gpu_stream *s = gpu_host_make(sizeof(*s), &gpu_host_state()->n_streams);

    *out = s;
    if (s == NULL)
        return HOST_OUT_OF_MEMORY;
    s->card = gpu_host_card();
    s->end = &s->first;
    s->delay_us = state->delay_us;
    ls_rng_seed(&s->rng, ls_hash3(state->seed, state->n_streams, (uint64_t)s->card));
    LS_UNUSED(high_priority);
    if (s->delay_us > 0) {
        add_stream(s);
        if (ls_thread_start(&s->thread, "cudahost", stream_main, s) != LS_OK)
            return HOST_OUT_OF_MEMORY; // the caller destroys it
    }
    return gpu_host_check_lost();
}

gpu_error gpu_stream_destroy(gpu_stream *stream)
{
    if (stream->delay_us > 0) {
        ls_mutex_lock(&lock);
        stream->is_ending = true;
        ls_cond_broadcast(&changed);
        ls_mutex_unlock(&lock);
        ls_thread_join(&stream->thread);
        remove_stream(stream);
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
    ls_mutex_lock(&lock);
    number = stream->n_queued;
    ls_mutex_unlock(&lock);
    wait_until_done(stream, number);
    return gpu_host_check_lost();
}

/* A wait of a stream for the recording of an event in another one. */
typedef struct stream_wait {
    gpu_stream *self;
    gpu_stream *other;
    uint64_t number;
} stream_wait;

/* Demands the other stream's work when its own is needed. */
static gpu_error run_wait(const void *args)
{
    const stream_wait *w = args;

    ls_mutex_lock(&lock);
    w->self->is_blocked = true;
    ls_cond_broadcast(&changed); // of PACE_AFTER_OTHERS
    while (w->other->n_done < w->number) {
        if (is_needed(w->self))
            demand(w->other, w->number);
        (void)ls_cond_wait(&changed, &lock, ls_deadline_ms(-1));
    }
    w->self->is_blocked = false;
    ls_mutex_unlock(&lock);
    return HOST_OK;
}

gpu_error gpu_stream_wait_event(gpu_stream *stream, gpu_event *event)
{
    const stream_wait w = {stream, event->stream, event->number};
    gpu_error e = gpu_host_refuse_stream(stream);

    if (e == HOST_OK && w.other != NULL)
        e = gpu_host_run(stream,
                         &(gpu_host_work){.run = run_wait, .args = &w, .args_bytes = sizeof(w)});
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
    event->ns = ls_now_ns() + gpu_host_state()->clock_ns;
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
    event->stream = stream->delay_us > 0 ? stream : NULL;
    e = stream->delay_us > 0 ? push(stream, &stamp, &event->number) : run_stamp(&event);
    return e == HOST_OK ? gpu_host_check_lost() : e;
}

gpu_error gpu_event_query(gpu_event *event, bool *done)
{
    ls_mutex_lock(&lock);
    *done = event->stream == NULL || event->stream->n_done >= event->number;
    ls_mutex_unlock(&lock);
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
