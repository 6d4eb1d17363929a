/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_compose.c - the code that modules share, with a library that is a loop over ranks: it copies
 * from exchange to exchange, and adds buffers of the partial type.
 */
#include "base/alloc.h"
#include "base/compute/half.h"
#include "base/unit.h"
#include "comm/backends/external/compose.h"
#include "comm/backends/external/external.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#define MAX_RANKS 8
#define MAX_PART  40

static bool is_out_of_memory;
static int n_blocks;

static void *take_block(size_t count, size_t size)
{
    if (is_out_of_memory)
        return NULL;
    n_blocks++;
    return ls_calloc(count, size);
}

static void drop_block(void *block)
{
    n_blocks--;
    ls_free(block);
}

static const comm_host host = {.abi = BACKEND_ABI,
                               .vfail = ls_vfail,
                               .alloc = take_block,
                               .free = drop_block,
                               .reduce = reduce_tree};

/* All ranks of one operation on int32 or on fp16. Value i of what rank `from` has for rank `to`
 * says both. */
typedef struct scene {
    int n;
    group_info infos[MAX_RANKS];
    coll ops[MAX_RANKS];
    composed c[MAX_RANKS];
    int32_t src[MAX_RANKS][MAX_RANKS * MAX_PART];
    int32_t dst[MAX_RANKS][MAX_RANKS * MAX_PART];
    size_t counts[MAX_RANKS][MAX_RANKS]; /* from, to */
    size_t in_counts[MAX_RANKS][MAX_RANKS];
} scene;

static int32_t value(int from, int to, size_t i)
{
    return from * 10000 + to * 100 + (int32_t)i;
}

static void begin(scene *s, int n, coll op, compose_mode way)
{
    s->n = n;
    for (int r = 0; r < n; r++) {
        s->infos[r] = (group_info){.rank = r, .size = n};
        s->ops[r] = op;
        if (s->ops[r].src == NULL)
            s->ops[r].src = s->src[r];
        if (s->ops[r].dst == NULL)
            s->ops[r].dst = s->dst[r];
    }
    for (int r = 0; r < n; r++)
        assert_true(compose_begin(&s->c[r], &host, &s->infos[r], &s->ops[r], way));
}

/* Every leg meets one of the same length. */
static void exchange(scene *s)
{
    for (int r = 0; r < s->n; r++) {
        compose_copy_own(&s->c[r]);
        for (int step = 1; step < s->n; step++) {
            const compose_exchange in = compose_exchange_at(&s->c[r], step);
            const compose_exchange out = compose_exchange_at(&s->c[in.from], step);

            assert_int_equal(out.to, r);
            assert_int_equal(out.n_out, in.n_in);
            if (in.n_in > 0)
                memcpy(in.in, out.out, in.n_in * compose_size(s->ops[r].dtype));
        }
    }
}

static void finish(scene *s)
{
    for (int r = 0; r < s->n; r++) {
        compose_finish(&s->c[r]);
        compose_free(&s->c[r]);
    }
    assert_int_equal(n_blocks, 0);
}

static scene *make_scene(void)
{
    scene *s = calloc(1, sizeof(*s));

    assert_non_null(s);
    memset(s->dst, 0xA5, sizeof(s->dst));
    return s;
}

static void free_scene(scene *s)
{
    free(s);
}

/* What rank `from` has for each rank, one part behind the other. */
static void fill_cut(scene *s, int from, const size_t *counts)
{
    size_t at = 0;

    for (int to = 0; to < s->n; to++) {
        for (size_t i = 0; i < counts[to]; i++)
            s->src[from][at++] = value(from, to, i);
    }
}

/* dst of rank `to` holds `counts` of each rank, and nothing behind. */
static void check_cut(const scene *s, int to, const size_t *counts, bool is_for_all)
{
    size_t at = 0;

    for (int from = 0; from < s->n; from++) {
        for (size_t i = 0; i < counts[from]; i++)
            assert_int_equal(s->dst[to][at++], value(from, is_for_all ? 0 : to, i));
    }
    assert_int_equal((uint32_t)s->dst[to][at], 0xA5A5A5A5U);
}

/* Counts for all ranks: 0 and more, or all the same. */
static void make_counts(size_t *counts, int n, int turn, bool is_vector)
{
    for (int r = 0; r < n; r++)
        counts[r] = is_vector ? (size_t)((r * 7 + turn * 3) % 5) * 3 : 11;
}

