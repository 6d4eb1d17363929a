/* SPDX-License-Identifier: Apache-2.0 */
/*
 * watch.c - live throughput between each rank and the next.
 *
 * In each round every rank sends a number of messages to the next rank and receives messages from
 * the rank before it. The number is computed for each pair from the times of the previous round,
 * which all ranks exchange: a round takes every pair about 0.1 s, and sender and receiver compute
 * the same number. A line shows the rounds of one second. Rates are measured by the receivers. A
 * signal ends the watch after a round. Rounds are short because a round takes many times as long as
 * planned when the ranks suddenly get less processor time or bandwidth.
 */
#include "cli/bench/bench.h"
#include "cli/cli.h"

#include "base/alloc.h"
#include "base/clock.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

#define ROUND_S      0.1
#define LINE_S       1.0
#define FIRST_ROUND  4  /* messages */
#define FIRST_SHOWN  4  /* earlier rounds only adapt the number of messages */
#define GROWTH       16 /* maximum factor from round to round */
#define IN_FLIGHT    4  /* messages of each direction */
#define PAIRS_SHOWN  8  /* of more pairs, the slowest and the fastest */
#define HOST_BYTES   64
#define MESSAGES_MAX ((int64_t)1 << 40)

/* Written by the signal handler. */
static volatile sig_atomic_t stop_signal;

static void on_stop(int number)
{
    stop_signal = number;
}

/* Sent by every rank to all others after a round. */
typedef struct round_report {
    double seconds; /* duration of the messages to this rank */
    double must_stop;
} round_report;

typedef struct watch {
    const bench_options *opt;
    ls_comm *comm;
    bench_memory memory; /* of the messages */
    int n;
    int rank;
    size_t bytes; /* of a message */
    char *out;    /* IN_FLIGHT messages each */
    char *in;
    round_report *reports; /* one a rank */
    int64_t *counts;       /* messages to each rank in this round */
    double line_s;         /* duration of the rounds of this line */
    double *bytes_in;      /* of those rounds, to each rank */
    double *seconds;       /* likewise */
    double *rates;         /* GB/s to each rank */
    double *sums;
    char (*hosts)[HOST_BYTES];
} watch;

/* --- a round --- */

static ls_status run_round(watch *w)
{
    const int to = (w->rank + 1) % w->n;
    const int from = (w->rank + w->n - 1) % w->n;
    const int64_t n_out = w->counts[to];
    const int64_t n_in = w->counts[w->rank];
    const int64_t n = (n_out > n_in ? n_out : n_in) + IN_FLIGHT;
    ls_work *sends[IN_FLIGHT] = {NULL};
    ls_work *receives[IN_FLIGHT] = {NULL};
    const int64_t start_ns = ls_now_ns();
    int64_t end_ns = start_ns;
    ls_status st = LS_OK;

    for (int64_t i = 0; st == LS_OK && i < n; i++) {
        const size_t at = (size_t)(i % IN_FLIGHT);

        if (receives[at] != NULL) {
            st = ls_work_wait(receives[at]);
            receives[at] = NULL;
            end_ns = ls_now_ns();
        }
        if (st == LS_OK && sends[at] != NULL) {
            st = ls_work_wait(sends[at]);
            sends[at] = NULL;
        }
        if (st == LS_OK && i < n_in)
            st = ls_recv(w->comm, w->in + at * w->bytes, w->bytes, LS_U8, from, 0, &receives[at]);
        if (st == LS_OK && i < n_out)
            st = ls_send(w->comm, w->out + at * w->bytes, w->bytes, LS_U8, to, 0, &sends[at]);
    }
    for (int i = 0; i < IN_FLIGHT; i++) { // after a failure
        if (receives[i] != NULL)
            (void)!ls_work_wait(receives[i]);
        if (sends[i] != NULL)
            (void)!ls_work_wait(sends[i]);
    }
    w->reports[w->rank].seconds = (double)(end_ns - start_ns) * 1e-9;
    return st;
}

/* Exchanges the times of the round. All ranks compute the same plan for the next round. */
static ls_status exchange_reports(watch *w, bool is_shown, bool *must_stop)
{
    double longest = 0;

    w->reports[w->rank].must_stop = stop_signal != 0;
    LS_TRY(ls_all_gather(w->comm, &w->reports[w->rank], w->reports,
                         sizeof(round_report) / sizeof(double), LS_F64, NULL));
    *must_stop = false;
    for (int r = 0; r < w->n; r++) {
        const double seconds = w->reports[r].seconds;
        const double factor = seconds > 0 ? ROUND_S / seconds : GROWTH;
        const double next = (double)w->counts[r] * (factor < GROWTH ? factor : GROWTH);

        if (is_shown) {
            w->bytes_in[r] += (double)w->counts[r] * (double)w->bytes;
            w->seconds[r] += seconds;
        }
        longest = seconds > longest ? seconds : longest;
        w->counts[r] = next < 1 ? 1 : next > MESSAGES_MAX ? MESSAGES_MAX : (int64_t)next;
        *must_stop = *must_stop || w->reports[r].must_stop > 0;
    }
    w->line_s += is_shown ? longest : 0;
    return LS_OK;
}

/* --- output --- */

static void append_pair(const watch *w, text_buf *line, int to, double rate)
{
    const int from = (to + w->n - 1) % w->n;

    text_append(line, "  %d -> %d %.3f", from, to, rate);
}

