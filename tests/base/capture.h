/* SPDX-License-Identifier: Apache-2.0 */
/* capture.h - captures what code writes to standard error, one string per write(). */
#ifndef TESTS_BASE_CAPTURE_H
#define TESTS_BASE_CAPTURE_H

typedef struct capture {
    int saved;   /* the real standard error */
    int pipe_in; /* reading end */
} capture;

void capture_begin(capture *c);
void capture_end(capture *c); /* restores standard error; captured writes can still be read */

/* The next write() as a terminated string, in `line`; its length, or 0 when there are no more. Only
 * after capture_end(). */
int capture_next(capture *c, char *line, int n);
void capture_close(capture *c);

#endif
