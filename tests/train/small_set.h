/* SPDX-License-Identifier: Apache-2.0 */
/*
 * small_set.h - a folder with a tiny data set in MNIST's format: 8x8 images whose class is where
 * their bright square is.
 */
#ifndef TESTS_TRAIN_SMALL_SET_H
#define TESTS_TRAIN_SMALL_SET_H

#include <stddef.h>

enum { SMALL_TRAIN = 230, SMALL_TEST = 61, SMALL_SIDE = 8, SMALL_CLASSES = 4 };

/* Makes a fresh folder; its path goes to dir (at least 64 bytes). */
void small_set_make(char *dir, size_t n);
/* Makes the folder's split "train" or "t10k" anew, with so many samples. */
void small_set_resize(const char *dir, const char *split, int count);
/* Removes it with everything in it. */
void small_set_remove(const char *dir);

#endif
