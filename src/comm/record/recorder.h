/* SPDX-License-Identifier: Apache-2.0 */
/*
 * recorder.h - the flight recorder: a rank's last operations, in memory that outlives the rank.
 *
 * A memfd contains a header and a ring of RECORDER_ENTRIES entries of 128 bytes. The launcher keeps
 * the descriptor and may read it at any time, also after SIGKILL. All fields are little-endian
 * 64-bit words, written one by one:
 *
 *   header   magic, entry count, rank, number of the last entry, of the last phase of the
 *            program and of a device, number of dropped phases of a device, activity[88],
 *            progress: number, words of recorder_progress, warning: number, text[120],
 *            bytes and duration of all operations that have ended, ranks of which `received` has
 *            a word, leaves (written by the launcher), why a group broke: number, kind, rank,
 *            number of ranks, time, text[512],
 *            hash of the failure that the program printed (0: none)
 *   entry    number | sequence | what (group, kind, dtype, redop, root) | count | bytes |
 *            start_ns | end_ns | status and peer | site[40] | device_start_ns | device_end_ns
 *   phase    number | start_ns | end_ns | name[40]: RECORDER_ENTRIES of 64 bytes after the entries;
 *            phases of the program (forward, backward, ...), written at their end
 *   phase of a device: as many again, when the device has executed the work of a phase
 *   received: a word for each of RECORDER_RANKS ranks, the bytes that came from it
 *
 * `number` counts the operations of the rank from 1. It is 0 while the other words change and is
 * written last: a reader uses an entry only if it reads the same nonzero number before and after
 * the copy. end_ns is 0 while the operation runs and is the last word written at its end.
 *
 * Cost       About 20 stores per operation; the caller reads the clock. Pages are allocated as the
 *            ring fills.
 * Threads    the functions that record are called under the engine's lock, the others anywhere.
 *
 * comm/record/: what ranks record: operations, call sites, counts. launch, train and cli read
 * flight recorders through this header.
 */
#ifndef LS_COMM_RECORD_RECORDER_H
#define LS_COMM_RECORD_RECORDER_H

#include "base/text.h"
#include "hub/cause.h"
#include "hub/stamp.h"

#include <stdbool.h>

#define RECORDER_ENTRIES 4096
#define RECORDER_RANKS   65536

#define RECORDER_ACTIVITY_BYTES 88 /* terminator included; longer texts are cut */

typedef struct recorder recorder;

/* Uses a duplicate of the memfd `fd`, or a new memfd when `fd` is -1, closed or another file: a
 * program between launcher and rank may have closed it. */
LS_MUST_USE ls_status recorder_open(int fd, int rank, recorder **out);
void recorder_close(recorder *r); /* NULL is allowed; the recorded data stays in the memfd */

/* Its memfd, to read: borrowed. */
int recorder_fd(const recorder *r);

/* Records the start of an operation; returns its number for recorder_end(). */
uint64_t recorder_begin(recorder *r, const op_stamp *stamp, uint64_t bytes, int64_t now_ns);
/* peer: the awaited world rank, -1: unknown. Does nothing when the entry has been overwritten. */
void recorder_end(recorder *r, uint64_t number, ls_status status, int peer, int64_t now_ns);

/* When the device executed the operation; before recorder_end(). */
void recorder_device_time(recorder *r, uint64_t number, int64_t start_ns, int64_t end_ns);

/* Records a phase; at most STAMP_SITE_BYTES - 1 bytes of the name are stored. */
void recorder_phase(recorder *r, const char *name, int64_t start_ns, int64_t end_ns);
/* The same of a device; one whose times will not be known. */
void recorder_device_phase(recorder *r, const char *name, int64_t start_ns, int64_t end_ns);
void recorder_drop_device_phase(recorder *r);

/* The launcher: this rank leaves the job, which goes on without it; before the signal that says it.
 * Does nothing if fd is not a recorder. */
void recorder_set_leaving(int fd);
bool recorder_is_leaving(const recorder *r);

/* Before this process prints `line` as the reason of its failure: the launcher may write equal ones
 * of several ranks once. Does nothing if the launcher has passed no recorder. */
void recorder_note_failure_line(const char *line);
/* The hash of that line by recorder_hash_line(); 0: none. */
uint64_t recorder_read_failure_line(int fd);
uint64_t recorder_hash_line(const char *line, size_t bytes); /* not 0 */

/* Why a group of this rank broke, for a launcher that does not host the hub of its ranks. */
typedef struct recorder_cause {
    job_cause cause; /* printable; ranks are those of the hub */
    int rank;        /* that has recorded it */
    int n_ranks;     /* of the hub */
    int64_t at_ns;   /* on the clock of ls_now_ns() */
} recorder_cause;

