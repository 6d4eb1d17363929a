/* SPDX-License-Identifier: Apache-2.0 */
/* stop_signal.h - SIGTERM and SIGINT as a request to stop, while a run is in progress. */
#ifndef LS_TRAIN_STOP_SIGNAL_H
#define LS_TRAIN_STOP_SIGNAL_H

#include <signal.h>

/* The actions to restore. */
typedef struct stop_signal {
    struct sigaction term, interrupt, file_limit;
} stop_signal;

/* Also ignores SIGXFSZ, so that a file over the process's limit is a failed write. */
void stop_signal_install(stop_signal *saved);
void stop_signal_restore(const stop_signal *saved);
/* The signal that has arrived since stop_signal_install(), or 0. */
int stop_signal_received(void);

#endif
