/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hosts_check_internal.h - what judging hosts and judging the ways between them share.
 */
#ifndef LS_DIAGNOSE_SURVEY_INTERNAL_H
#define LS_DIAGNOSE_SURVEY_INTERNAL_H

#include "diagnose/hosts_check.h"

/* "a, b and 3 more": those whose mark is set. */
void hosts_check_names(const hosts_check *s, const bool *marks, text_buf *out);

/* Paths, the network, and what is wrong with them; `marks` is room for two a host. */
LS_MUST_USE ls_status hosts_check_judge_ways(hosts_check *s, bool *marks);

#endif
