/* SPDX-License-Identifier: Apache-2.0 */
/*
 * balance.c - see balance.h. The search: (1) the shortest time in which all ranks together can
 * compute all shards, without the exchange, by bisection; (2) around the boundaries of that
 * partition dynamic programming over ranks, once for each number of pieces that a rank may have. A
 * boundary has 17 positions, so a pass looks at 289 ranges a rank. shard_balance.c calls it.
 */
#include "ddp/balance.h"

#include "base/alloc.h"
#include "ddp/shard_tree.h"

#include <string.h>

enum { POSITIONS = 2 * BALANCE_WINDOW + 1 };

/* A time that is longer than each step: half of the largest number, so that two can be added. */
static const int64_t never_ns = INT64_MAX / 2;
/* The longest time of a shard that is computed with: 2^20 of them can be added. */
static const int64_t longest_ns = INT64_C(1) << 40;

/* A position of a boundary: the shards of the ranks before it. */
typedef struct balance_cell {
    int at;
    int from;      /* position of the boundary before it; -1: cannot be reached */
    int64_t worst; /* the longest time of the ranks before it */
} balance_cell;

/* --- one rank --- */

void balance_times_add(balance_times *t, int64_t ns)
{
    if (ns < 1)
        return;
    t->ns[t->n % BALANCE_SAMPLES] = ns < longest_ns ? ns : longest_ns;
    t->n = t->n + 1 < 2 * BALANCE_SAMPLES ? t->n + 1 : BALANCE_SAMPLES;
}

int64_t balance_times_middle(const balance_times *t)
{
    const int n = t->n < BALANCE_SAMPLES ? t->n : BALANCE_SAMPLES;
    int64_t sorted[BALANCE_SAMPLES];
    int64_t sum = 0;

    for (int i = 0; i < n; i++) {
        int at = i;

        for (; at > 0 && sorted[at - 1] > t->ns[i]; at--)
            sorted[at] = sorted[at - 1];
        sorted[at] = t->ns[i];
    }
    if (n < 2)
        return 0; // one alone may be longer by chance
    for (int i = n / 3; i < n - (n + 2) / 3; i++)
        sum += sorted[i];
    return sum / (n - n / 3 - (n + 2) / 3);
}

static int64_t retry_after(const balance_meter *m)
{
    return m->retry > 0 ? m->retry : BALANCE_RETRY;
}

static void add_idle_step(balance_meter *m)
{
    const int64_t next = 2 * retry_after(m);

    if (m->n_idle == 0 && m->n_active >= BALANCE_RETRY)
        m->retry = BALANCE_RETRY;
    else if (m->n_idle == 0 && m->n_active > 0 && m->retry > 0)
        m->retry = next < BALANCE_RETRY_MOST ? next : BALANCE_RETRY_MOST;
    else if (m->n_idle == 0)
        m->retry = BALANCE_RETRY;
    m->n_active = 0;
    m->n_idle++;
}

void balance_meter_add(balance_meter *m, int n, int64_t shards_ns, int64_t fixed_ns)
{
    balance_times_add(&m->fixed, fixed_ns);
    if (n == 0) {
        add_idle_step(m);
        return;
    }
    if (m->n_idle > 0)
        m->shard.n = 0; // it may have another speed now
    m->n_idle = 0;
    m->n_active++;
    if (m->n_active > 1) // the first step makes what later ones use
        balance_times_add(&m->shard, shards_ns / n);
}

balance_speed balance_meter_speed(const balance_meter *m, int64_t wait_ns)
{
    const bool asks = m->n_idle >= retry_after(m);

    return (balance_speed){.shard_ns = asks ? 0 : balance_times_middle(&m->shard),
                           .fixed_ns = balance_times_middle(&m->fixed),
                           .wait_ns = wait_ns};
}

/* --- the time of a step --- */

static int most_pieces(const balancer *b, const int *starts)
{
    int most = 0;

    if (b->sum == BALANCE_ONE_SUM)
        return 1;
    for (int r = 0; r < b->ranks; r++) {
        const int n = shard_count_pieces(b->shards, shard_range_of(starts, r));

        most = n > most ? n : most;
    }
    return most;
}

static bool is_exchanged(const balancer *b, const int *starts)
{
    if (b->sum != BALANCE_BY_PIECES)
        return b->sum == BALANCE_EXCHANGE;
    return !shard_partition_is_aligned(b->shards, starts, b->ranks);
}

