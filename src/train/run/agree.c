/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agree.c - see agree.h. A rank describes what must be equal as a text of one line an item. The
 * ranks gather a hash of it; where hashes differ, they get the text of rank 0 and gather the first
 * line of each rank that differs, so that all ranks report the same. run.c calls it.
 */
#include "train/run/agree.h"

#include "base/alloc.h"
#include "base/rng.h"
#include "comm/comm.h"
#include "train/common_flags.h"
#include "train/run/run.h"
#include "train/state/state_file.h"

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

enum { TEXT_BYTES = 16384, LINE_BYTES = 480, VALUE_BYTES = 160, HOST_BYTES = 65 };

/* --- the flags as text --- */

/* Each rank may have values of its own. */
static const char *const of_each_rank[] = {
    "nodes",      "gpus",         "id",     "backend",    "device",   "share-gpu",
    "cuda-graph", "cpu-isa",      "master", "local-rank", "data",     "workers",
    "profile",    "profile-file", "help",   "bad-images", "check-nan"};

/* Only rank 0 uses them: the others may leave them out. */
static const char *const of_rank_0[] = {
    "metrics",    "tensorboard", "histograms",      "save",   "save-best", "on-save-error",
    "save-dtype", "init",        "skip-mismatched", "resume", "no-verify", "capsule"};

/* What a text that is not given means. */
static const char *const defaults_of[][2] = {
    {"optimizer", "sgd"}, {"schedule", "constant"},      {"precision", "fp32"},
    {"compress", "none"}, {"on-save-error", "continue"}, {"save-dtype", "fp32"}};

/* -1: it is not in the list. */
static int find_name(const char *const *names, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (text_equal(names[i], name))
            return (int)i;
    return -1;
}

static int rank_0_index(const char *name)
{
    return find_name(of_rank_0, LS_COUNT_OF(of_rank_0), name);
}

static const char *text_value(const ls_flag *flag)
{
    const char *value = *(const char *const *)flag->value;

    if (value == NULL)
        return "";
    if (value[0] == 0)
        return flag->kind == LS_FLAG_OPTIONAL_TEXT ? "\"\"" : "";
    for (size_t i = 0; i < LS_COUNT_OF(defaults_of); i++)
        if (text_equal(flag->name, defaults_of[i][0]) && text_equal(value, defaults_of[i][1]))
            return "";
    return value;
}

static void list_value(const ls_flag_texts *texts, char out[VALUE_BYTES])
{
    text_buf all = {0};

    for (int i = 0; i < texts->n; i++)
        text_append(&all, "%s%s", i > 0 ? " " : "", texts->items[i]);
    text_printable(out, VALUE_BYTES, text_str(&all));
    text_free(&all);
}

/* "" for what is not set. */
static void flag_value(const ls_flag *flag, char out[VALUE_BYTES])
{
    if (flag->kind == LS_FLAG_INT || flag->kind == LS_FLAG_BYTES)
        text_format(out, VALUE_BYTES, "%" PRId64, *(const int64_t *)flag->value);
    else if (flag->kind == LS_FLAG_REAL)
        text_format(out, VALUE_BYTES, "%.12g", *(const double *)flag->value);
    else if (flag->kind == LS_FLAG_BOOL)
        text_format(out, VALUE_BYTES, "%s", *(const int *)flag->value ? "given" : "");
    else if (flag->kind == LS_FLAG_TEXTS)
        list_value(flag->value, out);
    else
        text_printable(out, VALUE_BYTES, text_value(flag));
    if (rank_0_index(flag->name) >= 0 && text_equal(out, "0"))
        out[0] = 0;
}

void agree_note_defaults(ls_train_flags *flags, const ls_train_flags *defaults)
{
    ls_train_flags before = *defaults;
    ls_flag now[COMMON_FLAGS_MOST];
    ls_flag then[COMMON_FLAGS_MOST];
    const int n = common_flags_list(flags, now);

    (void)common_flags_list(&before, then);
    flags->not_given = 0;
    for (int i = 0; i < n; i++) {
        const int index = now[i].kind == LS_FLAG_HEADING ? -1 : rank_0_index(now[i].name);
        char values[2][VALUE_BYTES];

        if (index < 0)
            continue;
        flag_value(&now[i], values[0]);
        flag_value(&then[i], values[1]);
        if (text_equal(values[0], values[1]))
            flags->not_given |= INT64_C(1) << index;
    }
}

/* imagenet's batch is that of a node, whose ranks share it; with --balance rows they have equally
 * many on average. */
static void append_batch(const ls_train_flags *f, text_buf *out)
{
    const bool is_of_node = f->node_batch > 0 && !partition_divides_rows(f);

    text_append(out, "--batch-size\t%" PRId64 "\n", is_of_node ? f->node_batch : f->batch_size);
}

