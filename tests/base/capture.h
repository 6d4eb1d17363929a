/* SPDX-License-Identifier: Apache-2.0 */
/*
 * capture.h - what a piece of code writes to standard error, one string a write().
 */
#ifndef TESTS_BASE_CAPTURE_H
#define TESTS_BASE_CAPTURE_H

typedef struct capture {
    int saved;   /* the real standard error */
    int pipe_in; /* reading end */
} capture;

void capture_begin(capture *c);
void capture_end(capture *c); /* puts standard error back; what was written can still be read */

/* The next write() as a terminated string, in `line`; 0 when there are no more, else its bytes. Only
 * after capture_end(). */
int capture_next(capture *c, char *line, int n);
void capture_close(capture *c);

#endif
