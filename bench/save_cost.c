/* SPDX-License-Identifier: Apache-2.0 */
/*
 * save_cost.c - what the digests of saved files cost: seconds of saving and loading a file, of
 * loading it without comparing digests, and of the digests alone, one core. Medians of rounds.
 */
#include "checkpoint/digest.h"

#include <lockstep/checkpoint.h>

#include "bench_flags.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { N_TENSORS = 16, MAX_ROUNDS = 100 };

typedef struct settings {
    const char *dir;
    int64_t mib;
    int64_t rounds;
    int help;
} settings;

typedef struct state {
    char path[4096];
    char names[N_TENSORS][16];
    ls_named items[N_TENSORS];
} state;

static double seconds(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static ls_status save(state *s)
{
    return ls_checkpoint_save(s->path, s->items, N_TENSORS, NULL, 0);
}

static ls_status load_by(state *s, ls_status (*open)(const char *, ls_checkpoint **))
{
    ls_checkpoint *file;
    ls_status st = open(s->path, &file);

    if (st != LS_OK)
        return st;
    st = ls_checkpoint_load(file, s->items, N_TENSORS, LS_LOAD_STRICT);
    ls_checkpoint_close(file);
    return st;
}

static ls_status load(state *s)
{
    return load_by(s, ls_checkpoint_open);
}

static ls_status load_unverified(state *s)
{
    return load_by(s, ls_checkpoint_open_unverified);
}

static ls_status compute_digests(state *s)
{
    char digits[DIGEST_DIGITS + 1];
    digest d;

    for (int i = 0; i < N_TENSORS; i++) {
        digest_begin(&d);
        digest_add(&d, s->items[i].bytes, s->items[i].n_bytes);
        digest_end(&d, digits);
    }
    return LS_OK;
}

static const struct {
    const char *name;
    ls_status (*run)(state *);
} cases[] = {{"save, with sync", save},
             {"load", load},
             {"load --no-verify", load_unverified},
             {"digests alone", compute_digests}};

enum { N_CASES = sizeof(cases) / sizeof(cases[0]) };

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;

    return (x > y) - (x < y);
}

static ls_status make(const settings *o, state *s)
{
    const size_t bytes = (size_t)o->mib * (1U << 20) / N_TENSORS;

    (void)snprintf(s->path, sizeof(s->path), "%s/save_cost.%d.safetensors", o->dir, (int)getpid());
    for (int i = 0; i < N_TENSORS; i++) {
        (void)snprintf(s->names[i], sizeof(s->names[i]), "tensor %d", i);
        s->items[i] = (ls_named){.name = s->names[i], .bytes = malloc(bytes), .n_bytes = bytes};
        if (s->items[i].bytes == NULL)
            return ls_set_error(LS_ENOMEM, "no memory for %lld MiB", (long long)o->mib);
        memset(s->items[i].bytes, i + 1, bytes);
    }
    return LS_OK;
}

/* In turn, so that all see the same machine. */
static ls_status measure(const settings *o, state *s, double times[N_CASES][MAX_ROUNDS])
{
    for (int64_t r = 0; r < o->rounds; r++) {
        for (int i = 0; i < N_CASES; i++) {
            const double start = seconds();
            const ls_status st = cases[i].run(s);

            if (st != LS_OK)
                return st;
            times[i][r] = seconds() - start;
        }
    }
    return LS_OK;
}

static void print(const settings *o, double times[N_CASES][MAX_ROUNDS])
{
    (void)printf("%lld MiB, median of %lld rounds (least to most)\n", (long long)o->mib,
                 (long long)o->rounds);
    for (int i = 0; i < N_CASES; i++) {
        const double *t = times[i];
        double middle;

        qsort(times[i], (size_t)o->rounds, sizeof(double), ascending);
        middle = t[o->rounds / 2];
        (void)printf("%-18s %.3f s (%.3f to %.3f), %.2f GB/s\n", cases[i].name, middle, t[0],
                     t[o->rounds - 1], (double)o->mib * 1048576e-9 / middle);
    }
}

int main(int argc, char **argv)
{
    static double times[N_CASES][MAX_ROUNDS];
    static state s;
    settings o = {.dir = ".", .mib = 256, .rounds = 5};
    const ls_flag table[] = {
        {"dir", 0, LS_FLAG_TEXT, &o.dir, 0, 0, "`DIR` where the file is written"},
        {"mib", 0, LS_FLAG_INT, &o.mib, 1, 65536, "size of the file"},
        {"rounds", 0, LS_FLAG_INT, &o.rounds, 1, MAX_ROUNDS, "rounds of all measurements"},
        {"help", 'h', LS_FLAG_BOOL, &o.help, 0, 0, "print this text"},
    };
    const ls_flags flags = {.size = sizeof(flags),
                            .program = "save_cost",
                            .usage = "[flags]",
                            .summary = "Measures saving and loading, and what digests cost.",
                            .tables = {table},
                            .n = {sizeof(table) / sizeof(table[0])}};
    ls_status st = bench_flags(&flags, argc, argv, &o.help);

    if (st == LS_OK && o.help)
        return 0;
    if (st == LS_OK)
        st = make(&o, &s);
    if (st == LS_OK)
        st = measure(&o, &s, times);
    if (st == LS_OK)
        print(&o, times);
    else
        (void)fprintf(stderr, "save_cost: %s\n", ls_last_error());
    (void)unlink(s.path);
    for (int i = 0; i < N_TENSORS; i++)
        free(s.items[i].bytes);
    return st == LS_OK ? 0 : 1;
}
