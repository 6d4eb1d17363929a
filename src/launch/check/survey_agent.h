/* SPDX-License-Identifier: Apache-2.0 */
/*
 * survey_agent.h - an agent that is asked to look at its machine instead of starting ranks there (survey.h).
 */
#ifndef LS_LAUNCH_SURVEY_AGENT_H
#define LS_LAUNCH_SURVEY_AGENT_H

#include "launch/check/check.h"
#include "launch/launch.h"
#include "launch/check/survey_messages.h"

/*
 * Looks at this machine and answers questions until stdin ends. `sources`: see check.h.
 * LS_OK: it has ended; other failures are for FAR_FAILED.
 */
LS_MUST_USE ls_status survey_agent_run(const survey_orders *task, const agent_far *far,
                                       const check_sources *sources);

#endif
