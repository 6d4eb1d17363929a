/* SPDX-License-Identifier: Apache-2.0 */
/*
 * room.h - memory that is used again for image after image, and grows when one is larger than all before.
 */
#ifndef LS_DATA_ROOM_H
#define LS_DATA_ROOM_H

#include "base/status.h"

/* Bytes behind what was asked for that may be read, for loops that take several pixels at once. */
#define ROOM_SLACK 32

/* Zero-initialise. */
typedef struct room {
    uint8_t *data;
    size_t capacity;
} room;

/* Makes data at least `bytes` long, aligned to 64; what was in it is lost. */
LS_MUST_USE ls_status room_reserve(room *r, size_t bytes);
void room_free(room *r);

#endif
