/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_run.c - lockstep run [flags] PROG ARGS...: starts any program with the flags of torchrun. */
#include "cli/cli.h"
#include "cli/run/run_flags.h"
#include "cli/trace/trace.h"

#include "base/file.h"
#include "base/text.h"
#include "diagnose/checks/check.h"
#include "host/program.h"
#include "launch/launch.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PROGRAM_ARGS_MOST = 4096 };

static bool ends_with(const char *s, const char *end)
{
    const size_t n = strlen(s);

    return n >= strlen(end) && text_equal(s + n - strlen(end), end);
}

/* A bare name that is not in PATH is looked up in the folder of the tool (build tree) and in
 * libexec (installed programs). */
static char *find_program(char *program)
{
    static const char *const folders[] = {"", LOCKSTEP_PROGRAM_FOLDER "/"};
    static char path[4096 + 512];
    ssize_t n;

    if (strchr(program, '/') != NULL || strlen(program) > 255 || program_is_in_path(program))
        return program;
    n = readlink("/proc/self/exe", path, 4096);
    while (n > 0 && path[n - 1] != '/')
        n--;
    for (size_t i = 0; n > 0 && i < LS_COUNT_OF(folders); i++) {
        text_format(path + n, sizeof(path) - (size_t)n, "%s%s", folders[i], program);
        if (access(path, X_OK) == 0)
            return path;
    }
    return program;
}

/* torchrun assumes a Python script unless --no-python is given; lockstep run looks at the suffix.
 * */
static bool is_python(const run_flags *f, const char *program)
{
    return f->module || f->run_path ||
           (!f->no_python && (f->as_torchrun || ends_with(program, ".py")));
}

/* The command that each rank runs. The agent replaces ${local_rank}. */
static ls_status make_command(const run_flags *f, int argc, char **argv, char **command)
{
    const bool python = is_python(f, argv[0]);
    static char with_dash[] = "--local-rank=${local_rank}";
    static char with_underscore[] = "--local_rank=${local_rank}";
    static char unbuffered[] = "-u";
    static char as_module[] = "-m";
    static char standard[] = "python3";
    char *interpreter = getenv("PYTHON_EXEC"); // NOLINT(concurrency-mt-unsafe): there is one thread
    int n = 0;

    if (argc > PROGRAM_ARGS_MOST)
        return ls_fail(LS_EINVAL, "%d arguments for the program are more than %d", argc,
                       PROGRAM_ARGS_MOST);
    if (python) {
        command[n++] = interpreter != NULL ? interpreter : standard;
        command[n++] = unbuffered;
        if (f->module)
            command[n++] = as_module;
    }
    command[n++] = python ? argv[0] : find_program(argv[0]);
    if (f->pass_local_rank != NULL)
        command[n++] = text_equal(f->pass_local_rank, "underscore") ? with_underscore : with_dash;
    for (int i = 1; i < argc; i++)
        command[n++] = argv[i];
    command[n] = NULL;
    return LS_OK;
}

static bool tees(const run_flags *f, unsigned stream)
{
    unsigned streams = f->job.tee.otherwise;

    for (int i = 0; i < f->job.tee.n; i++)
        streams |= f->job.tee.parts[i].streams;
    return (streams & stream) != 0;
}

static void print_flags_without_effect(const run_flags *f)
{
    for (int which = 0; which < 2; which++)
        if (f->job.filters[which] != NULL && !tees(f, RANK_STDOUT << which))
            print_error("lockstep: --duplicate-%s-filters has no effect without --tee %d or "
                        "--log-dir\n",
                        which == 0 ? "stdout" : "stderr", RANK_STDOUT << which);
}

/* Prints the problems of this machine that take only milliseconds to find; on a terminal also the
 * warnings. */