static void append_flag(const ls_run *run, const ls_flag *flag, text_buf *out)
{
    const int index = rank_0_index(flag->name);
    char value[VALUE_BYTES];

    if (flag->kind == LS_FLAG_HEADING ||
        find_name(of_each_rank, LS_COUNT_OF(of_each_rank), flag->name) >= 0)
        return;
    if (text_equal(flag->name, "batch-size")) {
        append_batch(run->flags, out);
        return;
    }
    flag_value(flag, value);
    if (index >= 0 && run_rank(run) != 0 && (run->flags->not_given >> index & 1) != 0 &&
        !comm_is_elastic(run->comm))
        value[0] = 0;
    text_append(out, "--%s\t%s\n", flag->name, value);
}

static bool is_path(const ls_flag *flag)
{
    if (flag->kind == LS_FLAG_ARGUMENT)
        return text_equal(flag->name, "FILE") || text_equal(flag->name, "DIR");
    return flag->help != NULL &&
           (text_starts(flag->help, "`FILE`") || text_starts(flag->help, "`DIR`"));
}

/* A flag of the program that sets a common one is compared as that. */
static bool is_common(const ls_run *run, const ls_flag *flag)
{
    const uintptr_t value = (uintptr_t)flag->value;
    const uintptr_t flags = (uintptr_t)run->flags;

    return value >= flags && value < flags + sizeof(*run->flags);
}

static bool is_local(const ls_train_program *p, const char *name)
{
    const char *const *local = p->local;

    while (local != NULL && *local != NULL && !text_equal(*local, name))
        local++;
    return (local != NULL && *local != NULL) ||
           find_name(of_each_rank, LS_COUNT_OF(of_each_rank), name) >= 0;
}

/* The flags of the program itself. */
static void append_own_flags(const ls_run *run, text_buf *out)
{
    const ls_train_program *p = run->program;
    char value[VALUE_BYTES];

    for (int i = 0; p != NULL && i < p->n_own; i++) {
        const ls_flag *flag = &p->own[i];

        if (flag->kind == LS_FLAG_HEADING || is_path(flag) || is_common(run, flag) ||
            is_local(p, flag->name))
            continue;
        flag_value(flag, value);
        text_append(out, "%s%s\t%s\n", flag->kind == LS_FLAG_ARGUMENT ? "" : "--", flag->name,
                    value);
    }
}

static void append_flags(const ls_run *run, text_buf *out)
{
    ls_train_flags copy = *run->flags;
    ls_flag list[COMMON_FLAGS_MOST];
    const int n = common_flags_list(&copy, list);

    for (int i = 0; i < n; i++)
        append_flag(run, &list[i], out);
    if (run->flags->audit > 0)
        text_append(out, "device of --audit (--cpu-isa)\t%s\n", ls_device_fingerprint(run->device));
    append_own_flags(run, out);
}

/* --- the data as text --- */

static void append_set(const ls_dataset *set, const char *what, text_buf *out)
{
    text_append(out, "samples of the %s set\t%zu\n", what, set != NULL ? ls_dataset_count(set) : 0);
    text_append(out, "classes of the %s set\t%d\n", what,
                set != NULL ? ls_dataset_classes(set) : 0);
}

static void append_data(const ls_run *run, text_buf *out)
{
    append_set(run->train.set, "training", out);
    append_set(run->test.set, "test", out);
    text_append(out, "names of ls_run_declare()\t");
    for (int i = 0; i < run->values.n; i++)
        text_append(out, "%s%s", i > 0 ? ", " : "", run->values.names[i]);
    text_append(out, "\n");
}

/* --- the first line that differs --- */

typedef struct texts {
    char own[TEXT_BYTES];
    char first[TEXT_BYTES]; /* of the rank that the others are compared with */
    char host[HOST_BYTES];  /* its host */
} texts;

/* The name and the value of a line; returns the next line. */
static const char *read_line(const char *line, char name[VALUE_BYTES], char value[VALUE_BYTES])
{
    const size_t whole = strcspn(line, "\n");
    const size_t n = strcspn(line, "\t\n");

    text_format(name, VALUE_BYTES, "%.*s", (int)n, line);
    text_format(value, VALUE_BYTES, "%.*s", n < whole ? (int)(whole - n - 1) : 0, line + n + 1);
    return line + whole + (line[whole] == '\n');
}

static const char *shown(const char *value)
{
    return value[0] != 0 ? value : "not given";
}

static bool is_of_rank_0(const char *name)
{
    return rank_0_index(name + strspn(name, "-")) >= 0;
}

static bool line_differs(const ls_run *run, char names[2][VALUE_BYTES], char values[2][VALUE_BYTES])
{
    if (!text_equal(names[0], names[1]))
        return true;
    if (text_equal(values[0], values[1]))
        return false;
    return values[0][0] != 0 || !is_of_rank_0(names[0]) || comm_is_elastic(run->comm);
}

