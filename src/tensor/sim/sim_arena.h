/* SPDX-License-Identifier: Apache-2.0 */
/* sim_arena.h - device memory of the simulated device: addresses that fault, and their aliases that
 * the queues' threads use. */
#ifndef LS_TENSOR_SIM_ARENA_H
#define LS_TENSOR_SIM_ARENA_H

#include "base/status.h"

#include <stdbool.h>

typedef struct sim_arena sim_arena;

/* LS_ESYSTEM when the memory cannot be mapped. At most 64 exist at a time. */
LS_MUST_USE ls_status arena_create(sim_arena **out);
void arena_destroy(sim_arena *arena); /* NULL is allowed */

/* A block aligned to 256 bytes, filled with 0xFF; NULL: no memory. */
void *arena_alloc(sim_arena *arena, size_t bytes);
/* Fills the block at `start` with 0xFF and frees it. Work that uses it must have ended. */
void arena_free(sim_arena *arena, void *start);

bool arena_owns(const sim_arena *arena, const void *p);

/* Readable and writable memory with the bytes of [p, p + bytes); NULL when these do not lie in one
 * block. */
void *arena_alias(sim_arena *arena, const void *p, size_t bytes);
/* The same for the memory of any arena. */
void *arena_alias_of_any(const void *p, size_t bytes);

void arena_memory(sim_arena *arena, size_t *free_bytes, size_t *total_bytes);

#endif
