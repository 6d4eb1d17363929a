/* SPDX-License-Identifier: Apache-2.0 */
/*
 * event_file.h - writes the event files that TensorBoard reads: records of TFRecord (length,
 * CRC-32C of the length, data, CRC-32C of the data) that contain tensorflow.Event messages in the
 * wire format of Protocol Buffers. Message and field numbers are those of tensorboard/compat/proto.
 *
 * The event_* functions add events to a buffer in memory; event_file_flush() appends it to the
 * file, whole records or none. One thread.
 */
#ifndef LS_TRAIN_OUTPUT_EVENT_FILE_H
#define LS_TRAIN_OUTPUT_EVENT_FILE_H

#include "base/text.h"

#include <lockstep/flags.h>

typedef struct event_file {
    char path[4096];
    int fd;        /* -1: closed */
    text_buf data; /* records that are not yet in the file */
    int64_t bytes; /* of the file */
} event_file;

/* Creates a new file events.out.tfevents.SECONDS.HOST.PID.N in the folder `dir`, with its first
 * record. LS_EIO names the path. */
LS_MUST_USE ls_status event_file_open(event_file *f, const char *dir);
/* LS_EIO, LS_ENOMEM: the events since the last flush are lost, the file has whole records. */
LS_MUST_USE ls_status event_file_flush(event_file *f);
void event_file_close(event_file *f); /* without a flush */

/* TensorBoard ignores events of earlier files in this folder from `step` on. */
void event_restart(event_file *f, int64_t step);
void event_scalar(event_file *f, const char *tag, int64_t step, double value);
/* The distribution of `n` values; values that are not finite are left out. No event for none. */
void event_histogram(event_file *f, const char *tag, int64_t step, const float *values, size_t n);
/* `png`: a PNG file of `bytes` bytes. LS_EFORMAT: it does not begin as one. */
LS_MUST_USE ls_status event_image(event_file *f, const char *tag, int64_t step, const void *png,
                                  size_t bytes);
/* The values of `n` flags, for the HPARAMS page. */
void event_flags(event_file *f, const ls_flag *flags, int n);

#endif
