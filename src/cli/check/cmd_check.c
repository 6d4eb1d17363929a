/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_check.c - lockstep check: diagnoses problems on this machine or several (check_hosts.c), or
 * verifies saved files. With --settings it prints every LOCKSTEP_* setting, its value and the
 * origin of the value.
 */
#include "cli/check/check_flags.h"
#include "cli/cli.h"

#include "base/clock.h"
#include "base/config.h"
#include "diagnose/checks/check.h"

#include <lockstep/checkpoint.h>

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NNODES_DEFAULT = 2 };

/* --- settings --- */

static void print_setting(config_id id)
{
    const config_entry *entry = &config_table()[id];
    const char *origin = config_origin(id);
    const char *given = getenv(entry->name); // NOLINT(concurrency-mt-unsafe): there is one thread
    const char *value =
        given != NULL && !text_equal(origin, "default") ? given : entry->default_text;

    print_out("%-24s = %-8s (%s)\n", entry->name, value[0] != 0 ? value : "\"\"", origin);
    print_out("    %s%s%s\n", entry->help, entry->choices != NULL ? ": " : "",
              entry->choices != NULL ? entry->choices : "");
}

static int show_settings(void)
{
    const ls_status st = config_check();

    if (st != LS_OK)
        return print_failure("check", st);
    for (int i = 0; i < CONFIG_COUNT; i++)
        print_setting((config_id)i);
    return 0;
}

/* --- findings --- */

static void print_finding(const finding *f)
{
    print_out("%-8s %s: %s\n", finding_severity_text(f->severity), finding_id(f->kind), f->what);
    if (f->severity == FINDING_OK)
        return;
    if (finding_why(f->kind)[0] != 0)
        print_out("         why: %s\n", finding_why(f->kind));
    if (f->fix[0] != 0)
        print_out("         fix: %s\n", f->fix);
}

static int count(const findings *list, finding_severity severity)
{
    int n = 0;

    for (int i = 0; i < list->n; i++)
        n += list->items[i].severity == severity;
    return n;
}

static void print_number(int n, const char *what, const char *end)
{
    print_out("%d %s%s%s", n, what, n == 1 ? "" : "s", end);
}

/* In increasing severity, because a terminal shows the end. */
static void print_findings(const findings *list, bool problems)
{
    for (int severity = problems ? FINDING_NOTE : FINDING_OK; severity <= FINDING_ERROR; severity++)
        for (int i = 0; i < list->n; i++)
            if ((int)list->items[i].severity == severity)
                print_finding(&list->items[i]);
    print_number(count(list, FINDING_ERROR), "error", ", ");
    print_number(count(list, FINDING_WARNING), "warning", ", ");
    print_number(count(list, FINDING_NOTE), "note", "\n");
}

static ls_status print_json(const findings *list)
{
    char host[256] = "";
    text_buf text = {0};
    ls_status st;

    if (gethostname(host, sizeof(host) - 1) != 0)
        text_format(host, sizeof(host), "localhost");
    findings_to_json(list, host, &text);
    st = text_status(&text);
    if (st == LS_OK)
        print_out("%s\n", text_str(&text));
    text_free(&text);
    return st;
}

static ls_status read_options(const check_flags *f, check_options *out)
{
    int64_t n = 0;

    if (!text_equal(f->nproc, "auto"))
        LS_TRY(text_parse_int(f->nproc, "--nproc-per-node", 1, 65536, &n));
    *out = (check_options){.n_ranks = (int)n,
                           .several_nodes = f->nnodes != 1,
                           .master_port = (int)f->master_port,
                           .tries_gpus = f->gpu_check != 0,
                           .sources = check_this_machine()};
    if (f->quick && f->gpu_check)
        return ls_fail(LS_EINVAL, "--gpu-check and --quick exclude each other: --quick skips GPUs");
    return LS_OK;
}

/* Prints and frees them. Returns the exit code. */
static int finish(const check_flags *f, ls_status st, findings *found)
{
    int code = 0;

    if (st == LS_OK && f->json)
        st = print_json(found);
    else if (st == LS_OK)
        print_findings(found, f->problems);
    if (st != LS_OK)
        code = print_failure("check", st);
    else if (findings_worst(found) == FINDING_ERROR)
        code = 1;
    findings_free(found);
    return code;
}

static int check_machine(const check_flags *f, const check_options *options)
{
    findings found = {0};
    const ls_status st = f->quick ? check_quick(options, &found) : check_all(options, &found);

    return finish(f, st, &found);
}

/* --- saved files --- */

static ls_status verify(const char *path, int *n_tensors, int *has_digests)
{
    ls_checkpoint *file;
    ls_status st;

    LS_TRY(ls_checkpoint_open(path, &file));
    *n_tensors = ls_checkpoint_count(file);
    st = ls_checkpoint_verify(file, has_digests);
    ls_checkpoint_close(file);
    return st;
}

static void check_file(const char *path, findings *found)
{
    const int64_t begin = ls_now_ns();
    struct stat info = {.st_size = 0};
    int has_digests = 0;
    int n = 0;
    char size[32];

    if (verify(path, &n, &has_digests) != LS_OK) {
        finding_add(found, FINDING_CHECKPOINT_BAD_KIND, FINDING_ERROR, NULL, "%s", ls_last_error());
        return;
    }
    (void)stat(path, &info); // for display
    text_bytes(size, sizeof(size), (uint64_t)info.st_size);
    if (has_digests)
        finding_add(found, FINDING_CHECKPOINT_OK_KIND, FINDING_OK, NULL,
                    "%s: %d tensor%s, %s in %.2f s: all match their digests", path, n,
                    text_plural(n), size, (double)(ls_now_ns() - begin) * 1e-9);
    else
        finding_add(found, FINDING_CHECKPOINT_PLAIN_KIND, FINDING_NOTE, NULL,
                    "%s: %d tensor%s, %s: the header is valid; the file has no digests (another "
                    "program or an earlier version has written it)",
                    path, n, text_plural(n), size);
}

