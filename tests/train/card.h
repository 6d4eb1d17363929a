/* SPDX-License-Identifier: Apache-2.0 */
/* card.h - faults of the simulated card that a rank of a test computes on: device "cudahost". */
#ifndef TESTS_TRAIN_CARD_H
#define TESTS_TRAIN_CARD_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

/* The card is lost when its queues have got two more pieces of work. */
LS_MUST_USE ls_status card_lose(void);

/* Cards have so much memory from now on. */
LS_MUST_USE ls_status card_set_memory(size_t bytes);

/* Devices that are opened from now on run their work after random times of at most so many
 * microseconds. */
LS_MUST_USE ls_status card_delay(uint64_t seed, uint64_t most_us);

/* *n: launches of CUDA graphs in this process. */
LS_MUST_USE ls_status card_count_graphs(uint64_t *n);

#endif