/* Of what has not been measured: the shortest time that it may have, so that it is tried. All of an
 * all-reduce can overlap with backward, and half of an exchange. */
static int64_t unit_of(const balancer *b, bool exchanged)
{
    const int64_t measured = b->unit_ns[exchanged];
    const int64_t other = b->unit_ns[!exchanged];

    if (measured >= 0 || other < 0)
        return measured >= 0 ? measured : 0;
    return exchanged ? other : other / 2;
}

static int64_t rank_time(const balance_speed *s, int64_t n)
{
    return s->fixed_ns + n * s->shard_ns;
}

static int64_t exchange_time(const balancer *b, const int *starts)
{
    return (most_pieces(b, starts) + 1) * unit_of(b, is_exchanged(b, starts));
}

int64_t balancer_predict(const balancer *b, const balance_speed *speeds, const int *starts)
{
    int64_t longest = 0;

    for (int r = 0; r < b->ranks; r++) {
        const int64_t ns = rank_time(&speeds[r], starts[r + 1] - starts[r]);

        longest = ns > longest ? ns : longest;
    }
    return longest + exchange_time(b, starts);
}

/* Whether `best` is shorter by so many per cent. */
static bool is_shorter(int64_t best, int64_t present, int per_cent)
{
    return best < present - present / 100 * per_cent;
}

/* --- the ideal partition --- */

static int64_t count_within(const balancer *b, const balance_speed *s, int64_t ns)
{
    const int64_t left = ns - s->fixed_ns;
    const int64_t n = left > 0 ? left / s->shard_ns : 0;

    if (n < b->least)
        return b->least;
    return n < b->shards ? n : b->shards;
}

static int64_t count_all_within(const balancer *b, const balance_speed *speeds, int64_t ns)
{
    int64_t n = 0;

    for (int r = 0; r < b->ranks; r++)
        n += count_within(b, &speeds[r], ns);
    return n;
}

static int64_t shortest_time(const balancer *b, const balance_speed *speeds)
{
    int64_t low = 0; // too short
    int64_t high = never_ns;

    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;

        if (count_all_within(b, speeds, middle) >= b->shards)
            high = middle;
        else
            low = middle;
    }
    return high;
}

/* Takes shards that are too many from the ranks that would end last. */
static void drop_excess(const balancer *b, const balance_speed *speeds, int64_t excess, int *counts)
{
    for (; excess > 0; excess--) {
        int last = -1;

        for (int r = 0; r < b->ranks; r++)
            if (counts[r] > b->least && (last < 0 || rank_time(&speeds[r], counts[r]) >
                                                         rank_time(&speeds[last], counts[last])))
                last = r;
        counts[last]--;
    }
}

/* starts[] of the shortest time without the exchange. */
static void divide_ideally(const balancer *b, const balance_speed *speeds, int64_t ns, int *starts)
{
    int *counts = starts + 1;

    for (int r = 0; r < b->ranks; r++)
        counts[r] = (int)count_within(b, &speeds[r], ns);
    drop_excess(b, speeds, count_all_within(b, speeds, ns) - b->shards, counts);
    starts[0] = 0;
    for (int r = 0; r < b->ranks; r++)
        starts[r + 1] += starts[r];
}

/* --- the search --- */

/* Positions of the boundary in front of rank r; *n of them. */
static balance_cell *cells_of(const balancer *b, int r, int *n)
{
    *n = r == 0 || r == b->ranks ? 1 : POSITIONS;
    return b->cells + (size_t)r * POSITIONS;
}

static void place_cells(const balancer *b, const int *ideal)
{
    for (int r = 0; r <= b->ranks; r++) {
        int n;
        balance_cell *cells = cells_of(b, r, &n);

        for (int i = 0; i < n; i++)
            cells[i].at = n == 1 ? ideal[r] : ideal[r] + i - BALANCE_WINDOW;
    }
}

