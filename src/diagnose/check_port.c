/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_port.c - the ports at which programs meet, and which processes hold them.
 */
#include "diagnose/check_internal.h"

#include "base/text.h"
#include "net/port_holder.h"

#include <stdlib.h>
#include <string.h>

enum { STATIC_PORT = 29500, RENDEZVOUS_PORT = 29400 }; /* torchrun's */

static void check_port(check *c, int port, finding_severity severity)
{
    port_holder holder;
    char text[PORT_HOLDER_TEXT_BYTES];
    char fix[96];
    char mend[160];

    if (!port_holder_find(c->from->root, port, &holder)) {
        finding_add(c->out, FINDING_PORT_OK_KIND, FINDING_OK, NULL, "port %d is free", port);
        return;
    }
    port_holder_fix(&holder, port, fix, sizeof(fix));
    text_format(mend, sizeof(mend), "%s%s", fix,
                holder.pid > 0 ? "   # or --master-port with another one" : "");
    finding_add(c->out, FINDING_PORT_HELD_KIND, severity, mend, "port %d is held by %s", port,
                port_holder_text(c->from->root, &holder, text, sizeof(text)));
}

/* Ports that the kernel gives to outgoing connections. */
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
                "port %d is among those for outgoing connections (%ld to %ld)", port, first, last);
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
