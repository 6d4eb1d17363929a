/* SPDX-License-Identifier: Apache-2.0 */
/* remote_request.h - turns a launch request of another machine into an agent_spec. */
#ifndef LS_CLI_RUN_REMOTE_REQUEST_H
#define LS_CLI_RUN_REMOTE_REQUEST_H

#include "launch/launch.h"
#include "launch/spec/launch_request.h"

/* Sets the environment variables of the request. For a process with one thread; the variables point
 * into the request, which lives as long as the process. */
LS_MUST_USE ls_status remote_request_set_env(const launch_request *o);

/* Sets the environment as above and changes to the folder of the job. */
LS_MUST_USE ls_status remote_request_enter(const launch_request *o);

/* The agent_spec of the request, without nodes, rendezvous and remote. It points into it. */
agent_spec remote_request_spec(const launch_request *o);

#endif
