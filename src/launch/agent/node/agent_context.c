/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_context.c - the calls of an agent's modules to the agent, with their usual arguments.
 * Called by all modules.
 */
#include "launch/agent/node/agent_context.h"

#include "launch/output/output.h"

#include <stdarg.h>
#include <stdio.h>

void agent_note(const agent_context *ctx, const char *format, ...)
{
    char line[OUTPUT_NOTE_MOST];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    ctx->note(ctx->agent, line);
}

void agent_send(const agent_context *ctx, node_message type, wire_writer *body)
{
    ctx->send(ctx->agent, type, body);
    wire_writer_free(body);
}

void agent_fail_start(const agent_context *ctx)
{
    char why[LS_ERROR_BYTES];

    text_format(why, sizeof(why), "%s", ls_last_error());
    (void)ctx->fail(ctx->agent, -1, 1, why);
}

wire_writer agent_begin_message(const agent_context *ctx)
{
    wire_writer w = {0};

    wire_write_u32(&w, agent_generation(ctx));
    return w;
}
