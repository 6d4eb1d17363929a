/* SPDX-License-Identifier: Apache-2.0 */
/*
 * run_hosts.c - settings of jobs that one machine starts on all others: -H and --hostfile by ssh, a
 * Slurm allocation by srun. Called by run_flags.c and check_hosts.c.
 */
#include "cli/run/run_flags.h"

#include "base/alloc.h"
#include "base/text.h"
#include "cli/cli.h"
#include "host/cores.h"
#include "net/interface.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { INTERFACES_MOST = 64, JOIN_MS = 120000 };

static const char *variable(const char *name)
{
    const char *value = getenv(name); // NOLINT(concurrency-mt-unsafe): there is one thread

    return value != NULL ? value : "";
}

/* --- this machine --- */

static bool is_own_address(const char *name)
{
    net_interface found[INTERFACES_MOST];
    net_address at;
    net_address other;
    int n = 0;

    if (net_address_parse(name, 0, &at) != LS_OK || net_address_family(&at) == NET_NONE ||
        net_interfaces("0.0.0.0/0,::/0", found, INTERFACES_MOST, &n) != LS_OK)
        return false;
    for (int i = 0; i < n; i++) {
        other = found[i].address;
        net_address_set_port(&other, 0);
        if (net_address_equal(&other, &at))
            return true;
    }
    return false;
}

/* "node1" and "node1.cluster" are the same host; two full names only if they are equal. */
static bool is_same_name(const char *a, const char *b)
{
    const size_t n_a = strcspn(a, ".");
    const size_t n_b = strcspn(b, ".");

    if (text_equal(a, b))
        return true;
    return n_a > 0 && n_a == n_b && strncmp(a, b, n_a) == 0 && (a[n_a] == 0 || b[n_b] == 0);
}

/* "localhost", the host name with or without its domain, or a numeric address of this machine.
 * Names are not resolved, because ssh may resolve them differently. "user@" always means ssh. */
static bool is_this_machine(const char *name)
{
    char host[256] = "";
    const bool is_numeric =
        strspn(name, "0123456789.") == strlen(name) || strchr(name, ':') != NULL;

    (void)gethostname(host, sizeof(host) - 1);
    if (strchr(name, '@') != NULL)
        return false;
    if (text_equal(name, "localhost") || text_equal(name, "127.0.0.1") || text_equal(name, "::1") ||
        text_equal(name, variable("SLURMD_NODENAME")))
        return true;
    return is_numeric ? is_own_address(name) : is_same_name(name, host);
}

/* Merges all entries for this machine into the first of them. Returns its index, -1: none. */
static int merge_own(hostlist *list)
{
    int own = -1;
    int n = 0;

    for (int i = 0; i < list->n; i++) {
        const hostlist_host host = list->hosts[i];

        if (is_this_machine(host.name) && own >= 0) {
            list->hosts[own].slots += host.slots;
            ls_free(host.name);
            continue;
        }
        if (is_this_machine(host.name))
            own = n;
        list->hosts[n++] = host;
    }
    list->n = n;
    return own;
}

/* --- folder and environment --- */

/* The working folder by the path that the user entered: symbolic links may differ on other
 * machines. */
static ls_status find_folder(run_flags *f)
{
    const char *named = variable("PWD");
    struct stat here;
    struct stat there;

    if (stat(".", &here) == 0 && named[0] == '/' && strlen(named) < sizeof(f->folder) &&
        stat(named, &there) == 0 && here.st_dev == there.st_dev && here.st_ino == there.st_ino) {
        text_format(f->folder, sizeof(f->folder), "%s", named);
        return LS_OK;
    }
    return getcwd(f->folder, sizeof(f->folder)) != NULL ? LS_OK
                                                        : ls_fail_errno("the working folder");
}

/* -x NAME uses the value of this environment; -x NAME=VALUE also sets it here. A variable that is
 * not set is left out with a warning, as by mpirun. */
