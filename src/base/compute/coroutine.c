/* SPDX-License-Identifier: Apache-2.0 */
/*
 * coroutine.c - coroutines on the contexts of <ucontext.h>. Sanitizers are notified of each change
 * of the stack: AddressSanitizer would report the other stack's variables, ThreadSanitizer would
 * see one stack that returns where it has not been called.
 */
#include "base/compute/coroutine.h"

#include "base/alloc.h"

#include <errno.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <ucontext.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
#define HAS_ASAN 1
#elif defined(__SANITIZE_THREAD__)
#define HAS_TSAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HAS_ASAN 1
#elif __has_feature(thread_sanitizer)
#define HAS_TSAN 1
#endif
#endif

#ifdef HAS_ASAN
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef HAS_TSAN
#include <sanitizer/tsan_interface.h>
#endif

#define STACK_BYTES_LEAST ((size_t)256 << 10)
#define STACK_BYTES       ((size_t)8 << 20) /* where `ulimit -s` is unlimited */

struct coroutine {
    ucontext_t own;
    ucontext_t caller; /* of coroutine_resume() */
    char *memory;      /* a page without access, then the stack */
    size_t page;
    size_t stack_bytes;
    void (*fn)(void *arg);
    void *arg;
    bool is_running; /* started, and has not returned */
#ifdef HAS_ASAN
    void *own_stack; /* AddressSanitizer's record of a stack that is left */
    void *caller_stack;
    const void *caller_bottom;
    size_t caller_bytes;
#endif
#ifdef HAS_TSAN
    void *own_fiber;
    void *caller_fiber;
#endif
};

/* --- notes for sanitizers --- */

/* Before the stack changes to that of the coroutine. */
static void note_enter(coroutine *c)
{
#ifdef HAS_ASAN
    __sanitizer_start_switch_fiber(&c->caller_stack, c->memory + c->page, c->stack_bytes);
#elif defined(HAS_TSAN)
    c->caller_fiber = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(c->own_fiber, 0);
#else
    LS_UNUSED(c);
#endif
}

/* On the coroutine's stack. */
static void note_entered(coroutine *c)
{
#ifdef HAS_ASAN
    __sanitizer_finish_switch_fiber(c->own_stack, &c->caller_bottom, &c->caller_bytes);
#else
    LS_UNUSED(c);
#endif
}

/* Before the stack changes to the caller's, for good if is_last. */
static void note_leave(coroutine *c, bool is_last)
{
#ifdef HAS_ASAN
    __sanitizer_start_switch_fiber(is_last ? NULL : &c->own_stack, c->caller_bottom,
                                   c->caller_bytes);
#elif defined(HAS_TSAN)
    LS_UNUSED(is_last);
    __tsan_switch_to_fiber(c->caller_fiber, 0);
#else
    LS_UNUSED(c);
    LS_UNUSED(is_last);
#endif
}

/* On the caller's stack. */
static void note_left(coroutine *c)
{
#ifdef HAS_ASAN
    __sanitizer_finish_switch_fiber(c->caller_stack, NULL, NULL);
#else
    LS_UNUSED(c);
#endif
}

/* --- life --- */

static size_t choose_stack_bytes(size_t page)
{
    struct rlimit limit;
    size_t bytes = STACK_BYTES;

    if (getrlimit(RLIMIT_STACK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
        bytes = (size_t)limit.rlim_cur;
    if (bytes < STACK_BYTES_LEAST)
        bytes = STACK_BYTES_LEAST;
    return (bytes + page - 1) / page * page;
}

ls_status coroutine_create(coroutine **out)
{
    coroutine *c;
    void *memory;

    LS_TRY(LS_NEW(&c, 1, "for a coroutine"));
    c->page = (size_t)sysconf(_SC_PAGESIZE);
    c->stack_bytes = choose_stack_bytes(c->page);
    memory = mmap(NULL, c->page + c->stack_bytes, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (memory != MAP_FAILED && mprotect(memory, c->page, PROT_NONE) != 0) {
        (void)munmap(memory, c->page + c->stack_bytes);
        memory = MAP_FAILED;
    }
    if (memory == MAP_FAILED) {
        const int error = errno;

        ls_free(c);
        return ls_fail(LS_ENOMEM, "no memory for the stack of a coroutine: %s",
                       ls_errno_text(error));
    }
    c->memory = memory;
#ifdef HAS_TSAN
    c->own_fiber = __tsan_create_fiber(0);
#endif
    *out = c;
    return LS_OK;
}

void coroutine_destroy(coroutine *c)
{
    if (c == NULL)
        return;
#ifdef HAS_TSAN
    __tsan_destroy_fiber(c->own_fiber);
#endif
    (void)munmap(c->memory, c->page + c->stack_bytes);
    ls_free(c);
}

/* --- running --- */

/* makecontext() passes int arguments only: the two halves of a pointer. */
static void begin(unsigned high, unsigned low)
{
    coroutine *c = (coroutine *)(((uintptr_t)high << 16 << 16) | low);

    note_entered(c);
    c->fn(c->arg);
    c->is_running = false;
    note_leave(c, true);
    (void)setcontext(&c->caller);
}

void coroutine_start(coroutine *c, void (*fn)(void *arg), void *arg)
{
    LS_ASSERT(!c->is_running);
    c->fn = fn;
    c->arg = arg;
    c->is_running = true;
    (void)getcontext(&c->own); // it cannot fail
    c->own.uc_stack.ss_sp = c->memory + c->page;
    c->own.uc_stack.ss_size = c->stack_bytes;
    c->own.uc_link = NULL;
#ifdef HAS_ASAN
    c->own_stack = NULL;
#endif
    makecontext(&c->own, (void (*)(void))begin, 2, (unsigned)((uintptr_t)c >> 16 >> 16),
                (unsigned)(uintptr_t)c);
}

bool coroutine_resume(coroutine *c)
{
    if (!c->is_running)
        return false;
    note_enter(c);
    (void)swapcontext(&c->caller, &c->own);
    note_left(c);
    return c->is_running;
}

void coroutine_suspend(coroutine *c)
{
    note_leave(c, false);
    (void)swapcontext(&c->own, &c->caller);
    note_entered(c);
}
