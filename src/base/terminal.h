/* SPDX-License-Identifier: Apache-2.0 */
/*
 * terminal.h - the width of a terminal, for help texts and progress lines.
 */
#ifndef LS_BASE_TERMINAL_H
#define LS_BASE_TERMINAL_H

/* Columns of the terminal behind `fd`; 0: it is no terminal, or one that does not tell its size. */
int terminal_columns(int fd);

#endif
