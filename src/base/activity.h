/* SPDX-License-Identifier: Apache-2.0 */
/*
 * activity.h - what this process must not exit in the middle of ("saving step 40 to FILE"): one text
 * for the whole process, set by what it runs and read when it exits.
 */
#ifndef LS_BASE_ACTIVITY_H
#define LS_BASE_ACTIVITY_H

#define ACTIVITY_BYTES 88 /* with its terminator; longer texts are cut */

/* NULL: nothing. One thread at a time, as the next. */
void activity_set(const char *text);

/* The text set last; "" when there is none. */
const char *activity_get(void);

#endif
