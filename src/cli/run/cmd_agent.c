/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_agent.c - lockstep agent --stdio: the process that `lockstep run` and `lockstep check` start
 * on another machine by ssh or srun. It reads its request (launch/spec/launch_request.h) from
 * stdin. The agent binary for machines without Lockstep (agent_main.c) runs the same code.
 */
#include "cli/cli.h"
#include "cli/run/remote_request.h"
#include "diagnose/hosts/hosts_check.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/text.h"
#include "host/cores.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { JOIN_MS = 30000, READ_BYTES = 65536 };

static ls_status say(int fd, const char *bytes, size_t n)
{
    return file_write_all(fd, "the starter", bytes, n);
}

/* Reports to the starter why this agent cannot go on. */
static int fail_agent(int fd, const char *why)
{
    uint8_t header[FRAME_HEADER_BYTES + 4];
    const size_t n = strlen(why);

    wire_put_u32(header, (uint32_t)n + 4);
    wire_put_u32(header + 4, REMOTE_FAILED);
    wire_put_u32(header + 8, (uint32_t)n);
    if (say(fd, (const char *)header, sizeof(header)) == LS_OK)
        (void)!say(fd, why, n); /* on an error the starter sees the end of this process */
    return 1;
}

static ls_status greet(int fd)
{
    char line[128];

    LS_TRY(say(fd, "\n", 1)); /* a shell's last line may not have ended */
    remote_greeting(line, sizeof(line), ls_usable_cores(NULL));
    return say(fd, line, strlen(line));
}

typedef struct any_request {
    bool is_hosts_check;
    launch_request job;
    hosts_check_request check;
} any_request;

static ls_status read_request(const frame *f, any_request *out)
{
    out->is_hosts_check = f->type == HOSTS_CHECK_REQUEST;
    return out->is_hosts_check ? hosts_check_request_read(f, &out->check)
                               : launch_request_read(f, &out->job);
}

/* LS_EPEER: stdin has ended before an order arrived. */
static ls_status await_request(int fd, any_request *out)
{
    frame_reader reader;
    frame f;
    bool have = false;
    ls_status st = LS_OK;

    frame_reader_init(&reader, LAUNCH_REQUEST_BODY_MAX);
    while (st == LS_OK && !have) {
        static char bytes[READ_BYTES];
        const ssize_t n = read(fd, bytes, sizeof(bytes));

        if (n < 0 && errno == EINTR)
            continue;
        st = n > 0 ? frame_reader_feed(&reader, bytes, (size_t)n)
                   : ls_fail(LS_EPEER, "the starter has exited");
        if (st == LS_OK)
            st = frame_reader_next(&reader, &f, &have);
    }
    if (st == LS_OK)
        st = read_request(&f, out);
    frame_reader_free(&reader);
    return st;
}

static void list_heads(const launch_request *o, char *buf, size_t n)
{
    char text[NET_ADDRESS_TEXT_MAX];
    size_t used = 0;

    buf[0] = 0;
    for (int i = 0; i < o->n_heads && used + NET_ADDRESS_TEXT_MAX < n; i++) {
        net_address_text(text, sizeof(text), &o->heads[i]);
        text_format(buf + used, n - used, "%s%s", i > 0 ? ", " : "",
                    text + (text_starts(text, "tcp://") ? strlen("tcp://") : 0));
        used += strlen(buf + used);
    }
}

/* The address that ssh was called from is one more candidate for the head's address. */
static void add_caller(launch_request *o)
{
    const char *connection = getenv("SSH_CONNECTION"); // NOLINT(concurrency-mt-unsafe)
    char host[NET_ADDRESS_TEXT_MAX];
    net_address at;

    if (connection == NULL || o->n_heads == 0 || o->n_heads == DIAL_ADDRESSES_MAX)
        return;
    text_format(host, sizeof(host), strchr(connection, ':') != NULL ? "[%.*s]:1" : "%.*s:1",
                (int)strcspn(connection, " "), connection);
    if (net_address_decode(host, &at) != LS_OK)
        return;
    net_address_set_port(&at, net_address_port(&o->heads[0]));
    for (int i = 0; i < o->n_heads; i++)
        if (net_address_equal(&o->heads[i], &at))
            return;
    o->heads[o->n_heads++] = at;
}

static ls_status run_request(const launch_request *o, const char *where, const agent_remote *remote)
{
    const agent_nodes nodes = {.head = where,
                               .heads = o->heads,
                               .n_heads = o->n_heads,
                               .name = o->host,
                               .key = &o->key,
                               .security = o->security,
                               .id = o->node};
    agent_spec spec = remote_request_spec(o);
    agent_result result;
    ls_status st;

    spec.nodes = &nodes;
    spec.remote = remote;
    spec.rendezvous = (rdzv_options){.by_id = true,
                                     .min_nodes = o->n_nodes,
                                     .max_nodes = o->n_nodes,
                                     .run_id = o->run_hash,
                                     .join_ms = JOIN_MS};
    st = agent_run(&spec, &result);
    text_free(&result.report); /* the launcher that started the job prints it */
    return st;
}

static ls_status run_job(launch_request *o, agent_remote *remote)
{
    char where[1024];

    LS_TRY(remote_request_enter(o));
    remote->terminal = o->terminal;
    remote->input_terminal = o->input_terminal;
    remote->size = o->size;
    add_caller(o);
    list_heads(o, where, sizeof(where));
    return run_request(o, where, remote);
}

/* Does not enter the folder: the check reports a folder that is missing. */
static ls_status run_hosts_check(const hosts_check_request *o, const agent_remote *remote,
                                 const check_sources *sources)
{
    LS_TRY(remote_request_set_env(&o->base));
    return hosts_check_agent_run(o, remote, sources);
}

int run_agent(int argc, char **argv, const check_sources *sources)
{
    static any_request o;
    agent_remote remote;
    ls_status st;

    if (argc != 2 || !text_equal(argv[1], "--stdio")) {
        print_error("lockstep agent: for internal use; lockstep run -H starts it\n");
        return 2;
    }
    prctl(PR_SET_NAME, "lockstep-agent");
    st = agent_remote_take_streams(&remote);
    if (st == LS_OK)
        st = greet(remote.out_fd);
    if (st != LS_OK)
        return print_failure("agent", st);
    st = await_request(remote.in_fd, &o);
    if (st == LS_EPEER)
        return 0;
    if (st == LS_OK)
        st = o.is_hosts_check ? run_hosts_check(&o.check, &remote, sources)
                              : run_job(&o.job, &remote);
    if (st != LS_OK)
        return fail_agent(remote.out_fd, ls_last_error());
    return 0;
}
