/* SPDX-License-Identifier: Apache-2.0 */
/*
 * watch.c - live throughput between each rank and the next.
 *
 * In each round every rank sends the next one so many messages, and as many come from the one before.
 * How many is worked out for each pair from what all ranks have measured in the round before, so that
 * a round takes every pair about a tenth of a second, slow or fast, and sender and receiver agree
 * without asking. A line shows the rounds of a second. Rates are the receivers'. A signal ends the
 * watch after a round: rounds are short because one takes many times as long as planned where the
 * ranks suddenly get less of the processors or of the network.
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
#define FIRST_SHOWN  4  /* the rounds before have found out how many messages a round takes */
#define GROWTH       16 /* at most, from round to round */
#define IN_FLIGHT    4  /* messages of each direction */
#define PAIRS_SHOWN  8  /* more are summed up */
#define HOST_BYTES   64
#define MESSAGES_MAX ((int64_t)1 << 40)

/* A signal can reach nothing but a global. */
static volatile sig_atomic_t stop_signal;

static void on_stop(int number)
{
    stop_signal = number;
}

/* What every rank tells all others after a round. */
typedef struct watch_news {
    double seconds; /* that the messages to this rank took */
    double must_stop;
} watch_news;

typedef struct watch {
    const bench_options *opt;
    ls_comm *comm;
    int n;
    int rank;
    size_t bytes; /* of a message */
    char *out;    /* IN_FLIGHT messages each */
    char *in;
    watch_news *news; /* one a rank */
    int64_t *counts;  /* messages to each rank in this round */
    double line_s;    /* that the rounds of this line have taken */
    double *bytes_in; /* of those rounds, to each rank */
    double *seconds;  /* likewise */
    double *rates;    /* GB/s to each rank */
    double *sums;
    char (*hosts)[HOST_BYTES];
} watch;

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

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
    w->news[w->rank].seconds = (double)(end_ns - start_ns) * 1e-9;
    return st;
}

/* Every rank learns the times of all ranks' rounds, and plans the next one alike. */
static ls_status exchange_news(watch *w, bool is_shown, bool *must_stop)
{
    double longest = 0;

    w->news[w->rank].must_stop = stop_signal != 0;
    LS_TRY(ls_all_gather(w->comm, &w->news[w->rank], w->news, sizeof(watch_news) / sizeof(double),
                         LS_F64, NULL));
    *must_stop = false;
    for (int r = 0; r < w->n; r++) {
        const double seconds = w->news[r].seconds;
        const double factor = seconds > 0 ? ROUND_S / seconds : GROWTH;
        const double next = (double)w->counts[r] * (factor < GROWTH ? factor : GROWTH);

        if (is_shown) {
            w->bytes_in[r] += (double)w->counts[r] * (double)w->bytes;
            w->seconds[r] += seconds;
        }
        longest = seconds > longest ? seconds : longest;
        w->counts[r] = next < 1 ? 1 : least((int64_t)next, MESSAGES_MAX);
        *must_stop = *must_stop || w->news[r].must_stop > 0;
    }
    w->line_s += is_shown ? longest : 0;
    return LS_OK;
}

/* --- what is shown --- */

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
        "# lockstep %s sendrecv --watch, %d rank%s, backend %s, transport %s, messages of %s\n",
        ls_version(), w->n, text_plural(w->n), ls_comm_backend(w->comm), ls_comm_transport(w->comm),
        text_bytes(size, sizeof(size), w->bytes));
    for (int r = 0; r < w->n; r++)
        print_out("# rank %d is on %s\n", r, w->hosts[r]);
    print_out("# seconds, then GB/s from rank to rank\n");
}

/* --- life --- */

/* Line number n, of the rounds since the one before. */
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
        LS_TRY(exchange_news(w, round >= FIRST_SHOWN, &must_stop));
        if (w->line_s >= LINE_S || (must_stop && w->line_s > 0))
            end_line(w, ++n);
    }
    for (int r = 0; r < w->n && n > 0; r++)
        w->sums[r] /= (double)n;
    if (w->rank == 0 && n > 0)
        print_rates(w, "#    mean", w->sums);
    return LS_OK;
}

static ls_status prepare(watch *w)
{
    const size_t n = (size_t)w->n;

    w->out = ls_alloc_aligned(4096, IN_FLIGHT * w->bytes);
    w->in = ls_alloc_aligned(4096, IN_FLIGHT * w->bytes);
    w->news = ls_calloc(n, sizeof(*w->news));
    w->counts = ls_calloc(n, sizeof(*w->counts));
    w->rates = ls_calloc(4 * n, sizeof(*w->rates));
    w->hosts = ls_calloc(n, sizeof(*w->hosts));
    if (w->out == NULL || w->in == NULL || w->news == NULL || w->counts == NULL ||
        w->rates == NULL || w->hosts == NULL)
        return ls_fail(LS_ENOMEM, "no memory for messages of %zu bytes", w->bytes);
    w->sums = w->rates + n;
    w->bytes_in = w->sums + n;
    w->seconds = w->bytes_in + n;
    memset(w->out, 0x3c, IN_FLIGHT * w->bytes);
    memset(w->in, 0, IN_FLIGHT * w->bytes);
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

ls_status bench_watch(ls_comm *comm, const bench_options *opt)
{
    watch w = {.opt = opt,
               .comm = comm,
               .n = ls_comm_size(comm),
               .rank = ls_comm_rank(comm),
               .bytes = opt->max_bytes > 0 ? (size_t)opt->max_bytes : 1};
    int64_t reports = 0;
    ls_status st;

    if (w.n < 2)
        return ls_fail(LS_EINVAL,
                       "--watch shows what passes between ranks, and this is the only one");
    if (*opt->watch != '\0')
        LS_TRY(text_parse_int(opt->watch, "--watch", 1, INT32_MAX, &reports));
    st = prepare(&w);
    if (st == LS_OK)
        st = watch_with_signals(&w, reports);
    ls_free(w.out);
    ls_free(w.in);
    ls_free(w.news);
    ls_free(w.counts);
    ls_free(w.rates);
    ls_free(w.hosts);
    return st;
}
