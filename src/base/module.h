/* SPDX-License-Identifier: Apache-2.0 */
/*
 * module.h - finding our own shared objects, which a program loads when it asks for what they bring.
 */
#ifndef LS_BASE_MODULE_H
#define LS_BASE_MODULE_H

#include "base/status.h"

/*
 * Opens liblockstep_NAME.so from LOCKSTEP_MODULE_DIR, from the folder of the library or program that this code is in, or
 * from ../lib beside that, whichever has it first. It is never unloaded: its threads may be on their way out. LS_ENOTFOUND
 * tells where it was looked for; LS_EUNSUPPORTED why it cannot be loaded. `out` is for dlsym().
 */
LS_MUST_USE ls_status module_open(const char *name, void **out);

/* LS_OK when module_open() finds a file of this name. Loads nothing. LS_ENOTFOUND: as above. */
LS_MUST_USE ls_status module_find(const char *name);

#endif
