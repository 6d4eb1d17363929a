/* SPDX-License-Identifier: Apache-2.0 */
/*
 * world.c - the scheduler: a queue of events in virtual time, and fibers for processes, of which
 * one runs at a time. What a process has in static variables, and what it has allocated, is its
 * own.
 */
#include "sim/sim.h"

#include <errno.h>
#include <link.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum {
    STACK_BYTES = 768 * 1024,
    PIECE_BYTES = 128,
    BLOCK_MARK = 0x5e11b10c,
    EVENTS_MOST = 3000000 /* of a seed: more are a livelock */
};

void *__real_calloc(size_t n, size_t bytes);
void *__real_realloc(void *old, size_t bytes);
void __real_free(void *block);
int __real_posix_memalign(void **out, size_t alignment, size_t bytes);
void *__real_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset);
int __real_munmap(void *at, size_t bytes);

extern char __data_start[];
extern char edata[];
extern char __bss_start[];
extern char end[];
extern char **environ;

/* The only static variables of the simulator. They are fixed when others are swapped. */
typedef struct fixed_statics {
    world *w;
    process *loaded; /* whose static variables are in place */
    unsigned char *pristine;
    char *tls;
    size_t tls_bytes;
    size_t bytes;
    struct piece *pieces;
    size_t n_pieces;
    size_t n_written; /* the first of them: those that processes write */
    void *free_stacks;
} fixed_statics;

world *W;
static fixed_statics fixed;

/* --- static variables of processes --- */

static int find_tls(struct dl_phdr_info *info, size_t bytes, void *arg)
{
    fixed_statics *k = arg;

    (void)bytes;
    for (int i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_TLS) {
            k->tls = info->dlpi_tls_data;
            k->tls_bytes = info->dlpi_phdr[i].p_memsz;
        }
    return 1; /* the first one is the program */
}

/* The compiler must not know which variables are there. */
static char *hide(char *p)
{
    __asm__ volatile("" : "+r"(p) : : "memory");
    return p;
}

/* The three areas, in pieces: most of them are never written, and are the same in all processes. */
typedef struct piece {
    char *at;
    size_t offset; /* in process.statics; its number from there on is in process.is_own */
    size_t bytes;
    bool is_written;
} piece;

static piece piece_at(size_t i)
{
    const size_t data = (size_t)(edata - __data_start);
    const size_t bss = (size_t)(end - __bss_start);
    const struct {
        char *at;
        size_t bytes;
    } areas[] = {{__data_start, data}, {__bss_start, bss}, {fixed.tls, fixed.tls_bytes}};
    size_t offset = 0;

    for (size_t k = 0; k < LS_COUNT_OF(areas); k++) {
        const size_t n = (areas[k].bytes + PIECE_BYTES - 1) / PIECE_BYTES;

        if (i < n) {
            const size_t left = areas[k].bytes - i * PIECE_BYTES;

            return (piece){areas[k].at + i * PIECE_BYTES, offset + i * PIECE_BYTES,
                           left < PIECE_BYTES ? left : PIECE_BYTES, false};
        }
        i -= n;
        offset += n * PIECE_BYTES;
    }
    return (piece){0};
}

/* Only pieces that some process has written before: world_end() finds others. */
static void save(process *p)
{
    for (size_t i = 0; i < fixed.n_written; i++) {
        piece *s = &fixed.pieces[i];

        p->is_own[i] = memcmp(hide(s->at), fixed.pristine + s->offset, s->bytes) != 0;
        if (p->is_own[i])
            memcpy(p->statics + s->offset, s->at, s->bytes);
        s->is_written |= p->is_own[i];
    }
}

/* W and this file's own variables are among them, and keep their values. */
static void load(process *p)
{
    fixed_statics f = fixed;
    const process *old = f.loaded;

    if (old == p)
        return;
    if (old != NULL)
        save(f.loaded);
    for (size_t i = 0; i < f.n_written; i++) {
        const piece *s = &f.pieces[i];

        if (p->is_own[i] || old == NULL || old->is_own[i])
            memcpy(hide(s->at), (p->is_own[i] ? p->statics : f.pristine) + s->offset, s->bytes);
    }
    f.loaded = p;
    memcpy(hide((char *)&fixed), &f, sizeof(f));
    memcpy(hide((char *)&W), &f.w, sizeof(W));
    environ = p->env->list;
}

