/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pmi_internal.h - between the lines of PMI-1 (pmi.c) and the keys that ranks put and get (pmi_keys.c).
 */
#ifndef LS_LAUNCH_PMI_INTERNAL_H
#define LS_LAUNCH_PMI_INTERNAL_H

#include "launch/pmi/pmi.h"

/* A part of a line. */
typedef struct pmi_slice {
    const char *at;
    size_t n;
} pmi_slice;

/* For a rank of this node. NULL, or why not. */
const char *pmi_put(pmi *p, int rank, pmi_slice key, pmi_slice value);
/* The key that the launcher puts; "" puts none. */
const char *pmi_put_layout(pmi *p, const char *layout);
const char *pmi_get(const pmi *p, pmi_slice key); /* NULL: there is none */
void pmi_free_keys(pmi *p);

#endif
