/* SPDX-License-Identifier: Apache-2.0 */
/* hostlist_internal.h - helpers shared by the parsers of host lists. */
#ifndef LS_LAUNCH_HOSTS_HOSTLIST_INTERNAL_H
#define LS_LAUNCH_HOSTS_HOSTLIST_INTERNAL_H

#include "launch/hosts/hostlist.h"

#include <stdbool.h>

bool hostlist_is_digit(char c);

/* Whether it is safe as an argument of ssh: a host or an IPv6 address, optionally after "user@". */
bool hostlist_is_name(const char *name, size_t n);

LS_MUST_USE ls_status hostlist_append(hostlist *list, const char *name, size_t n, int slots);

/* The number at *s, which moves past it; -1 without a number from 0 to max before end. */
int hostlist_number(const char **s, const char *end, int max);

/* A word for an error text: printable and cut. */
const char *hostlist_printable(char *buf, size_t n, const char *word, size_t n_word);

#endif
