/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fake_machine.c - a simulated machine: a root folder with files of /proc, /sys and /etc, and
 * check_sources that answer from the struct's fields. Used by test_check.c.
 */
#include "diagnose/fake_machine.h"

#include "base/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* --- files --- */

void fake_put_bytes(const fake_machine *m, const char *path, const char *bytes, size_t n)
{
    root_folder_put_bytes(m->root, path + 1, bytes, n);
}

void fake_put(const fake_machine *m, const char *path, const char *text)
{
    root_folder_put(m->root, path + 1, text);
}

void fake_link(const fake_machine *m, const char *path, const char *to)
{
    root_folder_link(m->root, path + 1, to);
}

void fake_remove(const fake_machine *m, const char *path)
{
    root_folder_remove(m->root, path + 1);
}

/* --- the sources --- */

static const char *host_name(void *self, char *buf, size_t n)
{
    return text_format(buf, n, "%s", ((const fake_machine *)self)->host);
}

static ls_status resolve(void *self, const char *name, int64_t limit_ms, net_address *out, int max,
                         int *n)
{
    const fake_machine *m = self;

    assert_string_equal(name, m->host);
    assert_true(limit_ms > 0);
    *n = 0;
    if (m->resolve_status != LS_OK)
        return ls_fail(m->resolve_status, "no");
    for (int i = 0; m->addresses[i] != NULL && *n < max; i++)
        assert_ok(net_address_parse(m->addresses[i], 0, &out[(*n)++]));
    return LS_OK;
}

static ls_status interfaces(void *self, const char *filter, net_interface *out, int max, int *n)
{
    const fake_machine *m = self;

    *n = 0;
    for (int i = 0; i < m->n_ifaces && *n < max; i++) {
        bool passes;
        LS_TRY(net_interface_passes(filter, &m->ifaces[i], &passes));
        if (passes)
            out[(*n)++] = m->ifaces[i];
    }
    return LS_OK;
}

static const char *variable(void *self, const char *name)
{
    const fake_machine *m = self;
    const size_t n = strlen(name);

    for (int i = 0; i < FAKE_MOST && m->variables[i] != NULL; i++)
        if (strncmp(m->variables[i], name, n) == 0 && m->variables[i][n] == '=')
            return m->variables[i] + n + 1;
    return NULL;
}

static bool limit(void *self, int resource, struct rlimit *out)
{
    const fake_machine *m = self;

    *out = resource == RLIMIT_NOFILE ? m->files
                                     : (resource == RLIMIT_NPROC ? m->processes : m->memlock);
    return true;
}

static int usable_cores(void *self)
{
    LS_UNUSED(self);
    return 4;
}

static bool space(void *self, const char *path, uint64_t *total_bytes, uint64_t *free_bytes)
{
    const fake_machine *m = self;

    assert_string_equal(path, "/dev/shm");
    *total_bytes = m->shm_total;
    *free_bytes = m->shm_free;
    return m->shm_total > 0;
}

static int64_t seconds(void *self)
{
    return ((const fake_machine *)self)->seconds;
}

static bool clock_is_synchronized(void *self)
{
    return ((const fake_machine *)self)->clock_is_synchronized;
}

static bool has_pidfd(void *self)
{
    return ((const fake_machine *)self)->has_pidfd;
}

static bool has_vm_read(void *self)
{
    return ((const fake_machine *)self)->has_vm_read;
}

static ls_status key_path(void *self, char *buf, size_t n)
{
    const fake_machine *m = self;

    if (m->key[0] == 0)
        return ls_fail(LS_ENOTFOUND, "no home folder for the key");
    text_format(buf, n, "%s", m->key);
    return LS_OK;
}

static ls_status gpus(void *self, gpu_list *out)
{
    const fake_machine *m = self;

    *out = m->gpus;
    return m->gpu_status == LS_OK ? LS_OK : ls_fail(m->gpu_status, "the driver is \033[31mill");
}

static ls_status try_gpus(void *self, const gpu_list *list, gpu_trials *out)
{
    const fake_machine *m = self;

    *out = m->trials;
    out->n = list->n;
    return m->trial_status == LS_OK ? LS_OK : ls_fail(m->trial_status, "no libcuda.so.1");
}

static ls_status try_nccl(void *self, nccl_trial *out)
{
    const fake_machine *m = self;

    *out = (nccl_trial){.why = "a hang", .fix = nccl_fix("Duplicate GPU detected")};
    return m->nccl_status == LS_OK ? LS_OK : ls_fail(m->nccl_status, "%s", out->why);
}

