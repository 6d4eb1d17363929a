/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stamp.h - describes an operation, so that ranks which call different operations fail at once.
 *
 * The hub compares the stamps of ranks that wait; comm puts the same bytes in front of its
 * messages. Wire form: STAMP_BYTES little-endian bytes, the call site as text at the end.
 */
#ifndef LS_HUB_STAMP_H
#define LS_HUB_STAMP_H

#include "base/status.h"
#include "hub/collectives.h"

#include <stdbool.h>

#define STAMP_SITE_BYTES 40
#define STAMP_V          1 /* of `form`: a v-variant; count is a hash of the counts */
#define STAMP_ON_DEVICE  2 /* the memory of an accelerator */
#define STAMP_BYTES      80

typedef struct op_stamp {
    uint32_t group;              /* id of the group; 0 is the world */
    uint64_t sequence;           /* of the operation in its group, from 1; 0: a stage (control.h) */
    uint8_t kind;                /* coll_kind */
    uint8_t dtype;               /* ls_dtype, 255 for none */
    uint8_t redop;               /* ls_reduce_op, 255 for none */
    uint8_t form;                /* STAMP_V, STAMP_ON_DEVICE */
    int32_t root;                /* group rank, -1 for none */
    uint64_t count;              /* elements */
    char site[STAMP_SITE_BYTES]; /* "train_step+0x1c" or a label ("bucket 3/7"); terminated */
} op_stamp;

void stamp_encode(const op_stamp *s, uint8_t out[STAMP_BYTES]);
/* LS_EPROTO for values that no stamp can have. */
LS_MUST_USE ls_status stamp_decode(const uint8_t in[STAMP_BYTES], op_stamp *out);

/* The ls_dtype of an encoded stamp, not checked. */
uint8_t stamp_dtype(const uint8_t stamp[STAMP_BYTES]);

/* Whether two ranks mean the same operation; the call site is not compared. */
bool stamp_equal(const op_stamp *a, const op_stamp *b);

static inline bool stamp_is_message(const op_stamp *s)
{
    return coll_is_message((coll_kind)s->kind);
}

/* "all_reduce #17 (sum, 262144 float32) at train_step+0x1c", into buf; 160 bytes fit any. */
const char *stamp_text(char *buf, size_t n, const op_stamp *s);
const char *stamp_redop_name(uint8_t redop); /* of an ls_reduce_op: "sum"; "?" */

#endif
