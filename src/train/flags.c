/* SPDX-License-Identifier: Apache-2.0 */
/*
 * flags.c - one table-driven parser for the flags of every program.
 */
#include "train/run.h"

#include "base/text.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST_COMMON 32

typedef struct parser {
    const char *program;
    ls_flag common[MOST_COMMON];
    int n_common;
    const ls_flag *own;
    int n_own;
} parser;

/* --- the common table --- */

static void add(parser *p, const char *name, char letter, ls_flag_kind kind, void *value,
                double min, double max, const char *help)
{
    LS_ASSERT(p->n_common < MOST_COMMON);
    p->common[p->n_common++] = (ls_flag){name, letter, kind, value, min, max, help};
}

static void add_common(parser *p, ls_train_flags *f)
{
    const double most = 1e15;

    add(p, "nodes", 'n', LS_FLAG_INT, &f->nodes, 0, 65536,
        "machines, when this program starts its own ranks");
    add(p, "gpus", 'g', LS_FLAG_TEXT, &f->gpus, 0, 0, "ranks to start on each machine: 2, or 8,2");
    add(p, "id", 'i', LS_FLAG_INT, &f->node_id, 0, 65535, "which of the machines this is");
    add(p, "backend", 0, LS_FLAG_TEXT, &f->backend, 0, 0, "communication: auto, native");
    add(p, "device", 0, LS_FLAG_TEXT, &f->device, 0, 0, "computation: cpu, cpu_ref");
    add(p, "master", 0, LS_FLAG_TEXT, &f->master, 0, 0, "HOST[:PORT] of machine 0");
    add(p, "local-rank", 0, LS_FLAG_INT, &f->local_rank, 0, 65535,
        "accepted for torch.distributed.launch");
    add(p, "epochs", 0, LS_FLAG_INT, &f->epochs, 0, most, "passes over the training set");
    add(p, "steps", 0, LS_FLAG_INT, &f->steps, 0, most, "stop after so many steps; 0: no limit");
    add(p, "batch-size", 'b', LS_FLAG_INT, &f->batch_size, 1, 1 << 24,
        "samples of one rank in one step");
    add(p, "lr", 0, LS_FLAG_REAL, &f->lr, 0, 1e6, "learning rate at the start");
    add(p, "momentum", 0, LS_FLAG_REAL, &f->momentum, 0, 1, "of SGD");
    add(p, "weight-decay", 0, LS_FLAG_REAL, &f->weight_decay, 0, 1e6, "of SGD");
    add(p, "schedule", 0, LS_FLAG_TEXT, &f->schedule, 0, 0,
        "constant, step (a tenth after each third of the epochs), cosine");
    add(p, "data", 0, LS_FLAG_TEXT, &f->data, 0, 0, "folder of the data set");
    add(p, "seed", 0, LS_FLAG_INT, &f->seed, 0, most,
        "decides initial values and order of samples");
    add(p, "no-shuffle", 0, LS_FLAG_BOOL, &f->no_shuffle, 0, 0,
        "take the samples in the order of the files");
    add(p, "workers", 'j', LS_FLAG_INT, &f->workers, 0, 256, "threads that read ahead; 0: one");
    add(p, "check-replicas", 0, LS_FLAG_INT, &f->check_replicas, 0, 1 << 30,
        "compare the ranks' parameters every so many steps; 0: never");
    add(p, "metrics", 0, LS_FLAG_TEXT, &f->metrics, 0, 0, "FILE.jsonl: one JSON object a line");
    add(p, "save", 0, LS_FLAG_TEXT, &f->save, 0, 0, "FILE.safetensors: weights, after each epoch");
    add(p, "init", 0, LS_FLAG_TEXT, &f->init, 0, 0, "FILE.safetensors: start from these weights");
    add(p, "resume", 0, LS_FLAG_OPTIONAL_TEXT, &f->resume, 0, 0,
        "[FILE.safetensors]: go on where the run that saved it ended; default the --save file");
    add(p, "help", 'h', LS_FLAG_BOOL, &f->help, 0, 0, "print this text");
}

/* --- looking a flag up --- */

/* "-" and "_" are the same; `n` bytes of `given` count. */
static bool same_name(const char *name, const char *given, size_t n)
{
    if (strlen(name) != n)
        return false;
    for (size_t i = 0; i < n; i++)
        if (name[i] != (given[i] == '_' ? '-' : given[i]))
            return false;
    return true;
}

static const ls_flag *flag_at(const parser *p, int i)
{
    return i < p->n_own ? &p->own[i] : &p->common[i - p->n_own];
}

