/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_join.c - lockstep join HOST[:PORT]: makes this machine a node of a job that waits for nodes.
 * The head of the job sends the program and its environment.
 */
#include "cli/cli.h"
#include "cli/run/rank_count.h"
#include "cli/run/remote_request.h"

#include "base/clock.h"
#include "base/rng.h"
#include "launch/head/fetch_request.h"
#include "launch/spec/endpoint.h"

#include <string.h>

enum { JOIN_N_FLAGS = 9, JOIN_S = 600 };

typedef struct join_flags {
    const char *nproc;
    int64_t node_rank;
    const char *run_id;
    const char *key_file;
    const char *security;
    int insecure;
    const char *net;
    int64_t timeout_s;
    int help;
} join_flags;

static void say(const char *line)
{
    print_error("lockstep: %s\n", line);
}

static ls_status take_part(const join_flags *f, const char *place, const net_key *key,
                           agent_result *result)
{
    static launch_request o; /* the environment points into it */
    agent_nodes nodes = {.head = place, .key = key, .id = (int)f->node_rank};
    agent_spec spec;
    int n_ranks;

    LS_TRY(rank_count_read(f->nproc, &n_ranks));
    if (f->security != NULL)
        LS_TRY(net_security_set(f->security, "--security"));
    LS_TRY(net_security_setting(&nodes.security));
    LS_TRY(fetch_launch_request(place, key, nodes.security,
                                ls_deadline_ms(ls_duration_of_s((double)f->timeout_s)), say, &o));
    LS_TRY(remote_request_enter(&o));
    spec = remote_request_spec(&o);
    spec.n_ranks = n_ranks;
    spec.prefix = true;
    spec.fold = true;
    spec.nodes = &nodes;
    if (f->run_id != NULL)
        o.run_hash = ls_hash_bytes(f->run_id, strlen(f->run_id), 0);
    spec.rendezvous = (rdzv_options){.run_id = o.run_hash,
                                     .run_name = f->run_id,
                                     .join_ms = ls_duration_of_s((double)f->timeout_s)};
    if (f->net != NULL)
        o.job.net = f->net;
    return agent_run(&spec, result);
}

static int join(const join_flags *f, const char *head)
{
    char place[ENDPOINT_BYTES];
    net_key key;
    agent_result result = {0};
    ls_status st = endpoint_format(head, ENDPOINT_PORT, "HOST:PORT", place);

    if (st == LS_OK && !f->insecure)
        st = endpoint_key(f->key_file, place, &key);
    if (st == LS_OK) {
        st = take_part(f, place, f->insecure ? NULL : &key, &result);
        net_key_wipe(&key);
    }
    if (st != LS_OK)
        return print_failure("join", st);
    if (result.failed)
        print_error("lockstep: %s", text_str(&result.report));
    text_free(&result.report);
    return result.exit_code;
}

int cmd_join(int argc, char **argv)
{
    join_flags f = {.nproc = "1", .node_rank = -1, .timeout_s = JOIN_S};
    const ls_flag table[JOIN_N_FLAGS] = {
        {"nproc-per-node", 'n', LS_FLAG_TEXT, &f.nproc, 0, 0,
         "`N` ranks on this machine; auto, cpu and gpu as for lockstep run"},
        {"node-rank", 0, LS_FLAG_INT, &f.node_rank, -1, 65535,
         "this machine's node rank, for a job with --rdzv-backend static"},
        {"rdzv-id", 0, LS_FLAG_TEXT, &f.run_id, 0, 0,
         "`NAME` joins only a job that was started with this --rdzv-id"},
        {"token-file", 0, LS_FLAG_TEXT, &f.key_file, 0, 0,
         "`FILE` key file of the job's head (LOCKSTEP_KEY_FILE, ~/.config/lockstep/key)"},
        {"security", 0, LS_FLAG_TEXT, &f.security, 0, 0,
         "`MODE` auth, mac or encrypt: the job's mode (LOCKSTEP_SECURITY, auth)"},
        {"insecure", 0, LS_FLAG_BOOL, &f.insecure, 0, 0, "the job was started with --insecure"},
        {"net", 0, LS_FLAG_TEXT, &f.net, 0, 0, "`LIST` networks of this machine that may be used"},
        {"timeout", 0, LS_FLAG_INT, &f.timeout_s, 0, 86400 * 30,
         "`SECONDS` to wait for the head of the job"},
        {"help", 'h', LS_FLAG_BOOL, &f.help, 0, 0, "print this text"},
    };
    const ls_flags flags = {.size = sizeof(ls_flags),
                            .program = "lockstep join",
                            .usage = "[flags] HOST[:PORT]",
                            .summary = "Makes this machine a node of the job that waits at HOST.",
                            .tables = {table},
                            .n = {JOIN_N_FLAGS},
                            .takes_rest = 1};
    int rest = argc;
    const ls_status st = ls_flags_parse(&flags, argc, argv, &rest);

    if (st == LS_OK && f.help)
        return print_help(&flags);
    if (st != LS_OK)
        return print_failure("join", st);
    if (rest != argc - 1) {
        print_error("lockstep join: no job address; usage: lockstep join HOST[:PORT]\n");
        return 2;
    }
    return join(&f, argv[rest]);
}
