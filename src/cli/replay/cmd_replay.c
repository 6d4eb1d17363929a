/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_replay.c - lockstep replay FILE: starts the program of a step capsule again, as one process
 * that computes the step of all ranks (--replay of training programs).
 */
#include "cli/cli.h"

#include "base/alloc.h"
#include "checkpoint/program_record.h"

#include <lockstep/checkpoint.h>

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { REPLAY_N_FLAGS = 2 };

static const char *meta(const ls_checkpoint *file, const char *key, char text[512])
{
    const char *value = ls_checkpoint_meta(file, key);

    text_printable(text, 512, value != NULL ? value : "?");
    return text;
}

/* What the file has, and the command. */
static void print_capsule(const ls_checkpoint *file, const program_record *r)
{
    char step[512];
    char ranks[512];
    char device[512];
    char text[512];

    print_out("step %s of %s ranks, %s: %s\n", meta(file, "capsule_step", step),
              meta(file, "capsule_ranks", ranks), meta(file, "device", device),
              meta(file, "capsule_reason", text));
    text_printable(text, sizeof(text), r->folder);
    print_out("in %s:", text);
    for (int i = 0; i < r->argc; i++) {
        text_printable(text, sizeof(text), r->argv[i]);
        print_out(" %s", text);
    }
    print_out("\n");
}

static ls_status set_variable(const char *text)
{
    const char *equals = strchr(text, '=');
    char name[64];
    int failed;

    text_format(name, sizeof(name), "%.*s", (int)strcspn(text, "="), text);
    // NOLINTNEXTLINE(concurrency-mt-unsafe): the tool has one thread
    failed = equals != NULL ? setenv(name, equals + 1, 1) : unsetenv(name);
    return failed == 0 ? LS_OK : ls_fail_errno("setting %s", name);
}

/* Becomes the program; returns only after a failure. `more`: further arguments, NULL ends them. */
static ls_status become_program(const program_record *r, const char *path, char *const *more)
{
    static char flag[] = "--replay";
    char file[PATH_MAX];
    char **argv;
    ls_status st = LS_OK;
    int n_more = 0;
    int n = 0;

    if (realpath(path, file) == NULL)
        return ls_fail_errno("%s", path);
    while (more[n_more] != NULL)
        n_more++;
    LS_TRY(LS_NEW(&argv, (size_t)r->argc + (size_t)n_more + 3, "for %d arguments", r->argc));
    argv[n++] = r->argv[0];
    argv[n++] = flag;
    argv[n++] = file;
    for (int i = 1; i < r->argc; i++)
        argv[n++] = r->argv[i];
    for (int i = 0; i < n_more; i++)
        argv[n++] = more[i];
    for (int i = 0; i < r->n_variables && st == LS_OK; i++)
        st = set_variable(r->variables[i]);
    if (st == LS_OK && chdir(r->folder) != 0)
        st = ls_fail_errno("the folder of the job, %s", r->folder);
    if (st == LS_OK) {
        (void)execv(r->executable, argv);
        st = ls_fail_errno("the program of the job, %s", r->executable);
    }
    ls_free(argv);
    return st;
}

static ls_status replay(const char *path, bool shows, char *const *more)
{
    const char *text;
    ls_checkpoint *file;
    program_record record;
    ls_status st;

    LS_TRY(ls_checkpoint_open(path, &file));
    text = ls_checkpoint_meta(file, PROGRAM_RECORD_KEY);
    st = text == NULL ? ls_fail(LS_EFORMAT, "it is not a step capsule")
                      : program_record_read(text, &record);
    if (st == LS_OK) {
        print_capsule(file, &record);
        if (!shows)
            st = become_program(&record, path, more);
        program_record_free(&record);
    }
    ls_checkpoint_close(file);
    return ls_context(st, "%s", path);
}

int cmd_replay(int argc, char **argv)
{
    int shows = 0;
    int help = 0;
    const ls_flag table[REPLAY_N_FLAGS] = {
        {"show", 0, LS_FLAG_BOOL, &shows, 0, 0,
         "print step, reason and command of the capsule, and start nothing"},
        {"help", 'h', LS_FLAG_BOOL, &help, 0, 0, "print this text"},
    };
    const ls_flags flags = {
        .size = sizeof(flags),
        .program = "lockstep replay",
        .usage = "[flags] FILE [FLAGS OF THE PROGRAM]",
        .summary = "Computes the step of a capsule again, which a training program has left when a "
                   "step ended in NaN or replicas differed: all ranks in one process, with the "
                   "same bits. It starts the command in FILE: only for files that you trust. "
                   "Exit code 0: the results are those of the capsule; 1: they are not, or the "
                   "step cannot be computed here, and the error says why.",
        .tables = {table},
        .n = {REPLAY_N_FLAGS},
        .takes_rest = 1};
    int rest = argc;
    ls_status st = ls_flags_parse(&flags, argc, argv, &rest);

    if (st == LS_OK && help)
        return print_help(&flags);
    if (st == LS_OK && rest == argc)
        st = ls_fail(LS_EINVAL, "no file; usage: lockstep replay [flags] FILE");
    if (st == LS_OK)
        st = replay(argv[rest], shows, argv + rest + 1);
    return st == LS_OK ? 0 : print_failure("replay", st);
}
