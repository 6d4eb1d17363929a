/* SPDX-License-Identifier: Apache-2.0 */
#include "data/room.h"

#include "base/alloc.h"

#include <string.h>

#define ALIGNMENT 64

ls_status room_reserve(room *r, size_t bytes)
{
    size_t capacity;

    if (bytes <= r->capacity && r->data != NULL)
        return LS_OK;
    room_free(r);
    LS_TRY(ls_add_size(bytes, bytes / 4 + ROOM_SLACK, &capacity));
    r->data = ls_alloc_aligned(ALIGNMENT, capacity);
    if (r->data == NULL)
        return ls_fail(LS_ENOMEM, "no memory for an image of %zu bytes", bytes);
    memset(r->data + capacity - ROOM_SLACK, 0, ROOM_SLACK);
    r->capacity = capacity - ROOM_SLACK;
    return LS_OK;
}

void room_free(room *r)
{
    ls_free(r->data);
    *r = (room){0};
}