static int n_flags(const parser *p)
{
    return p->n_own + p->n_common;
}

/* Finds "--name", "--name=value" or "-x"; *value points behind the "=" or is NULL. A program's own flag hides a common one. */
static const ls_flag *find_flag(const parser *p, const char *arg, const char **value)
{
    const bool is_long = text_starts(arg, "--");
    const char *name = arg + (is_long ? 2 : 1);
    const size_t n = strcspn(name, "=");

    *value = name[n] == '=' ? name + n + 1 : NULL;
    for (int i = 0; i < n_flags(p); i++) {
        const ls_flag *flag = flag_at(p, i);
        if (is_long ? same_name(flag->name, name, n)
                    : n == 1 && flag->letter == name[0] && name[0] != 0)
            return flag;
    }
    return NULL;
}

#define NAME_MOST 40

/* Levenshtein's distance, for "did you mean". */
static int edit_distance(const char *a, const char *b)
{
    const size_t n = strlen(a);
    const size_t m = strlen(b);
    int row[NAME_MOST + 1];

    if (n > NAME_MOST || m > NAME_MOST)
        return NAME_MOST;
    for (size_t j = 0; j <= m; j++)
        row[j] = (int)j;
    for (size_t i = 1; i <= n; i++) {
        int diagonal = row[0];
        row[0] = (int)i;
        for (size_t j = 1; j <= m; j++) {
            const int keep = diagonal + (a[i - 1] != b[j - 1]);
            const int change = (row[j] < row[j - 1] ? row[j] : row[j - 1]) + 1;
            diagonal = row[j];
            row[j] = keep < change ? keep : change;
        }
    }
    return row[m];
}

static ls_status unknown_flag(const parser *p, const char *arg)
{
    const char *nearest = NULL;
    char name[NAME_MOST + 1];
    int least = 4; /* further away is no help */

    text_format(name, sizeof(name), "%.*s", (int)strcspn(arg, "="), arg);
    for (int i = 0; i < n_flags(p); i++) {
        const int distance = edit_distance(name + strspn(name, "-"), flag_at(p, i)->name);
        if (distance < least) {
            least = distance;
            nearest = flag_at(p, i)->name;
        }
    }
    if (nearest != NULL)
        return ls_fail(LS_EINVAL, "unknown flag %s: did you mean --%s? (%s --help lists all)", name,
                       nearest, p->program);
    return ls_fail(LS_EINVAL, "unknown flag %s (%s --help lists all)", name, p->program);
}

/* --- values --- */

static ls_status set_int(const ls_flag *flag, const char *what, const char *text)
{
    const bool bounded = flag->max > flag->min;

    return text_parse_int(text, what, bounded ? (int64_t)flag->min : INT64_MIN,
                          bounded ? (int64_t)flag->max : INT64_MAX, flag->value);
}

static ls_status set_bool(const ls_flag *flag, const char *what, const char *text)
{
    bool on = true;

    if (text != NULL)
        LS_TRY(text_parse_bool(text, what, &on));
    *(int *)flag->value = on;
    return LS_OK;
}

static ls_status set_value(const ls_flag *flag, const char *text)
{
    char what[NAME_MOST + 8];

    text_format(what, sizeof(what), "--%s", flag->name);
    switch (flag->kind) {
    case LS_FLAG_BOOL:
        return set_bool(flag, what, text);
    case LS_FLAG_INT:
        return set_int(flag, what, text);
    case LS_FLAG_REAL:
        return text_parse_double(text, what, flag->min, flag->max > flag->min ? flag->max : 1e300,
                                 flag->value);
    case LS_FLAG_TEXT:
    case LS_FLAG_OPTIONAL_TEXT:
        *(const char **)flag->value = text;
        return LS_OK;
    }
    return ls_fail(LS_EINTERNAL, "flag --%s has no kind", flag->name);
}

/* Takes argv[*i] and, where the flag wants one, the value behind it. */
static ls_status take_flag(const parser *p, int argc, char **argv, int *i)
{
    const char *value;
    const char *arg = argv[*i];
    const ls_flag *flag;

    if (arg[0] != '-' || arg[1] == 0)
        return ls_fail(LS_EINVAL, "unexpected argument %s (%s --help lists the flags)", arg,
                       p->program);
    flag = find_flag(p, arg, &value);
    if (flag == NULL)
        return unknown_flag(p, arg);
    if (value == NULL && flag->kind != LS_FLAG_BOOL) {
        const bool has_next = *i + 1 < argc;
        if (flag->kind == LS_FLAG_OPTIONAL_TEXT)
            value = has_next && argv[*i + 1][0] != '-' ? argv[++*i] : "";
        else if (has_next)
            value = argv[++*i];
        else
            return ls_fail(LS_EINVAL, "--%s needs a value", flag->name);
    }
    return set_value(flag, value);
}

