/* SPDX-License-Identifier: Apache-2.0 */
/* card.h - faults of the card that a rank of a test computes on: device "sim" or "cudahost". */
#ifndef TESTS_TRAIN_CARD_H
#define TESTS_TRAIN_CARD_H

#include "base/status.h"

#include <stddef.h>

/* The card is lost when its queues have executed two more pieces of work. */
LS_MUST_USE ls_status card_lose(const char *device);

/* Devices of "cudahost" that are opened from now on have so much memory. */
LS_MUST_USE ls_status card_set_memory(size_t bytes);

#endif
