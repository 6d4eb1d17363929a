/* SPDX-License-Identifier: Apache-2.0 */
/*
 * main.c - lockstep COMMAND ...; under the names torchrun and all_reduce_perf (links) it behaves
 * as those programs do.
 */
#include "cli/cli.h"

#include "base/text.h"
#include "diagnose/check.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

int cmd_agent(int argc, char **argv)
{
    return run_agent(argc, argv, check_this_machine());
}

static const cli_command commands[] = {
    {"run", cmd_run, "start a program as the ranks of a job and supervise them"},
    {"join", cmd_join, "add this machine to a job that waits for nodes"},
    {"bench", cmd_bench, "measure a collective: time, bandwidth, correctness"},
    {"check", cmd_check, "diagnose problems on this machine or several"},
    {"ps", cmd_ps, "list the running jobs of this user on this machine"},
    {"top", cmd_top, "show the ranks of a running job"},
    {"report", cmd_report, "write an HTML page about training runs"},
    {"trace", cmd_trace, "print what takes the time in traces of training runs"},
    {"clean", cmd_clean, "kill leftover processes of dead jobs"},
    {"data", cmd_data, "describe a data set, or write it in another format"},
    {"agent", cmd_agent, NULL},
    {"pages", cmd_pages, NULL}, // called by the build
};

const cli_command *command_at(size_t i)
{
    return i < LS_COUNT_OF(commands) ? &commands[i] : NULL;
}

static int help(void)
{
    print_out("usage: lockstep COMMAND [flags]\n\n");
    for (size_t i = 0; i < LS_COUNT_OF(commands); i++)
        if (commands[i].summary != NULL)
            print_out("  %-8s %s\n", commands[i].name, commands[i].summary);
    print_out(
        "\nlockstep COMMAND --help lists its flags. lockstep --version prints the version.\n");
    return 0;
}

/* Without one of the standard streams, the next descriptor that is opened would take its number. */
static void open_standard_streams(void)
{
    int fd;

    do {
        fd = open("/dev/null", O_RDWR);
    } while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd > STDERR_FILENO)
        (void)close(fd);
}

static const char *file_name(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash != NULL ? slash + 1 : path;
}

int main(int argc, char **argv)
{
    const char *program = argc > 0 ? file_name(argv[0]) : "";

    open_standard_streams();
    if (text_equal(program, "torchrun"))
        return cmd_torchrun(argc, argv);
    if (is_perf_program(program))
        return cmd_perf(program, argc, argv);
    if (argc < 2) {
        (void)help();
        return 2;
    }
    if (text_equal(argv[1], "--help") || text_equal(argv[1], "-h") || text_equal(argv[1], "help"))
        return help();
    if (text_equal(argv[1], "--version") || text_equal(argv[1], "version")) {
        print_out("lockstep %s\n", ls_version());
        return 0;
    }
    for (size_t i = 0; i < LS_COUNT_OF(commands); i++)
        if (text_equal(argv[1], commands[i].name))
            return commands[i].run(argc - 1, argv + 1);
    print_error("lockstep: unknown command %s; lockstep --help lists the commands\n", argv[1]);
    return 2;
}
