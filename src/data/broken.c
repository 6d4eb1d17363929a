/* SPDX-License-Identifier: Apache-2.0 */
/*
 * broken.c - remembers in a data set which broken samples a warning has named, so that they are not
 * named again in the next epoch. Any number of threads call it; places are filled in order and
 * never emptied, so a sample is in one place.
 */
#include "data/broken.h"

#include "data/dataset.h"

/* A set is const for its readers, except for what they count. */
static atomic_size_t *named_of(const ls_dataset *d)
{
    return ((ls_dataset *)(uintptr_t)d)->named;
}

/* Puts `value` into an empty place; false: another value is there. */
static bool put_once(atomic_size_t *place, size_t value, size_t *there)
{
    *there = 0;
    return atomic_compare_exchange_strong_explicit(place, there, value, memory_order_relaxed,
                                                   memory_order_relaxed);
}

/* BROKEN_COUNT: all places are taken. */
static broken_naming add_name(atomic_size_t *named, size_t index)
{
    size_t there;

    for (int i = 0; i < DATASET_NAMED_SAMPLES; i++) {
        if (put_once(&named[i], index + 1, &there))
            return BROKEN_NAME;
        if (there == index + 1)
            return BROKEN_KNOWN;
    }
    return BROKEN_COUNT;
}

static bool mark_counted(atomic_size_t *named)
{
    size_t there;

    return put_once(&named[DATASET_NAMED_SAMPLES], 1, &there);
}

broken_naming dataset_name_broken(const ls_dataset *d, size_t index)
{
    const broken_naming naming = add_name(named_of(d), index);

    return naming == BROKEN_COUNT && !mark_counted(named_of(d)) ? BROKEN_KNOWN : naming;
}

void dataset_get_named(const ls_dataset *d, int64_t out[DATASET_NAMED])
{
    for (int i = 0; i < DATASET_NAMED; i++)
        out[i] = (int64_t)atomic_load_explicit(&named_of(d)[i], memory_order_relaxed);
}

void dataset_add_named(const ls_dataset *d, const int64_t named[DATASET_NAMED])
{
    for (int i = 0; i < DATASET_NAMED_SAMPLES; i++) {
        if (named[i] > 0)
            (void)add_name(named_of(d), (size_t)named[i] - 1);
    }
    if (named[DATASET_NAMED_SAMPLES] != 0)
        (void)mark_counted(named_of(d));
}
