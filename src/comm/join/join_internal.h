/* SPDX-License-Identifier: Apache-2.0 */
/* join_internal.h - shared by join_hub.c and join_pmi.c, which find the hub in different ways. */
#ifndef LS_COMM_JOIN_JOIN_INTERNAL_H
#define LS_COMM_JOIN_JOIN_INTERNAL_H

#include "comm/join/join.h"

/* The job's 16 digits when no launcher has set any: all ranks derive them from the same text. */
void join_derive_job(const char *what, char job[JOB_ID_BYTES]);

/* Without a launcher's key: derived from the user's key and this text. */
LS_MUST_USE ls_status join_derive_key(join *j, const join_settings *s, const char *what);

/* On rank 0; hub_address becomes the address with the actual port. */
LS_MUST_USE ls_status join_serve_hub(join *j, const join_settings *s, const net_address *at);

/* Connects to hub_address and fills in control and scope. */
LS_MUST_USE ls_status join_connect_to_hub(join *j, const join_settings *s);

/* HUB_AT_PMI and HUB_AT_PMIX. */
LS_MUST_USE ls_status join_reach_by_pmi(join *j, const join_settings *s);

/* LS_EAUTH with the reason of a rank that cannot reach this rank's hub, if one has left it in the
 * store through which the ranks join. */
LS_MUST_USE ls_status join_read_failure(const join *j, ls_store *store);

#endif