/* The shortest way to a boundary with ranks of at most `pieces` pieces. */
static void reach(const balancer *b, const balance_speed *speeds, int r, int pieces,
                  balance_cell *to)
{
    int n;
    const balance_cell *before = cells_of(b, r - 1, &n);

    to->from = -1;
    to->worst = never_ns;
    for (int i = 0; i < n; i++) {
        const shard_node range = {before[i].at, to->at - before[i].at};
        int64_t ns;

        if (before[i].from < 0 || to->at > b->shards || range.n < b->least)
            continue;
        ns = rank_time(&speeds[r - 1], range.n);
        ns = ns > before[i].worst ? ns : before[i].worst;
        if (ns < to->worst && shard_count_pieces(b->shards, range) <= pieces) {
            to->worst = ns;
            to->from = i;
        }
    }
}

/* The shortest partition with at most so many pieces for a rank. False: there is none. */
static bool search(const balancer *b, const balance_speed *speeds, int pieces, int *starts)
{
    int n;
    balance_cell *cells = cells_of(b, 0, &n);
    int at = 0;

    cells[0] = (balance_cell){.at = 0, .from = 0, .worst = 0};
    for (int r = 1; r <= b->ranks; r++) {
        cells = cells_of(b, r, &n);
        for (int i = 0; i < n; i++)
            reach(b, speeds, r, pieces, &cells[i]);
    }
    for (int r = b->ranks; r >= 0; r--) {
        cells = cells_of(b, r, &n);
        if (cells[at].from < 0)
            return false;
        starts[r] = cells[at].at;
        at = cells[at].from;
    }
    return true;
}

/* b->best becomes the shortest partition, whose time is returned; `present`, if none can be shorter
 * than that by BALANCE_GAIN per cent. All speeds are known. */
static int64_t plan(balancer *b, const balance_speed *speeds, int64_t present)
{
    const int64_t unit =
        unit_of(b, true) < unit_of(b, false) ? unit_of(b, true) : unit_of(b, false);
    const int64_t ideal_ns = shortest_time(b, speeds);
    int *tried = b->best + b->ranks + 1; // behind it
    int64_t best_ns;

    if (!is_shorter(ideal_ns + 2 * unit, present, BALANCE_GAIN))
        return present;
    divide_ideally(b, speeds, ideal_ns, b->best);
    best_ns = balancer_predict(b, speeds, b->best);
    if (b->sum == BALANCE_ONE_SUM)
        return best_ns; // no other one has a shorter exchange
    place_cells(b, b->best);
    for (int pieces = 1; pieces <= SHARD_PIECES_MOST; pieces++) {
        int64_t ns;

        if (ideal_ns + (pieces + 1) * unit >= best_ns)
            break;
        if (!search(b, speeds, pieces, tried))
            continue;
        ns = balancer_predict(b, speeds, tried);
        if (ns < best_ns) {
            best_ns = ns;
            memcpy(b->best, tried, (size_t)(b->ranks + 1) * sizeof(*tried));
        }
    }
    return best_ns;
}

/* --- life --- */

ls_status balancer_open(balancer *b, int shards, int ranks, int least, balance_sum sum)
{
    const size_t n = (size_t)ranks;

    *b = (balancer){.shards = shards,
                    .ranks = ranks,
                    .least = least,
                    .sum = sum,
                    .unit_ns = {-1, -1},
                    .pause = BALANCE_EVERY,
                    .agree = BALANCE_AGREE};
    b->starts = ls_calloc(n + 1, sizeof(*b->starts));
    b->best = ls_calloc(2 * (n + 1), sizeof(*b->best));
    b->previous = ls_calloc(n + 1, sizeof(*b->previous));
    b->wait_total = ls_calloc(n, sizeof(*b->wait_total));
    b->known = ls_calloc(n, sizeof(*b->known));
    b->cells = ls_calloc((n + 1) * POSITIONS, sizeof(*b->cells));
    if (b->starts == NULL || b->best == NULL || b->previous == NULL || b->wait_total == NULL ||
        b->known == NULL || b->cells == NULL)
        return ls_fail(LS_ENOMEM, "no memory to divide shards among %d ranks", ranks);
    shard_divide_equally(shards, ranks, b->starts);
    return LS_OK;
}

void balancer_close(balancer *b)
{
    ls_free(b->starts);
    ls_free(b->best);
    ls_free(b->previous);
    ls_free(b->wait_total);
    ls_free(b->known);
    ls_free(b->cells);
    *b = (balancer){.shards = 0};
}

/* --- what is unknown --- */

static int shards_of(const balancer *b, int r)
{
    return b->starts[r + 1] - b->starts[r];
}

