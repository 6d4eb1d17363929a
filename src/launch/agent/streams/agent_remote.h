/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_remote.h - an agent that another agent has started on this machine (starter.h). Its stdin
 * and stdout are the connection to that starter: what its ranks print leaves in frames, input for
 * rank 0 arrives in frames, and the end of stdin ends the ranks.
 */
#ifndef LS_LAUNCH_AGENT_STREAMS_AGENT_REMOTE_H
#define LS_LAUNCH_AGENT_STREAMS_AGENT_REMOTE_H

#include "launch/agent/streams/agent_input.h"
#include "net/messages/frame.h"

/* Frames to the starter. Output without bytes is the end of the stream. */
void agent_remote_write_output(output_sink *to, int rank, int which, const char *bytes, size_t n);
/* With which a rank will print why it fails: recorder_hash_line(). */
void agent_remote_write_failure_line(output_sink *to, int rank, uint64_t hash);
void agent_remote_write_note(output_sink *to, const char *line);
void agent_remote_write_window(output_sink *to, size_t more); /* rank 0's stdin takes more bytes */

/* Frames from the starter. */
typedef struct starter_reader {
    agent_input *input;
    poll_watch *watch; /* NULL: the connection has ended, or there is no starter */
    frame_reader in;
    void *self;
    void (*resize)(void *self, pty_size size); /* the size of the ranks' terminals has changed */
    void (*lost)(void *self, const char *why); /* the connection has ended */
} starter_reader;

/* self, resize and lost are set. */
LS_MUST_USE ls_status agent_remote_open(starter_reader *s, agent_input *input);
void agent_remote_close(starter_reader *s);

/* The starter takes no more output: as the end of stdin. */
void agent_remote_lose(starter_reader *s, const char *why);

#endif
