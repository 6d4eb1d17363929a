/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hosts_check_judge.c - compares the facts and clocks of hosts and adds findings; the paths between
 * hosts are judged by hosts_check_paths.c. Pure. Called by lockstep check -H after
 * hosts_check_run().
 */
#include "diagnose/hosts/hosts_check_internal.h"

#include "base/alloc.h"

#include <stddef.h>
#include <string.h>

enum { NAMES_SHOWN = 8, DISTINCT_MOST = 6 };

void hosts_check_names(const hosts_check *s, const bool *marks, text_buf *out)
{
    int n = 0;

    for (int i = 0; i < s->n; i++) {
        if (!marks[i])
            continue;
        if (n < NAMES_SHOWN)
            text_append(out, "%s%s", n > 0 ? ", " : "", s->hosts[i].name);
        n++;
    }
    if (n > NAMES_SHOWN)
        text_append(out, " and %d more", n - NAMES_SHOWN);
}

/* --- facts --- */

typedef struct fact {
    const char *title;
    size_t offset; /* in hosts_check_facts */
    finding_kind kind;
    finding_severity severity;
    bool is_of_build;   /* not compared on hosts that run the copied agent binary */
    const char *absent; /* shown for "" */
    const char *fix;
} fact;

static const fact facts[] = {
    {"lockstep builds differ", offsetof(hosts_check_facts, build), FINDING_BUILD_DIFFERS_KIND,
     FINDING_WARNING, true, "unknown", "install the same lockstep package on all hosts"},
    {"kernels differ", offsetof(hosts_check_facts, kernel), FINDING_KERNEL_DIFFERS_KIND,
     FINDING_NOTE, false, "unknown", "uname -r   # on each host"},
    {"C libraries differ", offsetof(hosts_check_facts, libc), FINDING_LIBC_DIFFERS_KIND,
     FINDING_NOTE, false, "no glibc",
     "build programs on the host with the oldest one, or use one container image on all hosts"},
    {"processor features differ", offsetof(hosts_check_facts, simd), FINDING_SIMD_DIFFERS_KIND,
     FINDING_WARNING, false, "no known vector instructions",
     "lscpu   # on each host; then leave out those that differ"},
    {"Python versions differ", offsetof(hosts_check_facts, python), FINDING_PYTHON_DIFFERS_KIND,
     FINDING_WARNING, false, "none",
     "export PYTHON_EXEC=...   # the same Python environment on all hosts"},
    {"PyTorch versions differ", offsetof(hosts_check_facts, torch), FINDING_PYTHON_DIFFERS_KIND,
     FINDING_WARNING, false, "none", "pip install torch==...   # the same version on all hosts"},
};

static const char *value_of(const hosts_check_host *h, const fact *f)
{
    const char *text = (const char *)&h->facts + f->offset;

    return text[0] != 0 ? text : f->absent;
}

static bool counts(const hosts_check_host *h, const fact *f)
{
    return h->has_facts && !(f->is_of_build && h->facts.is_uninstalled);
}

/* Marks the hosts that have the value of host `first`, in `now` and in `listed`. */
static void mark_equal(const hosts_check *s, const fact *f, int first, bool *now, bool *listed)
{
    for (int k = 0; k < s->n; k++) {
        now[k] = counts(&s->hosts[k], f) &&
                 text_equal(value_of(&s->hosts[k], f), value_of(&s->hosts[first], f));
        listed[k] = listed[k] || now[k];
    }
}

/*
 * Appends "Linux 6.1 on a, b; Linux 5.10 on c" and returns the number of values. `marks`: two for
 * each host.
 */
static int list_values(const hosts_check *s, const fact *f, bool *marks, text_buf *out)
{
    bool *listed = marks + s->n;
    int n = 0;

    memset(marks, 0, 2 * (size_t)s->n * sizeof(*marks));
    for (int i = 0; i < s->n; i++) {
        if (listed[i] || !counts(&s->hosts[i], f))
            continue;
        mark_equal(s, f, i, marks, listed);
        if (n++ < DISTINCT_MOST) {
            text_append(out, "%s%.100s on ", n > 1 ? "; " : "", value_of(&s->hosts[i], f));
            hosts_check_names(s, marks, out);
        }
    }
    if (n > DISTINCT_MOST)
        text_append(out, "; and %d others", n - DISTINCT_MOST);
    return n;
}

/* Returns whether all hosts have the same value; adds a finding otherwise. */
static bool compare(hosts_check *s, const fact *f, bool *marks)
{
    text_buf text = {0};
    const int n = list_values(s, f, marks, &text);

    if (n > 1)
        finding_add(&s->common, f->kind, f->severity, f->fix, "%s: %s", f->title, text_str(&text));
    s->common.failed |= text.failed;
    text_free(&text);
    return n <= 1;
}

