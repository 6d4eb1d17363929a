/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_port.c - the ports at which programs meet: who listens there, from the kernel's tables and everybody's descriptors.
 */
#include "launch/check/check_internal.h"

#include "base/text.h"
#include "launch/process/leftover_internal.h"
#include "launch/check/port_holder.h"
#include "launch/process/process_text.h"

#include <stdlib.h>
#include <string.h>

enum { STATIC_PORT = 29500, RENDEZVOUS_PORT = 29400 }; /* torchrun's */

/* "pid 4711 (python3) of bob, 3 h old, of job 0123456789abcdef" */
static void describe_holder(const check *c, const port_holder *who, char *buf, size_t n)
{
    char user[64];
    char age[32];
    char job[LEFTOVER_JOB_BYTES];
    const int64_t age_s = leftover_age(c->from->root, who->pid);

    process_user_text(user, sizeof(user), who->uid);
    leftover_job_of(c->from->root, who->pid, job, sizeof(job));
    if (who->pid == 0)
        text_format(buf, n, "a process of %s that cannot be seen from here", user);
    else
        text_format(buf, n, "pid %d (%s) of %s, %s old%s%s", (int)who->pid, who->program, user,
                    process_age_text(age, sizeof(age), age_s), job[0] != 0 ? ", of job " : "", job);
}

static void check_port(check *c, int port, finding_severity severity)
{
    port_holder who;
    char text[256];
    char mend[128];

    if (!port_holder_find(c->from->root, port, &who)) {
        finding_add(c->out, FINDING_PORT_OK_KIND, FINDING_OK, NULL, "port %d is free", port);
        return;
    }
    describe_holder(c, &who, text, sizeof(text));
    if (who.pid > 0)
        text_format(mend, sizeof(mend), "kill %d   # or --master-port with another one",
                    (int)who.pid);
    else
        text_format(mend, sizeof(mend), "sudo ss -ltnp 'sport = :%d'", port);
    finding_add(c->out, FINDING_PORT_HELD_KIND, severity, mend, "port %d is held by %s", port,
                text);
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