static void gather(int n, bool to_all, bool is_vector)
{
    scene *s = make_scene();
    size_t counts[MAX_RANKS];
    const int root = n - 1;

    make_counts(counts, n, 1, is_vector);
    s->n = n;
    for (int r = 0; r < n; r++) {
        for (size_t i = 0; i < counts[r]; i++)
            s->src[r][i] = value(r, 0, i);
    }
    begin(s, n,
          (coll){.kind = to_all ? COLL_ALL_GATHER : COLL_GATHER,
                 .dtype = LS_I32,
                 .root = root,
                 .count = is_vector ? 0 : 11,
                 .dst_counts = is_vector ? counts : NULL},
          COMPOSE_IN_PLACE);
    exchange(s);
    finish(s);
    for (int r = 0; r < n; r++) {
        if (to_all || r == root)
            check_cut(s, r, counts, true);
        else
            assert_int_equal((uint32_t)s->dst[r][0], 0xA5A5A5A5U);
    }
    free_scene(s);
}

static void scatter(int n, bool is_vector)
{
    scene *s = make_scene();
    size_t counts[MAX_RANKS];
    const int root = n / 2;

    make_counts(counts, n, 2, is_vector);
    s->n = n;
    fill_cut(s, root, counts);
    begin(s, n,
          (coll){.kind = COLL_SCATTER,
                 .dtype = LS_I32,
                 .root = root,
                 .count = is_vector ? 0 : 11,
                 .src_counts = is_vector ? counts : NULL},
          COMPOSE_IN_PLACE);
    exchange(s);
    finish(s);
    for (int r = 0; r < n; r++) {
        for (size_t i = 0; i < counts[r]; i++)
            assert_int_equal(s->dst[r][i], value(root, r, i));
        assert_int_equal((uint32_t)s->dst[r][counts[r]], 0xA5A5A5A5U);
    }
    free_scene(s);
}

static void all_to_all(int n, bool is_vector)
{
    scene *s = make_scene();

    s->n = n;
    for (int r = 0; r < n; r++) {
        make_counts(s->counts[r], n, r, is_vector);
        fill_cut(s, r, s->counts[r]);
    }
    for (int r = 0; r < n; r++) {
        for (int from = 0; from < n; from++)
            s->in_counts[r][from] = s->counts[from][r];
    }
    begin(s, n, (coll){.kind = COLL_ALL_TO_ALL, .dtype = LS_I32, .count = is_vector ? 0 : 11},
          COMPOSE_IN_PLACE);
    for (int r = 0; r < n && is_vector; r++) {
        s->ops[r].src_counts = s->counts[r];
        s->ops[r].dst_counts = s->in_counts[r];
    }
    exchange(s);
    finish(s);
    for (int r = 0; r < n; r++)
        check_cut(s, r, s->in_counts[r], false);
    free_scene(s);
}

static void every_part_gets_where_it_belongs(void **state)
{
    LS_UNUSED(state);
    for (int n = 2; n <= MAX_RANKS; n++) {
        for (int is_vector = 0; is_vector < 2; is_vector++) {
            gather(n, true, is_vector != 0);
            gather(n, false, is_vector != 0);
            scatter(n, is_vector != 0);
            all_to_all(n, is_vector != 0);
        }
    }
}

/* Every rank's own part lies already where it belongs. */
static void nothing_is_copied_that_is_in_place(void **state)
{
    scene *s = make_scene();

    LS_UNUSED(state);
    begin(s, 3, (coll){.kind = COLL_ALL_GATHER, .dtype = LS_I32, .count = 4}, COMPOSE_IN_PLACE);
    for (int r = 0; r < 3; r++) {
        s->ops[r].src = s->dst[r] + 4 * r;
        for (size_t i = 0; i < 4; i++)
            s->dst[r][4 * (size_t)r + i] = value(r, 0, i);
    }
    exchange(s);
    finish(s);
    for (int r = 0; r < 3; r++)
        check_cut(s, r, (const size_t[]){4, 4, 4}, true);
    free_scene(s);
}

static void reduce_scatter(int n, bool is_vector, bool in_place)
{
    scene *s = make_scene();
    size_t counts[MAX_RANKS];
    size_t offset = 0;

    make_counts(counts, n, 3, is_vector);
    s->n = n;
    for (int r = 0; r < n; r++)
        fill_cut(s, r, counts);
    begin(s, n,
          (coll){.kind = COLL_REDUCE_SCATTER,
                 .dtype = LS_I32,
                 .redop = LS_SUM,
                 .count = is_vector ? 0 : 11,
                 .src_counts = is_vector ? counts : NULL},
          COMPOSE_IN_PLACE);
    for (int r = 0; r < n; r++, offset += counts[r - 1]) {
        if (in_place)
            s->ops[r].dst = s->src[r] + offset;
    }
    exchange(s);
    finish(s);
    for (int r = 0; r < n; r++) {
        const int32_t *dst = s->ops[r].dst;

        for (size_t i = 0; i < counts[r]; i++)
            assert_int_equal(dst[i], n * value(0, r, i) + n * (n - 1) / 2 * 10000);
    }
    free_scene(s);
}