/* Whether pieces were written that were not swapped: then the run does not count. */
static bool find_written(void)
{
    fixed_statics f = fixed;
    bool found = false;

    for (size_t i = f.n_written; i < f.n_pieces; i++) {
        const piece s = f.pieces[i];

        if (memcmp(hide(s.at), f.pristine + s.offset, s.bytes) == 0)
            continue;
        memcpy(hide(s.at), f.pristine + s.offset, s.bytes);
        f.pieces[i] = f.pieces[f.n_written];
        f.pieces[f.n_written++] = s;
        found = true;
    }
    memcpy(hide((char *)&fixed), &f, sizeof(f));
    return found;
}

void world_init(void)
{
    size_t bytes = 0;

    dl_iterate_phdr(find_tls, &fixed);
    while (piece_at(fixed.n_pieces).bytes > 0)
        fixed.n_pieces++;
    fixed.pieces = sim_alloc(fixed.n_pieces * sizeof(piece));
    for (size_t i = 0; i < fixed.n_pieces; i++) {
        fixed.pieces[i] = piece_at(i);
        bytes = fixed.pieces[i].offset + PIECE_BYTES;
    }
    fixed.bytes = bytes;
    fixed.n_written = fixed.n_pieces;
    fixed.pristine = sim_alloc(bytes);
    for (size_t i = 0; i < fixed.n_pieces; i++)
        memcpy(fixed.pristine + fixed.pieces[i].offset, hide(fixed.pieces[i].at),
               fixed.pieces[i].bytes);
}

void world_learned(void)
{
    size_t n = 0;

    for (size_t i = 0; i < fixed.n_pieces; i++) {
        const piece s = fixed.pieces[i];

        if (!s.is_written)
            continue;
        fixed.pieces[i] = fixed.pieces[n];
        fixed.pieces[n++] = s;
    }
    fixed.n_written = n;
}

/* --- memory --- */

typedef struct block {
    struct block *next;
    struct block *previous;
    process *owner;
    size_t bytes;
    uint64_t mark;
    void *start; /* what was allocated: it ends with the block */
} block;

void *sim_alloc(size_t bytes)
{
    void *p = __real_calloc(1, bytes);

    if (p == NULL)
        abort();
    return p;
}

void sim_free(void *b)
{
    __real_free(b);
}

void *__wrap_calloc(size_t n, size_t bytes);
void *__wrap_realloc(void *old, size_t bytes);
void __wrap_free(void *p);
int __wrap_posix_memalign(void **out, size_t alignment, size_t bytes);

static void link_block(block *b)
{
    process *p = W->current;

    b->owner = p;
    b->previous = NULL;
    b->next = p->blocks;
    if (b->next != NULL)
        b->next->previous = b;
    p->blocks = b;
    p->n_blocks++;
}

static void unlink_block(block *b)
{
    if (b->previous != NULL)
        b->previous->next = b->next;
    else
        b->owner->blocks = b->next;
    if (b->next != NULL)
        b->next->previous = b->previous;
    b->owner->n_blocks--;
}

static void *allocate(size_t alignment, size_t bytes)
{
    char *start = __real_calloc(1, sizeof(block) + alignment + bytes);
    const uintptr_t first = (uintptr_t)start + sizeof(block);
    block *b;

    if (start == NULL)
        return NULL;
    b = (block *)(void *)(start + (first + alignment - 1) / alignment * alignment -
                          (uintptr_t)start) -
        1;
    b->bytes = bytes;
    b->mark = BLOCK_MARK;
    b->start = start;
    link_block(b);
    return b + 1;
}

void *__wrap_calloc(size_t n, size_t bytes)
{
    if (W == NULL || W->current == NULL)
        return __real_calloc(n, bytes);
    if (call_fails(CALL_MEMORY)) {
        errno = ENOMEM;
        return NULL;
    }
    return allocate(16, n * bytes);
}

void __wrap_free(void *p)
{
    block *b = (block *)p - 1;

    if (p == NULL)
        return;
    if (W == NULL || W->current == NULL || b->mark != BLOCK_MARK) {
        __real_free(p);
        return;
    }
    b->mark = 0;
    unlink_block(b);
    memset(p, 0xdd, b->bytes < 256 ? b->bytes : 256); /* a use after free shows */
    __real_free(b->start);
}

