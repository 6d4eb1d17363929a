/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_ops.c - compares every operator of a device with the reference device, for a machine that
 * has the device: bench/gpu/verify runs it on a card.
 *
 *     device_ops [--device NAME] [--type float32|float64|bfloat16|float16] [--tolerance X]
 *                [--again] [--say] [--first N] [--sample N] [CASE...]
 *
 * The difference of each result to cpu_ref's, as vectors, relative to cpu_ref's length, must be at
 * most the tolerance (default 1e-4 for float32, 1e-12 for float64, 1e-2 for 16-bit types). float32
 * is compared with cpu_ref in float64. With --again each case runs twice, and the results must have
 * the same bits. CASE: only cases whose name has this text. --first: the number of the first case.
 * --sample N: about one case of N, chosen by random numbers of a seed, which is printed:
 * LS_TEST_SEED, or that of the day.
 * Prints "case NUMBER NAME" before each case with --say, lines for each case that fails, with its
 * first differing elements, and a JSON object at the end, in which is_stopped says that the device
 * can no longer be used; exits with 1 if a case fails.
 */
#include "tensor/op_cases.h"

#include "base/rng.h"
#include "base/text.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct settings {
    const char *device;
    ls_dtype type;
    double tolerance; /* 0: that of the type */
    bool again;
    bool says;                /* each case before it runs */
    int first;                /* number of a case */
    uint64_t sample;          /* one case of so many; 1: all */
    const char *const *names; /* parts of names of cases, to NULL; none: all */
} settings;

typedef struct counts {
    int cases;
    int failed;
    int refused; /* the device has no kernel: LS_EUNSUPPORTED */
    bool is_stopped;
    double worst;
    const char *worst_case;
} counts;

static void complain(const op_case *c, const char *result, const char *what, double value)
{
    printf("%s (%s), %s: %s %.3g\n", c->name, device_op_name(c->op), result, what, value);
}

#define SHOWN_ELEMENTS 4

/* The first elements that differ by more than the tolerance allows on average. */
static void show_elements(const op_result *got, const op_result *want, double tolerance)
{
    double squares = 0;
    double limit;
    int n = 0;

    for (size_t i = 0; i < want->count; i++)
        squares += isfinite(want->values[i]) ? want->values[i] * want->values[i] : 0;
    limit = tolerance * sqrt(squares / (double)(want->count > 0 ? want->count : 1));
    for (size_t i = 0; i < want->count && i < got->count && n < SHOWN_ELEMENTS; i++) {
        if (fabs(got->values[i] - want->values[i]) <= limit)
            continue; // NaN differs
        printf("  element %zu of %zu: %.9g, not %.9g\n", i, want->count, got->values[i],
               want->values[i]);
        n++;
    }
}

/* Whether all results are near the reference's; updates the worst. */
static bool compare(const op_case *c, const op_results *got, const op_results *want,
                    double tolerance, counts *n)
{
    bool agrees = got->n == want->n;

    for (int i = 0; i < got->n && i < want->n; i++) {
        const double distance = op_result_distance(&got->r[i], &want->r[i]);

        if (!(distance <= tolerance)) { // NaN fails
            complain(c, got->r[i].name, "differs by", distance);
            show_elements(&got->r[i], &want->r[i], tolerance);
            agrees = false;
        }
        if (distance > n->worst) {
            n->worst = distance;
            n->worst_case = c->name;
        }
    }
    return agrees;
}

static bool same_bits(const op_case *c, const op_results *first, const op_results *second)
{
    for (int i = 0; i < first->n; i++) {
        if (memcmp(first->r[i].values, second->r[i].values, first->r[i].count * sizeof(double)) !=
            0) {
            complain(c, first->r[i].name, "has other bits when run again, by",
                     op_result_distance(&second->r[i], &first->r[i]));
            show_elements(&second->r[i], &first->r[i], 0);
            return false;
        }
    }
    return true;
}

static bool run_again(ls_device *device, const op_case *c, ls_dtype type, const op_results *first)
{
    op_results second = {0};
    bool is_same = op_case_run(device, c, type, &second) == LS_OK;

    if (is_same)
        is_same = same_bits(c, first, &second);
    else
        printf("%s, run again: %s\n", c->name, ls_last_error());
    op_results_free(&second);
    return is_same;
}

static void check_case(ls_device *device, ls_device *reference, const op_case *c, const settings *s,
                       counts *n)
{
    const ls_dtype reference_type = s->type == LS_F32 ? LS_F64 : s->type;
    op_results got = {0};
    op_results want = {0};
    ls_status st = op_case_run(reference, c, reference_type, &want);
    bool agrees = false;

    n->cases++;
    if (st == LS_OK)
        st = op_case_run(device, c, s->type, &got);
    if (st == LS_EUNSUPPORTED)
        n->refused++;
    if (st == LS_OK)
        agrees = compare(c, &got, &want, s->tolerance, n);
    else
        printf("%s: %s\n", c->name, ls_last_error());
    if (agrees && s->again)
        agrees = run_again(device, c, s->type, &got);
    n->failed += !agrees;
    op_results_free(&got);
    op_results_free(&want);
}

