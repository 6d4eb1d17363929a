/* SPDX-License-Identifier: Apache-2.0 */
/*
 * site.h - the call site of an operation as text: "train_step+0x1c", else "mnist+0x40a1".
 * Operations of the library have its public function ("ls_ddp_create") or "Lockstep".
 */
#ifndef LS_COMM_RECORD_SITE_H
#define LS_COMM_RECORD_SITE_H

#include "hub/stamp.h"

#define SITE_SLOTS 256
#define SITE_SHIFT 56 /* 64 less the bits of a slot's number */

/* Texts of earlier addresses, so that each is looked up once. Zero-initialise. */
typedef struct site_cache {
    struct {
        const void *address;
        char text[STAMP_SITE_BYTES];
    } slots[SITE_SLOTS];
} site_cache;

/* The text of a return address, valid until the next call. Under the engine's lock. */
const char *site_text(site_cache *cache, const void *address);

#endif
