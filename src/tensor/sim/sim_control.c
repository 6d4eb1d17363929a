/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_control.c - the table of sim.h: counters, and the faults that tests ask for. sim_queue.c,
 * sim_accel.c and sim_device.c ask and count here.
 */
#include "base/text.h"
#include "base/thread.h"
#include "tensor/sim/sim_arena.h"
#include "tensor/sim/sim_host.h"

#include <stdlib.h>
#include <string.h>

#define MAX_NAMES        128
#define DEFAULT_DELAY_US 50

/* All of it under the lock. */
static struct {
    uint64_t counts[COUNT_KINDS];
    uint64_t allocations_left; /* until one fails; 0: none does */
    uint64_t items_left;       /* until the device is lost; 0: never */
    char dropped[128];         /* "": none */
    const char *names[MAX_NAMES];
    uint64_t n_calls[MAX_NAMES]; /* of these waits */
    size_t n_names;
    uint64_t seed;
    int64_t delay_us;
    bool is_paced; /* seed and delay are of pace() */
} control;
static ls_mutex lock = {PTHREAD_MUTEX_INITIALIZER};

void control_count(sim_count kind)
{
    control_add(kind, 1);
}

void control_add(sim_count kind, uint64_t n)
{
    ls_mutex_lock(&lock);
    control.counts[kind] += n;
    ls_mutex_unlock(&lock);
}

/* A variable of the environment as a number. */
static ls_status variable(const char *name, int64_t without, int64_t *out)
{
    const char *text = getenv(name); // NOLINT(concurrency-mt-unsafe): never set

    *out = without;
    if (text == NULL || text[0] == '\0')
        return LS_OK;
    if (text_parse_int(text, name, 0, INT64_MAX, out) != LS_OK)
        return sim_fail(LS_EINVAL, "%s", ls_last_error());
    return LS_OK;
}

ls_status control_pace(uint64_t *seed, int64_t *delay_us)
{
    const char *dropped = getenv("LOCKSTEP_SIM_DROP"); // NOLINT(concurrency-mt-unsafe): never set
    int64_t from_environment;

    LS_TRY(variable("LOCKSTEP_SIM_SEED", 1, &from_environment));
    LS_TRY(variable("LOCKSTEP_SIM_DELAY_US", DEFAULT_DELAY_US, delay_us));
    *seed = (uint64_t)from_environment;
    ls_mutex_lock(&lock);
    if (control.is_paced) {
        *seed = control.seed;
        *delay_us = control.delay_us;
    }
    if (dropped != NULL && control.dropped[0] == '\0')
        (void)text_format(control.dropped, sizeof(control.dropped), "%s", dropped);
    ls_mutex_unlock(&lock);
    return LS_OK;
}

/* Counts *left down; true at its end. */
static bool is_over(uint64_t *left)
{
    bool over;

    ls_mutex_lock(&lock);
    over = *left == 1;
    if (*left > 0)
        (*left)--;
    ls_mutex_unlock(&lock);
    return over;
}

bool control_allocation_fails(void)
{
    control_count(COUNT_ALLOCATIONS);
    return is_over(&control.allocations_left);
}

bool control_item_loses(void)
{
    return is_over(&control.items_left);
}

bool control_wait_works(const char *what)
{
    bool works;
    size_t i = 0;

    ls_mutex_lock(&lock);
    while (i < control.n_names && strcmp(control.names[i], what) != 0)
        i++;
    if (i == control.n_names && i < MAX_NAMES)
        control.names[control.n_names++] = what;
    if (i < MAX_NAMES)
        control.n_calls[i]++;
    works = strcmp(control.dropped, what) != 0;
    ls_mutex_unlock(&lock);
    return works;
}

/* --- the table --- */

static void reset(void)
{
    ls_mutex_lock(&lock);
    memset(&control, 0, sizeof(control));
    ls_mutex_unlock(&lock);
}

static sim_counts counts(void)
{
    sim_counts c;

    ls_mutex_lock(&lock);
    c = (sim_counts){.operators = control.counts[COUNT_OPERATORS],
                     .copies = control.counts[COUNT_COPIES],
                     .host_bytes = control.counts[COUNT_HOST_BYTES],
                     .calls = control.counts[COUNT_CALLS],
                     .allocations = control.counts[COUNT_ALLOCATIONS],
                     .lost_failures = control.counts[COUNT_LOST_FAILURES],
                     .host_waits = control.counts[COUNT_HOST_WAITS]};
    ls_mutex_unlock(&lock);
    return c;
}

static void pace(uint64_t seed, int64_t delay_us)
{
    ls_mutex_lock(&lock);
    control.seed = seed;
    control.delay_us = delay_us;
    control.is_paced = true;
    ls_mutex_unlock(&lock);
}

static void fail_allocation(uint64_t n)
{
    ls_mutex_lock(&lock);
    control.allocations_left = n;
    ls_mutex_unlock(&lock);
}

static void lose_after(uint64_t n)
{
    ls_mutex_lock(&lock);
    control.items_left = n;
    ls_mutex_unlock(&lock);
}

static void drop_wait(const char *what)
{
    ls_mutex_lock(&lock);
    (void)text_format(control.dropped, sizeof(control.dropped), "%s", what == NULL ? "" : what);
    ls_mutex_unlock(&lock);
}

static size_t wait_names(const char **names, size_t max)
{
    size_t n;

    ls_mutex_lock(&lock);
    n = control.n_names;
    for (size_t i = 0; i < n && i < max; i++)
        names[i] = control.names[i];
    ls_mutex_unlock(&lock);
    return n;
}

static uint64_t waits_of(const char *what)
{
    uint64_t n = 0;

    ls_mutex_lock(&lock);
    for (size_t i = 0; i < control.n_names; i++) {
        if (strcmp(control.names[i], what) == 0)
            n = control.n_calls[i];
    }
    ls_mutex_unlock(&lock);
    return n;
}

LS_API extern const sim_control lockstep_sim_control;

const sim_control lockstep_sim_control = {
    .reset = reset,
    .counts = counts,
    .pace = pace,
    .fail_allocation = fail_allocation,
    .lose_after = lose_after,
    .drop_wait = drop_wait,
    .wait_names = wait_names,
    .waits_of = waits_of,
    .host_address = arena_alias_of_any,
};