/* Records the first cause since recorder_open(). */
void recorder_set_cause(recorder *r, const job_cause *cause, int n_ranks, int64_t now_ns);
/* False: none has been recorded, or fd is not a recorder. */
bool recorder_read_cause(int fd, recorder_cause *out);

/* Records the activity during which the rank must not exit; "": none. Longer texts are cut. */
void recorder_set_activity(recorder *r, const char *text);

/* Appends the last activity of an ended rank, made printable; nothing if fd is not a recorder. */
void recorder_read_activity(int fd, text_buf *out);

#define RECORDER_PHASES        8
#define RECORDER_WARNING_BYTES 120

/* How far a training run is. The sums are of this rank since its start, so that a reader of two
 * copies knows what happened in between. */
typedef struct recorder_progress {
    int64_t step;  /* of the optimizer, in the whole run */
    int64_t steps; /* of the whole run; 0: unknown */
    int64_t epoch; /* from 0 */
    int64_t epochs;
    int64_t step_ns; /* when the last step ended, on the clock of ls_now_ns() */
    double step_s;   /* duration of the last step */
    double loss;     /* of the last report */
    double samples;
    double device_bytes;             /* memory of an accelerator in use; 0: unknown */
    double seconds[RECORDER_PHASES]; /* of each phase of ls_run */
    int64_t shards;                  /* with --balance: of this rank in a step; */
    double shard_s;                  /* its time for one; 0: unknown */
    int64_t rows;                    /* with --balance rows: of this rank in a batch; */
    double row_s;                    /* as shard_s */
} recorder_progress;

/* Replaces what was recorded before. About 20 stores. */
void recorder_set_progress(recorder *r, const recorder_progress *p);

/* Records the last warning of this process; longer texts are cut. Any thread; calls at the same
 * time can leave a mixture, which a reader leaves out. */
void recorder_set_warning(recorder *r, const char *text);

/* The counter of bytes received from a rank, which one thread at a time may increase; NULL: the
 * rank is above RECORDER_RANKS. Valid until recorder_close(). */
_Atomic uint64_t *recorder_received(recorder *r, int rank);

/* What a reader needs besides the operations themselves. */
typedef struct recorder_summary {
    uint64_t n_operations; /* started */
    uint64_t op_bytes;     /* of the payloads of all operations that have ended */
    int64_t op_ns;         /* their durations, added up */
    bool has_progress;
    recorder_progress progress;
    char warning[RECORDER_WARNING_BYTES]; /* printable; "": none */
} recorder_summary;

/* May be called while the rank writes. LS_EFORMAT: fd is not a recorder. */
LS_MUST_USE ls_status recorder_read_summary(int fd, recorder_summary *out);

typedef struct recorder_source {
    int rank;
    uint64_t bytes;
} recorder_source;

/* Adds up what was received, and finds the `max` ranks from which most came, those first. In the
 * same way. */
LS_MUST_USE ls_status recorder_read_received(int fd, recorder_source *out, int max, int *n,
                                             uint64_t *total);

/* A memfd of the right size, CLOEXEC, which a launcher passes to a rank. */
LS_MUST_USE ls_status recorder_create_fd(int *fd);

typedef struct recorder_entry {
    uint64_t number; /* n-th operation of the rank, from 1 */
    op_stamp stamp;
    uint64_t bytes;   /* of the payload, see coll */
    int64_t start_ns; /* CLOCK_MONOTONIC of that machine */
    int64_t end_ns;   /* 0: not ended */
    int64_t device_start_ns;
    int64_t device_end_ns; /* 0: not known */
    ls_status status;
    int peer;
} recorder_entry;

/* The last *n operations in a ring, oldest first, at most `max`. May be called while the rank
 * writes: entries that change meanwhile are left out. LS_EFORMAT: fd is not a recorder. */
LS_MUST_USE ls_status recorder_read(int fd, recorder_entry *out, int max, int *n);

typedef struct recorder_span {
    uint64_t number; /* n-th phase of the rank, from 1 */
    int64_t start_ns;
    int64_t end_ns;
    char name[STAMP_SITE_BYTES];
} recorder_span;

/* The last phases, in the same way. */
LS_MUST_USE ls_status recorder_read_phases(int fd, recorder_span *out, int max, int *n);
LS_MUST_USE ls_status recorder_read_device_phases(int fd, recorder_span *out, int max, int *n,
                                                  uint64_t *n_dropped);

#endif
