/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_gpu.c - compares the NVIDIA GPUs on the PCI bus, which the kernel lists, with those of the
 * driver, and tests them on request. A subject of check_all().
 */
#include "diagnose/checks/check_internal.h"

#include "base/file.h"
#include "base/file.h"
#include "base/text.h"
#include "diagnose/gpu/visible_devices.h"

#include <dirent.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

typedef struct pci_address {
    unsigned domain;
    unsigned bus;
    unsigned device;
    unsigned function;
} pci_address;

typedef struct bus_gpu {
    pci_address address;
    char text[32]; /* "0000:85:00.0" */
    bool is_lost;  /* its configuration space reads as ones */
} bus_gpu;

typedef struct bus_list {
    bus_gpu gpus[GPU_MOST];
    int n;
} bus_list;

static bool parse_address(const char *text, pci_address *out)
{
    const char *at = text;
    char *end;
    unsigned *parts[] = {&out->domain, &out->bus, &out->device, &out->function};
    static const char stops[] = {':', ':', '.', 0};

    for (size_t i = 0; i < LS_COUNT_OF(parts); i++) {
        *parts[i] = (unsigned)strtoul(at, &end, 16);
        if (end == at || *end != stops[i])
            return false;
        at = end + 1;
    }
    return true;
}

static bool same_address(const pci_address *a, const pci_address *b)
{
    return a->domain == b->domain && a->bus == b->bus && a->device == b->device &&
           a->function == b->function;
}

/*
 * A device that has fallen off the bus reads as ones, while the other files of sysfs keep cached
 * values.
 */
static bool is_lost(const check *c, const char *device)
{
    char path[PATH_MAX];
    char head[5];

    check_path(c, path, sizeof(path), "/sys/bus/pci/devices/%s/config", device);
    return file_read_start(path, head, sizeof(head)) == 4 &&
           memcmp(head, "\xff\xff\xff\xff", 4) == 0;
}

/* NVIDIA's display and 3D controllers. */
static bool is_gpu(const check *c, const char *device)
{
    char path[PATH_MAX];
    char text[32];

    text_format(path, sizeof(path), "/sys/bus/pci/devices/%s/vendor", device);
    if (!check_read(c, path, text, sizeof(text)) || !text_equal(text, "0x10de"))
        return false;
    text_format(path, sizeof(path), "/sys/bus/pci/devices/%s/class", device);
    return check_read(c, path, text, sizeof(text)) &&
           (text_starts(text, "0x0300") || text_starts(text, "0x0302"));
}

static int by_address(const void *a, const void *b)
{
    return strcmp(((const bus_gpu *)a)->text, ((const bus_gpu *)b)->text);
}

static void list_bus(const check *c, bus_list *out)
{
    char path[PATH_MAX];
    const struct dirent *entry;
    DIR *devices = opendir(check_path(c, path, sizeof(path), "/sys/bus/pci/devices"));

    out->n = 0;
    if (devices == NULL)
        return;
    while (out->n < GPU_MOST && (entry = file_next_entry(devices)) != NULL) {
        bus_gpu *gpu = &out->gpus[out->n];
        if (strlen(entry->d_name) >= sizeof(gpu->text) ||
            !parse_address(entry->d_name, &gpu->address) || !is_gpu(c, entry->d_name))
            continue;
        text_format(gpu->text, sizeof(gpu->text), "%s", entry->d_name);
        gpu->is_lost = is_lost(c, entry->d_name);
        out->n++;
    }
    closedir(devices);
    qsort(out->gpus, (size_t)out->n, sizeof(*out->gpus), by_address);
}

static const gpu_seen *find_seen(const gpu_list *seen, const pci_address *address)
{
    for (int i = 0; i < seen->n; i++) {
        pci_address there;
        if (parse_address(seen->gpus[i].bus, &there) && same_address(&there, address))
            return &seen->gpus[i];
    }
    return NULL;
}

/* A container sees the whole bus, but may have access to some of the GPUs only. */
static bool may_have_some(const check *c)
{
    const char *visible = c->from->variable(c->from->self, "NVIDIA_VISIBLE_DEVICES");

    return (visible != NULL && !text_equal(visible, "all")) || check_exists(c, "/.dockerenv") ||
           check_exists(c, "/run/.containerenv");
}

