/* SPDX-License-Identifier: Apache-2.0 */
/*
 * launch.h - the launcher: agents start the ranks of their nodes and leave no process behind.
 *
 *     agent --+-- shim (own session, subreaper) --- rank (own process group) --- its children
 *             +-- shim ...
 *             +-- guardian (own session)
 *
 * One agent of a job hosts its head (head.h), which decides when ranks start and end; every agent
 * carries that out on its node and reads its ranks' output. Each shim and the guardian hold one
 * end of a pipe or socket whose other end only the agent has: its end of file means that the agent
 * is gone, however it died. A shim then kills every process below it. The guardian kills the
 * ranks' control group, where there is one (cgroup.h), and after that every process that carries
 * the job's id in its environment.
 *
 * launch/: the launcher. The tool and diagnose use this header and those that scripts/layers.txt
 * lists.
 */
#ifndef LS_LAUNCH_LAUNCH_H
#define LS_LAUNCH_LAUNCH_H

#include "launch/agent/node/agent_spec.h"

#endif
