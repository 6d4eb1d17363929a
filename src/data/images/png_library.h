/* SPDX-License-Identifier: Apache-2.0 */
/* png_library.h - libspng's header, the library that belongs to it, and our memory for it. */
#ifndef LS_DATA_PNG_LIBRARY_H
#define LS_DATA_PNG_LIBRARY_H

#include "base/status.h"

#include <stdbool.h>
#include <spng.h>

#define PNG_LIBRARY "libspng.so.0"
#define PNG_PACKAGE "libspng0"

/* Memory for a context. Forgets what this thread's earlier contexts lacked. */
struct spng_alloc png_memory(void);

/* A context of this thread was refused memory: libspng tells it as broken data where zlib was the one to ask. */
bool png_lacked_memory(void);

#endif
