/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_input.h - the stdin of rank 0, where the rank does not inherit ours: a pipe for the bytes
 * of the starter, or its terminal with --pty. Bytes are requested only as far as they can be
 * queued.
 */
#ifndef LS_LAUNCH_AGENT_STREAMS_AGENT_INPUT_H
#define LS_LAUNCH_AGENT_STREAMS_AGENT_INPUT_H

#include "launch/agent/streams/agent_output.h"
#include "launch/output/stdin_source.h"
#include "net/byte_queue.h"

typedef struct agent_input {
    agent_output *output;
    int fd; /* non-blocking, towards rank 0; -1: it reads no more, or is on another node */
    poll_watch *watch;
    byte_queue queue; /* not yet written; it is kept for the rank of the next generation */
    size_t granted;   /* bytes requested and not yet received */
    bool has_ended;
    stdin_source *source; /* our own stdin; NULL: nothing has requested it */
} agent_input;

void agent_input_init(agent_input *in, agent_output *output);

/*
 * Sets *child_end to rank 0's stdin; leaves it where the rank inherits ours. `child_stdout` is the
 * rank's end of its stdout, which with --pty is the terminal for both directions.
 */
LS_MUST_USE ls_status agent_input_open(agent_input *in, int child_stdout, int *child_end);
void agent_input_end(agent_input *in);   /* rank 0 has ended */
void agent_input_close(agent_input *in); /* ... and no other rank 0 will be started */

/* Takes bytes for rank 0; n 0: the end. LS_EPROTO: more than was requested. */
LS_MUST_USE ls_status agent_input_take(agent_input *in, const char *bytes, size_t n);

/* Allows `more` bytes of our own stdin for bytes(self, ...). */
LS_MUST_USE ls_status agent_input_read_stdin(agent_input *in, size_t more, void *self,
                                             void (*bytes)(void *self, const char *bytes,
                                                           size_t n));

#endif
