/* SPDX-License-Identifier: Apache-2.0 */
/*
 * native_levels.c - the levels of teams on a synthetic machine, two sockets of 96 cores, 8 cores to
 * a last cache: places from its sysfs, and the cache lines that cross sockets and core complexes.
 *
 * The lines are counted, not computed: the team's sources are compiled for this test with the
 * compiler's calls at each access to memory (-fsanitize=thread; native_lines.c has the functions),
 * and run for 192 ranks, one after the other, in one thread. A line moves into a core complex when
 * one of its cores accesses it and the complex has no valid copy; it comes from where the line was
 * written last.
 */
#include "base/unit.h"

#include "base/text.h"
#include "comm/backends/native/team/team_internal.h"
#include "comm/native_lines.h"
#include "harness/root_folder.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { RANKS = 192, PER_SOCKET = 96, PER_CACHE = 8, CACHES = RANKS / PER_CACHE };
#define PIECE_BYTES ((size_t)128 << 10)
#define LARGEST     ((size_t)1 << 20)
/* Lines of gates that may cross sockets for one gate: of arrivals, sums and results. */
#define GATE_LINES 12

static char root[ROOT_FOLDER_BYTES];

// --- the machine ---

static void put(const char *path, const char *text)
{
    char full[256];

    root_folder_put(root, text_format(full, sizeof(full), "sys/devices/system/cpu/%s", path), text);
}

static int make_machine(void **state)
{
    LS_UNUSED(state);
    root_folder_make(root);
    put("online", "0-191\n");
    for (int cpu = 0; cpu < RANKS; cpu++) {
        const int socket = cpu / PER_SOCKET * PER_SOCKET;
        const int cache = cpu / PER_CACHE * PER_CACHE;
        char path[128];
        char text[32];

        text_format(path, sizeof(path), "cpu%d/topology/package_cpus_list", cpu);
        text_format(text, sizeof(text), "%d-%d\n", socket, socket + PER_SOCKET - 1);
        put(path, text);
        text_format(path, sizeof(path), "cpu%d/cache/index0/level", cpu);
        put(path, "1\n");
        text_format(path, sizeof(path), "cpu%d/cache/index0/shared_cpu_list", cpu);
        text_format(text, sizeof(text), "%d\n", cpu);
        put(path, text);
        text_format(path, sizeof(path), "cpu%d/cache/index1/level", cpu);
        put(path, "3\n");
        text_format(path, sizeof(path), "cpu%d/cache/index1/shared_cpu_list", cpu);
        text_format(text, sizeof(text), "%d-%d\n", cache, cache + PER_CACHE - 1);
        put(path, text);
    }
    return 0;
}

static int remove_machine(void **state)
{
    LS_UNUSED(state);
    root_folder_remove(root, "");
    return 0;
}

static topology_place place_of(const char *cores)
{
    cpu_mask mask;

    assert_true(cpu_mask_parse(cores, &mask));
    return topology_find_place(root, &mask);
}

static void find_places(topology_place places[RANKS])
{
    char cores[16];

    for (int k = 0; k < RANKS; k++) {
        text_format(cores, sizeof(cores), "%d", k);
        places[k] = place_of(cores);
    }
}

static void places_come_from_the_cores_that_a_rank_may_use(void **state)
{
    LS_UNUSED(state);
    assert_int_equal(place_of("100").socket, 96);
    assert_int_equal(place_of("100").cache, 96);
    assert_int_equal(place_of("104-111").cache, 104);
    assert_int_equal(place_of("96-191").socket, 96);
    assert_int_equal(place_of("96-191").cache, -1);
    assert_int_equal(place_of("95-96").socket, -1);
    assert_int_equal(place_of("0-191").socket, -1);
    assert_int_equal(place_of("0-191").cache, -1);
    assert_int_equal(place_of("").socket, -1);
    assert_int_equal(place_of("300").socket, -1); // not in this machine
}

