/* SPDX-License-Identifier: Apache-2.0 */
/* collectives.c - the table of operations between ranks (collectives.h). It needs nothing else. */
#include "hub/collectives.h"

const coll_shape coll_shapes[COLL_KIND_COUNT] = {
    [COLL_ALL_REDUCE] = {"all_reduce", COLL_PART, COLL_PART, .reduces = true},
    [COLL_REDUCE] = {"reduce", COLL_PART, COLL_PART, .reduces = true, .dst_at_root = true},
    [COLL_BROADCAST] = {"broadcast", COLL_PART, COLL_PART, .src_at_root = true},
    [COLL_ALL_GATHER] = {"all_gather", COLL_PART, COLL_ALL_PARTS},
    [COLL_GATHER] = {"gather", COLL_PART, COLL_ALL_PARTS, .dst_at_root = true},
    [COLL_SCATTER] = {"scatter", COLL_ALL_PARTS, COLL_PART, .src_at_root = true},
    [COLL_REDUCE_SCATTER] = {"reduce_scatter", COLL_ALL_PARTS, COLL_PART, .reduces = true},
    [COLL_ALL_TO_ALL] = {"all_to_all", COLL_ALL_PARTS, COLL_ALL_PARTS},
    [COLL_BARRIER] = {"barrier", COLL_NOTHING, COLL_NOTHING},
    [COLL_SEND] = {"send", COLL_PART, COLL_NOTHING},
    [COLL_RECV] = {"recv", COLL_NOTHING, COLL_PART},
};

const char *coll_name(coll_kind kind)
{
    return (unsigned)kind < COLL_KIND_COUNT ? coll_shapes[kind].name : "?";
}
