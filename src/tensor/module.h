/* SPDX-License-Identifier: Apache-2.0 */
/* module.h - finding and loading devices that are not built in. */
#ifndef LS_TENSOR_MODULE_H
#define LS_TENSOR_MODULE_H

#include "tensor/device.h"

/* Loads liblockstep_NAME.so as module_open() of base/ does. LS_EUNSUPPORTED: the text has the
 * folders that were searched, or the reason of the failure. */
LS_MUST_USE ls_status module_load(const char *name, const device_ops **ops, void **out);

/* Whether there is such a file, as module_load() does, without loading it. */
LS_MUST_USE ls_status module_check(const char *name);

void module_unload(void *module); /* NULL is allowed */

#endif
