/* SPDX-License-Identifier: Apache-2.0 */
/* stop_signal.h - signals as a request to stop, while a run is in progress. */
#ifndef LS_TRAIN_STOP_SIGNAL_H
#define LS_TRAIN_STOP_SIGNAL_H

#include <signal.h>
#include <stdint.h>

/* The actions to restore. */
typedef struct stop_signal {
    uint64_t handled; /* bit i: signal i; SIGTERM, SIGINT, and those of the launcher */
    struct sigaction old[32];
    struct sigaction file_limit;
} stop_signal;

/* Also ignores SIGXFSZ, so that a file over the process's limit is a failed write. */
void stop_signal_install(stop_signal *saved);
void stop_signal_restore(const stop_signal *saved);
/* The signal that has arrived since stop_signal_install(), or 0. */
int stop_signal_received(void);

#endif
