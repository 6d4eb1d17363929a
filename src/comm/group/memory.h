/* SPDX-License-Identifier: Apache-2.0 */
/* memory.h - the memory of ls_comm_alloc(), which may outlive its engine. */
#ifndef LS_COMM_GROUP_MEMORY_H
#define LS_COMM_GROUP_MEMORY_H

#include "comm/engine.h"

/* Before the backend closes: the engine's memory stays valid. Not under the lock. */
void memory_keep_all(engine *e);

#endif