static void compare_facts(hosts_check *s, bool *marks)
{
    bool are_same = true;
    int n_known = 0;
    const hosts_check_facts *one = NULL;

    for (int i = 0; i < s->n; i++) {
        n_known += s->hosts[i].has_facts;
        if (one == NULL && s->hosts[i].has_facts)
            one = &s->hosts[i].facts;
    }
    for (size_t i = 0; i < LS_COUNT_OF(facts); i++)
        are_same = compare(s, &facts[i], marks) && are_same;
    if (are_same && n_known > 1)
        finding_add(&s->common, FINDING_SAME_OK_KIND, FINDING_OK, NULL,
                    "lockstep versions match on %d hosts (%s), as do kernel (%s), C library (%s) "
                    "and processor features (%s)",
                    n_known, one->version, one->kernel, one->libc, one->simd);
}

static void add_uninstalled(hosts_check_host *h)
{
    if (h->has_facts && h->facts.is_uninstalled)
        finding_add(
            &h->found, FINDING_HOST_BARE_KIND, FINDING_NOTE,
            "install the same version of lockstep on this host",
            "lockstep %s is not installed: the agent binary is copied to this host at every start",
            ls_version());
}

/* --- clocks --- */

/* The smallest of a few limits that the offset is within; 0 when it exceeds them all. */
static int within_ms(const clock_offset *c)
{
    static const int steps[] = {1, 10, 100, 500};

    for (size_t i = 0; i < LS_COUNT_OF(steps); i++)
        if (!clock_offset_exceeds(c, (int64_t)steps[i] * 1000000))
            return steps[i];
    return 0;
}

static void judge_clock(const hosts_check *s, hosts_check_host *h)
{
    const int64_t limit_ns =
        s->clock_limit_ns != 0 ? s->clock_limit_ns : HOSTS_CHECK_CLOCK_LIMIT_NS;
    const clock_offset *c = &h->clock;
    const double off_s = (double)(c->offset_ns < 0 ? -c->offset_ns : c->offset_ns) / 1e9;
    char fix[384];

    if (c->n == 0)
        return;
    if (!clock_offset_exceeds(c, limit_ns)) {
        finding_add(&h->found, FINDING_TIME_OK_KIND, FINDING_OK, NULL,
                    "clock agrees with this machine's to within %d ms",
                    within_ms(c) > 0 ? within_ms(c) : (int)(limit_ns / 1000000));
        return;
    }
    text_format(fix, sizeof(fix),
                "%s %s sudo timedatectl set-ntp true   # or where chrony runs: sudo chronyc "
                "makestep",
                s->way == START_SSH ? "ssh" : "srun -w", h->name);
    finding_add(&h->found, FINDING_TIME_APART_KIND, FINDING_WARNING, fix,
                "clock is %.3f s %s this machine's (uncertainty %.1f ms)", off_s,
                c->offset_ns > 0 ? "ahead of" : "behind", (double)c->round_trip_ns / 2e6);
}

ls_status hosts_check_judge(hosts_check *s)
{
    bool *marks;
    ls_status st;

    LS_TRY(LS_NEW(&marks, (size_t)s->n * 2 + 1, "to compare %d hosts", s->n));
    compare_facts(s, marks);
    for (int i = 0; i < s->n; i++) {
        add_uninstalled(&s->hosts[i]);
        judge_clock(s, &s->hosts[i]);
    }
    st = hosts_check_judge_paths(s, marks);
    ls_free(marks);
    for (int i = 0; i < s->n && st == LS_OK; i++)
        st = findings_status(&s->hosts[i].found);
    return st == LS_OK ? findings_status(&s->common) : st;
}

finding_severity hosts_check_worst(const hosts_check *s)
{
    finding_severity worst = findings_worst(&s->common);

    for (int i = 0; i < s->n; i++)
        if (findings_worst(&s->hosts[i].found) > worst)
            worst = findings_worst(&s->hosts[i].found);
    return worst;
}

void hosts_check_free(hosts_check *s)
{
    for (int i = 0; s->hosts != NULL && i < s->n; i++) {
        findings_free(&s->hosts[i].found);
        net_report_free(&s->hosts[i].report);
    }
    findings_free(&s->common);
    text_free(&s->matrix);
    ls_free(s->picks);
    ls_free(s->paths);
    ls_free(s->hosts);
    *s = (hosts_check){0};
}
