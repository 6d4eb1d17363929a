/* SPDX-License-Identifier: Apache-2.0 */
/* cudahost.h - how tests find what gpu_host.h has, in the module of the device. */
#ifndef TESTS_DEVICES_CUDAHOST_H
#define TESTS_DEVICES_CUDAHOST_H

#include "devices/gpu_host.h"

/* The state of the device, whose module it loads at first use; NULL, with the reason in
 * ls_last_error(), when it cannot. */
gpu_host *cudahost(void);

/* The same as it was at first, when no device is open; needs the module. */
gpu_host *cudahost_reset(void);

/* How often the wait of this name was called. */
uint64_t cudahost_waits_of(const char *name);

/* A symbol of the module; NULL as above. */
void *cudahost_symbol(const char *name);

#endif
