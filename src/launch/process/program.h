/* SPDX-License-Identifier: Apache-2.0 */
/*
 * program.h - what a program's file tells about it before it is run.
 */
#ifndef LS_LAUNCH_PROGRAM_H
#define LS_LAUNCH_PROGRAM_H

#include <stdbool.h>

/*
 * Whether the program (a path, or a name that is looked for in PATH) is itself linked to a shared library whose name starts so
 * ("libmpi.so."). False for scripts, for programs of another word size, and for what cannot be read.
 */
bool program_needs(const char *program, const char *library);

/* Whether a program of this name can be run from PATH. */
bool program_is_in_path(const char *program);

#endif
