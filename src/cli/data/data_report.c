/* SPDX-License-Identifier: Apache-2.0 */
/* data_report.c - prints what cmd_data.c has found in a data set, as text or as JSON. */
#include "cli/data/data_report.h"

#include "cli/cli.h"

typedef struct class_range {
    int least; /* classes */
    int most;
} class_range;

static class_range range_of(const dataset_facts *f)
{
    class_range r = {0, 0};

    for (int i = 1; i < f->n_classes; i++) {
        if (f->classes[i] < f->classes[r.least])
            r.least = i;
        if (f->classes[i] > f->classes[r.most])
            r.most = i;
    }
    return r;
}

/* The name of the class, or its number if it has no name; printable. */
static const char *class_text(const ls_dataset *d, int label, char *buf, size_t n)
{
    const char *name = ls_dataset_class_name(d, label);

    if (name != NULL)
        text_printable(buf, n, name);
    else
        text_format(buf, n, "%d", label);
    return buf;
}

static void print_sizes(const dataset_facts *f)
{
    if (f->width[0] == f->width[1] && f->height[0] == f->height[1])
        print_out("  size      %d x %d\n", f->width[0], f->height[0]);
    else
        print_out("  sizes     %d to %d wide, %d to %d high\n", f->width[0], f->width[1],
                  f->height[0], f->height[1]);
}

static void print_class_counts(const ls_dataset *d, const dataset_facts *f, bool with_classes)
{
    const class_range r = range_of(f);
    char least[256];
    char most[256];

    if (f->n_classes == 0)
        return;
    if (f->classes[r.least] == f->classes[r.most])
        print_out("  classes   %d of %zu image%s each\n", f->n_classes, f->classes[0],
                  text_plural((int64_t)f->classes[0]));
    else
        print_out("  classes   %d of %zu (%s) to %zu (%s) image%s\n", f->n_classes,
                  f->classes[r.least], class_text(d, r.least, least, sizeof(least)),
                  f->classes[r.most], class_text(d, r.most, most, sizeof(most)),
                  text_plural((int64_t)f->classes[r.most]));
    for (int i = 0; i < f->n_classes && with_classes; i++)
        print_out("  %8zu  %s\n", f->classes[i], class_text(d, i, least, sizeof(least)));
}

static void print_channels(const char *what, const double *values, int n)
{
    print_out("  %-8s ", what);
    for (int c = 0; c < n; c++)
        print_out(" %.4f", values[c]);
    print_out("\n");
}

static void print_broken(const dataset_facts *f)
{
    if (!f->is_quick)
        print_out("  broken    %zu\n", f->n_bad);
    else if (f->n_bad > 0)
        print_out("  broken    %zu or more: --quick does not decode images\n", f->n_bad);
    else
        print_out("  broken    unknown: --quick does not decode images\n");
}

static void print_skipped(const char *key, size_t n, const char *word, const char *why)
{
    if (n > 0)
        print_out("  %-9s %zu %s%s skipped: %s\n", key, n, word, text_plural((int64_t)n), why);
}

void data_report_print(const char *name, const ls_dataset *d, const dataset_facts *f,
                       bool with_classes)
{
    print_out("%s\n  images    %zu", name, f->count);
    if (f->n_jpeg + f->n_png > 0)
        print_out(" (%zu JPEG, %zu PNG)", f->n_jpeg, f->n_png);
    print_out("\n");
    if (f->width[0] > 0)
        print_sizes(f);
    print_class_counts(d, f, with_classes);
    if (f->has_moments) {
        print_channels("mean", f->mean, f->n_channels);
        print_channels("std", f->std, f->n_channels);
    }
    print_skipped("others", f->n_others, "file", "not named .jpg, .jpeg or .png");
    print_skipped("beside", f->n_beside, "file", "beside the class folders");
    print_skipped("dangling", f->n_dangling, "link",
                  "beside the class folders, without a readable target");
    print_broken(f);
}

static void put_numbers(json_writer *w, const char *key, const double *values, int n)
{
    json_open(w, key, '[');
    for (int c = 0; c < n; c++)
        json_put_real(w, NULL, values[c]);
    json_close(w, ']');
}

static void put_range(json_writer *w, const char *key, const int range[2])
{
    json_open(w, key, '[');
    json_put_int(w, NULL, range[0]);
    json_put_int(w, NULL, range[1]);
    json_close(w, ']');
}

void data_report_json(json_writer *w, const char *name, const ls_dataset *d, const dataset_facts *f)
{
    char text[256];

    json_open(w, NULL, '{');
    json_put_string(w, "name", name);
    json_put_int(w, "images", (int64_t)f->count);
    json_put_bool(w, "quick", f->is_quick);
    if (!f->is_quick || f->n_bad > 0)
        json_put_int(w, "broken", (int64_t)f->n_bad);
    json_put_int(w, "jpeg", (int64_t)f->n_jpeg);
    json_put_int(w, "png", (int64_t)f->n_png);
    json_put_int(w, "others", (int64_t)f->n_others);
    json_put_int(w, "beside", (int64_t)f->n_beside);
    json_put_int(w, "dangling", (int64_t)f->n_dangling);
    put_range(w, "width", f->width);
    put_range(w, "height", f->height);
    if (f->has_moments) {
        put_numbers(w, "mean", f->mean, f->n_channels);
        put_numbers(w, "std", f->std, f->n_channels);
    }
    json_open(w, "classes", '[');
    for (int i = 0; i < f->n_classes; i++) {
        json_open(w, NULL, '{');
        json_put_string(w, "name", class_text(d, i, text, sizeof(text)));
        json_put_int(w, "images", (int64_t)f->classes[i]);
        json_close(w, '}');
    }
    json_close(w, ']');
    json_close(w, '}');
}
