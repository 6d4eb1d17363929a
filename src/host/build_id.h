/* SPDX-License-Identifier: Apache-2.0 */
/*
 * build_id.h - the build id of the running program (the linker's hash), which identifies the build.
 */
#ifndef LS_HOST_BUILD_ID_H
#define LS_HOST_BUILD_ID_H

#include <stddef.h>

#define BUILD_ID_TEXT_MAX 68

/* Writes hexadecimal digits into buf and returns it; "unknown" if the program has no build id. */
const char *build_id_text(char *buf, size_t n);

#endif