static void print_rates(const watch *w, const char *what, const double *rates)
{
    double sum = 0;
    int slowest = 0;
    int fastest = 0;
    text_buf line = {0};

    for (int r = 0; r < w->n; r++) {
        sum += rates[r];
        slowest = rates[r] < rates[slowest] ? r : slowest;
        fastest = rates[r] > rates[fastest] ? r : fastest;
    }
    text_append(&line, "%s", what);
    if (w->n <= PAIRS_SHOWN) {
        for (int r = 1; r <= w->n; r++)
            append_pair(w, &line, r % w->n, rates[r % w->n]);
    } else {
        text_append(&line, "  slowest");
        append_pair(w, &line, slowest, rates[slowest]);
        text_append(&line, "  fastest");
        append_pair(w, &line, fastest, rates[fastest]);
    }
    print_out("%s  all %.3f GB/s\n", text_str(&line), sum);
    text_free(&line);
}

static void print_head(const watch *w)
{
    char size[32];

    print_out(
        "# lockstep %s sendrecv --watch, %d rank%s, backend %s, transport %s, messages of %s%s%s\n",
        ls_version(), w->n, text_plural(w->n), ls_comm_backend(w->comm), ls_comm_transport(w->comm),
        text_bytes(size, sizeof(size), w->bytes), w->opt->device != NULL ? ", device " : "",
        w->opt->device != NULL ? w->opt->device : "");
    for (int r = 0; r < w->n; r++)
        print_out("# rank %d is on %s\n", r, w->hosts[r]);
    print_out("# seconds, then GB/s from rank to rank\n");
}

/* --- the watch --- */

/* Prints line n: the rounds since line n - 1. */
static void end_line(watch *w, int64_t n)
{
    char what[32];

    for (int r = 0; r < w->n; r++) {
        w->rates[r] = w->seconds[r] > 0 ? w->bytes_in[r] / w->seconds[r] * 1e-9 : 0;
        w->sums[r] += w->rates[r];
        w->bytes_in[r] = 0;
        w->seconds[r] = 0;
    }
    w->line_s = 0;
    text_format(what, sizeof(what), "%9lld", (long long)n);
    if (w->rank == 0)
        print_rates(w, what, w->rates);
}

static ls_status watch_rounds(watch *w, int64_t reports)
{
    bool must_stop = false;
    int64_t n = 0;

    if (w->rank == 0)
        print_head(w);
    for (int64_t round = 0; !must_stop && (reports == 0 || n < reports); round++) {
        LS_TRY(run_round(w));
        LS_TRY(exchange_reports(w, round >= FIRST_SHOWN, &must_stop));
        if (w->line_s >= LINE_S || (must_stop && w->line_s > 0))
            end_line(w, ++n);
    }
    for (int r = 0; r < w->n && n > 0; r++)
        w->sums[r] /= (double)n;
    if (w->rank == 0 && n > 0)
        print_rates(w, "#    mean", w->sums);
    return LS_OK;
}

static ls_status take_messages(watch *w, char **out)
{
    void *memory;

    LS_TRY(bench_memory_take(&w->memory, IN_FLIGHT * w->bytes, &memory));
    *out = memory;
    return bench_memory_set(&w->memory, memory, 0x3c, IN_FLIGHT * w->bytes);
}

static ls_status prepare(watch *w)
{
    const size_t n = (size_t)w->n;

    LS_TRY(take_messages(w, &w->out));
    LS_TRY(take_messages(w, &w->in));
    w->reports = ls_calloc(n, sizeof(*w->reports));
    w->counts = ls_calloc(n, sizeof(*w->counts));
    w->rates = ls_calloc(4 * n, sizeof(*w->rates));
    w->hosts = ls_calloc(n, sizeof(*w->hosts));
    if (w->reports == NULL || w->counts == NULL || w->rates == NULL || w->hosts == NULL)
        return ls_fail(LS_ENOMEM, "no memory for %zu ranks", n);
    w->sums = w->rates + n;
    w->bytes_in = w->sums + n;
    w->seconds = w->bytes_in + n;
    for (size_t r = 0; r < n; r++)
        w->counts[r] = FIRST_ROUND;
    (void)gethostname(w->hosts[w->rank], HOST_BYTES - 1);
    text_printable(w->hosts[w->rank], HOST_BYTES, w->hosts[w->rank]);
    return ls_all_gather(w->comm, w->hosts[w->rank], w->hosts, HOST_BYTES, LS_U8, NULL);
}

static ls_status watch_with_signals(watch *w, int64_t reports)
{
    struct sigaction action;
    struct sigaction old[2];
    ls_status st;

    memset(&action, 0, sizeof(action));
    action.sa_handler = on_stop;
    sigemptyset(&action.sa_mask);
    stop_signal = 0;
    sigaction(SIGTERM, &action, &old[0]);
    sigaction(SIGINT, &action, &old[1]);
    st = watch_rounds(w, reports);
    sigaction(SIGTERM, &old[0], NULL);
    sigaction(SIGINT, &old[1], NULL);
    return st;
}

ls_status bench_watch(ls_comm *comm, ls_queue *queue, const bench_options *opt)
{
    watch w = {.opt = opt,
               .comm = comm,
               .memory = {.comm = comm, .queue = queue},
               .n = ls_comm_size(comm),
               .rank = ls_comm_rank(comm),
               .bytes = opt->max_bytes > 0 ? (size_t)opt->max_bytes : 1};
    int64_t reports = 0;
    ls_status st;

    if (w.n < 2)
        return ls_fail(LS_EINVAL, "--watch needs 2 ranks or more, but there is 1");
    if (*opt->watch != '\0')
        LS_TRY(text_parse_int(opt->watch, "--watch", 1, INT32_MAX, &reports));
    st = prepare(&w);
    if (st == LS_OK)
        st = watch_with_signals(&w, reports);
    bench_memory_give(&w.memory, w.out);
    bench_memory_give(&w.memory, w.in);
    ls_free(w.reports);
    ls_free(w.counts);
    ls_free(w.rates);
    ls_free(w.hosts);
    return st;
}
