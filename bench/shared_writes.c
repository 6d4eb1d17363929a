/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shared_writes - what it costs to write memory that another core has read, and to read it there.
 *
 * One thread fills a buffer from another one, a second thread on another core copies it out, in
 * turn: with plain stores, with memcpy(), with a string instruction, with stores around the caches,
 * and as the library chooses (comm/backends/native/memory/copy.h). Prints medians of 200 rounds (20
 * from 1 MiB on), us and GB/s. Takes no arguments.
 */
#include "base/clock.h"
#include "comm/backends/native/memory/copy.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST   ((size_t)16 << 20)
#define ROUNDS 200

enum { STORES, MEMCPY, STRING, AROUND, CHOSEN, N_WAYS };

static const char *const names[N_WAYS] = {"stores", "memcpy", "string", "around", "chosen"};
static char *shared[N_WAYS];
static char *source;
static char *target;
static size_t bytes;
static _Atomic int turn; /* the buffer that the reader copies out, -1: none, -2: end */
static int64_t read_ns;

static char *buffer(void)
{
    char *p = aligned_alloc(4096, MOST);

    if (p == NULL)
        exit(1);
    memset(p, 1, MOST);
    return p;
}

/* The calling thread runs on the n-th core that the process may use. */
static void bind_to(int n)
{
    cpu_set_t all;
    cpu_set_t one;

    CPU_ZERO(&one);
    if (sched_getaffinity(0, sizeof(all), &all) != 0 || CPU_COUNT(&all) < 2) {
        fprintf(stderr, "shared_writes: two cores are needed\n");
        exit(1);
    }
    for (int c = 0; c < CPU_SETSIZE; c++)
        if (CPU_ISSET(c, &all) && n-- == 0)
            CPU_SET(c, &one);
    if (sched_setaffinity(0, sizeof(one), &one) != 0)
        exit(1);
}

static void *be_reader(void *arg)
{
    int way;

    (void)arg;
    bind_to(1);
    while ((way = atomic_load(&turn)) != -2) {
        const int64_t begin = ls_now_ns();

        if (way < 0)
            continue;
        memcpy(target, shared[way], bytes);
        read_ns = ls_now_ns() - begin;
        atomic_store(&turn, -1);
    }
    return NULL;
}

/* memcpy() may use string instructions. */
static void copy_by_stores(char *to, const char *from)
{
    for (size_t at = 0; at < bytes; at += sizeof(uint64_t)) {
        uint64_t word;

        memcpy(&word, from + at, sizeof(word));
        memcpy(to + at, &word, sizeof(word));
        __asm__ volatile("" : : : "memory"); // not one memcpy() of all
    }
}

static int64_t write_once(int way, copy_way *chosen)
{
    const int64_t begin = ls_now_ns();

    if (way == STORES)
        copy_by_stores(shared[way], source);
    else if (way == MEMCPY)
        memcpy(shared[way], source, bytes);
    else if (way == STRING)
        (void)copy_string(shared[way], source, bytes);
    else if (way == AROUND)
        copy_around(shared[way], source, bytes);
    else
        copy_shared(chosen, shared[way], source, bytes);
    atomic_store(&turn, -1); // waits for plain stores
    return ls_now_ns() - begin;
}

static int compare(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a;
    const int64_t y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

static double median_us(int64_t *ns, int n)
{
    qsort(ns, (size_t)n, sizeof(*ns), compare);
    return (double)ns[n / 2] * 1e-3;
}

static void measure(void)
{
    static int64_t writes[N_WAYS][ROUNDS];
    static int64_t reads[N_WAYS][ROUNDS];
    const int rounds = bytes < (size_t)1 << 20 ? ROUNDS : ROUNDS / 10;
    copy_way chosen = {0};

    for (int i = -rounds / 2; i < rounds; i++) {
        for (int way = 0; way < N_WAYS; way++) {
            int64_t ns;

            memset(source, i, bytes);
            ns = write_once(way, &chosen);
            atomic_store(&turn, way);
            while (atomic_load(&turn) != -1) {
            }
            if (i >= 0) {
                writes[way][i] = ns;
                reads[way][i] = read_ns;
            }
        }
    }
    for (int way = 0; way < N_WAYS; way++) {
        const double w = median_us(writes[way], rounds);
        const double r = median_us(reads[way], rounds);

        printf("%9zu  %-7s %9.2f %6.1f %9.2f %6.1f %9.2f\n", bytes, names[way], w,
               (double)bytes / w * 1e-3, r, (double)bytes / r * 1e-3, w + r);
    }
}

int main(void)
{
    pthread_t reader;

    source = buffer();
    target = buffer();
    for (int way = 0; way < N_WAYS; way++)
        shared[way] = buffer();
    atomic_store(&turn, -1);
    if (pthread_create(&reader, NULL, be_reader, NULL) != 0)
        return 1;
    bind_to(0);
    printf("    bytes  way      write us   GB/s   read us   GB/s       sum\n");
    for (bytes = 4096; bytes <= MOST; bytes *= 4)
        measure();
    atomic_store(&turn, -2);
    return pthread_join(reader, NULL) == 0 ? 0 : 1;
}
