/* SPDX-License-Identifier: Apache-2.0 */
/* capture.c - redirects standard error to a pipe that keeps the borders of writes. */
#include "base/capture.h"

#include "base/unit.h"

#include <fcntl.h>
#include <unistd.h>

void capture_begin(capture *c)
{
    int ends[2];

    // O_DIRECT makes a packet of each write, which read() returns one by one.
    assert_int_equal(pipe2(ends, O_DIRECT | O_CLOEXEC), 0);
    c->pipe_in = ends[0];
    c->saved = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);
    assert_true(c->saved >= 0);
    assert_int_equal(dup2(ends[1], STDERR_FILENO), STDERR_FILENO);
    assert_int_equal(close(ends[1]), 0);
}

void capture_end(capture *c)
{
    assert_int_equal(dup2(c->saved, STDERR_FILENO), STDERR_FILENO);
    assert_int_equal(close(c->saved), 0);
}

int capture_next(capture *c, char *line, int n)
{
    const ssize_t got = read(c->pipe_in, line, (size_t)n - 1);

    assert_true(got >= 0);
    line[got] = '\0';
    return (int)got;
}

void capture_close(capture *c)
{
    assert_int_equal(close(c->pipe_in), 0);
}
