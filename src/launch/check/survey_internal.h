/* SPDX-License-Identifier: Apache-2.0 */
/*
 * survey_internal.h - what judging hosts and judging the ways between them share.
 */
#ifndef LS_LAUNCH_SURVEY_INTERNAL_H
#define LS_LAUNCH_SURVEY_INTERNAL_H

#include "launch/check/survey.h"

/* "a, b and 3 more": those whose mark is set. */
void survey_names(const survey *s, const bool *marks, text_buf *out);

/* Paths, the network, and what is wrong with them; `marks` is room for two a host. */
LS_MUST_USE ls_status survey_judge_ways(survey *s, bool *marks);

#endif