static ls_status refuse_other_flags(const check_flags *f)
{
    const bool is_for_machines = f->hosts != NULL || f->hostfile != NULL || f->ssh != NULL ||
                                 f->ssh_port != 0 || f->net != NULL || f->port_range != NULL ||
                                 f->master_port != 0 || f->nnodes != NNODES_DEFAULT ||
                                 !text_equal(f->nproc, "auto") || f->gpu_check || f->quick ||
                                 f->settings;

    return is_for_machines
               ? ls_fail(LS_EINVAL, "with a FILE only --json and --problems can be given")
               : LS_OK;
}

static int check_files(const check_flags *f, char *const *paths, int n)
{
    findings found = {0};
    const ls_status st = refuse_other_flags(f);

    if (st != LS_OK)
        return print_failure("check", st);
    for (int i = 0; i < n; i++)
        check_file(paths[i], &found);
    return finish(f, findings_status(&found), &found);
}

static int check_what_is_asked(const check_flags *f)
{
    check_options options;
    bool has_hosts = false;
    ls_status st = read_options(f, &options);

    if (st == LS_OK)
        st = check_hosts_find(f, &options, &has_hosts);
    if (st != LS_OK)
        return print_failure("check", st);
    return has_hosts ? check_hosts(f, &options) : check_machine(f, &options);
}

#define N_ONE  10
#define N_MANY 9

int cmd_check(int argc, char **argv)
{
    check_flags f = {.nproc = "auto", .nnodes = NNODES_DEFAULT};
    int n_files = 0;
    const ls_flag one[N_ONE] = {
        {"This machine", 0, LS_FLAG_HEADING, NULL, 0, 0, NULL},
        {"nproc-per-node", 'n', LS_FLAG_TEXT, &f.nproc, 0, 0,
         "`N` ranks on each machine, or auto: one per usable core; with -H the slots of the hosts"},
        {"nnodes", 0, LS_FLAG_INT, &f.nnodes, 1, 65536,
         "number of machines of the job; with 1, host names and networks are checked less "
         "strictly"},
        {"master-port", 0, LS_FLAG_INT, &f.master_port, 0, 65535,
         "`PORT` of the job; 0 = MASTER_PORT, or 29500"},
        {"gpu-check", 0, LS_FLAG_BOOL, &f.gpu_check, 0, 0,
         "open each GPU and use some of its memory; takes seconds, a minute if a GPU hangs"},
        {"json", 0, LS_FLAG_BOOL, &f.json, 0, 0,
         "print JSON: an array of findings; for several machines an object"},
        {"quick", 0, LS_FLAG_BOOL, &f.quick, 0, 0,
         "only fast checks: host names, networks, limits, cores, /dev/shm"},
        {"problems", 0, LS_FLAG_BOOL, &f.problems, 0, 0, "print only problems"},
        {"settings", 0, LS_FLAG_BOOL, &f.settings, 0, 0,
         "only print all settings, their values and the origin of the values"},
        {"help", 'h', LS_FLAG_BOOL, &f.help, 0, 0, "print this text"},
    };
    const ls_flag many[N_MANY] = {
        {"Several machines", 0, LS_FLAG_HEADING, NULL, 0, 0, NULL},
        {"hosts", 'H', LS_FLAG_TEXT, &f.hosts, 0, 0,
         "`LIST` machines to check by ssh, a:8,user@b:2, and the networks between them; in a Slurm "
         "allocation the default is its machines"},
        {"host", 0, LS_FLAG_TEXT, &f.hosts, 0, 0, NULL},
        {"hostfile", 0, LS_FLAG_TEXT, &f.hostfile, 0, 0,
         "`FILE` the same from a file, one a line: a slots=8, or a:8"},
        {"machinefile", 0, LS_FLAG_TEXT, &f.hostfile, 0, 0, NULL},
        {"ssh", 0, LS_FLAG_TEXT, &f.ssh, 0, 0,
         "`COMMAND` command with arguments to use instead of ssh"},
        {"ssh-port", 0, LS_FLAG_INT, &f.ssh_port, 0, 65535, "`PORT` of the ssh servers"},
        {"net", 0, LS_FLAG_TEXT, &f.net, 0, 0,
         "`LIST` networks that may be used: eth0,10.0.0.0/8,^docker0"},
        {"port-range", 0, LS_FLAG_TEXT, &f.port_range, 0, 0,
         "`A-B` ports at which hosts listen for each other"},
    };
    const ls_flags flags = {.size = sizeof(flags),
                            .program = "lockstep check",
                            .usage = "[flags] [FILE...]",
                            .summary =
                                "Diagnoses problems of this machine, or of those of -H: what "
                                "they are, why they matter, and the command that fixes "
                                "them.\n"
                                "With FILEs of --save or other safetensors files: whether each is "
                                "what was written.\n"
                                "Exits with 1 when there is an error.",
                            .tables = {one, many},
                            .n = {N_ONE, N_MANY},
                            .takes_rest = 1};
    const ls_status st = parse_with_files(&flags, argc, argv, &n_files);

    if (st == LS_OK && f.help)
        return print_help(&flags);
    if (st != LS_OK)
        return print_failure("check", st);
    if (n_files > 0)
        return check_files(&f, argv, n_files);
    return f.settings ? show_settings() : check_what_is_asked(&f);
}
