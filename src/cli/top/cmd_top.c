/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_top.c - lockstep top [JOB]: shows the ranks of a running job, live, once, or as JSON; of a
 * job on another machine by the same command there, through ssh.
 */
#include "cli/cli.h"
#include "cli/top/top.h"

#include "base/alloc.h"
#include "base/clock.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

enum { TOP_N_FLAGS = 8, SSH_WORDS = 32 };

typedef struct top_flags {
    int once;
    int json;
    int pairs;
    double interval_s;
    const char *sort;
    const char *host;
    const char *ssh;
    int help;
} top_flags;

/* --- once --- */

static ls_status append_ranks(const top_times *t, top_key key, text_buf *out)
{
    top_entry *order;

    LS_TRY(LS_NEW(&order, (size_t)t->now->n_ranks + 1, "for the table of ranks"));
    top_columns(t->now, out);
    text_append(out, "\n");
    top_sort(t, key, order);
    for (int i = 0; i < t->now->n_ranks; i++) {
        top_row(t, order[i].index, out);
        text_append(out, "\n");
    }
    ls_free(order);
    return LS_OK;
}

static ls_status append_pairs(const top_times *t, text_buf *out)
{
    top_pair *pairs;
    int n;

    LS_TRY(
        LS_NEW(&pairs, STATUS_SOURCES * ((size_t)t->now->n_ranks + 1), "for the table of pairs"));
    n = top_pairs(t, pairs);
    top_pair_columns(out);
    text_append(out, "\n");
    for (int i = 0; i < n; i++) {
        top_pair_row(&pairs[i], out);
        text_append(out, "\n");
    }
    if (n == 0)
        text_append(out, "%s\n", top_no_pairs);
    ls_free(pairs);
    return LS_OK;
}

static ls_status append_status(const job_status *v, const top_flags *f, top_key key, text_buf *out)
{
    const top_times t = {.now = v};
    json_writer w;

    json_begin(&w, out);
    if (f->json) {
        job_status_write(v, &w);
        return LS_OK;
    }
    top_head(v, out);
    LS_TRY(f->pairs ? append_pairs(&t, out) : append_ranks(&t, key, out));
    top_warning(v, out);
    return LS_OK;
}

static ls_status print_status(const job_status *v, const top_flags *f, top_key key)
{
    text_buf text = {0};
    ls_status st = append_status(v, f, key, &text);

    if (st == LS_OK)
        st = text_status(&text);
    if (st == LS_OK && text.length > 0)
        print_out("%s%s", text_str(&text), text_str(&text)[text.length - 1] == '\n' ? "" : "\n");
    text_free(&text);
    return st;
}

static ls_status show_once(status_client *c, const top_flags *f, top_key key)
{
    job_status *v;
    ls_status st;

    LS_TRY(LS_NEW(&v, 1, "for the status of a job"));
    st = status_client_ask(c, -1, ls_deadline_ms(TOP_ANSWER_MS), v);
    if (st == LS_OK)
        st = print_status(v, f, key);
    job_status_free(v);
    ls_free(v);
    return st;
}

/* --- another machine --- */

/* 'text' for a shell. */
static void append_quoted(text_buf *out, const char *text)
{
    text_append(out, " '");
    for (; *text != '\0'; text++)
        text_append(out, *text == '\'' ? "'\\''" : "%c", *text);
    text_append(out, "'");
}

static void append_command(const top_flags *f, const char *name, text_buf *out)
{
    text_append(out, "lockstep top --interval %g --sort %s%s%s%s", f->interval_s, f->sort,
                f->once ? " --once" : "", f->json ? " --json" : "", f->pairs ? " --pairs" : "");
    if (name != NULL)
        append_quoted(out, name);
}

