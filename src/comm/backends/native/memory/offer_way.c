/* SPDX-License-Identifier: Apache-2.0 */
/* offer_way.c - compares the two ways of a message that the receiver could read in place. */
#include "comm/backends/native/memory/offer_way.h"

/* Pieces need the sender, which may have other work: reading may take this much longer. */
#define READ_MAY_TAKE 1.1

bool offer_way_takes_pieces(offer_way *w, bool *is_timed)
{
    *is_timed = true;
    if (w->step == OFFER_WAY_HAS_READ) {
        w->step = OFFER_WAY_TAKES;
        return true;
    }
    if (w->step == OFFER_WAY_IDLE && copy_way_compares(&w->way)) {
        w->step = OFFER_WAY_READS;
        return false;
    }
    *is_timed = false;
    return w->way.is_around;
}

void offer_way_ended(offer_way *w, size_t bytes, int64_t ns)
{
    const double of_byte = (double)ns / (double)bytes;

    if (w->step == OFFER_WAY_READS) {
        w->read_ns = of_byte;
        w->step = OFFER_WAY_HAS_READ;
    } else {
        copy_way_compared(&w->way, of_byte * READ_MAY_TAKE < w->read_ns);
        w->step = OFFER_WAY_IDLE;
    }
}

void offer_way_gave_up(offer_way *w)
{
    w->step = OFFER_WAY_IDLE;
    w->way.left = w->way.gap; // the comparison is due again
}

offer_way *offer_ways_find(offer_ways *w, size_t bytes, bool is_mapped)
{
    const size_t least = (size_t)1 << OFFER_LEAST_BITS;

    if (bytes <= least || bytes > least << OFFER_CLASSES)
        return NULL;
    return &w->of[is_mapped]
                 [63 - __builtin_clzll((unsigned long long)bytes - 1) - OFFER_LEAST_BITS];
}
