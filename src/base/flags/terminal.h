/* SPDX-License-Identifier: Apache-2.0 */
/* terminal.h - the width of a terminal, for help texts and progress lines. */
#ifndef LS_BASE_FLAGS_TERMINAL_H
#define LS_BASE_FLAGS_TERMINAL_H

/* Columns of the terminal behind `fd`; 0 = not a terminal, or of unknown size. */
int terminal_columns(int fd);

#endif
