/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_context.h - what the modules of an agent share: the spec, the poller, the node's place in
 * the job, and the calls by which a module reports to the agent. The agent owns it (agent.h); a
 * module has a pointer to it.
 *
 * launch/agent/node/: the modules of an agent that know no rank's output: links to head, store and
 * network, containment, PMI. Called by launch/agent and streams/.
 */
#ifndef LS_LAUNCH_AGENT_NODE_AGENT_CONTEXT_H
#define LS_LAUNCH_AGENT_NODE_AGENT_CONTEXT_H

#include "launch/agent/node/agent_spec.h"
#include "launch/head/node_messages.h"
#include "net/poller.h"

typedef enum agent_phase {
    AGENT_IDLE, /* no ranks: before, between and after generations */
    AGENT_RUNNING,
    AGENT_STOPPING, /* after a request to end the job: SIGTERM, SIGKILL when grace_ms has passed */
    AGENT_FAILING   /* a rank of the job has failed: SIGTERM soon, SIGKILL after that */
} agent_phase;

typedef struct agent_context {
    const agent_spec *spec;
    poller *poller;
    node_welcome place; /* of the present generation; place.place.generation 0: none yet */
    agent_phase phase;
    bool is_over;    /* the job is over, or the agent has given up */
    int stop_signal; /* the last signal that requested the end of the job, 0: none */

    /* The calls of modules to the agent; `agent` is the first argument of each. */
    void *agent;
    /* Sends a message to the head; body NULL: none. Without a connection it is dropped. */
    void (*send)(void *agent, node_message type, const wire_writer *body);
    /* Prints one line of the agent for the user. */
    void (*note)(void *agent, const char *line);
    /*
     * A rank has failed, whatever its exit code; local_rank -1: the start of the ranks. False: that
     * rank has failed before, and nothing was done.
     */
    bool (*fail)(void *agent, int local_rank, int exit_code, const char *why);
    /* Ends agent_run() with this status and this thread's error text. */
    void (*give_up)(void *agent, ls_status st);
    /*
     * stdout (0) or stderr (1) takes nothing more; error: errno, 0 when its reader has closed it.
     */
    void (*lose_output)(void *agent, int which, int error);
} agent_context;

/* context->note() with a format; a line longer than OUTPUT_NOTE_MOST is cut. */
void agent_note(const agent_context *ctx, const char *format, ...) LS_PRINTF(2, 3);

/* context->send() of a body that is then freed. If it could not be written, the connection ends. */
void agent_send(const agent_context *ctx, node_message type, wire_writer *body);

/* context->fail() of the start of the ranks, with this thread's error text. */
void agent_fail_start(const agent_context *ctx);

static inline uint32_t agent_generation(const agent_context *ctx)
{
    return ctx->place.place.generation;
}

static inline bool agent_is_elastic(const agent_context *ctx)
{
    return ctx->place.members_port != 0 || ctx->place.members_unix[0] != 0;
}

/* The body of a message that begins with the generation. */
wire_writer agent_begin_message(const agent_context *ctx);

#endif
