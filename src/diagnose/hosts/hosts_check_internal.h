/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hosts_check_internal.h - what judging hosts, judging the paths between them and printing both
 * share.
 */
#ifndef LS_DIAGNOSE_HOSTS_HOSTS_CHECK_INTERNAL_H
#define LS_DIAGNOSE_HOSTS_HOSTS_CHECK_INTERNAL_H

#include "diagnose/hosts/hosts_check.h"

static inline const hosts_check_path *hosts_check_path_of(const hosts_check *s, int from, int to)
{
    return &s->paths[(size_t)from * (size_t)s->n + (size_t)to];
}

/* Appends the names of the marked hosts: "a, b and 3 more". */
void hosts_check_names(const hosts_check *s, const bool *marks, text_buf *out);

/* Fills paths and picks and adds findings about them. `marks`: two for each host, overwritten. */
LS_MUST_USE ls_status hosts_check_judge_paths(hosts_check *s, bool *marks);

#endif
