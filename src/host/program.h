/* SPDX-License-Identifier: Apache-2.0 */
/*
 * program.h - facts about a program's file: the libraries that it needs, whether PATH has it, and
 * why it cannot run.
 */
#ifndef LS_HOST_PROGRAM_H
#define LS_HOST_PROGRAM_H

#include <stdbool.h>
#include <stddef.h>

/*
 * Whether the program (a path, or a name in PATH) itself needs a shared library whose name starts
 * with `library` ("libmpi.so."). False for scripts, programs of another word size and unreadable
 * files.
 */
bool program_needs(const char *program, const char *library);

/*
 * Writes to buf what to do about a program (a path, or a name in PATH) that execvp() has refused
 * with this errno, as a clause that follows the error: "; ./train is not executable: ...". "" where
 * nothing is known. Returns buf. Does not block.
 */
const char *program_advice(char *buf, size_t n, const char *program, int error);

/* Whether PATH has an executable program of this name. */
bool program_is_in_path(const char *program);

#endif
