/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hub_stacks.c - asks ranks that are late for the stack of their program, and reports it behind the
 * wait report that names them. A rank without a function for it does not answer. hub_watch.c and
 * hub_ranks.c call it.
 */
#include "hub/hub_internal.h"

#include "base/alloc.h"
#include "base/log.h"
#include "base/text.h"
#include "hub/control.h"

#include <string.h>

#define BETWEEN_LINES " | "

void hub_stack_ask(hub *h, int rank, const char *what)
{
    hub_rank *r = &h->ranks[rank];

    if (r->conn == NULL)
        return;
    r->n_asked++;
    text_format(r->late_in, sizeof(r->late_in), "%s", what);
    conn_send(r->conn, HUB_MESSAGE_ASK_STACK, NULL, 0);
}

/* Lines from outside: printable, without those that are empty. */
static void append_lines(text_buf *t, char *lines)
{
    const char *before = "";

    for (char *at = lines, *line; (line = strsep(&at, "\n")) != NULL;) {
        if (*line == '\0')
            continue;
        text_printable(line, strlen(line) + 1, line);
        text_append(t, "%s%s", before, line);
        before = BETWEEN_LINES;
    }
}

ls_status hub_stack_message(hub_conn *c, const frame *f)
{
    hub *h = c->owner;
    hub_rank *r = &h->ranks[c->rank];
    wire_reader reader = wire_reader_over(f->body, f->bytes);
    char lines[CONTROL_STACK_BYTES];
    text_buf t = {0};

    wire_read_text(&reader, lines, sizeof(lines));
    LS_TRY(wire_reader_end(&reader, "the stack of a rank"));
    if (r->n_asked == 0)
        return ls_fail(LS_EPROTO, "a stack that the hub has not asked for");
    r->n_asked--;
    text_append(&t, "stack of rank %d (pid %d), late in %s: ", c->rank, (int)r->pid, r->late_in);
    append_lines(&t, lines);
    if (h->opt.events.wait_report != NULL)
        h->opt.events.wait_report(h->opt.events.self, text_str(&t));
    else
        ls_log(LS_LOG_WARN, "hub", "%s", text_str(&t));
    text_free(&t);
    return LS_OK;
}
