/* SPDX-License-Identifier: Apache-2.0 */
/*
 * root_folder.h - a temporary folder that the code under test reads in the place of "/". A failure
 * ends the test.
 */
#ifndef TESTS_HARNESS_ROOT_FOLDER_H
#define TESTS_HARNESS_ROOT_FOLDER_H

#include <stddef.h>

enum { ROOT_FOLDER_BYTES = 64 };

void root_folder_make(char root[ROOT_FOLDER_BYTES]);
/* Writes or replaces the file `path`, relative to the root, and creates its folders. */
void root_folder_put(const char *root, const char *path, const char *text);
void root_folder_put_bytes(const char *root, const char *path, const char *bytes, size_t n);
/* A link to `to`. */
void root_folder_link(const char *root, const char *path, const char *to);
/* Removes a file or folder with all in it; "": the root. */
void root_folder_remove(const char *root, const char *path);

#endif