static ls_status read_exports(run_flags *f)
{
    int n = 0;

    for (int i = 0; i < f->exports.n; i++) {
        const char *entry = f->export_items[i];
        const char *equals = strchr(entry, '=');
        const size_t n_name = equals != NULL ? (size_t)(equals - entry) : strlen(entry);
        char name[256];

        if (n_name == 0 || n_name >= sizeof(name))
            return ls_fail(LS_EINVAL, "-x %s: must be NAME or NAME=VALUE", entry);
        text_format(name, sizeof(name), "%.*s", (int)n_name, entry);
        if (equals != NULL && setenv(name, equals + 1, 1) != 0) // NOLINT(concurrency-mt-unsafe)
            return ls_fail_errno("-x %s", entry);
        if (getenv(name) != NULL) // NOLINT(concurrency-mt-unsafe)
            f->export_items[n++] = entry;
        else
            print_error("%s: warning: -x %s: the variable is not set here, so the ranks do not get "
                        "it; -x %s=VALUE sets it\n",
                        run_flags_name(f->as_torchrun), name, name);
    }
    f->exports.n = n;
    return LS_OK;
}

/* Lists "NAME=VALUE" of each exported variable. */
static ls_status list_exports(run_flags *f)
{
    for (int i = 0; i < f->exports.n; i++) {
        const char *entry = f->export_items[i];
        text_buf text = {0};

        if (strchr(entry, '=') != NULL)
            text_append(&text, "%s", entry);
        else
            text_append(&text, "%s=%s", entry, variable(entry));
        LS_TRY(text_status(&text));
        f->export_list[i] = text.data; /* lives as long as the process */
    }
    f->hosts.exports = f->export_list;
    f->hosts.n_exports = f->exports.n;
    return LS_OK;
}

/* --- which hosts --- */

static ls_status refuse_others(const run_flags *f, const char *what)
{
    if (!text_equal(f->nnodes, "1") || f->endpoint != NULL || f->node_rank != 0 || f->standalone)
        return ls_fail(LS_EINVAL,
                       "%s starts all machines from here: it excludes --nnodes, --node-rank, "
                       "--rdzv-endpoint and --standalone",
                       what);
    return LS_OK;
}

static ls_status read_given_hosts(run_flags *f)
{
    if (f->host_text != NULL && f->hostfile != NULL)
        return ls_fail(LS_EINVAL, "-H and --hostfile exclude each other");
    LS_TRY(refuse_others(f, f->hostfile != NULL ? "--hostfile" : "-H"));
    if (f->hostfile != NULL)
        return hostlist_load(f->hostfile, &f->host_list);
    LS_TRY(hostlist_parse(f->host_text, &f->host_list));
    for (int i = 0; i < f->host_list.n; i++)
        if (f->host_list.hosts[i].slots == 0)
            f->host_list.hosts[i].slots = 1;
    return LS_OK;
}

/* Inside salloc or sbatch, but not in a task that srun has started, which is a rank already. The
 * steps of an sbatch script and of an salloc shell have numbers above those of all other steps. */
static bool is_in_allocation(const run_flags *f)
{
    const char *step = variable("SLURM_STEP_ID");
    int64_t number = 0;

    if (f->as_torchrun || f->standalone || !text_equal(f->nnodes, "1") || f->endpoint != NULL ||
        f->node_rank != 0 || f->job.master_addr != NULL || *variable("SLURM_JOB_ID") == 0 ||
        *variable("SLURM_JOB_NODELIST") == 0)
        return false;
    return *step == 0 || (text_parse_int(step, "SLURM_STEP_ID", 0, INT64_MAX, &number) == LS_OK &&
                          number >= 0xfffffff0);
}

static ls_status read_allocation(run_flags *f)
{
    const char *counts = variable("SLURM_TASKS_PER_NODE");

    LS_TRY(hostlist_parse_slurm(variable("SLURM_JOB_NODELIST"), *counts != 0 ? counts : NULL,
                                &f->host_list));
    for (int i = 0; i < f->host_list.n; i++) {
        hostlist_host *host = &f->host_list.hosts[i];

        if (f->nproc != NULL)
            host->slots = f->n_ranks;
        else if (host->slots == 0)
            host->slots = 1;
    }
    return LS_OK;
}

