/* SPDX-License-Identifier: Apache-2.0 */
/*
 * build_id.h - which build of this program runs: the linker's hash of it, for comparing two machines.
 */
#ifndef LS_LAUNCH_BUILD_ID_H
#define LS_LAUNCH_BUILD_ID_H

#include <stddef.h>

#define BUILD_ID_TEXT_MAX 68

/* Hexadecimal digits, into buf, which it returns; "unknown" when it was linked without one. */
const char *build_id_text(char *buf, size_t n);

#endif