/* --- the machine --- */

void fake_add_iface(fake_machine *m, const char *name, const char *address, int prefix)
{
    net_interface *iface = &m->ifaces[m->n_ifaces++];
    char path[128];

    *iface = (net_interface){
        .prefix = prefix, .is_bridge = text_starts(name, "docker"), .is_default = m->n_ifaces == 1};
    text_format(iface->name, sizeof(iface->name), "%s", name);
    assert_ok(net_address_parse(address, 0, &iface->address));
    text_format(path, sizeof(path), "/sys/class/net/%s/address", name);
    fake_put(m, path, "");
}

void fake_add_process(const fake_machine *m, int pid, unsigned uid, uint64_t start,
                      const char *environment, size_t n)
{
    char path[128];
    char text[256];

    text_format(path, sizeof(path), "/proc/%d/stat", pid);
    text_format(text, sizeof(text),
                "%d (a) b (c) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 %llu 0 0\n", pid,
                (unsigned long long)start);
    fake_put(m, path, text);
    text_format(path, sizeof(path), "/proc/%d/status", pid);
    text_format(text, sizeof(text), "Name:\tx\nUid:\t%u\t%u\t%u\t%u\nGid:\t0\n", uid, uid, uid,
                uid);
    fake_put(m, path, text);
    text_format(path, sizeof(path), "/proc/%d/environ", pid);
    fake_put_bytes(m, path, environment, n);
}

static void fill_files(const fake_machine *m)
{
    fake_put(m, "/proc/self/status",
             "Name:\tcheck\nNSpid:\t42\nCpus_allowed:\tff\nCpus_allowed_list:\t0-7\n");
    fake_link(m, "/proc/self/ns/pid", "pid:[" FAKE_SPACE "]");
    fake_put(m, "/proc/self/cgroup", "2:cpu,cpuacct:/job\n1:memory,pids:/job\n0::/job\n");
    fake_put(m, "/proc/self/mountinfo",
             "30 25 0:26 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
             "31 25 0:27 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n"
             "32 25 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n");
    fake_put(m, "/sys/fs/cgroup/unified/job/cgroup.procs", "");
    fake_put(m, "/proc/uptime", "1000000.50 1.0\n");
    fake_put(m, "/proc/meminfo", "MemTotal: 65536000 kB\nMemAvailable:   64000000 kB\n");
    fake_put(m, "/proc/net/tcp",
             "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n");
    fake_put(m, "/proc/sys/net/ipv4/ip_local_port_range", "32768\t60999\n");
    fake_put(m, "/proc/sys/kernel/yama/ptrace_scope", "1\n");
    fake_put(m, "/proc/sys/user/max_user_namespaces", "1000\n");
    fake_put(m, "/sys/devices/system/cpu/online", "0-7\n");
    fake_put(m, "/usr/bin/ssh", "");
    fake_put(m, "/usr/sbin/sshd", "");
    fake_put(m, "/home/key", "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f\n");
}

void fake_start(fake_machine *m)
{
    const struct rlimit none = {RLIM_INFINITY, RLIM_INFINITY};

    *m = (fake_machine){.host = "node0",
                        .addresses = {"10.77.0.10"},
                        .variables = {"PATH=/bin:/usr/bin"},
                        .files = {1024, 1048576},
                        .memlock = none,
                        .processes = none,
                        .shm_total = UINT64_C(8) << 30,
                        .shm_free = UINT64_C(8) << 30,
                        .seconds = 1900000000,
                        .clock_is_synchronized = true,
                        .has_pidfd = true,
                        .has_vm_read = true};
    root_folder_make(m->root);
    m->sources = (check_sources){.root = m->root,
                                 .self = m,
                                 .host_name = host_name,
                                 .resolve = resolve,
                                 .interfaces = interfaces,
                                 .variable = variable,
                                 .limit = limit,
                                 .usable_cores = usable_cores,
                                 .space = space,
                                 .seconds = seconds,
                                 .clock_is_synchronized = clock_is_synchronized,
                                 .has_pidfd = has_pidfd,
                                 .has_vm_read = has_vm_read,
                                 .key_path = key_path,
                                 .gpus = gpus,
                                 .try_gpus = try_gpus,
                                 .try_nccl = try_nccl};
    text_format(m->key, sizeof(m->key), "%s/home/key", m->root);
    fake_add_iface(m, "eth0", "10.77.0.10", 24);
    fill_files(m);
}

void fake_end(fake_machine *m)
{
    root_folder_remove(m->root, "");
}
