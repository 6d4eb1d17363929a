/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_clean.c - lockstep clean: kills the processes that dead jobs of this user have left. */
#include "cli/cli.h"

#include "base/clock.h"
#include "host/cgroup.h"
#include "host/leftover.h"

enum { END_MS = 5000, N_FLAGS = 3 };

static void print_ended(void *n_ended, const leftover *what, bool ended)
{
    char text[256];

    leftover_text(text, sizeof(text), what);
    if (!ended) {
        print_error("lockstep clean: cannot kill %s\n", text);
        return;
    }
    ++*(int *)n_ended;
    print_out("killed %s\n", text);
}

static ls_status list(const leftover_query *query)
{
    leftovers found;

    LS_TRY(leftover_find(query, &found));
    for (int i = 0; i < found.n; i++) {
        char text[256];
        print_out("would kill %s\n", leftover_text(text, sizeof(text), &found.items[i]));
    }
    if (found.n == 0)
        print_out("no leftover processes of dead jobs\n");
    leftovers_free(&found);
    return LS_OK;
}

/* --job NAME of a running job is an error. */
static ls_status refuse_living(const leftover_query *query)
{
    leftovers found;
    process_id living;

    if (query->job == NULL)
        return LS_OK;
    LS_TRY(leftover_find(query, &found));
    living = found.living;
    leftovers_free(&found);
    if (living.pid == 0)
        return LS_OK;
    return ls_fail(LS_EPEER, "job %s is running: to end it, kill %d", query->job, (int)living.pid);
}

static int clean(const leftover_query *query, bool dry)
{
    int n_ended = 0;
    int n_left = 0;
    ls_status st = refuse_living(query);

    if (st == LS_OK && dry)
        st = list(query);
    else if (st == LS_OK)
        st = leftover_end(query, ls_deadline_ms(END_MS), print_ended, &n_ended, &n_left);
    if (st != LS_OK)
        return print_failure("clean", st);
    if (!dry)
        cgroup_remove_stale();
    if (!dry && n_ended + n_left == 0)
        print_out("no leftover processes of dead jobs\n");
    return n_left > 0 ? 1 : 0;
}

int cmd_clean(int argc, char **argv)
{
    leftover_query query = {.root = ""};
    int dry = 0;
    int help = 0;
    const ls_flag table[N_FLAGS] = {
        {"job", 0, LS_FLAG_TEXT, &query.job, 0, 0, "`NAME` only the processes of this job"},
        {"dry-run", 0, LS_FLAG_BOOL, &dry, 0, 0, "list the processes, kill none"},
        {"help", 'h', LS_FLAG_BOOL, &help, 0, 0, "print this text"},
    };
    const ls_flags flags = {.size = sizeof(flags),
                            .program = "lockstep clean",
                            .usage = "[flags]",
                            .summary = "Kills (SIGKILL) the processes that dead jobs of this user "
                                       "have left on this machine, and no others.",
                            .tables = {table},
                            .n = {N_FLAGS}};
    const ls_status st = ls_flags_parse(&flags, argc, argv, NULL);

    if (st == LS_OK && help)
        return print_help(&flags);
    return st == LS_OK ? clean(&query, dry != 0) : print_failure("clean", st);
}
