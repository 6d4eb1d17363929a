/* SPDX-License-Identifier: Apache-2.0 */
/* png_library.h - libspng's header, the name of its library, and memory functions for it. */
#ifndef LS_DATA_IMAGES_PNG_LIBRARY_H
#define LS_DATA_IMAGES_PNG_LIBRARY_H

#include "base/status.h"

#include <stdbool.h>
#include <spng.h>

#define PNG_LIBRARY "libspng.so.0"
#define PNG_PACKAGE "libspng0"

/* Memory functions for a context. Clears the failure of this thread's earlier contexts. */
struct spng_alloc png_memory(void);

/* An allocation of this thread's context failed; libspng reports some of these as broken data. */
bool png_allocation_failed(void);

#endif
