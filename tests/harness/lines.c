/* SPDX-License-Identifier: Apache-2.0 */
/* lines.c - the shared memory behind lines.h: a memfd that all processes of a test append to. */
#include "harness/lines.h"

#include "base/clock.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define LINES_MAX 65536
#define AWAIT_MS  60000

int lines_create(void)
{
    return memfd_create("lines", 0);
}

int lines_take_stderr(int lines)
{
    const int old = dup(STDERR_FILENO);

    (void)dup2(lines, STDERR_FILENO);
    return old;
}

static const char *read_lines(int lines)
{
    static char text[LINES_MAX];
    const ssize_t n = pread(lines, text, sizeof(text) - 1, 0);

    text[n > 0 ? n : 0] = '\0';
    return text;
}

bool lines_have(int lines, const char *part)
{
    return strstr(read_lines(lines), part) != NULL;
}

void lines_print(int lines)
{
    (void)fputs(read_lines(lines), stderr);
}

bool lines_await(int lines, const char *part)
{
    const int64_t deadline_ms = ls_deadline_ms(AWAIT_MS);

    while (!lines_have(lines, part)) {
        if (ls_deadline_left(deadline_ms) == 0)
            return false;
        (void)usleep(2000);
    }
    return true;
}