static void try_case(ls_device *device, ls_device *reference, int number, const settings *s,
                     counts *n)
{
    if (s->says)
        printf("case %d %s\n", number, op_cases[number].name);
    (void)fflush(stdout); // also of the failure before, should this case crash
    check_case(device, reference, &op_cases[number], s, n);
    n->is_stopped = ls_device_synchronize(device) != LS_OK;
    if (n->is_stopped)
        printf("  the device: %s\n", ls_last_error());
}

static ls_status open_device(const char *name, ls_device **out)
{
    const ls_device_options options = {.size = sizeof(options), .name = name};

    return ls_device_open(&options, out);
}

static bool has_name(const op_case *c, const char *const *names)
{
    const char *const *name = names;

    while (*name != NULL && strstr(c->name, *name) == NULL)
        name++;
    return *names == NULL || *name != NULL;
}

static uint64_t seed_of_sample(void)
{
    const char *text = getenv("LS_TEST_SEED"); // NOLINT(concurrency-mt-unsafe): never set

    return text != NULL ? strtoull(text, NULL, 10) : (uint64_t)time(NULL) / (24 * 60 * 60);
}

static void check_cases(ls_device *device, ls_device *reference, const settings *s, counts *n)
{
    const uint64_t seed = seed_of_sample();
    ls_rng rng;

    ls_rng_seed(&rng, seed);
    if (s->sample > 1)
        printf("LS_TEST_SEED=%" PRIu64 " chooses one case of %" PRIu64 "\n", seed, s->sample);
    for (int i = 0; i < n_op_cases && !n->is_stopped; i++) {
        const bool is_chosen = ls_rng_below(&rng, s->sample) == 0 && i >= s->first;

        if (is_chosen && has_name(&op_cases[i], s->names) &&
            (s->type == LS_F32 || s->type == LS_F64 || op_case_mixes(&op_cases[i])))
            try_case(device, reference, i, s, n);
    }
}

static int check_all(const settings *s)
{
    ls_device *device = NULL;
    ls_device *reference = NULL;
    counts n = {.worst_case = ""};
    ls_status st = open_device(s->device, &device);

    if (st == LS_OK)
        st = open_device("cpu_ref", &reference);
    if (st != LS_OK) {
        fprintf(stderr, "device_ops: %s\n", ls_last_error());
        return 2;
    }
    check_cases(device, reference, s, &n);
    printf("{\"device\": \"%s\", \"type\": \"%s\", \"cases\": %d, \"failed\": %d, \"refused\": %d, "
           "\"is_stopped\": %s, \"tolerance\": %g, \"worst\": %.3g, \"worst_case\": \"%s\"}\n",
           ls_device_fingerprint(device), ls_dtype_name(s->type), n.cases, n.failed, n.refused,
           n.is_stopped ? "true" : "false", s->tolerance, n.worst, n.worst_case);
    if (ls_device_close(device) != LS_OK || ls_device_close(reference) != LS_OK) {
        fprintf(stderr, "device_ops: %s\n", ls_last_error());
        return 1;
    }
    return n.failed > 0 || n.cases == 0;
}

static bool parse_type(const char *text, ls_dtype *out)
{
    static const ls_dtype types[] = {LS_F32, LS_F64, LS_BF16, LS_F16};

    for (size_t i = 0; i < LS_COUNT_OF(types); i++) {
        if (text_equal(text, ls_dtype_name(types[i]))) {
            *out = types[i];
            return true;
        }
    }
    return false;
}

static bool parse(char **argv, settings *s)
{
    int i = 1;

    for (; argv[i] != NULL && argv[i][0] == '-'; i++) {
        const char *value = argv[i + 1];

        if (text_equal(argv[i], "--again") || text_equal(argv[i], "--say")) {
            *(text_equal(argv[i], "--again") ? &s->again : &s->says) = true;
            continue;
        }
        if (value == NULL)
            return false;
        if (text_equal(argv[i], "--device"))
            s->device = value;
        else if (text_equal(argv[i], "--tolerance"))
            s->tolerance = strtod(value, NULL);
        else if (text_equal(argv[i], "--first"))
            s->first = (int)strtol(value, NULL, 10);
        else if (text_equal(argv[i], "--sample"))
            s->sample = strtoull(value, NULL, 10);
        else if (!text_equal(argv[i], "--type") || !parse_type(value, &s->type))
            return false;
        i++;
    }
    s->names = (const char *const *)argv + i;
    if (s->tolerance == 0)
        s->tolerance = s->type == LS_F32 ? 1e-4 : s->type == LS_F64 ? 1e-12 : 1e-2;
    return s->tolerance > 0 && s->first >= 0 && s->sample > 0;
}

int main(int argc, char **argv)
{
    settings s = {.device = "cuda", .type = LS_F32, .sample = 1};

    LS_UNUSED(argc);
    if (parse(argv, &s))
        return check_all(&s);
    fprintf(stderr, "usage: device_ops [--device NAME] [--type float32|float64|bfloat16|float16] "
                    "[--tolerance X] [--again] [--say] [--first N] [--sample N] [CASE...]\n");
    return 2;
}