static void owners_add_what_has_come(void **state)
{
    LS_UNUSED(state);
    for (int n = 2; n <= MAX_RANKS; n++) {
        for (int form = 0; form < 4; form++)
            reduce_scatter(n, (form & 1) != 0, (form & 2) != 0);
    }
}

/* The engine: float32 and int32 in place, added up from rank to rank. */
static void add_up(scene *s, ls_dtype type, size_t count, ls_reduce_op redop)
{
    unsigned char sum[MAX_PART * sizeof(float)];

    memcpy(sum, s->c[0].in, count * compose_size(type));
    for (int r = 1; r < s->n; r++) {
        const reduce_operand both[2] = {{sum, 0, r, true}, {s->c[r].in, r, 1, true}};

        reduce_tree(sum, both, 2, count, type, redop, false, 1);
    }
    for (int r = 0; r < s->n; r++) {
        if (s->c[r].out != NULL)
            memcpy(s->c[r].out, sum, count * compose_size(type));
    }
}

/* 65504 + 65504 - 65504 is no fp16 on the way, and 2048 + 1 + 1 in steps would stay 2048. */
static void halves_are_rounded_once(void **state)
{
    scene *s = make_scene();
    const float in[3][2] = {{65504, 2048}, {65504, 1}, {-65504, 1}};
    uint16_t halves[3];

    LS_UNUSED(state);
    for (int r = 0; r < 3; r++) {
        for (int i = 0; i < 2; i++)
            halves[i] = ls_f32_to_f16(in[r][i]);
        memcpy(s->src[r], halves, 2 * sizeof(*halves));
    }
    begin(s, 3, (coll){.kind = COLL_ALL_REDUCE, .dtype = LS_F16, .redop = LS_SUM, .count = 2},
          COMPOSE_IN_PLACE);
    assert_int_equal(compose_partial(LS_F16), LS_F32);
    add_up(s, LS_F32, 2, LS_SUM);
    finish(s);
    for (int r = 0; r < 3; r++) {
        memcpy(halves, s->dst[r], sizeof(halves));
        assert_int_equal(halves[0], ls_f32_to_f16(65504));
        assert_int_equal(halves[1], ls_f32_to_f16(2050));
        assert_int_equal(halves[2], 0xA5A5);
    }
    free_scene(s);
}

static void averages_are_divided_after(void **state)
{
    scene *s = make_scene();
    float x;

    LS_UNUSED(state);
    for (int r = 0; r < 4; r++) {
        x = (float)r;
        memcpy(s->src[r], &x, sizeof(x));
    }
    begin(
        s, 4,
        (coll){.kind = COLL_ALL_REDUCE, .dtype = LS_F32, .redop = LS_AVG, .divisor = 3, .count = 1},
        COMPOSE_IN_AND_OUT);
    assert_ptr_equal(s->c[1].in, s->src[1]);
    add_up(s, LS_F32, 1, LS_SUM);
    finish(s);
    for (int r = 0; r < 4; r++) {
        memcpy(&x, s->dst[r], sizeof(x));
        assert_true(x == 2.0F);
        memcpy(&x, s->src[r], sizeof(x));
        assert_true(x == (float)r);
    }
    free_scene(s);
}

/* Reduce away from root: no dst to write to, and only an engine that needs memory there gets
 * some. */
static void ranks_without_a_result_keep_what_they_have(void **state)
{
    LS_UNUSED(state);
    for (int form = 0; form < 4; form++) {
        const compose_mode way = (form & 1) != 0 ? COMPOSE_IN_AND_OUT : COMPOSE_IN_PLACE;
        const ls_dtype type = (form & 2) != 0 ? LS_BF16 : LS_I32;
        scene *s = make_scene();

        begin(s, 3,
              (coll){.kind = COLL_REDUCE, .dtype = type, .redop = LS_MAX, .root = 1, .count = 5},
              way);
        assert_non_null(s->c[1].out);
        for (int r = 0; r < 3; r += 2) {
            assert_true((s->c[r].out != NULL) == (way == COMPOSE_IN_AND_OUT));
            assert_true((s->c[r].buffer != NULL) == (way == COMPOSE_IN_AND_OUT || type == LS_BF16));
            assert_true(s->c[r].out != s->dst[r]);
        }
        add_up(s, compose_partial(type), 5, LS_MAX);
        finish(s);
        assert_int_equal((uint32_t)s->dst[0][0], 0xA5A5A5A5U);
        assert_int_equal(s->dst[1][0], 0);
        assert_int_equal((uint32_t)s->dst[2][0], 0xA5A5A5A5U);
        free_scene(s);
    }
}

