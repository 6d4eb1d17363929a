/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stop_signal.c - records SIGTERM and SIGINT in the one variable that a handler can reach. run.c
 * installs the handler, loop.c asks all ranks to stop at the same step.
 */
#include "train/stop_signal.h"

#include <string.h>

static volatile sig_atomic_t received;

static void on_signal(int signal_number)
{
    received = signal_number;
}

void stop_signal_install(stop_signal *saved)
{
    struct sigaction action;

    memset(&action, 0, sizeof(action));
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    received = 0;
    sigaction(SIGTERM, &action, &saved->term);
    sigaction(SIGINT, &action, &saved->interrupt);
    action.sa_handler = SIG_IGN;
    sigaction(SIGXFSZ, &action, &saved->file_limit);
}

void stop_signal_restore(const stop_signal *saved)
{
    sigaction(SIGTERM, &saved->term, NULL);
    sigaction(SIGINT, &saved->interrupt, NULL);
    sigaction(SIGXFSZ, &saved->file_limit, NULL);
}

int stop_signal_received(void)
{
    return received;
}