/* Whether each rank with shards has measured itself. */
static bool are_known(const balancer *b, const balance_speed *speeds)
{
    for (int r = 0; r < b->ranks; r++)
        if (speeds[r].shard_ns <= 0 && shards_of(b, r) > 0)
            return false;
    return true;
}

/* The nearest rank with so many shards or more; -1: there is none. */
static int find_nearest(const balancer *b, int to, int n)
{
    for (int away = 1; away < b->ranks; away++)
        for (int side = -1; side <= 1; side += 2) {
            const int r = to + side * away;

            if (r >= 0 && r < b->ranks && shards_of(b, r) >= n)
                return r;
        }
    return -1;
}

static int find_donor(const balancer *b, int to)
{
    const int r = find_nearest(b, to, 2);

    return r >= 0 ? r : find_nearest(b, to, 1);
}

/* A rank that asks for it gets one shard. Ranges stay contiguous: all boundaries between it and the
 * rank that gives one move. */
static bool give_shard(balancer *b, const balance_speed *speeds)
{
    for (int r = 0; r < b->ranks; r++) {
        const int donor = speeds[r].shard_ns > 0 ? -1 : find_donor(b, r);

        for (int i = r + 1; donor > r && i <= donor; i++)
            b->starts[i]++;
        for (int i = donor + 1; donor >= 0 && donor < r && i <= r; i++)
            b->starts[i]--;
        if (donor >= 0)
            return true;
    }
    return false;
}

void balancer_begin(balancer *b, const balance_speed *speeds)
{
    int64_t slowest = 0;

    for (int r = 0; r < b->ranks; r++)
        slowest = speeds[r].shard_ns > slowest ? speeds[r].shard_ns : slowest;
    if (slowest == 0)
        return;
    for (int r = 0; r < b->ranks; r++) {
        b->known[r] = speeds[r];
        if (speeds[r].shard_ns <= 0)
            b->known[r].shard_ns = slowest;
    }
    (void)plan(b, b->known, never_ns);
    memcpy(b->starts, b->best, (size_t)(b->ranks + 1) * sizeof(*b->starts));
}

/* --- steps --- */

/* The rank that comes last waits for the exchange only. */
static void measure_exchange(balancer *b, const balance_speed *speeds)
{
    int64_t shortest = longest_ns;

    for (int r = 0; r < b->ranks; r++) {
        shortest = speeds[r].wait_ns < shortest ? speeds[r].wait_ns : shortest;
        b->wait_total[r] += speeds[r].wait_ns > 0 ? speeds[r].wait_ns : 0;
    }
    balance_times_add(&b->waits, shortest);
    b->unit_ns[is_exchanged(b, b->starts)] =
        balance_times_middle(&b->waits) / (most_pieces(b, b->starts) + 1);
}

static bool note_change(balancer *b)
{
    b->waits.n = 0;
    b->n_better = 0;
    b->pause = BALANCE_PAUSE;
    b->n_changes++;
    b->changed_at = b->n_steps;
    return true;
}

/* From b->starts to b->best. */
static bool change(balancer *b)
{
    const size_t bytes = (size_t)(b->ranks + 1) * sizeof(*b->starts);
    const bool returns = b->n_changes > 0 && memcmp(b->best, b->previous, bytes) == 0;

    if (b->n_steps - b->changed_at >= BALANCE_QUIET)
        b->agree = BALANCE_AGREE;
    else if (returns && b->agree < BALANCE_AGREE_MOST)
        b->agree *= 2;
    memcpy(b->previous, b->starts, bytes);
    memcpy(b->starts, b->best, bytes);
    return note_change(b);
}

bool balancer_step(balancer *b, const balance_speed *speeds)
{
    int64_t present;
    int64_t best;

    b->n_steps++;
    measure_exchange(b, speeds);
    if (--b->pause > 0 || !are_known(b, speeds))
        return false;
    b->pause = BALANCE_EVERY;
    if (give_shard(b, speeds))
        return note_change(b);
    present = balancer_predict(b, speeds, b->starts);
    best = plan(b, speeds, present);
    b->n_better = is_shorter(best, present, BALANCE_GAIN) ? b->n_better + 1 : 0;
    if (b->n_better < b->agree && !is_shorter(best, present, BALANCE_URGENT))
        return false;
    return change(b);
}
