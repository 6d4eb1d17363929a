/* SPDX-License-Identifier: Apache-2.0 */
/*
 * join_internal.h - between the places where a hub is found: join_hub.c, and join_pmi.c where a
 * starter's notice board is all there is.
 */
#ifndef LS_COMM_JOIN_INTERNAL_H
#define LS_COMM_JOIN_INTERNAL_H

#include "comm/join.h"

/* A job's 16 digits where no starter gave any: both sides derive them from what they were told. */
void join_derive_job(const char *what, char job[JOB_ID_BYTES]);

/* Without a starter's key: what the user's own key gives for this meeting point. */
LS_MUST_USE ls_status join_derive_key(join *j, const join_settings *s, const char *what);

/* On rank 0; the address with the port that was taken becomes hub_address. */
LS_MUST_USE ls_status join_serve_hub(join *j, const join_settings *s, const net_address *at);

/* To hub_address: control and scope are filled in. */
LS_MUST_USE ls_status join_connect_to_hub(join *j, const join_settings *s);

/* HUB_AT_PMI and HUB_AT_PMIX. */
LS_MUST_USE ls_status join_reach_by_pmi(join *j, const join_settings *s);

#endif
