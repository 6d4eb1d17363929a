/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trace.h - the flight recorders of all ranks as one timeline, in the trace event format of
 * Perfetto and chrome://tracing.
 *
 * Each rank is a process of the timeline. Its first line shows the phases of the program (forward,
 * backward, ...), the lines below show its operations, one line for each that was pending at the
 * same time. An operation has two values: how much later than the first rank this rank came to it
 * (late_us), and the rank that it waited for last (waited_for_rank). With an accelerator there are
 * lines for its two queues: when it executed the phases (compute), and when the operations on its
 * memory (communication).
 *
 * cli/trace/: the timeline of --trace, and lockstep trace. cli/run calls this header.
 */
#ifndef LS_CLI_TRACE_TRACE_H
#define LS_CLI_TRACE_TRACE_H

#include "base/text.h"
#include "comm/record/recorder.h"

typedef struct trace_rank {
    int rank;
    char host[64];
    int64_t behind_ns; /* this machine's clock + behind_ns = the clock of the head's machine */
    recorder_entry *entries;
    int n_entries;
    recorder_span *phases;
    int n_phases;
    recorder_span *device_phases;
    int n_device_phases;
    uint64_t n_dropped; /* phases of the device */
} trace_rank;

/* Zero-initialise. */
typedef struct trace {
    trace_rank *ranks;
    int n;
    uint32_t generation; /* of the job, which all recorders are from */
} trace;

/* For agent_spec.keep_ring: reads the recorder in `fd`. Drops the recorders of an earlier
 * generation. Leaves out a rank that has recorded nothing, or for which there is no memory. */
void trace_keep(void *arg, uint32_t generation, int rank, const char *host, int64_t behind_ns,
                int fd);

/* Appends the timeline as JSON. Times count from its first event. */
LS_MUST_USE ls_status trace_text(const trace *t, text_buf *out);

void trace_free(trace *t);

#endif
