/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_leftover.c - reports leftover processes of dead jobs, of all users. A subject of
 * check_all(); lockstep clean kills them.
 */
#include "diagnose/checks/check_internal.h"

#include "base/text.h"
#include "host/leftover.h"
#include "host/process_id.h"

#include <unistd.h>

enum { LISTED_MOST = 20 };

static void add_one(check *c, const leftover *what)
{
    const bool is_own = what->uid == geteuid();
    char text[256];
    char user[64];
    char fix[256];

    process_user_text(user, sizeof(user), what->uid);
    text_format(fix, sizeof(fix), "%s%s%slockstep clean%s%s", is_own ? "" : "sudo -u ",
                is_own ? "" : user, is_own ? "" : " ", what->job[0] != 0 ? " --job " : "",
                what->job);
    finding_add(c->out, FINDING_LEFTOVER_KIND, FINDING_WARNING, fix, "%s, user %s",
                leftover_text(text, sizeof(text), what), user);
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
                    "%d more leftover processes of dead jobs", list.n - LISTED_MOST);
    if (list.n == 0)
        finding_add(c->out, FINDING_LEFTOVER_OK_KIND, FINDING_OK, NULL,
                    "no leftover processes of dead jobs");
    leftovers_free(&list);
}