void *__wrap_realloc(void *old, size_t bytes)
{
    const block *b = (const block *)old - 1;
    void *p;

    if (W == NULL || W->current == NULL)
        return __real_realloc(old, bytes);
    p = __wrap_calloc(1, bytes);
    if (p != NULL && old != NULL) {
        memcpy(p, old, b->bytes < bytes ? b->bytes : bytes);
        __wrap_free(old);
    }
    return p;
}

int __wrap_posix_memalign(void **out, size_t alignment, size_t bytes)
{
    if (W == NULL || W->current == NULL)
        return __real_posix_memalign(out, alignment, bytes);
    *out = call_fails(CALL_MEMORY) ? NULL : allocate(alignment, bytes);
    return *out != NULL ? 0 : ENOMEM;
}

/* Mappings of memfds, which a process that is killed leaves. */
typedef struct mapping {
    struct mapping *next;
    void *at;
    size_t bytes;
} mapping;

void process_map(void *at, size_t bytes)
{
    mapping *m = sim_alloc(sizeof(*m));

    *m = (mapping){W->current->mappings, at, bytes};
    W->current->mappings = m;
}

void process_unmap(const void *at)
{
    for (mapping **m = &W->current->mappings; *m != NULL; m = &(*m)->next)
        if ((*m)->at == at) {
            mapping *gone = *m;

            *m = gone->next;
            sim_free(gone);
            return;
        }
}

/* --- environments --- */

environment *environment_make(char *const *from, const char *name, const char *value)
{
    char *const none[] = {NULL};
    const size_t name_bytes = name != NULL ? strlen(name) : 0;
    size_t bytes = sizeof(environment) + 2 * sizeof(char *) + name_bytes + 2 +
                   (value != NULL ? strlen(value) : 0);
    environment *e;
    char *text;
    size_t n = 0;
    int count = 0;

    from = from != NULL ? from : none;
    for (; from[count] != NULL; count++)
        bytes += strlen(from[count]) + 1 + sizeof(char *);
    e = sim_alloc(bytes);
    text = (char *)(e->list + count + 2);
    for (int i = 0; i < count; i++) {
        if (name != NULL && strncmp(from[i], name, name_bytes) == 0 && from[i][name_bytes] == '=')
            continue;
        e->list[n++] = text;
        text = stpcpy(text, from[i]) + 1;
    }
    if (name != NULL) {
        e->list[n] = text;
        (void)sprintf(text, "%s=%s", name, value);
    }
    return e;
}

void environment_add(process *p, const char *name, const char *value)
{
    environment *e = environment_make(p->env->list, name, value);

    e->previous = p->env;
    p->env = e;
}

void environment_free(environment *e)
{
    while (e != NULL) {
        environment *previous = e->previous;

        sim_free(e);
        e = previous;
    }
}

/* --- events --- */

static bool is_before(const sim_event *a, const sim_event *b)
{
    return a->at != b->at ? a->at < b->at : a->order < b->order;
}

void world_at(int64_t at, void (*fn)(void *arg, uint64_t number), void *arg, uint64_t number)
{
    sim_event e = {at < W->now ? W->now : at, ++W->order, fn, arg, number};
    int i = W->n_events_waiting++;

    if (i == W->events_max) {
        W->events_max = 2 * W->events_max + 256;
        W->events = __real_realloc(W->events, (size_t)W->events_max * sizeof(sim_event));
    }
    for (; i > 0 && is_before(&e, &W->events[(i - 1) / 2]); i = (i - 1) / 2)
        W->events[i] = W->events[(i - 1) / 2];
    W->events[i] = e;
}

static sim_event next_event(void)
{
    const sim_event first = W->events[0];
    const sim_event last = W->events[--W->n_events_waiting];
    const int n = W->n_events_waiting;
    int i = 0;

    for (int child = 1; child < n; child = 2 * i + 1) {
        child += child + 1 < n && is_before(&W->events[child + 1], &W->events[child]);
        if (!is_before(&W->events[child], &last))
            break;
        W->events[i] = W->events[child];
        i = child;
    }
    W->events[i] = last;
    return first;
}

uint64_t world_random(uint64_t below)
{
    return ls_rng_below(&W->rng, below > 0 ? below : 1);
}

void world_trace(uint64_t a, uint64_t b)
{
    W->trace = ls_hash3(W->trace ^ (uint64_t)W->now, a, b);
}

