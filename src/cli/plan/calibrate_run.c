/* SPDX-License-Identifier: Apache-2.0 */
/*
 * calibrate_run.c - runs what a forecast is calibrated with: this tool, as `lockstep run` and
 * `lockstep bench`. What the runs print and write is in a folder of its own, which is removed.
 */
#include "cli/plan/calibrate.h"

#include "base/alloc.h"
#include "base/file.h"
#include "base/report/json.h"
#include "cli/cli.h"
#include "host/process.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ARGS_MOST = 1024, PATH_BYTES = 512, RUNS_MOST = 2, EXCHANGE_RUNS = 5 };

#define REPORT_BYTES ((size_t)256 << 20)
#define SHOWN_BYTES  ((size_t)4000)
/* An exchange is measured with vectors of the mean size of the buckets, in these bounds. */
#define LEAST_BYTES 65536.0
#define MOST_BYTES  (64.0 * 1048576)

/* A run: its files, and its process. */
typedef struct run {
    char report[PATH_BYTES];
    char output[PATH_BYTES];
    pid_t pid; /* 0: none */
} run;

typedef struct runner {
    char tool[4096];
    char folder[PATH_BYTES - 32];
    run runs[RUNS_MOST];
    sigset_t awaited; /* signals that end a run, or all */
    sigset_t before;
} runner;

/* --- processes --- */

static const int awaited[] = {SIGCHLD, SIGINT, SIGTERM, SIGHUP};

static ls_status open_runner(runner *r)
{
    const char *parent = getenv("TMPDIR"); // NOLINT(concurrency-mt-unsafe): there is one thread

    *r = (runner){.folder = ""};
    (void)sigemptyset(&r->awaited);
    for (size_t i = 0; i < LS_COUNT_OF(awaited); i++)
        (void)sigaddset(&r->awaited, awaited[i]);
    (void)sigprocmask(SIG_BLOCK, &r->awaited, &r->before);
    if (readlink("/proc/self/exe", r->tool, sizeof(r->tool) - 1) <= 0)
        return ls_fail_errno("/proc/self/exe");
    if (parent == NULL || parent[0] != '/' || strlen(parent) > sizeof(r->folder) - 32)
        parent = "/tmp";
    text_format(r->folder, sizeof(r->folder), "%s/lockstep-plan-XXXXXX", parent);
    if (mkdtemp(r->folder) == NULL) {
        const ls_status st = ls_fail_errno("a folder in %s", parent);

        r->folder[0] = '\0';
        return st;
    }
    for (int i = 0; i < RUNS_MOST; i++) {
        text_format(r->runs[i].report, PATH_BYTES, "%s/report%d", r->folder, i);
        text_format(r->runs[i].output, PATH_BYTES, "%s/output%d", r->folder, i);
    }
    return LS_OK;
}

static void close_runner(runner *r)
{
    for (int i = 0; i < RUNS_MOST; i++) {
        run *a = &r->runs[i];

        if (a->pid > 0 && kill(a->pid, SIGTERM) == 0)
            while (waitpid(a->pid, NULL, 0) < 0 && errno == EINTR)
                ;
        (void)unlink(a->report);
        (void)unlink(a->output);
    }
    if (r->folder[0] != '\0')
        (void)rmdir(r->folder);
    (void)sigprocmask(SIG_SETMASK, &r->before, NULL);
}

