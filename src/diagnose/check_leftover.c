/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_leftover.c - processes of dead jobs, everybody's.
 */
#include "diagnose/check_internal.h"

#include "base/text.h"
#include "launch/process/process_text.h"

#include <unistd.h>

enum { LISTED_MOST = 20 };

static void add_one(check *c, const leftover *what)
{
    const bool is_own = what->uid == geteuid();
    char text[256];
    char user[64];
    char mend[256];

    process_user_text(user, sizeof(user), what->uid);
    text_format(mend, sizeof(mend), "%s%s%slockstep clean%s%s", is_own ? "" : "sudo -u ",
                is_own ? "" : user, is_own ? "" : " ", what->job[0] != 0 ? " --job " : "",
                what->job);
    finding_add(c->out, FINDING_LEFTOVER_KIND, FINDING_WARNING, mend, "%s, is left, user %s",
                process_leftover_text(text, sizeof(text), what), user);
}

void check_leftovers(check *c)
{
    const leftover_query query = {.root = c->from->root, .all_users = true};
    leftovers list;

    if (leftover_find(&query, &list) != LS_OK) {
        finding_add(c->out, FINDING_LEFTOVER_BLIND_KIND, FINDING_NOTE, "mount -t proc proc /proc",
                    "%s", ls_last_error());
        return;
    }
    for (int i = 0; i < list.n && i < LISTED_MOST; i++)
        add_one(c, &list.items[i]);
    if (list.n > LISTED_MOST)
        finding_add(c->out, FINDING_LEFTOVER_KIND, FINDING_WARNING, "lockstep clean --dry-run",
                    "and %d more processes of dead jobs", list.n - LISTED_MOST);
    if (list.n == 0)
        finding_add(c->out, FINDING_LEFTOVER_OK_KIND, FINDING_OK, NULL,
                    "nothing of earlier jobs is left");
    leftovers_free(&list);
}