void world_fail(const char *format, ...)
{
    va_list args;

    if (W->failure[0] != 0)
        return;
    va_start(args, format);
    (void)vsnprintf(W->failure, sizeof(W->failure), format, args);
    va_end(args);
    world_log("FAILURE: %s", W->failure);
}

void world_log(const char *format, ...)
{
    va_list args;

    if (!W->is_verbose)
        return;
    va_start(args, format);
    (void)printf("%10.3f ", (double)W->now / 1e9);
    (void)vprintf(format, args);
    (void)printf("\n");
    (void)fflush(stdout);
    va_end(args);
}

/* --- processes --- */

static void run(void *arg, uint64_t serial);

static void schedule(process *p, int64_t at)
{
    world_at(at, run, p, ++p->serial);
}

static int64_t cost(const process *p)
{
    const int64_t ns = (int64_t)(2000 + world_random(30000));

    return W->now < W->hosts[p->host].slow_until ? 100 * ns : ns;
}

void process_wake(process *p)
{
    if (!p->is_waiting)
        return;
    p->is_waiting = false;
    schedule(p, W->now + cost(p));
}

/* setjmp() and longjmp(), because swapcontext() makes two system calls. */
static void to_scheduler(process *p)
{
    if (_setjmp(p->at) == 0)
        _longjmp(W->scheduler, 1);
}

static void to_process(process *p)
{
    if (_setjmp(W->scheduler) != 0)
        return;
    if (p->has_begun)
        _longjmp(p->at, 1);
    p->has_begun = true;
    (void)setcontext(&p->context);
}

void process_wait(int64_t until)
{
    process *p = W->current;

    if (until != NEVER && (W->n_events_waiting == 0 || W->events[0].at > until)) {
        W->now = until > W->now ? until : W->now; /* nothing happens before */
        return;
    }
    p->is_waiting = true;
    p->serial++;
    if (until != NEVER)
        world_at(until, run, p, p->serial);
    to_scheduler(p);
    p->is_waiting = false;
}

static void enter(void)
{
    process *p = W->current;

    p->main(p->arg);
    process_die(p, 0);
}

/* What has waited while it was stopped comes now. */
void process_stop(process *p, bool stops)
{
    if (p->is_dead || p->is_stopped == stops)
        return;
    p->is_stopped = stops;
    if (!stops && p->was_woken) {
        p->was_woken = false;
        schedule(p, W->now + cost(p));
    }
}

static void free_stack(process *p)
{
    if (p->stack == NULL)
        return;
    memcpy(p->stack, &fixed.free_stacks, sizeof(void *));
    fixed.free_stacks = p->stack;
    p->stack = NULL;
}

static void *take_stack(void)
{
    void *s = fixed.free_stacks;

    if (s == NULL)
        return __real_mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    memcpy(&fixed.free_stacks, s, sizeof(void *));
    return s;
}

static void run(void *arg, uint64_t serial)
{
    process *p = arg;

    if (p->is_dead || serial != p->serial)
        return;
    if (p->is_stopped) {
        p->was_woken = true;
        return;
    }
    load(p);
    W->current = p;
    to_process(p);
    W->current = NULL;
    if (p->is_dead)
        free_stack(p);
}

process *process_new(process_role role, int host, process *parent, void (*fn)(void *), void *arg)
{
    process *p = sim_alloc(sizeof(*p));

    p->role = role;
    p->host = host;
    p->parent = parent;
    p->pid = ++W->last_pid;
    p->began_at = W->now;
    p->main = fn;
    p->arg = arg;
    p->stack = take_stack();
    p->statics = sim_alloc(fixed.bytes);
    p->is_own = sim_alloc(fixed.n_pieces);
    getcontext(&p->context);
    p->context.uc_stack.ss_sp = p->stack;
    p->context.uc_stack.ss_size = STACK_BYTES;
    p->context.uc_link = NULL;
    makecontext(&p->context, enter, 0);
    p->next = W->processes;
    W->processes = p;
    W->n_alive++;
    schedule(p, W->now + cost(p));
    return p;
}

process *process_of(int pid)
{
    for (process *p = W->processes; p != NULL; p = p->next)
        if (p->pid == pid && !p->is_reaped)
            return p;
    return NULL;
}

