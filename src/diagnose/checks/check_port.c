/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_port.c - reports whether the job's port, or torchrun's default ports, are free, and which
 * process holds them. A subject of check_all().
 */
#include "diagnose/checks/check_internal.h"

#include "base/text.h"
#include "net/port_holder.h"

#include <stdlib.h>
#include <string.h>

enum { STATIC_PORT = 29500, RENDEZVOUS_PORT = 29400 }; /* torchrun's defaults */

static void check_port(check *c, int port, finding_severity severity)
{
    port_holder holder;
    char text[PORT_HOLDER_TEXT_BYTES];
    char command[96];
    char fix[160];

    if (!port_holder_find(c->from->root, port, &holder)) {
        finding_add(c->out, FINDING_PORT_OK_KIND, FINDING_OK, NULL, "port %d is free", port);
        return;
    }
    port_holder_fix(&holder, port, command, sizeof(command));
    text_format(fix, sizeof(fix), "%s%s", command,
                holder.pid > 0 ? "   # or use another --master-port" : "");
    finding_add(c->out, FINDING_PORT_HELD_KIND, severity, fix, "port %d is in use by %s", port,
                port_holder_text(c->from->root, &holder, text, sizeof(text)));
}

/* Reports a port that the kernel may give to outgoing connections. */
static void check_range(check *c, int port)
{
    char text[64];
    char *end;
    long first;
    long last;

    if (!check_read(c, "/proc/sys/net/ipv4/ip_local_port_range", text, sizeof(text)))
        return;
    first = strtol(text, &end, 10);
    last = strtol(end, NULL, 10);
    if (port < first || port > last)
        return;
    finding_add(c->out, FINDING_PORT_RANGE_KIND, FINDING_NOTE, "lockstep run --master-port 29500",
                "port %d is in the kernel's range for outgoing connections (%ld to %ld)", port,
                first, last);
}

void check_ports(check *c)
{
    const char *variable = c->from->variable(c->from->self, "MASTER_PORT");
    int port = c->options->master_port;

    if (port == 0 && variable != NULL && strlen(variable) < 6)
        port = (int)strtol(variable, NULL, 10);
    if (port <= 0 || port > 65535) {
        check_port(c, STATIC_PORT, FINDING_NOTE);
        check_port(c, RENDEZVOUS_PORT, FINDING_NOTE);
        return;
    }
    check_port(c, port, FINDING_ERROR);
    check_range(c, port);
}