/* A GPU on the bus that the driver cannot use or does not list. */
static void add_unusable(const check *c, const bus_gpu *gpu, const gpu_seen *there)
{
    char fix[128];

    if (gpu->is_lost || there != NULL) {
        text_format(fix, sizeof(fix), "reboot   # or until then: lockstep run -n %d",
                    c->n_ranks > 1 ? c->n_ranks - 1 : 1);
        finding_add(c->out, FINDING_GPU_LOST_KIND, FINDING_ERROR, fix,
                    gpu->is_lost ? "the GPU at %s has fallen off the bus%s%s"
                                 : "the GPU at %s cannot be used%s%s",
                    gpu->text, there != NULL ? ": " : "", there != NULL ? there->name : "");
        return;
    }
    text_format(fix, sizeof(fix), "nvidia-smi; dmesg | grep -i -e xid -e %s", gpu->text);
    finding_add(c->out, FINDING_GPU_MISSING_KIND, may_have_some(c) ? FINDING_NOTE : FINDING_ERROR,
                fix, "the GPU at %s is on the PCI bus, but the driver does not list it%s",
                gpu->text, may_have_some(c) ? " (this container may have no access to it)" : "");
}

static int compare_lists(const check *c, const bus_list *bus, const gpu_list *seen)
{
    int n_usable = 0;

    for (int i = 0; i < bus->n; i++) {
        const gpu_seen *there = find_seen(seen, &bus->gpus[i].address);
        const bool is_usable = there != NULL && there->is_usable;

        if (bus->gpus[i].is_lost || !is_usable)
            add_unusable(c, &bus->gpus[i], there);
    }
    for (int i = 0; i < seen->n; i++)
        n_usable += seen->gpus[i].is_usable;
    return n_usable;
}

/* Returns how many GPUs CUDA programs see. */
static int check_visible(const check *c, int n_usable)
{
    const char *text = c->from->variable(c->from->self, "CUDA_VISIBLE_DEVICES");
    visible_devices v;

    if (text == NULL)
        return n_usable;
    visible_devices_read(text, n_usable, &v);
    if (v.why != NULL && (text[0] == 0 || text_equal(text, "-1")))
        finding_add(c->out, FINDING_GPU_VISIBLE_KIND, FINDING_NOTE, "unset CUDA_VISIBLE_DEVICES",
                    "CUDA_VISIBLE_DEVICES=%s hides all GPUs", text);
    else if (v.why != NULL)
        finding_add(c->out, FINDING_GPU_VISIBLE_KIND, FINDING_ERROR, "unset CUDA_VISIBLE_DEVICES",
                    "CUDA_VISIBLE_DEVICES=%s exposes %d of %d GPUs: CUDA ignores the list from "
                    "\"%s\" on, because %s",
                    text, v.n, n_usable, v.bad, v.why);
    return v.n;
}

static void check_usable(const check *c, int n_usable)
{
    const int n_visible = check_visible(c, n_usable);
    char fix[64];

    text_format(fix, sizeof(fix), "lockstep run -n %d", n_visible > 0 ? n_visible : 1);
    if (n_visible > 0 && c->options->n_ranks > n_visible)
        finding_add(c->out, FINDING_GPU_FEW_KIND, FINDING_NOTE, fix,
                    "%d ranks share %d visible GPU%s", c->options->n_ranks, n_visible,
                    text_plural(n_visible));
}

static void add_failure(const check *c, ls_status st, const bus_list *bus)
{
    if (st == LS_EUNSUPPORTED && bus->n > 0)
        finding_add(c->out, FINDING_GPU_UNTRIED_KIND, FINDING_NOTE, "install lockstep on this host",
                    "%d NVIDIA GPU%s on the PCI bus not checked: %s", bus->n, text_plural(bus->n),
                    ls_last_error());
    else if (st == LS_EUNSUPPORTED)
        finding_add(c->out, FINDING_GPU_NONE_KIND, FINDING_OK, NULL,
                    "no NVIDIA GPU on the PCI bus");
    else if (st == LS_ETIMEOUT)
        finding_add(c->out, FINDING_GPU_HUNG_KIND, FINDING_ERROR,
                    "dmesg | grep -i -e nvrm -e xid   # then reboot", "%s", ls_last_error());
    else if (st != LS_ENOTFOUND)
        finding_add(c->out, FINDING_GPU_DRIVER_KIND, FINDING_ERROR, "nvidia-smi", "%s",
                    ls_last_error());
    else if (bus->n > 0)
        finding_add(c->out, FINDING_GPU_LIBRARY_KIND, FINDING_WARNING,
                    "apt-get install nvidia-driver   # docker run --gpus all",
                    "%d NVIDIA GPU%s on the PCI bus, but no driver library: %s", bus->n,
                    text_plural(bus->n), ls_last_error());
    else
        finding_add(c->out, FINDING_GPU_NONE_KIND, FINDING_OK, NULL,
                    "no NVIDIA GPU on the PCI bus and no NVIDIA driver library");
}