/* In the child: its output goes to the file. */
static void become(const runner *r, char *const *args, const char *output, pid_t parent)
{
    const int in = open("/dev/null", O_RDONLY | O_CLOEXEC);
    const int out = open(output, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
    process_reset_signals(&r->before);
    if (getppid() != parent || in < 0 || out < 0 || dup2(in, STDIN_FILENO) < 0 ||
        dup2(out, STDOUT_FILENO) < 0 || dup2(out, STDERR_FILENO) < 0)
        _exit(126);
    (void)execv(args[0], args);
    _exit(127);
}

/* Starts the tool with these arguments. */
static ls_status start(runner *r, int which, const char *const *first, char *const *rest)
{
    const pid_t parent = getpid();
    run *a = &r->runs[which];
    char *args[ARGS_MOST] = {r->tool};
    int n = 1;

    for (; *first != NULL; first++)
        args[n++] = (char *)(uintptr_t)*first;
    for (; rest != NULL && *rest != NULL; rest++) {
        if (n == ARGS_MOST - 1)
            return ls_fail(LS_EINVAL, "the program has too many arguments, more than %d", n);
        args[n++] = *rest;
    }
    (void)unlink(a->report); // lockstep run would keep it under another name
    a->pid = fork();
    if (a->pid == 0)
        become(r, args, a->output, parent);
    if (a->pid < 0) {
        a->pid = 0;
        return ls_fail_errno("starting %s", r->tool);
    }
    return LS_OK;
}

/* The end of what a run has printed. */
static void show_output(const run *a)
{
    char *text;
    size_t bytes;

    if (file_read(a->output, REPORT_BYTES, &text, &bytes) != LS_OK)
        return;
    print_error("%s", bytes > SHOWN_BYTES ? text + bytes - SHOWN_BYTES : text);
    ls_free(text);
}

/* `what` ran: its report. */
static ls_status await(runner *r, int which, const char *what, char **report, size_t *bytes)
{
    run *a = &r->runs[which];
    int status = 0;
    int signal = SIGCHLD;

    while (waitpid(a->pid, &status, WNOHANG) == 0) {
        if (signal != SIGCHLD)
            return ls_fail(LS_ECANCELED, "stopped by signal %d", signal);
        signal = sigwaitinfo(&r->awaited, NULL);
        if (signal < 0)
            signal = SIGCHLD; // EINTR
    }
    a->pid = 0;
    if (status != 0) {
        show_output(a);
        return ls_fail(LS_EPEER, "%s failed with exit code %d; its output is above", what,
                       WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
    }
    return file_read(a->report, REPORT_BYTES, report, bytes);
}

/* --- steps --- */

static ls_status start_program(runner *r, int which, char *const *program)
{
    const char *const first[] = {"run", "-n", "1", "--trace", r->runs[which].report, "--", NULL};

    return start(r, which, first, program);
}

static ls_status read_program(runner *r, int which, const char *program, forecast_step *step)
{
    char *report;
    size_t bytes;
    ls_status st;

    *step = (forecast_step){.n_buckets = 0};
    LS_TRY(await(r, which, program, &report, &bytes));
    st = calibrate_read_trace(report, bytes, program, step);
    ls_free(report);
    return st;
}

static void free_step(forecast_step *step)
{
    ls_free((forecast_bucket *)(uintptr_t)step->buckets);
    step->buckets = NULL;
}

/* The program twice at the same time. */
static ls_status measure_beside(runner *r, char *const *program, calibration *out)
{
    const double alone_s = out->step.other_s + out->step.backward_s;
    double sum_s = 0;
    ls_status st = start_program(r, 0, program);

    if (st == LS_OK)
        st = start_program(r, 1, program);
    for (int i = 0; i < RUNS_MOST && st == LS_OK; i++) {
        forecast_step step;

        st = read_program(r, i, program[0], &step);
        sum_s += step.other_s + step.backward_s;
        free_step(&step);
    }
    out->beside = alone_s > 0 && sum_s > 2 * alone_s ? sum_s / 2 / alone_s : 1;
    return st;
}

/* --- the exchange of two ranks --- */

static ls_status read_seconds(const char *report, size_t bytes, double *seconds)
{
    json_value *rows;
    double us;

    LS_TRY(json_parse(report, bytes, "the report of lockstep bench", &rows));
    us = json_as_real(json_get(json_at(rows, 1), "time_us"), 0); // in place, as DDP
    json_free(rows);
    *seconds = us * 1e-6;
    return us > 0 && us < 1e9 ? LS_OK : ls_fail(LS_EFORMAT, "lockstep bench has measured no time");
}

static ls_status measure_once(runner *r, bool is_tcp, double size, double *seconds)
{
    char size_text[32];
    const char *const args[] = {"bench",       "all_reduce",
                                "-g",          "2",
                                "-n",          "20",
                                "-w",          "5",
                                "-c",          "0",
                                "--memory",    "registered",
                                "-b",          size_text,
                                "-e",          size_text,
                                "--json",      r->runs[0].report,
                                "--transport", is_tcp ? "tcp" : "shm",
                                NULL};
    char *report;
    size_t bytes;
    ls_status st;

    text_format(size_text, sizeof(size_text), "%.0f", size);
    LS_TRY(start(r, 0, args, NULL));
    LS_TRY(await(r, 0, "lockstep bench", &report, &bytes));
    st = read_seconds(report, bytes, seconds);
    ls_free(report);
    return st;
}

/* The fastest of some runs: other processes only make them slower. */
static ls_status measure_all_reduce(runner *r, bool is_tcp, double size, double *seconds)
{
    *seconds = INFINITY;
    for (int i = 0; i < EXCHANGE_RUNS; i++) {
        double once_s;

        LS_TRY(measure_once(r, is_tcp, size, &once_s));
        *seconds = fmin(*seconds, once_s);
    }
    return LS_OK;
}

/* What is beyond the latency of the rounds is the cost of the bytes. */
static ls_status measure_host(runner *r, bool is_tcp, calibration *out)
{
    double size = 0;
    double long_s;
    forecast_exchange e;

    for (int i = 0; i < out->step.n_buckets; i++)
        size += out->step.buckets[i].bytes / out->step.n_buckets;
    size = floor(fmin(fmax(size, LEAST_BYTES), MOST_BYTES) / 64) * 64;
    LS_TRY(measure_all_reduce(r, is_tcp, 8, &out->host.latency_s));
    LS_TRY(measure_all_reduce(r, is_tcp, size, &long_s));
    e = forecast_all_reduce(size, 2);
    long_s -= (is_tcp ? e.rounds : 1) * out->host.latency_s;
    out->host.copy_s_per_byte = fmax(long_s, 0) / e.sent;
    return LS_OK;
}

ls_status calibrate_run(char *const *program, bool is_tcp, calibration *out)
{
    runner r;
    ls_status st = open_runner(&r);

    *out = (calibration){.beside = 1};
    if (st == LS_OK)
        st = start_program(&r, 0, program);
    if (st == LS_OK)
        st = read_program(&r, 0, program[0], &out->step);
    if (st == LS_OK)
        st = measure_beside(&r, program, out);
    if (st == LS_OK)
        st = measure_host(&r, is_tcp, out);
    close_runner(&r);
    return st;
}
