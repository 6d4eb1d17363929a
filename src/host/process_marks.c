/* SPDX-License-Identifier: Apache-2.0 */
/*
 * process_marks.c - scans an environment for two variables without holding it in memory. lockstep
 * clean, check and the guardian find the processes of a job with it.
 */
#include "host/process_marks.h"

#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

/* Names of jobs are printed and passed as arguments: letters and digits only. */
bool process_is_job_name(const char *text)
{
    const size_t n =
        strspn(text, "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_");

    return n > 0 && text[n] == 0 && n < PROCESS_JOB_BYTES;
}

static void take_entry(mark_scan *scan)
{
    static const char job[] = PROCESS_JOB_ENV "=";
    static const char agent[] = PROCESS_AGENT_ID_ENV "=";

    if (scan->n >= sizeof(scan->entry))
        return; /* longer than any of the variables */
    scan->entry[scan->n] = 0;
    if (text_starts(scan->entry, job) && process_is_job_name(scan->entry + sizeof(job) - 1))
        text_format(scan->job, sizeof(scan->job), "%s", scan->entry + sizeof(job) - 1);
    else if (text_starts(scan->entry, agent))
        text_format(scan->agent, sizeof(scan->agent), "%s", scan->entry + sizeof(agent) - 1);
}

void mark_scan_feed(mark_scan *scan, const char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (bytes[i] == 0) {
            take_entry(scan);
            scan->n = 0;
        } else {
            if (scan->n < sizeof(scan->entry))
                scan->entry[scan->n] = bytes[i];
            scan->n += scan->n < sizeof(scan->entry);
        }
    }
}

void process_marks_read(const char *root, pid_t pid, mark_scan *scan)
{
    char path[PATH_MAX];
    char piece[4096];
    ssize_t n;
    int fd;

    memset(scan, 0, sizeof(*scan));
    text_format(path, sizeof(path), "%s/proc/%d/environ", root, (int)pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return; /* exited, or of another user */
    do {
        n = read(fd, piece, sizeof(piece));
        if (n > 0)
            mark_scan_feed(scan, piece, (size_t)n);
    } while (n > 0 || (n < 0 && errno == EINTR));
    close(fd);
    mark_scan_feed(scan, "", 1);
}