/* --- help --- */

static void append_default(text_buf *t, const ls_flag *flag)
{
    if (flag->kind == LS_FLAG_INT && *(int64_t *)flag->value != 0)
        text_append(t, " (%lld)", (long long)*(int64_t *)flag->value);
    else if (flag->kind == LS_FLAG_REAL && *(double *)flag->value != 0)
        text_append(t, " (%g)", *(double *)flag->value);
    else if (flag->kind == LS_FLAG_TEXT && *(const char **)flag->value != NULL)
        text_append(t, " (%s)", *(const char **)flag->value);
}

static ls_status print_help(const parser *p, const char *summary)
{
    text_buf t = {0};
    ls_status st;

    text_append(&t, "usage: %s [flags]\n%s\n\n", p->program, summary);
    for (int i = 0; i < n_flags(p); i++) {
        const ls_flag *flag = flag_at(p, i);
        char left[NAME_MOST + 16];
        if (flag->letter != 0)
            text_format(left, sizeof(left), "-%c, --%s", flag->letter, flag->name);
        else
            text_format(left, sizeof(left), "    --%s", flag->name);
        text_append(&t, "  %-22s %s", left, flag->help);
        append_default(&t, flag);
        text_append(&t, "\n");
    }
    st = text_status(&t);
    if (st == LS_OK)
        progress_write(STDOUT_FILENO, text_str(&t));
    text_free(&t);
    return st;
}

/* --- the public calls --- */

ls_status ls_train_parse(const char *program, const char *summary, int argc, char **argv,
                         ls_train_flags *common, const ls_flag *own, int n_own)
{
    parser p = {.program = program, .own = own, .n_own = n_own};
    ls_train_flags defaults = *common;
    parser shown = {.program = program, .own = own, .n_own = n_own};

    add_common(&p, common);
    for (int i = 1; i < argc; i++)
        LS_TRY(take_flag(&p, argc, argv, &i));
    if (!common->help)
        return LS_OK;
    add_common(&shown,
               &defaults); /* the help shows the defaults, not what was given beside --help */
    return print_help(&shown, summary);
}

ls_status ls_train_local_ranks(const ls_train_flags *flags, int *n)
{
    const char *at = flags->gpus;
    int64_t count = 0;
    int64_t nodes = 0;

    *n = 0;
    if (at == NULL) {
        if (flags->nodes > 0 || flags->node_id > 0)
            return ls_fail(LS_EINVAL,
                           "--nodes and --id need --gpus: the ranks to start on each machine");
        return LS_OK;
    }
    if (getenv("LOCKSTEP_RANK") != NULL)
        return ls_fail(LS_EINVAL,
                       "--gpus starts ranks, but this process is already rank %s of a job",
                       getenv("LOCKSTEP_RANK"));
    for (; *at != 0; nodes++) {
        char number[16];
        const size_t length = strcspn(at, ",");
        int64_t ranks;
        text_format(number, sizeof(number), "%.*s", (int)(length < 15 ? length : 15), at);
        LS_TRY(text_parse_int(number, "--gpus", 1, 4096, &ranks));
        if (nodes == flags->node_id || nodes == 0)
            count = ranks;
        at += length + (at[length] == ',');
    }
    if (nodes == 0)
        return ls_fail(LS_EINVAL, "--gpus is empty: give the ranks of each machine, as 2 or 8,2");
    if (nodes > 1 || flags->nodes > 1)
        return ls_fail(LS_EUNSUPPORTED,
                       "--nodes over 1 is not possible yet: start the ranks of one machine, or set "
                       "MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE for each rank");
    if (flags->node_id != 0)
        return ls_fail(LS_EINVAL, "--id %lld, but there is one machine: 0",
                       (long long)flags->node_id);
    *n = (int)count;
    return LS_OK;
}

int ls_train_exit(const char *program, ls_status status)
{
    text_buf t = {0};

    if (status == LS_OK)
        return EXIT_SUCCESS;
    text_append(&t, "%s: %s\n", program, ls_last_error());
    progress_write(STDERR_FILENO, text_str(&t));
    text_free(&t);
    return EXIT_FAILURE;
}
