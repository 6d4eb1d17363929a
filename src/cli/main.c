/* SPDX-License-Identifier: Apache-2.0 */
/*
 * main.c - lockstep COMMAND ...; under the names torchrun and all_reduce_perf (links) it behaves
 * as those programs do.
 */
#include "cli/cli.h"

#include "base/text.h"
#include "diagnose/checks/check.h"

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
    {"check", cmd_check, "diagnose problems on this machine or several, verify saved files"},
    {"ps", cmd_ps, "list the running jobs of this user on this machine"},
    {"top", cmd_top, "show the ranks of a running job"},
    {"report", cmd_report, "write an HTML page about training runs"},
    {"trace", cmd_trace, "print what takes the time in traces of training runs"},
    {"plan", cmd_plan, "forecast how fast a program trains on more machines"},
    {"replay", cmd_replay, "compute a step that ended in NaN again, all ranks in one process"},
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
        "\nlockstep COMMAND --help, or lockstep help COMMAND, lists its flags. lockstep --version\n"
        "prints the version.\n");
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

static int version(void)
{
    print_out("lockstep %s\n", ls_version());
    return 0;
}

static bool is_word_of(const char *text, const char *const *words)
{
    while (*words != NULL && !text_equal(text, *words))
        words++;
    return *words != NULL;
}

static const char *const help_words[] = {"--help", "-h", "help", NULL};
static const char *const version_words[] = {"--version", "-V", "version", NULL};

static int run_command(int argc, char **argv)
{
    for (size_t i = 0; i < LS_COUNT_OF(commands); i++)
        if (text_equal(argv[0], commands[i].name))
            return argc == 2 && text_equal(argv[1], "--version") ? version()
                                                                 : commands[i].run(argc, argv);
    print_error("lockstep: unknown command %s; lockstep --help lists the commands\n", argv[0]);
    return 2;
}

/* "help run" is "run --help". */
static int help_about(char *command)
{
    static char flag[] = "--help";
    char *argv[] = {command, flag, NULL};

    return run_command(2, argv);
}

static int run_program(int argc, char **argv)
{
    const char *program = argc > 0 ? file_name(argv[0]) : "";
    const bool is_torchrun = text_equal(program, "torchrun");

    if ((is_torchrun || is_perf_program(program)) && argc == 2 && text_equal(argv[1], "--version"))
        return version();
    if (is_torchrun)
        return cmd_torchrun(argc, argv);
    if (is_perf_program(program))
        return cmd_perf(program, argc, argv);
    if (argc < 2) {
        (void)help();
        return 2;
    }
    if (is_word_of(argv[1], help_words))
        return argc > 2 ? help_about(argv[2]) : help();
    if (is_word_of(argv[1], version_words))
        return version();
    return run_command(argc - 1, argv + 1);
}

int main(int argc, char **argv)
{
    open_standard_streams();
    return print_end(run_program(argc, argv));
}
