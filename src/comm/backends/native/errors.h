/* SPDX-License-Identifier: Apache-2.0 */
/*
 * errors.h - breaks a group for what went wrong between two ranks, with a text that names both. A
 * stamp is encoded, and names the operation.
 */
#ifndef LS_COMM_BACKENDS_NATIVE_ERRORS_H
#define LS_COMM_BACKENDS_NATIVE_ERRORS_H

#include "comm/backends/native/native.h"

/* Whether two encoded stamps mean the same operation. */
bool errors_same_operation(const uint8_t *a, const uint8_t *b);
void errors_stamp_mismatch(native_group *g, native_peer *p, const uint8_t *theirs,
                           const uint8_t *ours);
void errors_size_mismatch(native_group *g, native_peer *p, uint64_t theirs, uint64_t ours,
                          const uint8_t *stamp);
/* The stamps agree, but no step of this rank expects the message. */
void errors_extra_message(native_group *g, const native_peer *p, const message *m,
                          const uint8_t *stamp);
/* The peer's link has ended. */
void errors_lost_peer(native_group *g, native_peer *p, const uint8_t *stamp);

#endif