/* Writes how this rank's text differs from that of rank `first`; "" where it does not. */
static void find_difference(const ls_run *run, const texts *t, int first, char line[LINE_BYTES])
{
    const char *here = t->own;
    const char *there = t->first;
    char names[2][VALUE_BYTES];
    char values[2][VALUE_BYTES];
    char host[HOST_BYTES] = "";
    bool differs = false;

    line[0] = 0;
    while (!differs && (here[0] != 0 || there[0] != 0)) {
        here = read_line(here, names[0], values[0]);
        there = read_line(there, names[1], values[1]);
        differs = line_differs(run, names, values);
    }
    if (!differs)
        return;
    if (gethostname(host, sizeof(host) - 1) != 0)
        host[0] = 0;
    text_format(line, LINE_BYTES, "%s: %s on rank %d (%s), %s on rank %d (%s)%s", names[0],
                shown(values[1]), first, t->host, shown(values[0]), ls_comm_rank(run->comm), host,
                is_of_rank_0(names[0]) ? "; rank 0 reads and writes the files" : "");
}

/* --- between ranks --- */

/* Sent as LS_I64. */
typedef struct agree_record {
    int64_t hash;
    int64_t counts; /* the others are compared with it */
} agree_record;

/* *first: the lowest rank that counts. *is_equal: all hashes are its hash. */
static ls_status gather_hashes(ls_run *run, const texts *t, bool counts, int *first, bool *is_equal)
{
    const int n = ls_comm_size(run->comm);
    const agree_record own = {(int64_t)ls_hash_bytes(t->own, strlen(t->own), 1), counts};
    agree_record *all;
    ls_status st;

    LS_TRY(LS_NEW(&all, (size_t)n, "for the flags of %d ranks", n));
    comm_label(run->comm, "flags of all ranks");
    st = ls_all_gather(run->comm, &own, all, 2, LS_I64, NULL);
    *first = 0;
    while (st == LS_OK && *first < n - 1 && !all[*first].counts)
        ++*first;
    *is_equal = true;
    for (int i = 0; st == LS_OK && i < n; i++)
        *is_equal = *is_equal && all[i].hash == all[*first].hash;
    ls_free(all);
    return st;
}

static ls_status fail_difference(const char *line)
{
    return ls_fail(LS_EMISMATCH, "ranks were started differently: %s", line);
}

/* The first line of all ranks that differ. */
static ls_status gather_lines(ls_run *run, const char line[LINE_BYTES])
{
    const int n = ls_comm_size(run->comm);
    char *all = ls_calloc((size_t)n, LINE_BYTES);
    ls_status st;

    if (all == NULL)
        return ls_fail(LS_ENOMEM, "no memory for the flags of %d ranks", n);
    comm_label(run->comm, "flags that differ");
    st = ls_all_gather(run->comm, line, all, LINE_BYTES, LS_U8, NULL);
    for (int i = 0; st == LS_OK && i < n; i++)
        if (all[(size_t)i * LINE_BYTES] != 0)
            st = fail_difference(&all[(size_t)i * LINE_BYTES]);
    ls_free(all);
    return st;
}

static ls_status compare_texts(ls_run *run, texts *t, bool counts, bool all_fail)
{
    char line[LINE_BYTES];
    bool is_equal = true;
    int first = 0;

    LS_TRY(gather_hashes(run, t, counts, &first, &is_equal));
    if (is_equal)
        return LS_OK;
    memcpy(t->first, t->own, sizeof(t->first));
    if (gethostname(t->host, sizeof(t->host) - 1) != 0)
        t->host[0] = 0;
    comm_label(run->comm, "flags of one rank");
    LS_TRY(
        ls_broadcast(run->comm, t->first, t->first, TEXT_BYTES + HOST_BYTES, LS_U8, first, NULL));
    memset(line, 0, sizeof(line));
    find_difference(run, t, first, line);
    if (all_fail)
        return gather_lines(run, line);
    return line[0] == 0 || counts ? LS_OK : fail_difference(line);
}

/* Takes the text. */
static ls_status agree_take(ls_run *run, text_buf *text, bool counts, bool all_fail)
{
    texts *t = ls_calloc(1, sizeof(*t));
    ls_status st = text_status(text);

    if (t == NULL)
        st = ls_fail(LS_ENOMEM, "no memory to compare the flags of ranks");
    if (st == LS_OK)
        text_format(t->own, sizeof(t->own), "%s", text_str(text));
    if (st == LS_OK)
        st = compare_texts(run, t, counts, all_fail);
    ls_free(t);
    text_free(text);
    return st;
}

static bool is_alone(const ls_run *run)
{
    return run->comm == NULL || ls_comm_size(run->comm) == 1;
}

ls_status agree_on_flags(ls_run *run)
{
    text_buf text = {0};

    if (is_alone(run))
        return LS_OK;
    append_flags(run, &text);
    return agree_take(run, &text, true, true);
}

ls_status agree_on_data(ls_run *run)
{
    text_buf text = {0};

    if (is_alone(run))
        return LS_OK;
    append_data(run, &text);
    return agree_take(run, &text, true, true);
}

ls_status agree_again(ls_run *run, bool has_state)
{
    text_buf text = {0};

    if (is_alone(run))
        return LS_OK;
    append_flags(run, &text);
    append_data(run, &text);
    return agree_take(run, &text, has_state, false);
}
