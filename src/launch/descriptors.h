/* SPDX-License-Identifier: Apache-2.0 */
/* descriptors.h - how many open files an agent needs, for the agent and `lockstep check`. */
#ifndef LS_LAUNCH_DESCRIPTORS_H
#define LS_LAUNCH_DESCRIPTORS_H

/*
 * At least: a rank takes two pipes, a socket to its shim, its flight recorder, its error file,
 * PMI's socket and the connection to the hub.
 */
#define AGENT_FILES_LEAST      24
#define AGENT_FILES_LEAST_RANK 7
/* With connections of the program's own to the head (PyTorch's store). */
#define AGENT_FILES      64
#define AGENT_FILES_RANK 13

#endif