static void levels_are_left_out_where_they_gain_nothing(void **state)
{
    topology_place places[RANKS];
    levels v;

    LS_UNUSED(state);
    find_places(places);
    assert_ok(levels_make(RANKS, places, &v));
    assert_int_equal(v.depth, 3);
    assert_int_equal(v.at[1].n_hosts, 2);
    assert_int_equal(v.at[2].n_hosts, CACHES);
    assert_int_equal(v.max_trees, 2); // of a socket: 0-63 and 64-95
    levels_free(&v);
    // Ranks in turn on both sockets: no sum of a socket is one of the tree.
    for (int k = 0; k < RANKS; k++)
        places[k] = (topology_place){.socket = k % 2, .cache = -1};
    assert_ok(levels_make(RANKS, places, &v));
    assert_int_equal(v.depth, 1);
    levels_free(&v);
    // One rank that may run anywhere.
    find_places(places);
    places[50] = (topology_place){.socket = -1, .cache = -1};
    assert_ok(levels_make(RANKS, places, &v));
    assert_int_equal(v.depth, 1);
    levels_free(&v);
    // One socket.
    find_places(places);
    assert_ok(levels_make(PER_SOCKET, places, &v));
    assert_int_equal(v.depth, 2);
    levels_free(&v);
}

static void every_round_fits_into_staging(void **state)
{
    topology_place places[RANKS];
    levels v;

    LS_UNUSED(state);
    find_places(places);
    assert_ok(levels_make(RANKS, places, &v));
    for (size_t capacity = (size_t)RANKS * 256; capacity < LARGEST; capacity *= 3) {
        for (int widening = 1; widening <= 2; widening++) {
            const size_t bytes = levels_fit(&v, capacity, widening);

            for (int k = 0; k < RANKS; k++) {
                size_t at;
                size_t end;

                levels_interval(&v, 2, k, bytes, &at, &end);
                assert_true(levels_partial_at(&v, 2, k, 0, bytes, widening, end) <= capacity);
            }
        }
    }
    levels_free(&v);
}

// --- counting ---

typedef struct bench {
    char *memory;
    size_t bytes;
    team *teams[RANKS];
    comm_host hosts[RANKS];
    group_info infos[RANKS];
    backend_work works[RANKS];
    int members[RANKS];
    int n_done;
    uint64_t sequence;
} bench;

static bench b;
static float src[LARGEST / sizeof(float)];
static float dst[LARGEST / sizeof(float)]; // all ranks get the same

static void on_done(void *self, backend_work *work, ls_status status, const char *text)
{
    LS_UNUSED(self);
    LS_UNUSED(work);
    LS_UNUSED(text);
    assert_int_equal(status, LS_OK);
    b.n_done++;
}

static void open_teams(const topology_place *places)
{
    memset(&b, 0, sizeof(b));
    b.bytes = RANKS * (TEAM_PART_BYTES + 2 * TEAM_BUFFERS * PIECE_BYTES);
    b.memory = aligned_alloc(4096, b.bytes);
    assert_non_null(b.memory);
    memset(b.memory, 0, b.bytes);
    lines_begin(b.memory, b.bytes);
    // What the members would tell each other; none waits for another when it opens its team.
    for (int k = 0; k < RANKS; k++) {
        team_part *part = (void *)(b.memory + (size_t)k * TEAM_PART_BYTES);

        part->place = places[k];
        atomic_store(&part->is_open, 1);
        atomic_store(&part->can_read, READS_ALL);
        b.members[k] = k;
    }
    for (int k = 0; k < RANKS; k++) {
        const team_options options = {.segment_bytes = PIECE_BYTES, .place = places[k]};

        b.hosts[k] = (comm_host){.abi = BACKEND_ABI, .done = on_done};
        b.infos[k] = (group_info){.rank = k, .size = RANKS, .members = b.members};
        lines_run_on(k / PER_CACHE, k / PER_SOCKET);
        assert_ok(team_open(NULL, &b.hosts[k], &b.infos[k], &options, 0, &b.teams[k]));
    }
}

static void close_teams(void)
{
    for (int k = 0; k < RANKS; k++)
        team_close(b.teams[k]);
    lines_end();
    free(b.memory);
}

static lines_counts run(coll_kind kind, size_t bytes)
{
    const bool is_sum = kind == COLL_ALL_REDUCE;

    b.n_done = 0;
    b.sequence++;
    memset(dst, 0, sizeof(dst));
    lines_clear_counts();
    for (int k = 0; k < RANKS; k++) {
        b.works[k] = (backend_work){.op = {.kind = kind,
                                           .dtype = LS_F32,
                                           .redop = LS_SUM,
                                           .root = kind == COLL_BROADCAST ? 20 : -1,
                                           .src = src,
                                           .dst = dst,
                                           .count = bytes / sizeof(float),
                                           .divisor = 1}};
        b.works[k].op.stamp = (op_stamp){
            .sequence = b.sequence, .kind = (uint8_t)kind, .count = bytes / sizeof(float)};
        lines_run_on(k / PER_CACHE, k / PER_SOCKET);
        team_start(b.teams[k], &b.works[k]);
    }
    for (int pass = 0; b.n_done < RANKS; pass++) {
        assert_true(pass < 1000);
        for (int k = 0; k < RANKS; k++) {
            lines_run_on(k / PER_CACHE, k / PER_SOCKET);
            (void)team_progress(b.teams[k]);
        }
    }
    for (size_t i = 0; i < bytes / sizeof(float); i++)
        assert_true(dst[i] == (is_sum ? RANKS * src[i] : src[i]));
    return lines_get_counts();
}

