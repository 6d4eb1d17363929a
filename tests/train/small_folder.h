/* SPDX-License-Identifier: Apache-2.0 */
/* small_folder.h - the folder of the small set as a cmocka fixture, and files in it. */
#ifndef TESTS_TRAIN_SMALL_FOLDER_H
#define TESTS_TRAIN_SMALL_FOLDER_H

#include <sys/types.h>

extern char small_dir[64];
/* The path of the test, which it can start as a rank. */
extern char small_program[4096];

/* Group fixture: makes small_dir with the small set, and removes it. */
int small_dir_make(void **state);
int small_dir_remove(void **state);

/* The path of a file in small_dir; valid for the next five calls. */
const char *path_in(const char *name);
/* -1 when there is no such file. */
off_t size_of(const char *path);
/* The content of a file; freed with ls_free(). */
char *text_of(const char *path);
void write_text(const char *path, const char *text);
/* The first place where a file has these bytes gets others. */
void replace_in_file(const char *path, const void *from, const void *to, size_t n);

#endif