/* Adds a finding for a failed trial; returns whether there was none. */
static bool judge_trial(const check *c, const gpu_seen *gpu, const gpu_trial *trial)
{
    char fix[128];

    if (trial->status == LS_OK || !gpu->is_usable)
        return true; /* an unusable GPU has a finding already */
    text_format(fix, sizeof(fix), "nvidia-smi; dmesg | grep -i -e nvrm -e xid   # then reboot");
    if (trial->status == LS_ETIMEOUT)
        finding_add(c->out, FINDING_GPU_HUNG_KIND, FINDING_ERROR, fix,
                    "the GPU at %s (%s) hangs: %s", gpu->bus, gpu->name, trial->why);
    else if (trial->status == LS_ENOTFOUND)
        finding_add(c->out, FINDING_GPU_UNTRIED_KIND, FINDING_NOTE, "nvidia-smi -L",
                    "the GPU at %s (%s) has no UUID, so it was not tested", gpu->bus, gpu->name);
    else
        finding_add(c->out, FINDING_GPU_LOST_KIND, FINDING_ERROR, fix,
                    "the GPU at %s (%s) cannot be used: %s", gpu->bus, gpu->name, trial->why);
    return false;
}

static int try_each(const check *c, const gpu_list *seen)
{
    static gpu_trials trials; /* too large for the stack; checks run on one thread */
    int n_good = 0;

    if (c->from->try_gpus(c->from->self, seen, &trials) != LS_OK) {
        finding_add(c->out, FINDING_GPU_LIBRARY_KIND, FINDING_WARNING,
                    "apt-get install libcuda1   # docker run --gpus all", "%s", ls_last_error());
        return 0;
    }
    for (int i = 0; i < seen->n && i < trials.n; i++)
        n_good += judge_trial(c, &seen->gpus[i], &trials.gpus[i]) && trials.gpus[i].status == LS_OK;
    return n_good;
}

/* Adds a finding when NCCL does not work over the GPUs; returns whether it does. */
static bool try_together(const check *c)
{
    nccl_trial trial;
    const ls_status st = c->from->try_nccl(c->from->self, &trial);

    if (st == LS_ENOTFOUND)
        finding_add(c->out, FINDING_GPU_NCCL_KIND, FINDING_NOTE,
                    "install NCCL (libnccl.so.2)   # or: --backend native",
                    "NCCL is not installed: gradients of GPUs are reduced through host memory");
    else if (st != LS_OK && st != LS_EUNSUPPORTED)
        finding_add(c->out, FINDING_GPU_NCCL_KIND, FINDING_ERROR, trial.fix,
                    "NCCL cannot reduce over the GPUs: %s", trial.why);
    return st == LS_OK;
}

static void add_usable(const check *c, const gpu_list *seen, int n)
{
    const gpu_seen *first = seen->gpus;
    const bool tries = c->options->tries_gpus;
    const bool together = tries && n > 1 && try_together(c);

    while (!first->is_usable)
        first++;
    finding_add(c->out, FINDING_GPU_OK_KIND, FINDING_OK, NULL, "%d GPU%s: %s%s%s", n,
                text_plural(n), first->name,
                tries ? "; each opened, its memory tested, a kernel run" : "",
                together ? "; NCCL reduces over them" : "");
}

void check_gpus(check *c)
{
    bus_list bus;
    static gpu_list seen; /* too large for the stack; checks run on one thread */
    const int before = c->out->n;
    int n_usable;
    int n_good;
    ls_status st;

    list_bus(c, &bus);
    st = c->from->gpus(c->from->self, &seen);
    if (st != LS_OK) {
        add_failure(c, st, &bus);
        return;
    }
    n_usable = compare_lists(c, &bus, &seen);
    if (n_usable == 0 && c->out->n == before)
        finding_add(c->out, FINDING_GPU_NONE_KIND, FINDING_OK, NULL, "no NVIDIA GPU");
    n_good = n_usable > 0 && c->options->tries_gpus ? try_each(c, &seen) : n_usable;
    if (n_good > 0 && c->out->n == before)
        add_usable(c, &seen, n_good);
    check_usable(c, n_usable);
}
