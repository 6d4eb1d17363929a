/* SPDX-License-Identifier: Apache-2.0 */
/* module.h - finds and loads Lockstep's own shared objects (liblockstep_NAME.so) at first use. */
#ifndef LS_BASE_MODULE_H
#define LS_BASE_MODULE_H

#include "base/status.h"

#include <stdbool.h>

/* Opens liblockstep_NAME.so from the first folder that has it: LOCKSTEP_MODULE_DIR, the folder of
 * the library or program that contains this code, ../lib beside it, and the folder of modules of
 * an installed tree, which is found from there and may be moved with the tree. The module is never
 * unloaded: its threads may still run. LS_ENOTFOUND lists the folders; LS_EUNSUPPORTED has the
 * loader's error. `out` is for dlsym(). */
LS_MUST_USE ls_status module_open(const char *name, void **out);

/* LS_OK when module_open() would find the file. Loads nothing. LS_ENOTFOUND: as above. */
LS_MUST_USE ls_status module_find(const char *name);

/* The folder of the library or program that contains this code; `buf` has PATH_MAX bytes. */
bool module_own_folder(char *buf);

enum { MODULE_PATH_BYTES = 2 * 4096 + 64 };

/* The path of another file of the installation: in the folders of modules, or (in a wheel) in the
 * folder above the library's. false: there is none. */
bool module_find_file(const char *name, char path[MODULE_PATH_BYTES]);

#endif
