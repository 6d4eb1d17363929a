/* SPDX-License-Identifier: Apache-2.0 */
/*
 * activity.h - the operation that this process must not exit in the middle of ("saving step 40 to
 * FILE"): one text per process, set by train/ and ddp/, read at exit by launch/.
 */
#ifndef LS_BASE_ACTIVITY_H
#define LS_BASE_ACTIVITY_H

#define ACTIVITY_BYTES 88 /* terminator included; longer texts are cut */

/* NULL = no activity. Both functions are for one thread at a time. */
void activity_set(const char *text);

/* The text that was set last; "" when there is none. */
const char *activity_get(void);

#endif