/* The least that an operation moves: to each other complex (or socket) the result once; of a sum
 * what the groups need of each other's subtrees: complexes that of one, sockets of two halves. */
typedef struct count_case {
    coll_kind kind;
    size_t bytes;
    uint64_t socket_lines; /* of data; gates add a few */
    uint64_t cache_lines;
    uint64_t n_gates;
} count_case;

static void few_lines_cross_a_level(void **state)
{
    static const uint64_t k64 = (64 << 10) / 64;
    static const uint64_t m1 = LARGEST / 64;
    // Rounds of 1 MiB: 3, with 7 gates each; of a broadcast also 3, with 4.
    const count_case cases[] = {
        {COLL_BARRIER, 0, 0, 0, 1},
        {COLL_ALL_REDUCE, 8, 4, 2 * CACHES, 1},
        {COLL_ALL_REDUCE, 64 << 10, 3 * k64, (2 * 11 + 4 + 1 + CACHES) * k64, 7},
        {COLL_ALL_REDUCE, LARGEST, 3 * m1, (2 * 11 + 4 + 1 + CACHES) * m1, 3 * 7},
        {COLL_BROADCAST, 64 << 10, k64, (2 + CACHES) * k64, 4},
        {COLL_BROADCAST, LARGEST, m1, (2 + CACHES) * m1, 3 * 4},
    };
    static topology_place everywhere[RANKS];
    topology_place places[RANKS];
    lines_counts counts[2][LS_COUNT_OF(cases)];

    LS_UNUSED(state);
    find_places(places);
    for (size_t i = 0; i < LS_COUNT_OF(src); i++)
        src[i] = (float)(i % 1000);
    for (int flat = 0; flat < 2; flat++) {
        for (int k = 0; k < RANKS; k++)
            everywhere[k] = (topology_place){.socket = -1, .cache = -1};
        open_teams(flat ? everywhere : places);
        assert_int_equal(b.teams[0]->levels.depth, flat ? 1 : 3);
        for (size_t i = 0; i < LS_COUNT_OF(cases); i++) {
            // The slots, gates and buffers are where they will be again from the third on.
            for (int warm = 0; warm < 3; warm++)
                (void)run(cases[i].kind, cases[i].bytes);
            counts[flat][i] = run(cases[i].kind, cases[i].bytes);
        }
        close_teams();
    }
    print_message("cache lines that cross, 192 ranks\n%-12s %8s %20s %20s %20s\n", "operation",
                  "bytes", "sockets, levels/flat", "caches, levels/flat", "data, sockets/caches");
    for (size_t i = 0; i < LS_COUNT_OF(cases); i++)
        print_message("%-12s %8zu %10" PRIu64 " /%9" PRIu64 " %10" PRIu64 " /%9" PRIu64
                      " %10" PRIu64 " /%9" PRIu64 "\n",
                      coll_name(cases[i].kind), cases[i].bytes, counts[0][i].between_sockets,
                      counts[1][i].between_sockets, counts[0][i].between_caches,
                      counts[1][i].between_caches, cases[i].socket_lines, cases[i].cache_lines);
    for (size_t i = 0; i < LS_COUNT_OF(cases); i++) {
        const count_case *c = &cases[i];

        assert_true(counts[0][i].between_sockets <= c->socket_lines + c->n_gates * GATE_LINES);
        assert_true(counts[0][i].between_caches <=
                    c->cache_lines + c->n_gates * CACHES * GATE_LINES);
        assert_true(counts[1][i].between_sockets > 10 * counts[0][i].between_sockets);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(places_come_from_the_cores_that_a_rank_may_use),
        cmocka_unit_test(levels_are_left_out_where_they_gain_nothing),
        cmocka_unit_test(every_round_fits_into_staging),
        cmocka_unit_test(few_lines_cross_a_level),
    };

    return cmocka_run_group_tests_name("levels", tests, make_machine, remove_machine);
}
