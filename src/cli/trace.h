/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trace.h - the flight recorders of all ranks as one timeline, in the trace event format that Perfetto and chrome://tracing open.
 *
 * Each rank is a process of the timeline. Its first line shows what the program did (forward, backward, ...), those below its operations; as
 * many lines as were under way at a time. An operation says how much later than the first rank this one came to it, and whom it
 * waited for last.
 */
#ifndef LS_CLI_TRACE_H
#define LS_CLI_TRACE_H

#include "base/text.h"
#include "comm/recorder.h"

typedef struct trace_rank {
    int rank;
    char host[64];
    int64_t behind_ns; /* what to add to this machine's clock for that of the others */
    recorder_entry *entries;
    int n_entries;
    recorder_span *phases;
    int n_phases;
} trace_rank;

/* Zero-initialise. */
typedef struct trace {
    trace_rank *ranks;
    int n;
    uint32_t generation; /* the start of the job that they are of */
} trace;

/* For agent_spec.keep_ring: reads the recorder behind `fd`. What earlier starts of the job have left is forgotten; a rank that has
 * recorded nothing, or for which there is no memory, is left out. */
void trace_keep(void *arg, uint32_t generation, int rank, const char *host, int64_t behind_ns,
                int fd);

/* The timeline as JSON. Times count from its first event. */
LS_MUST_USE ls_status trace_text(const trace *t, text_buf *out);

void trace_free(trace *t);

#endif