/* Replaces this process by ssh; returns only when that fails. */
static ls_status exec_ssh(const top_flags *f, const char *name)
{
    static char ssh_text[1024];
    static char host[256];
    static char terminal[] = "-t";
    char *words[SSH_WORDS + 4]; /* -t, host, command, NULL */
    text_buf command = {0};
    int n = 0;
    char *rest = NULL;

    if (f->host[0] == '\0' || f->host[0] == '-' || strlen(f->host) >= sizeof(host))
        return ls_fail(LS_EINVAL, "--host \"%s\": not the name of a machine", f->host);
    if (strlen(f->ssh) >= sizeof(ssh_text))
        return ls_fail(LS_EINVAL, "--ssh: more than %zu characters", sizeof(ssh_text) - 1);
    text_format(ssh_text, sizeof(ssh_text), "%s", f->ssh);
    text_format(host, sizeof(host), "%s", f->host);
    for (char *word = strtok_r(ssh_text, " ", &rest); word != NULL;
         word = strtok_r(NULL, " ", &rest)) {
        if (n == SSH_WORDS)
            return ls_fail(LS_EINVAL, "--ssh: more than %d words", SSH_WORDS);
        words[n++] = word;
    }
    if (n == 0)
        return ls_fail(LS_EINVAL, "--ssh: no command");
    if (!f->once)
        words[n++] = terminal;
    append_command(f, name, &command);
    LS_TRY(text_status(&command));
    words[n++] = host;
    words[n++] = command.data;
    words[n] = NULL;
    (void)execvp(words[0], words);
    text_free(&command);
    return ls_fail_errno("cannot start %s", words[0]);
}

/* --- the command --- */

static ls_status top(const top_flags *f, const char *name)
{
    status_client *c;
    top_key key;
    ls_status st;

    LS_TRY(top_key_parse(f->sort, &key));
    if (f->json && !f->once)
        return ls_fail(LS_EINVAL, "--json needs --once");
    if (f->host != NULL)
        return exec_ssh(f, name);
    LS_TRY(top_connect(name, &c));
    st = f->once ? show_once(c, f, key)
                 : top_screen(c, ls_duration_of_s(f->interval_s), key, f->pairs);
    status_client_close(c);
    if (st == LS_EPEER && !f->once) {
        print_out("the job has ended\n");
        return LS_OK;
    }
    return st;
}

int cmd_top(int argc, char **argv)
{
    top_flags f = {.interval_s = 1, .sort = "rank", .ssh = "ssh"};
    const ls_flag table[TOP_N_FLAGS] = {
        {"once", 0, LS_FLAG_BOOL, &f.once, 0, 0, "print the table once"},
        {"json", 0, LS_FLAG_BOOL, &f.json, 0, 0, "with --once: as JSON (docs/watching.md)"},
        {"pairs", 0, LS_FLAG_BOOL, &f.pairs, 0, 0,
         "show bytes a second from rank to rank instead of the ranks"},
        {"interval", 0, LS_FLAG_REAL, &f.interval_s, 0.1, 3600, "`SECONDS` between two views"},
        {"sort", 0, LS_FLAG_TEXT, &f.sort, 0, 0,
         "`KEY` of the order: rank, step-time, data, communication, memory or late"},
        {"host", 0, LS_FLAG_TEXT, &f.host, 0, 0,
         "`HOST` machine of the job, if it is another one: runs lockstep top there by ssh"},
        {"ssh", 0, LS_FLAG_TEXT, &f.ssh, 0, 0,
         "`COMMAND` command with arguments to use instead of ssh"},
        {"help", 'h', LS_FLAG_BOOL, &f.help, 0, 0, "print this text"},
    };
    const ls_flags flags = {.size = sizeof(flags),
                            .program = "lockstep top",
                            .usage = "[flags] [JOB]",
                            .summary =
                                "Shows the ranks of a running job of this user: state, step, time "
                                "of a step and its parts, throughput, memory; \"!\" marks late "
                                "ranks. JOB is the pid of lockstep run or the name of --rdzv-id, "
                                "as lockstep ps lists them; it may be left out if there is one.",
                            .tables = {table},
                            .n = {TOP_N_FLAGS},
                            .takes_rest = 1};
    int rest = argc;
    ls_status st = ls_flags_parse(&flags, argc, argv, &rest);

    if (st == LS_OK && f.help)
        return print_help(&flags);
    if (st == LS_OK && argc - rest > 1)
        st = ls_fail(LS_EINVAL, "%d jobs given; usage: lockstep top [flags] [JOB]", argc - rest);
    if (st == LS_OK)
        st = top(&f, rest < argc ? argv[rest] : NULL);
    return st == LS_OK ? 0 : print_failure("top", st);
}
