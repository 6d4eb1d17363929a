/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hosts_check_text.c - the result of a check of several hosts as text and as JSON. The text prints
 * a finding of several hosts once and the paths as a table. Called by lockstep check -H.
 */
#include "diagnose/hosts/hosts_check_internal.h"

#include "base/alloc.h"

#include <stdlib.h>
#include <string.h>

enum {

    TABLE_MOST = 12, /* hosts in a table; for more, the slowest paths are listed */
    SLOWEST_SHOWN = 5,
    CELL = 14,
    NAME_MOST = 24
};

/* --- the same finding of several hosts --- */

typedef struct place {
    const finding *found;
    int host; /* -1: of all together */
} place;

/* A finding and the hosts that have it: consecutive places. */
typedef struct row {
    const place *first;
    int n;
} row;

typedef struct rows {
    place *places;
    int n_places;
    row *list;
    int n;
} rows;

static int compare_findings(const finding *a, const finding *b)
{
    int order = (int)a->severity - (int)b->severity;

    if (order == 0)
        order = (int)a->kind - (int)b->kind;
    if (order == 0)
        order = strcmp(a->what, b->what);
    return order != 0 ? order : strcmp(a->fix, b->fix);
}

static int by_finding(const void *a, const void *b)
{
    const place *x = a;
    const place *y = b;
    const int order = compare_findings(x->found, y->found);

    return order != 0 ? order : x->host - y->host;
}

static int compare_hosts(const row *a, const row *b)
{
    if (a->n != b->n)
        return b->n - a->n; /* findings of many hosts come first */
    for (int i = 0; i < a->n; i++)
        if (a->first[i].host != b->first[i].host)
            return a->first[i].host - b->first[i].host;
    return 0;
}

static int by_hosts(const void *a, const void *b)
{
    const row *x = a;
    const row *y = b;
    const bool x_is_common = x->first->host < 0;
    const bool y_is_common = y->first->host < 0;
    int order = (int)x_is_common - (int)y_is_common; /* common findings come last */

    if (order == 0 && !x_is_common)
        order = compare_hosts(x, y);
    return order != 0 ? order : compare_findings(x->first->found, y->first->found);
}

static void add_places(rows *r, const findings *list, int host, finding_severity least)
{
    for (int i = 0; i < list->n; i++)
        if (list->items[i].severity >= least)
            r->places[r->n_places++] = (place){&list->items[i], host};
}

/* Drops findings that a host has twice. */
static void drop_repeated(rows *r)
{
    int n = 0;

    for (int i = 0; i < r->n_places; i++)
        if (n == 0 || by_finding(&r->places[n - 1], &r->places[i]) != 0)
            r->places[n++] = r->places[i];
    r->n_places = n;
}

static ls_status make_rows(const hosts_check *s, finding_severity least, rows *r)
{
    size_t n = (size_t)s->common.n;
    row *last = NULL;
    row *list;

    for (int i = 0; i < s->n; i++)
        n += (size_t)s->hosts[i].found.n;
    LS_TRY(LS_NEW(&r->places, n + 1, "for %zu findings", n));
    LS_TRY(LS_NEW(&r->list, n + 1, "for %zu findings", n));
    for (int i = 0; i < s->n; i++)
        add_places(r, &s->hosts[i].found, i, least);
    add_places(r, &s->common, -1, least);
    qsort(r->places, (size_t)r->n_places, sizeof(*r->places), by_finding);
    drop_repeated(r);
    list = r->list;
    for (int i = 0; i < r->n_places; i++) {
        const place *p = &r->places[i];

        if (last != NULL && compare_findings(last->first->found, p->found) == 0) {
            last->n++;
            continue;
        }
        last = &list[r->n++];
        *last = (row){p, 1};
    }
    qsort(r->list, (size_t)r->n, sizeof(*r->list), by_hosts);
    return LS_OK;
}

static void free_rows(rows *r)
{
    ls_free(r->places);
    ls_free(r->list);
}

/* --- findings --- */

static void append_hosts(const hosts_check *s, const row *r, text_buf *out)
{
    bool marks[HOSTS_CHECK_HOSTS_MOST] = {false};

    for (int i = 0; i < r->n && r->first->host >= 0; i++)
        marks[r->first[i].host] = true;
    text_append(out, "%s", r->first->host < 0 ? "all hosts together" : "");
    hosts_check_names(s, marks, out);
    text_append(out, ":\n");
}

