/* SPDX-License-Identifier: Apache-2.0 */
/*
 * program.h - facts about a program's file before it runs: the libraries that it needs, and whether
 * PATH has it.
 */
#ifndef LS_LAUNCH_PROGRAM_H
#define LS_LAUNCH_PROGRAM_H

#include <stdbool.h>

/*
 * Whether the program (a path, or a name in PATH) itself needs a shared library whose name starts
 * with `library` ("libmpi.so."). False for scripts, programs of another word size and unreadable
 * files.
 */
bool program_needs(const char *program, const char *library);

/* Whether PATH has an executable program of this name. */
bool program_is_in_path(const char *program);

#endif
