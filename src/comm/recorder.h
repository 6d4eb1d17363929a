/* SPDX-License-Identifier: Apache-2.0 */
/*
 * recorder.h - the flight recorder: a rank's last operations, in memory that outlives the rank.
 *
 * A memfd holds a header and a ring of RECORDER_ENTRIES entries of 128 bytes. The starter may keep
 * the descriptor and read it at any time, also after SIGKILL. Layout, all fields little-endian
 * 64-bit words written one by one:
 *
 *   header   magic, entry count, rank, number of the last entry, number of the last phase,
 *            activity[88]
 *   entry    number | sequence | what (group, kind, dtype, redop, root) | count | bytes | start_ns | end_ns
 *            | status and peer | site[40]
 *   phase    number | start_ns | end_ns | name[40]: RECORDER_ENTRIES of 64 bytes behind the entries; what the program did beside
 *            its operations (forward, backward, ...), written when it is over
 *
 * `number` counts the operations of the rank from 1 and is written last, after being 0 while the
 * rest changes: a reader takes an entry only when it finds the same nonzero number before and after
 * copying it. end_ns is 0 while the operation runs and is the last word written at its end.
 *
 * Cost       About 20 stores an operation; the clock is read by the caller. Pages are touched as the ring fills.
 * Threads    recorder_begin(), _end(), _phase() and _set_activity() under the engine's
 *            lock; reading anywhere.
 */
#ifndef LS_COMM_RECORDER_H
#define LS_COMM_RECORDER_H

#include "base/activity.h"
#include "base/text.h"
#include "store/stamp.h"

#define RECORDER_ENTRIES 4096

typedef struct recorder recorder;

/*
 * Uses the memfd `fd` (borrowed: duplicated), or an own one when it is -1, closed or something
 * else: a program in between may have closed what the starter handed over.
 */
LS_MUST_USE ls_status recorder_open(int fd, int rank, recorder **out);
void recorder_close(recorder *r); /* NULL is allowed; what was recorded stays behind fd */

/* Notes the start of an operation; gives its number, for recorder_end(). */
uint64_t recorder_begin(recorder *r, const op_stamp *stamp, uint64_t bytes, int64_t now_ns);
/* peer: world rank that was waited for longest, -1: unknown. Does nothing when the ring has gone
 * round since. */
void recorder_end(recorder *r, uint64_t number, ls_status status, int peer, int64_t now_ns);

/* Notes what was done from start to end; at most STAMP_SITE_BYTES - 1 bytes of the name are
 * kept. */
void recorder_phase(recorder *r, const char *name, int64_t start_ns, int64_t end_ns);

/* Notes what the rank must not exit in the middle of; "": nothing. Longer texts are cut. */
void recorder_set_activity(recorder *r, const char *text);

/* Appends what a rank that has ended noted last, printable; nothing where fd holds no recorder. */
void recorder_read_activity(int fd, text_buf *out);

/* A memfd of the right size, CLOEXEC, for a starter to hand over. */
LS_MUST_USE ls_status recorder_create_fd(int *fd);

typedef struct recorder_entry {
    uint64_t number; /* n-th operation of the rank, from 1 */
    op_stamp stamp;
    uint64_t bytes;   /* of the payload, see coll */
    int64_t start_ns; /* CLOCK_MONOTONIC of that machine */
    int64_t end_ns;   /* 0: not ended */
    ls_status status;
    int peer;
} recorder_entry;

/*
 * The last operations in a ring, oldest first, at most `max` of them; *n tells how many. May be
 * called while the rank writes: entries that change meanwhile are left out. LS_EFORMAT: fd holds no
 * recorder.
 */
LS_MUST_USE ls_status recorder_read(int fd, recorder_entry *out, int max, int *n);

typedef struct recorder_span {
    uint64_t number; /* n-th phase of the rank, from 1 */
    int64_t start_ns;
    int64_t end_ns;
    char name[STAMP_SITE_BYTES];
} recorder_span;

/* The last phases, likewise. */
LS_MUST_USE ls_status recorder_read_phases(int fd, recorder_span *out, int max, int *n);

#endif