void process_signal(process *p, int number)
{
    if (p == NULL || p->is_dead)
        return;
    world_trace((uint64_t)p->pid, (uint64_t)number);
    if (number == SIGKILL) {
        process_die(p, SIGKILL);
        return;
    }
    if (number == SIGSTOP || number == SIGCONT) {
        process_stop(p, number == SIGSTOP);
        return;
    }
    if (p->role == ROLE_AGENT) { /* all others are taken by its signalfd */
        p->pending |= UINT64_C(1) << number;
        for (int i = 0; i < FDS_MAX; i++)
            if (p->fds[i] != NULL && p->fds[i]->kind == OBJECT_SIGNALS)
                object_changed(p->fds[i]);
    } else if (p->role == ROLE_RANK && number != 0) {
        process_die(p, number);
    }
}

static void free_memory(process *p)
{
    while (p->blocks != NULL) {
        block *b = p->blocks;

        p->blocks = b->next;
        __real_free(b->start);
    }
    p->n_blocks = 0;
    while (p->mappings != NULL) {
        mapping *m = p->mappings;

        p->mappings = m->next;
        (void)__real_munmap(m->at, m->bytes);
        sim_free(m);
    }
}

static void free_waits(process *p)
{
    for (watch *w = p->waits; w != NULL; w = w->next_of_owner) {
        watch **at = &w->target->watchers;

        while (*at != w)
            at = &(*at)->next_of_target;
        *at = w->next_of_target;
    }
    p->waits = NULL;
    for (object *o = W->objects; o != NULL; o = o->next)
        if (o->waiter == p)
            o->waiter = NULL;
}

void process_die(process *p, int wait_status)
{
    process *current = W->current;

    if (p->is_dead)
        return;
    world_log("%s (pid %d) ends with status 0x%x", p->name, p->pid, wait_status);
    world_trace((uint64_t)p->pid, (uint64_t)wait_status);
    p->is_dead = true;
    W->last_end = W->now;
    p->wait_status = wait_status;
    p->is_reaped = p->parent == NULL || p->parent->is_dead;
    W->n_alive--;
    free_waits(p);
    for (int i = 0; i < FDS_MAX; i++)
        if (p->fds[i] != NULL) {
            object *o = p->fds[i];

            p->fds[i] = NULL;
            object_drop(o);
        }
    if (fixed.loaded == p)
        fixed.loaded = NULL;
    free_memory(p);
    sim_free(p->statics);
    sim_free(p->is_own);
    p->statics = NULL;
    p->is_own = NULL;
    for (process *child = W->processes; child != NULL; child = child->next) {
        if (child->parent != p)
            continue;
        child->is_reaped |= child->is_dead;
        if (p->role == ROLE_SHIM && child->role == ROLE_RANK)
            process_die(child, SIGKILL); /* PDEATHSIG */
    }
    if (p->parent != NULL && !p->parent->is_dead) {
        if (p->parent->role == ROLE_AGENT)
            process_signal(p->parent, SIGCHLD);
        process_wake(p->parent);
    }
    if (p != current) {
        free_stack(p);
        return;
    }
    to_scheduler(p);
    abort();
}

/* --- life --- */

void world_begin(const scenario *s)
{
    W = fixed.w = sim_alloc(sizeof(world));
    W->spec = s;
    ls_rng_seed(&W->rng, s->seed ^ 0x51a1);
    for (int i = 0; i < HOSTS_MAX; i++)
        W->hosts[i].next_port = 32768;
    W->now = SECOND;
}

void world_run(int64_t until)
{
    while (W->n_events_waiting > 0 && W->events[0].at <= until && W->failure[0] == 0) {
        const sim_event e = next_event();

        W->now = e.at > W->now ? e.at : W->now;
        if (++W->n_events > EVENTS_MOST)
            world_fail("%d events in %.0f s", EVENTS_MOST, (double)W->now / 1e9);
        e.fn(e.arg, e.number);
    }
    W->now = W->now < until && W->failure[0] == 0 ? until : W->now;
}

bool world_end(void)
{
    while (W->processes != NULL) {
        process *p = W->processes;

        W->current = NULL;
        process_die(p, SIGKILL);
        W->processes = p->next;
        environment_free(p->env);
        sim_free(p);
    }
    for (object *o = W->objects; o != NULL;) {
        object *next = o->next;

        object_free(o);
        o = next;
    }
    sim_free(W->events);
    sim_free(W);
    W = fixed.w = NULL;
    fixed.loaded = NULL;
    return !find_written();
}