/* --- settings --- */

/* If all hosts are loopback addresses, the head listens on loopback only. */
static ls_status choose_listen_address(run_flags *f)
{
    bool is_loopback = true;
    net_address at;

    for (int i = 0; i < f->host_list.n; i++)
        if (i != f->hosts.own && !text_starts(f->host_list.hosts[i].name, "127."))
            is_loopback = false;
    LS_TRY(net_address_parse(is_loopback ? "127.0.0.1:0" : "tcp://[::]:0", NET_PORT_REQUIRED, &at));
    f->nodes.listen = at;
    return LS_OK;
}

/* Removes hosts without ranks. */
static void drop_empty(run_flags *f)
{
    hostlist *list = &f->host_list;
    const int own = f->hosts.own;
    int n = 0;

    f->hosts.own = -1;
    for (int i = 0; i < list->n; i++) {
        if (list->hosts[i].slots == 0) {
            ls_free(list->hosts[i].name);
            continue;
        }
        if (i == own)
            f->hosts.own = n;
        list->hosts[n++] = list->hosts[i];
    }
    list->n = n;
}

/* Places the ranks now if all slots are known, else when the hosts have reported their cores. */
static ls_status settle_slots(run_flags *f, bool has_counts)
{
    bool are_known = true;

    if (f->hosts.own >= 0 && f->host_list.hosts[f->hosts.own].slots == 0)
        f->host_list.hosts[f->hosts.own].slots = ls_usable_cores(NULL);
    for (int i = 0; i < f->host_list.n; i++)
        are_known &= f->host_list.hosts[i].slots > 0;
    if (!has_counts && f->nproc != NULL)
        f->hosts.n_ranks = f->n_ranks;
    if (are_known) {
        LS_TRY(hostlist_place(&f->host_list, f->hosts.n_ranks));
        f->hosts.n_ranks = 0;
        drop_empty(f);
    }
    f->n_ranks = f->hosts.own >= 0 ? f->host_list.hosts[f->hosts.own].slots : 0;
    return LS_OK;
}

static void find_tool(run_flags *f)
{
    const ssize_t n = readlink("/proc/self/exe", f->tool, sizeof(f->tool) - 1);

    f->tool[n > 0 ? n : 0] = 0;
    f->hosts.start.tool = f->tool;
}

ls_status run_flags_settle_hosts(run_flags *f)
{
    const bool is_given = f->host_text != NULL || f->hostfile != NULL;
    const bool is_slurm = !is_given && is_in_allocation(f);

    LS_TRY(run_flags_settle_ports(f));
    LS_TRY(read_exports(f));
    if (!is_given && !is_slurm)
        return LS_OK;
    LS_TRY(is_given ? read_given_hosts(f) : read_allocation(f));
    f->hosts.own = merge_own(&f->host_list);
    LS_TRY(settle_slots(f, is_slurm));
    if (f->host_list.n == 1 && f->hosts.own == 0)
        return LS_OK;
    f->hosts.list = &f->host_list;
    f->hosts.start.way = is_slurm ? START_SLURM : START_SSH;
    f->hosts.start.program = f->ssh;
    f->hosts.start.port = (int)f->ssh_port;
    find_tool(f);
    LS_TRY(find_folder(f));
    f->hosts.folder = f->folder;
    LS_TRY(list_exports(f));
    f->has_hosts = f->has_nodes = true;
    f->rendezvous.join_ms = JOIN_MS;
    f->rendezvous.max_restarts = (int)f->max_restarts;
    f->nodes.is_head = true;
    f->nodes.head = "here";
    f->nodes.key = &f->key;
    LS_TRY(net_key_random(&f->key));
    LS_TRY(run_flags_settle_networks(f));
    return choose_listen_address(f);
}
