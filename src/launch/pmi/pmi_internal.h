/* SPDX-License-Identifier: Apache-2.0 */
/* pmi_internal.h - the key-value space (pmi_keys.c) as the commands of PMI-1 (pmi.c) use it. */
#ifndef LS_LAUNCH_PMI_PMI_INTERNAL_H
#define LS_LAUNCH_PMI_PMI_INTERNAL_H

#include "launch/pmi/pmi.h"

/* A part of a line. */
typedef struct pmi_slice {
    const char *at;
    size_t n;
} pmi_slice;

/* Puts a key for a rank of this node. Returns NULL, or the error for the client. */
const char *pmi_put(pmi *p, int rank, pmi_slice key, pmi_slice value);
/* Puts the layout of the job, which no rank can replace; "" puts nothing. */
const char *pmi_put_layout(pmi *p, const char *layout);
const char *pmi_get(const pmi *p, pmi_slice key); /* NULL: no such key */
void pmi_free_keys(pmi *p);

#endif