static void append_finding(const finding *f, text_buf *out)
{
    text_append(out, "  %-8s %s: %s\n", finding_severity_text(f->severity), finding_id(f->kind),
                f->what);
    if (f->severity == FINDING_OK)
        return;
    if (finding_why(f->kind)[0] != 0)
        text_append(out, "           why: %s\n", finding_why(f->kind));
    if (f->fix[0] != 0)
        text_append(out, "           fix: %s\n", f->fix);
}

static void append_rows(const hosts_check *s, const rows *r, text_buf *out)
{
    for (int i = 0; i < r->n; i++) {
        const bool is_same = i > 0 && compare_hosts(&r->list[i - 1], &r->list[i]) == 0;

        if (!is_same)
            append_hosts(s, &r->list[i], out);
        append_finding(r->list[i].first->found, out);
    }
}

static void append_count(const rows *r, finding_severity severity, const char *what,
                         const char *end, text_buf *out)
{
    int n = 0;

    for (int i = 0; i < r->n; i++)
        n += r->list[i].first->found->severity == severity;
    text_append(out, "%d %s%s%s", n, what, n == 1 ? "" : "s", end);
}

/* --- paths --- */

static const char *cell_text(const hosts_check *s, int from, int to, char *buf, size_t n)
{
    const hosts_check_path *path = hosts_check_path_of(s, from, to);
    const double ms = (double)path->round_trip_us / 1e3;

    if (from == to)
        return "-";
    if (path->is_local)
        return "same machine";
    if (path->outcome != NET_OK)
        return net_outcome_text(path->outcome);
    if (path->bytes_per_s == 0)
        return text_format(buf, n, "?  %.3f", ms);
    return text_format(buf, n, "%.2f  %.3f", (double)path->bytes_per_s / 1e9, ms);
}

static void append_table(const hosts_check *s, text_buf *out)
{
    char text[48];

    text_append(out, "bandwidth (GB/s) and round-trip latency (ms), row -> column%s:\n",
                s->picks != NULL ? ", on the selected network" : "");
    text_append(out, "  %-*s", NAME_MOST, "");
    for (int to = 0; to < s->n; to++)
        if (s->hosts[to].has_answered)
            text_append(out, "  %-*.*s", CELL, CELL, s->hosts[to].name);
    for (int from = 0; from < s->n; from++) {
        if (!s->hosts[from].has_answered)
            continue;
        text_append(out, "\n  %-*.*s", NAME_MOST, NAME_MOST, s->hosts[from].name);
        for (int to = 0; to < s->n; to++)
            if (s->hosts[to].has_answered)
                text_append(out, "  %-*s", CELL, cell_text(s, from, to, text, sizeof(text)));
    }
    text_append(out, "\n");
}

static bool is_slower(const hosts_check_path *a, const hosts_check_path *b)
{
    return a->bytes_per_s != b->bytes_per_s ? a->bytes_per_s < b->bytes_per_s
                                            : a->round_trip_us > b->round_trip_us;
}

/* The slowest first; indices into s->paths. */
static int find_slowest(const hosts_check *s, int *out)
{
    int n = 0;

    for (int i = 0; i < s->n * s->n; i++) {
        int at = n;

        if (s->paths[i].outcome != NET_OK || s->paths[i].bytes_per_s == 0)
            continue;
        while (at > 0 && is_slower(&s->paths[i], &s->paths[out[at - 1]]))
            at--;
        if (at == SLOWEST_SHOWN)
            continue;
        n += n < SLOWEST_SHOWN;
        memmove(&out[at + 1], &out[at], (size_t)(n - 1 - at) * sizeof(*out));
        out[at] = i;
    }
    return n;
}

static void append_slowest(const hosts_check *s, text_buf *out)
{
    int slowest[SLOWEST_SHOWN];
    const int n = find_slowest(s, slowest);

    if (n > 0)
        text_append(out, "slowest paths (--json lists all), bandwidth and round-trip latency:\n");
    for (int i = 0; i < n; i++)
        text_append(out, "  %s -> %s: %.2f GB/s, %.3f ms\n", s->hosts[slowest[i] / s->n].name,
                    s->hosts[slowest[i] % s->n].name,
                    (double)s->paths[slowest[i]].bytes_per_s / 1e9,
                    (double)s->paths[slowest[i]].round_trip_us / 1e3);
}

