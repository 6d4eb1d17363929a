/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stop_signal.c - records signals in the one variable that a handler can reach: SIGTERM, SIGINT,
 * and those that the launcher passes on. run.c installs the handler, loop.c asks all ranks to stop
 * at the same step.
 */
#include "train/stop_signal.h"

#include "base/signal_list.h"

#include <stdlib.h>
#include <string.h>

static volatile sig_atomic_t received;

static void on_signal(int signal_number)
{
    received = signal_number;
}

static uint64_t signals_to_handle(void)
{
    const char *list = getenv(SIGNAL_LIST_ENV); // NOLINT(concurrency-mt-unsafe): no thread sets it
    char error[LS_ERROR_BYTES];
    uint64_t set = 0;

    ls_error_save(error);
    if (list != NULL && signal_list_parse(list, SIGNAL_LIST_ENV, &set) != LS_OK)
        ls_error_restore(error);
    return set | UINT64_C(1) << SIGTERM | UINT64_C(1) << SIGINT;
}

void stop_signal_install(stop_signal *saved)
{
    struct sigaction action;

    saved->handled = signals_to_handle();
    memset(&action, 0, sizeof(action));
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    received = 0;
    for (int number = 1; number < 32; number++)
        if (signal_list_has(saved->handled, number))
            sigaction(number, &action, &saved->old[number]);
    action.sa_handler = SIG_IGN;
    sigaction(SIGXFSZ, &action, &saved->file_limit);
}

void stop_signal_restore(const stop_signal *saved)
{
    for (int number = 1; number < 32; number++)
        if (signal_list_has(saved->handled, number))
            sigaction(number, &saved->old[number], NULL);
    sigaction(SIGXFSZ, &saved->file_limit, NULL);
}

int stop_signal_received(void)
{
    return received;
}
