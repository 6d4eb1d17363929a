/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pages.h - a command's table of flags as a man page, and as parts of the completions of bash, zsh
 * and fish. Pure. cmd_pages.c calls it for every command.
 */
#ifndef LS_CLI_PAGES_PAGES_H
#define LS_CLI_PAGES_PAGES_H

#include "cli/cli.h"

typedef struct pages {
    text_buf bash;
    text_buf zsh;
    text_buf fish;
} pages;

/* lockstep.1: the commands. */
void pages_man_tool(text_buf *out);
/* lockstep-NAME.1 */
void pages_man(const cli_command *c, const ls_flags *flags, text_buf *out);

void pages_begin(pages *p);
void pages_add(pages *p, const cli_command *c, const ls_flags *flags);
void pages_end(pages *p);

#endif
