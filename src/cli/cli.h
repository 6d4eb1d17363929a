/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cli.h - the commands of the tool: each parses its flags, calls the library, and prints.
 */
#ifndef LS_CLI_CLI_H
#define LS_CLI_CLI_H

#include <lockstep/flags.h>

#include "base/status.h"
#include "base/text.h"

/* argv[0] is the command's name. Each returns the exit code of the tool. */
int cmd_run(int argc, char **argv);
int cmd_torchrun(int argc, char **argv); /* the same by that name: it ends with 1 on any failure */
int cmd_bench(int argc, char **argv);
/* The same by a name of nccl-tests, "all_reduce_perf" (see bench_kind_of_program()). */
int cmd_perf(const char *program, int argc, char **argv);
int cmd_check(int argc, char **argv);
int cmd_clean(int argc, char **argv);
int cmd_join(int argc, char **argv);
int cmd_data(int argc, char **argv);
int cmd_agent(int argc, char **argv); /* on other machines, by lockstep run and lockstep check */

struct check_sources; /* diagnose/check.h */

/* cmd_agent() of either program; what it is asked about its machine it learns from these. */
int run_agent(int argc, char **argv, const struct check_sources *sources);

/* What a dead rank was doing, from its flight recorder: for agent_spec. */
void describe_ring(int fd, text_buf *out);

/* print.c: the only place that writes. */
void print_out(const char *format, ...) LS_PRINTF(1, 2);
void print_error(const char *format, ...) LS_PRINTF(1, 2);
/* The thread's last error as "lockstep COMMAND: text"; gives the exit code 2 for a wrong call, 1 for all else. */
int print_failure(const char *command, ls_status status);
/* The help of a command; gives an exit code. */
int print_help(const ls_flags *flags);

#endif
