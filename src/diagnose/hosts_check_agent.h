/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hosts_check_agent.h - an agent that is asked to look at its machine instead of starting ranks there (hosts_check.h).
 */
#ifndef LS_DIAGNOSE_SURVEY_AGENT_H
#define LS_DIAGNOSE_SURVEY_AGENT_H

#include "diagnose/check.h"
#include "launch/launch.h"
#include "diagnose/hosts_check_messages.h"

/*
 * Looks at this machine and answers questions until stdin ends. `sources`: see check.h.
 * LS_OK: it has ended; other failures are for REMOTE_FAILED.
 */
LS_MUST_USE ls_status hosts_check_agent_run(const hosts_check_orders *task,
                                            const agent_remote *remote,
                                            const check_sources *sources);

#endif
