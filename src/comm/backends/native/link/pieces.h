/* SPDX-License-Identifier: Apache-2.0 */
/* pieces.h - walks through the list of pieces (iovec) that a stream writes from or reads into. */
#ifndef LS_COMM_BACKENDS_NATIVE_LINK_PIECES_H
#define LS_COMM_BACKENDS_NATIVE_LINK_PIECES_H

#include "base/status.h"

#include <sys/uio.h>

/* A position in the list. */
typedef struct pieces {
    const struct iovec *iov;
    int n;
    size_t at; /* in iov[0] */
} pieces;

/* The next contiguous bytes of the list, at most `max`; 0 at its end. */
static inline size_t pieces_next(pieces *p, size_t max, uint8_t **at)
{
    size_t bytes;

    while (p->n > 0 && p->at == p->iov->iov_len) {
        p->iov++;
        p->n--;
        p->at = 0;
    }
    if (p->n == 0)
        return 0;
    bytes = p->iov->iov_len - p->at < max ? p->iov->iov_len - p->at : max;
    *at = (uint8_t *)p->iov->iov_base + p->at;
    p->at += bytes;
    return bytes;
}

/* The next `max` bytes, or what is left, as a list of their own; `out` has space for as many pieces
 * as this list. */
static inline int pieces_cut(pieces *p, size_t max, struct iovec *out, size_t *bytes)
{
    int n = 0;

    *bytes = 0;
    while (*bytes < max) {
        uint8_t *at;
        const size_t next = pieces_next(p, max - *bytes, &at);

        if (next == 0)
            break;
        out[n++] = (struct iovec){.iov_base = at, .iov_len = next};
        *bytes += next;
    }
    return n;
}

#endif
