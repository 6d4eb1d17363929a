/* SPDX-License-Identifier: Apache-2.0 */
/* algorithms.h - which algorithm of the native backend runs which operation, as a printed table. */
#ifndef LS_COMM_BACKENDS_NATIVE_TEAM_ALGORITHMS_H
#define LS_COMM_BACKENDS_NATIVE_TEAM_ALGORITHMS_H

#include "base/text.h"

/*
 * Appends the rows of operations within a host, those of LOCKSTEP_ALGORITHMS first, then those
 * between hosts; in each part the first matching row decides. LS_EINVAL: the variable is invalid.
 */
LS_MUST_USE ls_status algorithms_text(text_buf *out);

#endif
