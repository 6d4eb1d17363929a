/* SPDX-License-Identifier: Apache-2.0 */
/* stack.c - the thread "ls-stack" of ls_comm_set_stack(), which sleeps until the hub sends data. */
#include "comm/group/stack.h"

#include "base/alloc.h"
#include "base/file.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

_Static_assert(LS_STACK_BYTES == CONTROL_STACK_BYTES, "both are the bound of the text");

struct stack_watch {
    engine *e;
    ls_stack_fn fn;
    void *arg;
    ls_thread thread;
    int wake_fd;
    atomic_bool is_stopping;
    bool is_asked; /* under the engine's lock */
};

static void wake(const struct stack_watch *w)
{
    const uint64_t one = 1;

    (void)!write(w->wake_fd, &one, sizeof(one));
}

void stack_asked(engine *e)
{
    if (e->stack == NULL)
        return;
    e->stack->is_asked = true;
    wake(e->stack);
}

static void answer(const struct stack_watch *w)
{
    engine *e = w->e;
    char text[LS_STACK_BYTES] = "";

    w->fn(w->arg, text, sizeof(text));
    text[sizeof(text) - 1] = '\0';
    engine_enter(e);
    if (e->parts.control != NULL && control_stack(e->parts.control, text) != LS_OK)
        ls_log(LS_LOG_DEBUG, "comm", "a stack is not reported to the hub: %s", ls_last_error());
    engine_leave(e);
}

/* Reads what the hub has sent; whether it has asked. */
static bool read_hub(struct stack_watch *w, bool *has_hub)
{
    engine *e = w->e;
    bool is_asked;

    engine_enter(e);
    watch_poll_hub(e, true);
    is_asked = w->is_asked;
    w->is_asked = false;
    *has_hub = e->parts.control != NULL;
    engine_leave(e);
    return is_asked;
}

static void run(void *arg)
{
    struct stack_watch *w = arg;
    bool has_hub = true;

    while (!atomic_load(&w->is_stopping)) {
        struct pollfd fds[] = {{.fd = w->wake_fd, .events = POLLIN},
                               {.fd = has_hub ? w->e->parts.control_fd : -1, .events = POLLIN}};
        uint64_t count;

        (void)poll(fds, LS_COUNT_OF(fds), -1);
        if (fds[0].revents != 0)
            (void)!read(w->wake_fd, &count, sizeof(count));
        if (!atomic_load(&w->is_stopping) && read_hub(w, &has_hub))
            answer(w);
    }
}

static void free_watch(struct stack_watch *w)
{
    file_close(&w->wake_fd);
    ls_free(w);
}

void stack_stop(engine *e)
{
    struct stack_watch *w;

    engine_enter(e);
    w = e->stack;
    e->stack = NULL;
    engine_leave(e);
    if (w == NULL)
        return;
    atomic_store(&w->is_stopping, true);
    wake(w);
    ls_thread_join(&w->thread);
    free_watch(w);
}

static ls_status start(engine *e, ls_stack_fn fn, void *arg)
{
    struct stack_watch *w;
    ls_status st;

    LS_TRY(LS_NEW(&w, 1, "for a thread"));
    w->e = e;
    w->fn = fn;
    w->arg = arg;
    atomic_init(&w->is_stopping, false);
    w->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (w->wake_fd < 0) {
        st = ls_fail_errno("eventfd");
        free_watch(w);
        return st;
    }
    engine_enter(e);
    e->stack = w;
    engine_leave(e);
    st = ls_thread_start(&w->thread, "ls-stack", run, w);
    if (st != LS_OK) {
        engine_enter(e);
        e->stack = NULL;
        engine_leave(e);
        free_watch(w);
    }
    return st;
}

ls_status ls_comm_set_stack(ls_comm *comm, ls_stack_fn fn, void *arg)
{
    engine *e;

    LS_TRY(LS_GIVEN(comm));
    e = comm->engine;
    LS_TRY(engine_check_process(e));
    stack_stop(e);
    return fn == NULL || e->parts.size == 1 ? LS_OK : start(e, fn, arg);
}
