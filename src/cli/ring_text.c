/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ring_text.c - prints the last operations in a dead rank's flight recorder; the agent calls it
 * for its report of a failure.
 */
#include "cli/cli.h"

#include "comm/recorder.h"

enum { RING_SHOWN = 3 };

void describe_ring(int fd, text_buf *out)
{
    recorder_entry entries[RING_SHOWN];
    int n;

    if (recorder_read(fd, entries, RING_SHOWN, &n) != LS_OK || n == 0)
        return;
    text_append(out, "  its last operations:\n");
    for (int i = 0; i < n; i++) {
        char stamp[256];
        const char *end = entries[i].status == LS_OK ? "done" : "failed";
        text_append(out, "  | %s, %s\n", stamp_text(stamp, sizeof(stamp), &entries[i].stamp),
                    entries[i].end_ns != 0 ? end : "not finished");
    }
}