static void a_broadcast_begins_in_dst(void **state)
{
    scene *s = make_scene();

    LS_UNUSED(state);
    s->src[1][0] = 7;
    begin(s, 2, (coll){.kind = COLL_BROADCAST, .dtype = LS_I32, .root = 1, .count = 1},
          COMPOSE_IN_PLACE);
    assert_int_equal((uint32_t)s->dst[0][0], 0xA5A5A5A5U);
    assert_int_equal(s->dst[1][0], 7);
    assert_ptr_equal(s->c[0].out, s->dst[0]);
    finish(s);
    free_scene(s);
}

static void no_memory_is_reported(void **state)
{
    const group_info info = {.rank = 0, .size = 2};
    uint16_t x[2] = {0};
    const coll op = {.kind = COLL_ALL_REDUCE, .dtype = LS_F16, .src = x, .dst = x, .count = 2};
    const coll cut = {.kind = COLL_REDUCE_SCATTER, .dtype = LS_F16, .src = x, .dst = x, .count = 1};
    composed c;

    LS_UNUSED(state);
    is_out_of_memory = true;
    assert_false(compose_begin(&c, &host, &info, &op, COMPOSE_IN_PLACE));
    compose_free(&c);
    assert_false(compose_begin(&c, &host, &info, &cut, COMPOSE_IN_PLACE));
    compose_free(&c);
    is_out_of_memory = false;
    assert_int_equal(n_blocks, 0);
}

/* --- external.c --- */

static bool is_open(int fd)
{
    return fcntl(fd, F_GETFD) >= 0;
}

static void what_cannot_be_protected_is_refused(void **state)
{
    comm_boot boot = {.security = NET_AUTH, .control_fd = -1};
    external_waker w;
    int pipe_fds[2];

    LS_UNUSED(state);
    assert_int_equal(pipe(pipe_fds), 0);
    boot.local_fd = pipe_fds[0];
    boot.listen_fd = pipe_fds[1];
    assert_ok(external_open(&boot, &host, "Engine", &w));
    assert_true(is_open(w.wake_fd) && w.wake_fd > 2);
    external_close(&w);
    assert_int_equal(w.wake_fd, -1);
    boot = (comm_boot){.security = NET_ENCRYPT, .local_fd = -1, .listen_fd = -1};
    assert_status(external_open(&boot, &host, "Engine", &w), LS_EUNSUPPORTED);
    assert_last_error("Engine does not protect its connections");
    assert_int_equal(w.wake_fd, -1);
}

static void a_wake_ends_the_sleep_and_stays_until_it_is_drained(void **state)
{
    comm_boot boot = {.security = NET_AUTH, .local_fd = -1, .listen_fd = -1};
    int control_pipe[2];
    external_waker w;

    LS_UNUSED(state);
    assert_int_equal(pipe(control_pipe), 0);
    boot.control_fd = control_pipe[0];
    assert_ok(external_open(&boot, &host, "Engine", &w));
    assert_false(external_wait(&w, 1));
    assert_false(external_drain(&w));
    external_wake(&w);
    external_wake(&w);
    assert_true(external_wait(&w, 600000000));
    assert_true(external_wait(&w, 600000000));
    assert_true(external_drain(&w));
    assert_false(external_drain(&w));
    // A notification ends it as well, and is not a wake.
    assert_int_equal(write(control_pipe[1], "x", 1), 1);
    assert_false(external_wait(&w, 600000000));
    external_close(&w);
    (void)close(control_pipe[0]);
    (void)close(control_pipe[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_part_gets_where_it_belongs),
        cmocka_unit_test(nothing_is_copied_that_is_in_place),
        cmocka_unit_test(owners_add_what_has_come),
        cmocka_unit_test(halves_are_rounded_once),
        cmocka_unit_test(averages_are_divided_after),
        cmocka_unit_test(ranks_without_a_result_keep_what_they_have),
        cmocka_unit_test(a_broadcast_begins_in_dst),
        cmocka_unit_test(no_memory_is_reported),
        cmocka_unit_test(what_cannot_be_protected_is_refused),
        cmocka_unit_test(a_wake_ends_the_sleep_and_stays_until_it_is_drained),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
