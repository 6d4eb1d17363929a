/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cells.h - many small tests that mostly wait, several at a time: each in a process of its own,
 * shown only when it fails.
 */
#ifndef TESTS_LAUNCH_CELLS_H
#define TESTS_LAUNCH_CELLS_H

typedef struct cell_list {
    int n;
    void *self;
    const char *(*name)(const void *self, int i, char *buf, unsigned n);
    void (*run)(const void *self, int i); /* in the cell's process; cmocka's assertions */
    void (*clean_up)(void);               /* there, whether it has failed or not */
} cell_list;

/* Runs all of them, at most `width` at a time; each has `limit_ms`. How many failed. */
int cells_run(const cell_list *list, int width, int limit_ms);

#endif