static void print_problems(const run_flags *f)
{
    const check_options options = {.n_ranks = f->n_ranks, .sources = check_this_machine()};
    const finding_severity least = isatty(STDERR_FILENO) ? FINDING_WARNING : FINDING_ERROR;
    findings found = {0};

    if (f->n_ranks == 0) // all ranks run on other machines
        return;
    if (check_quick(&options, &found) == LS_OK)
        for (int i = 0; i < found.n; i++)
            if (found.items[i].severity >= least)
                print_error("lockstep: %s: %s\n", finding_severity_text(found.items[i].severity),
                            found.items[i].what);
    findings_free(&found);
}

/* As print_failure(), with the name torchrun if that was called. */
static int fail_run(bool as_torchrun, ls_status status)
{
    print_error("%s: %s\n", run_flags_name(as_torchrun), ls_last_error());
    return status == LS_EINVAL ? 2 : 1;
}

static ls_status write_trace(file_atomic *file, const trace *t)
{
    char renamed[FILE_EARLIER_BYTES];
    text_buf text = {0};
    ls_status st = trace_text(t, &text);

    if (st == LS_OK)
        st = file_write_all(file->fd, file->path, text_str(&text), text.length);
    if (st == LS_OK)
        st = file_keep_earlier(file->path, renamed);
    if (st == LS_OK)
        st = file_atomic_commit(file);
    text_free(&text);
    return st;
}

/* Runs the job and, with --trace, writes its timeline. Opens the file before the job starts, so
 * that a wrong path is an error at once. */
static ls_status run_traced(const char *path, agent_spec *spec, agent_result *result)
{
    file_atomic file = {.fd = -1};
    trace t = {0};
    ls_status st;

    if (path == NULL)
        return agent_run(spec, result);
    LS_TRY(file_atomic_begin(&file, path));
    spec->keep_ring = trace_keep;
    spec->ring_keeper = &t;
    st = agent_run(spec, result);
    if (st == LS_OK && write_trace(&file, &t) != LS_OK)
        print_error("lockstep: cannot write the timeline: %s\n", ls_last_error());
    file_atomic_cancel(&file);
    trace_free(&t);
    return st;
}

static int run_job(const run_flags *f)
{
    agent_spec spec = {.n_ranks = f->n_ranks,
                       .job = &f->job,
                       .master_port = (int)f->master_port,
                       .capture = true,
                       .prefix = !f->no_prefix,
                       .fold = !f->no_fold,
                       .nodes = f->has_nodes ? &f->nodes : NULL,
                       .hosts = f->has_hosts ? &f->hosts : NULL,
                       .rendezvous = f->rendezvous,
                       .metrics_port = (int)f->metrics_port};
    const char *error_path = getenv("TORCHELASTIC_ERROR_FILE"); // NOLINT(concurrency-mt-unsafe)
    agent_result result;
    ls_status st;

    if (error_path != NULL && *error_path != 0)
        spec.error_path = error_path;
    print_flags_without_effect(f);
    print_problems(f);
    st = run_traced(f->trace, &spec, &result);
    if (st != LS_OK)
        return fail_run(f->as_torchrun, st);
    if (result.failed)
        print_error("lockstep: %s", text_str(&result.report));
    text_free(&result.report);
    return f->as_torchrun && result.exit_code != 0 ? 1 : result.exit_code;
}

static int run(bool as_torchrun, int argc, char **argv)
{
    static char *command[PROGRAM_ARGS_MOST + 5];
    static run_flags f;
    int rest = argc;
    ls_status st;

    st = run_flags_read(&f, as_torchrun, argc, argv, &rest);
    if (st == LS_OK && f.help)
        return run_flags_help(as_torchrun, f.help > 1);
    if (st == LS_OK)
        st = make_command(&f, argc - rest, argv + rest, command);
    f.job.argv = command;
    return st == LS_OK ? run_job(&f) : fail_run(as_torchrun, st);
}

int cmd_run(int argc, char **argv)
{
    return run(false, argc, argv);
}

int cmd_torchrun(int argc, char **argv)
{
    return run(true, argc, argv);
}
