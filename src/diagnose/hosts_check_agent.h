/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hosts_check_agent.h - an agent that checks its machine instead of starting ranks (hosts_check.h).
 */
#ifndef LS_DIAGNOSE_HOSTS_CHECK_AGENT_H
#define LS_DIAGNOSE_HOSTS_CHECK_AGENT_H

#include "diagnose/check.h"
#include "launch/launch.h"
#include "diagnose/hosts_check_messages.h"

/*
 * Checks this machine and answers requests until stdin ends, then returns LS_OK. The caller reports
 * a failure as REMOTE_FAILED. `sources`: see check.h.
 */
LS_MUST_USE ls_status hosts_check_agent_run(const hosts_check_request *task,
                                            const agent_remote *remote,
                                            const check_sources *sources);

#endif
