/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cli.h - the commands of the tool: each parses its flags, calls the library, and prints.
 *
 * cli/: the commands, one folder each; main.c calls them through this header.
 */
#ifndef LS_CLI_CLI_H
#define LS_CLI_CLI_H

#include <lockstep/flags.h>

#include "base/status.h"
#include "base/text.h"
#include "launch/status/job_status.h"

/* argv[0] is the command's name. Each returns the exit code of the tool. */
int cmd_run(int argc, char **argv);
int cmd_torchrun(int argc, char **argv); /* as cmd_run, but exits with 1 on every failure */
int cmd_bench(int argc, char **argv);
/* cmd_bench() under a program name of nccl-tests, "all_reduce_perf". */
bool is_perf_program(const char *name);
int cmd_perf(const char *program, int argc, char **argv);
int cmd_check(int argc, char **argv);
int cmd_clean(int argc, char **argv);
int cmd_join(int argc, char **argv);
int cmd_data(int argc, char **argv);
int cmd_top(int argc, char **argv);
int cmd_ps(int argc, char **argv);
int cmd_report(int argc, char **argv);
int cmd_trace(int argc, char **argv);
int cmd_plan(int argc, char **argv);
int cmd_replay(int argc, char **argv);
int cmd_pages(int argc, char **argv); /* for the build: man pages and completions */
/* Runs on the other machines of lockstep run and lockstep check, which start it. */
int cmd_agent(int argc, char **argv);

struct check_sources; /* diagnose/checks/check.h */

/* cmd_agent() of lockstep and of lockstep-agent. Checks of the machine read from `sources`. */
int run_agent(int argc, char **argv, const struct check_sources *sources);

/* print.c */
void print_out(const char *format, ...) LS_PRINTF(1, 2);
/* Returns the exit code: `code`, or 1 when print_out() has failed, with its error. */
int print_end(int code);
void print_error(const char *format, ...) LS_PRINTF(1, 2);
/* Prints this thread's last error as "lockstep COMMAND: text". Returns the exit code: 2 for a wrong
 * command line (LS_EINVAL), else 1. */
int print_failure(const char *command, ls_status status);
/* Parses a command line of flags and files in any order. argv then begins with the *n files. */
LS_MUST_USE ls_status parse_with_files(const ls_flags *flags, int argc, char **argv, int *n);
/* Prints the help of a command. Returns the exit code. */
int print_help(const ls_flags *flags);
/* From now on print_help() passes the table to `take` and prints nothing; NULL: it prints. */
void print_help_to(void (*take)(void *arg, const ls_flags *flags), void *arg);

/* main.c: the commands. `summary` is NULL for internal ones. */
typedef struct cli_command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *summary;
} cli_command;

/* NULL behind the last one. */
const cli_command *command_at(size_t i);

#endif