void hosts_check_to_text(const hosts_check *s, finding_severity least, text_buf *out)
{
    rows r = {0};
    int n_answered = 0;

    if (make_rows(s, least, &r) != LS_OK) {
        out->failed = true;
        free_rows(&r);
        return;
    }
    append_rows(s, &r, out);
    for (int i = 0; i < s->n; i++)
        n_answered += s->hosts[i].has_answered;
    text_append(out, "%s", text_str(&s->matrix));
    if (n_answered > 1 && n_answered <= TABLE_MOST)
        append_table(s, out);
    else if (n_answered > 1)
        append_slowest(s, out);
    text_append(out, "%d of %d hosts: ", n_answered, s->n);
    append_count(&r, FINDING_ERROR, "error", ", ", out);
    append_count(&r, FINDING_WARNING, "warning", ", ", out);
    append_count(&r, FINDING_NOTE, "note", "\n", out);
    free_rows(&r);
}

/* --- JSON --- */

static void put_host(const hosts_check_host *h, json_writer *w)
{
    json_open(w, NULL, '{');
    json_put_string(w, "host", h->name);
    json_put_bool(w, "here", h->is_here);
    json_put_bool(w, "answered", h->has_answered);
    if (h->has_facts) {
        json_put_bool(w, "installed", !h->facts.is_uninstalled);
        json_put_string(w, "lockstep", h->facts.version);
        json_put_string(w, "build", h->facts.build);
        json_put_string(w, "machine", h->facts.machine);
        json_put_string(w, "kernel", h->facts.kernel);
        json_put_string(w, "libc", h->facts.libc);
        json_put_string(w, "simd", h->facts.simd);
        json_put_string(w, "python", h->facts.python);
        json_put_string(w, "torch", h->facts.torch);
    }
    if (h->clock.n > 0) {
        json_put_real(w, "clock_ahead_s", (double)h->clock.offset_ns / 1e9);
        json_put_real(w, "clock_error_s", (double)h->clock.round_trip_ns / 2e9);
    }
    json_close(w, '}');
}

static void put_path(const hosts_check *s, int from, int to, json_writer *w)
{
    const hosts_check_path *path = hosts_check_path_of(s, from, to);
    char host[NET_ADDRESS_TEXT_MAX];

    if (from == to || !s->hosts[from].has_answered || !s->hosts[to].has_answered ||
        (path->address < 0 && !path->is_local))
        return;
    json_open(w, NULL, '{');
    json_put_string(w, "from", s->hosts[from].name);
    json_put_string(w, "to", s->hosts[to].name);
    json_put_string(w, "outcome",
                    path->is_local ? "same machine" : net_outcome_text(path->outcome));
    if (path->address >= 0) {
        const net_interface *iface = &s->hosts[to].offer.at[path->address];

        json_put_string(w, "interface", iface->name);
        json_put_string(w, "address", net_address_host(host, sizeof(host), &iface->address));
        json_put_bool(w, "chosen", path->is_chosen);
    }
    if (path->outcome == NET_OK)
        json_put_int(w, "round_trip_us", path->round_trip_us);
    if (path->bytes_per_s > 0)
        json_put_int(w, "bytes_per_s", (int64_t)path->bytes_per_s);
    json_close(w, '}');
}

static void put_pick(const hosts_check *s, int i, json_writer *w)
{
    char host[NET_ADDRESS_TEXT_MAX];

    if (s->picks == NULL || s->picks[i].n == 0)
        return;
    json_open(w, NULL, '{');
    json_put_string(w, "host", s->hosts[i].name);
    json_put_string(w, "interface", s->picks[i].at[0].name);
    json_put_string(w, "address", net_address_host(host, sizeof(host), &s->picks[i].at[0].address));
    json_close(w, '}');
}

void hosts_check_to_json(const hosts_check *s, text_buf *out)
{
    json_writer w;

    json_begin(&w, out);
    json_open(&w, NULL, '{');
    json_open(&w, "hosts", '[');
    for (int i = 0; i < s->n; i++)
        put_host(&s->hosts[i], &w);
    json_close(&w, ']');
    json_open(&w, "findings", '[');
    for (int i = 0; i < s->n; i++)
        findings_put_json(&s->hosts[i].found, s->hosts[i].name, &w);
    findings_put_json(&s->common, "", &w);
    json_close(&w, ']');
    json_open(&w, "paths", '[');
    for (int from = 0; from < s->n; from++)
        for (int to = 0; to < s->n; to++)
            put_path(s, from, to, &w);
    json_close(&w, ']');
    json_open(&w, "network", '[');
    for (int i = 0; i < s->n; i++)
        put_pick(s, i, &w);
    json_close(&w, ']');
    json_close(&w, '}');
}
