/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_request.h - the launch request for agents on other machines: what this agent was asked to
 * run.
 */
#ifndef LS_LAUNCH_AGENT_STREAMS_AGENT_REQUEST_H
#define LS_LAUNCH_AGENT_STREAMS_AGENT_REQUEST_H

#include "launch/agent/streams/agent_output.h"
#include "launch/spec/launch_request.h"

/* Fills in what is the same for every machine; all texts are borrowed from the spec. */
void agent_request_fill(const agent_output *o, launch_request *out);

/* Writes the request for machines that join by themselves, without the key, which they have. */
LS_MUST_USE ls_status agent_request_write(const agent_output *o, wire_writer *w);

#endif
