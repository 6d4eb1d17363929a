/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_onednn_simd.c - every table of inner loops that this processor can run gives the bits of the
 * plainest one.
 */
#include "tensor/devices/onednn/simd/simd.h"

#include "base/compute/half.h"
#include "base/rng.h"
#include "base/status.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define FLOATS 4096

extern const simd_table simd_table_wide;

static float input[2][FLOATS];
static const size_t lane_counts[] = {1, 3, 8, 16, 21, 40};

static void fill(ls_rng *rng, float *out, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = (float)(round(64 * (2 * ls_rng_double(rng) - 1)) / 16);
}

static void fill_inputs(void)
{
    ls_rng rng;

    ls_rng_seed(&rng, 7);
    for (size_t k = 0; k < 2; k++)
        fill(&rng, input[k], FLOATS);
    input[0][100] = (float)NAN;
    input[0][200] = -0.0F;
    input[0][300] = (float)INFINITY;
}

static const simd_table *plainest(void)
{
    const simd_table *t = NULL;

    for (int i = 0; simd_table_at(i) != NULL; i++)
        t = simd_table_at(i);
    return t;
}

/* Those of this processor, then the one that takes 16 channels at a time. */
static const simd_table *table_at(int i)
{
    if (simd_table_at(i) != NULL)
        return simd_table_at(i);
    return i == 0 || simd_table_at(i - 1) != NULL ? &simd_table_wide : NULL;
}

/* What the loops of one table give for one number of lanes. */
typedef struct outputs {
    float f[LS_ACT_LINEAR][FLOATS];
    uint8_t indices[FLOATS];
} outputs;

static void run_pointwise(const simd_table *t, outputs *o)
{
    t->relu(input[0], o->f[0], FLOATS - 3);
    t->relu_backward(input[0], input[1], o->f[1], FLOATS - 3);
    t->add(input[0], input[1], o->f[2], FLOATS - 3);
    t->exp_below(input[1], 3.5F, o->f[3], FLOATS - 3);
    t->add_relu(input[0], input[1], o->f[4], FLOATS - 3);
}

static void run_rows(const simd_table *t, outputs *o)
{
    static const size_t counts[] = {1, 15, 16, 1000, FLOATS - 400};
    const drop_run near = {.random = 11, .threshold = (uint64_t)1 << 52, .step = 1, .scale = 2};
    const drop_run apart = {
        .random = 12, .threshold = (uint64_t)1 << 51, .first = 7, .step = 49, .scale = 1.5F};

    for (size_t i = 0; i < LS_COUNT_OF(counts); i++) {
        o->f[0][i] = t->largest(input[0] + 350, counts[i]);
        o->f[0][10 + i] = t->largest(input[0], counts[i]);
        o->f[0][20 + i] = (float)t->sum(input[1], counts[i]);
    }
    t->shift(input[0], 0.5F, 0.3F, o->f[1], FLOATS - 3);
    t->shift_scale(input[0], 0.5F, 0.3F, o->f[2], FLOATS - 3);
    for (size_t i = 0; i < FLOATS; i++)
        o->f[3][i] = -fabsf(input[1][i]) * 40;
    t->log_softmax_dx(o->f[3], input[0], 0.7F, o->f[3], FLOATS - 3);
    t->dropout(&near, input[0], o->f[4], FLOATS - 3);
    t->dropout(&apart, input[0], o->f[5], FLOATS - 3);
}

static void run_activations(const simd_table *t, outputs *o)
{
    static const float p[2] = {0.5F, 1.5F};

    for (ls_activation f = LS_ACT_RELU6; f <= LS_ACT_LINEAR; f++)
        t->activate(f, p, input[0], o->f[f - LS_ACT_RELU6], FLOATS - 3);
}

static void run_activation_slopes(const simd_table *t, outputs *o)
{
    static const float p[2] = {0.5F, 1.5F};

    for (ls_activation f = LS_ACT_RELU6; f <= LS_ACT_LINEAR; f++)
        t->activate_backward(f, p, input[0], input[1], o->f[f - LS_ACT_RELU6], FLOATS - 3);
}

static void run_norms(const simd_table *t, outputs *o)
{
    static const size_t counts[] = {1, 15, 16, 33, 1000};
    const norm_row r = {.mean = 0.3F, .inverse = 1.7F, .mean_g = -0.2F, .mean_g_xhat = 0.9F};
    double dweight[64] = {0};
    double dbias[64] = {0};

    for (size_t i = 0; i < LS_COUNT_OF(counts); i++) {
        o->f[0][i] = (float)t->dot(input[0] + 350, input[1], counts[i]);
        o->f[0][10 + i] = (float)t->spread(input[1], 0.25F, counts[i]);
    }
    t->norm_sums(&r, input[1] + 7, input[1], dweight, dbias, 61);
    for (size_t i = 0; i < 61; i++) {
        o->f[0][20 + i] = (float)dweight[i];
        o->f[0][100 + i] = (float)dbias[i];
    }
    t->norm_apply(&r, input[0], input[1], input[1] + 1, o->f[1], FLOATS - 3);
    t->norm_slopes(&r, input[0], input[1], input[1] + 2, o->f[2], o->f[3], FLOATS - 3);
    t->norm_dx(&r, input[0], input[1], o->f[4], FLOATS - 3);
    t->softmax_dx(input[0], input[1], 0.6F, 1.3F, o->f[5], FLOATS - 3);
}

/* Rows of n units. */
static void run_recurrent(const simd_table *t, size_t n, outputs *o)
{
    recurrent_row row = {.a = input[0],
                         .b = input[1],
                         .state = input[0] + 7,
                         .h = o->f[0],
                         .c = o->f[1],
                         .gates = o->f[2]};
    recurrent_slope slope = {.gates = o->f[2],
                             .state = input[0] + 7,
                             .dh = input[1],
                             .dy = n % 2 == 0 ? input[1] + 3 : NULL,
                             .dc = input[1] + 11,
                             .da = o->f[3],
                             .dstate = o->f[4]};

    t->lstm(&row, n);
    t->lstm_backward(&slope, n);
    row.h = o->f[5];
    row.gates = o->f[6];
    t->gru(&row, n);
    slope.gates = o->f[6];
    slope.da = o->f[7];
    slope.db = o->f[8];
    slope.dstate = o->f[9];
    t->gru_backward(&slope, n);
}

/* On two arrays of float32, or with bf16 of bfloat16, which the results are, too. */
static void run_batch_norm_of(const simd_table *t, size_t lanes, bool bf16, const void *x,
                              const void *dy, void *out[5], outputs *o)
{
    const size_t rows = FLOATS / lanes;
    const bn_lanes p = {
        .mean = input[1], .scale = input[1] + 40, .bias = input[1] + 80, .relu = lanes % 2 == 0};
    const bn_slopes s = {.slope = input[1] + 120, .shift = input[1] + 160};

    t->bn_moments(x, bf16, rows, lanes, o->f[0], o->f[1]);
    t->bn_apply(x, NULL, out[0], bf16, rows, lanes, &p);
    t->bn_apply(x, dy, out[1], bf16, rows, lanes, &p);
    t->bn_sums(x, dy, NULL, bf16, rows, lanes, &p, o->f[3], o->f[4]);
    t->bn_dx(x, dy, out[2], bf16, rows, lanes, &p, &s);
    t->bn_sums(x, dy, &(bn_mask){.result = x, .masked = out[3]}, bf16, rows, lanes, &p, o->f[9],
               o->f[10]);
    t->bn_sums(dy, dy, &(bn_mask){.result = x, .dy2 = x, .masked = out[4]}, bf16, rows, lanes, &p,
               o->f[11], o->f[12]);
}

static void run_batch_norm(const simd_table *t, size_t lanes, outputs *o)
{
    void *out[5] = {o->f[2], o->f[6], o->f[5], o->f[7], o->f[8]};

    run_batch_norm_of(t, lanes, false, input[0], input[1], out, o);
}

static void run_bf16_batch_norm(const simd_table *t, size_t lanes, bool in_place, outputs *o)
{
    static uint16_t half[7][FLOATS];
    static float wide[2][FLOATS];
    void *out[5] = {o->f[2], o->f[6], o->f[5], o->f[7], o->f[8]};
    void *out_half[5] = {half[2], half[3], half[4], half[5], half[6]};

    memset(half, 0, sizeof(half));
    for (int k = 0; k < 2; k++) {
        t->narrow_bf16(input[k], half[k], FLOATS);
        t->widen_bf16(half[k], wide[k], FLOATS);
    }
    if (in_place) {
        run_batch_norm_of(t, lanes, true, half[0], half[1], out_half, o);
    } else {
        run_batch_norm_of(t, lanes, false, wide[0], wide[1], out, o);
        for (int k = 0; k < 5; k++)
            t->narrow_bf16(out[k], out_half[k], FLOATS);
    }
    // Sums of dy + dy2, which is rounded before, or not.
    memset(o->f[11], 0, 2 * sizeof(o->f[11]));
    for (int k = 0; k < 5; k++)
        t->widen_bf16(out_half[k], out[k], FLOATS);
}

static void run_pool(const simd_table *t, size_t lanes, size_t kernel, size_t padding, outputs *o)
{
    const size_t size = 9;
    const size_t out = (size + 2 * padding - kernel) / 2 + 1;
    const pool_plane p = {.h = size,
                          .w = size,
                          .out_h = out,
                          .out_w = out,
                          .kernel = {kernel, kernel},
                          .stride = {2, 2},
                          .padding = {padding, padding},
                          .lanes = lanes};
    const avg_window mean = {
        .h = size, .w = kernel, .row = size * lanes, .lanes = lanes, .size = 7};

    t->pool_max(&p, input[0], o->f[0], o->indices);
    t->pool_max(&p, input[0], o->f[1], NULL);
    t->pool_max_backward(&p, input[1], o->indices, o->f[2]);
    t->pool_mean(&mean, input[0], o->f[3]);
    t->pool_mean_backward(&mean, input[1], o->f[4]);
}

static outputs got;
static outputs want;

/* Bit by bit, but for which NaN it is: that depends on the order in which a compiler puts
 * two operands. */
static bool same_bits(const outputs *a, const outputs *b)
{
    for (size_t k = 0; k < LS_COUNT_OF(a->f); k++) {
        for (size_t i = 0; i < FLOATS; i++) {
            if (memcmp(&a->f[k][i], &b->f[k][i], sizeof(float)) != 0 &&
                !(isnan(a->f[k][i]) && isnan(b->f[k][i])))
                return false;
        }
    }
    return memcmp(a->indices, b->indices, sizeof(a->indices)) == 0;
}

static void assert_same(const simd_table *t, const char *what, size_t lanes)
{
    if (!same_bits(&got, &want))
        fail_msg("%s of %zu lanes differ between %s and %s", what, lanes, t->isa, plainest()->isa);
    memset(&got, 0, sizeof(got));
    memset(&want, 0, sizeof(want));
}

static void all_tables_give_the_same_bits(void **state)
{
    LS_UNUSED(state);
    fill_inputs();
    for (int i = 0; table_at(i) != NULL; i++) {
        const simd_table *t = table_at(i);

        run_pointwise(t, &got);
        run_pointwise(plainest(), &want);
        assert_same(t, "pointwise loops", 1);
        run_rows(t, &got);
        run_rows(plainest(), &want);
        assert_same(t, "loops over rows", 1);
        run_activations(t, &got);
        run_activations(plainest(), &want);
        assert_same(t, "activations", 1);
        run_activation_slopes(t, &got);
        run_activation_slopes(plainest(), &want);
        assert_same(t, "slopes of activations", 1);
        run_norms(t, &got);
        run_norms(plainest(), &want);
        assert_same(t, "layer norms and softmax", 1);
        for (size_t k = 0; k < LS_COUNT_OF(lane_counts); k++) {
            run_batch_norm(t, lane_counts[k], &got);
            run_batch_norm(plainest(), lane_counts[k], &want);
            assert_same(t, "batch norms", lane_counts[k]);
            run_recurrent(t, 25 * lane_counts[k], &got);
            run_recurrent(plainest(), 25 * lane_counts[k], &want);
            assert_same(t, "recurrent cells", 25 * lane_counts[k]);
            run_pool(t, lane_counts[k], 2, 0, &got);
            run_pool(plainest(), lane_counts[k], 2, 0, &want);
            assert_same(t, "pools of 2x2", lane_counts[k]);
            run_pool(t, lane_counts[k], 3, 1, &got);
            run_pool(plainest(), lane_counts[k], 3, 1, &want);
            assert_same(t, "pools of 3x3", lane_counts[k]);
        }
    }
}

static void batch_norms_read_bfloat16_as_if_widened(void **state)
{
    LS_UNUSED(state);
    fill_inputs();
    for (size_t i = 0; i < FLOATS; i++)
        input[0][i] *= 1 + 0x1p-9F * (float)(i % 3); // results to be rounded, also halfway
    for (int i = 0; table_at(i) != NULL; i++) {
        for (size_t k = 0; k < LS_COUNT_OF(lane_counts); k++) {
            run_bf16_batch_norm(table_at(i), lane_counts[k], true, &got);
            run_bf16_batch_norm(table_at(i), lane_counts[k], false, &want);
            assert_same(table_at(i), "batch norms of bfloat16", lane_counts[k]);
        }
    }
}

enum { WINO_CHANNELS = 32, WINO_H = 8, WINO_W = 7, WINO_PLANE = WINO_H * WINO_W };

/* Planes of as many channels as the table's loops take, from or to planes of one channel. */
static void to_blocks(const simd_table *t, const float *planes, float *blocks)
{
    for (size_t c = 0; c < WINO_CHANNELS; c++) {
        for (size_t p = 0; p < WINO_PLANE; p++)
            blocks[(c / t->wino_block * WINO_PLANE + p) * t->wino_block + c % t->wino_block] =
                planes[c * WINO_PLANE + p];
    }
}

static void from_blocks(const simd_table *t, const float *blocks, float *planes)
{
    for (size_t c = 0; c < WINO_CHANNELS; c++) {
        for (size_t p = 0; p < WINO_PLANE; p++)
            planes[c * WINO_PLANE + p] =
                blocks[(c / t->wino_block * WINO_PLANE + p) * t->wino_block + c % t->wino_block];
    }
}

/* Tiles of `side` points and `size` results in a direction, at one position of the image. */
typedef struct wino_case {
    size_t side;
    size_t size;
    int dims;
    size_t top;
    size_t left;
} wino_case;

static void run_winograd(const simd_table *t, const wino_case *c, outputs *o)
{
    const wino_patch tile = {.h = WINO_H,
                             .w = WINO_W,
                             .blocks = WINO_CHANNELS / t->wino_block,
                             .top = c->top,
                             .left = c->left,
                             .side = c->side,
                             .size = c->size,
                             .step = WINO_CHANNELS + 8,
                             .dims = c->dims};
    const wino_kernel kernel = {.side = c->side,
                                .size = c->side + 1 - c->size,
                                .dims = c->dims,
                                .count = 2 * WINO_CHANNELS,
                                .step = 2 * WINO_CHANNELS + 8};
    float blocks[WINO_CHANNELS * WINO_PLANE] = {0};

    memset(o, 0, sizeof(*o));
    t->wino_results(&tile, input[1], input[1] + 100, blocks);
    from_blocks(t, blocks, o->f[0]);
    to_blocks(t, input[1], blocks);
    t->wino_image(&tile, blocks, o->f[1]);
    t->wino_weights(&kernel, input[1], o->f[2]);
    if (c->side == 6) { // gradients of weights have these tiles only
        t->wino_gradient(&tile, blocks, o->f[3]);
        t->wino_taps(&kernel, input[1], o->f[4]);
    }
}

/* Convolutions, each over a small image, and two products, in the first places of o->f. */
static void run_convolutions(const simd_table *t, outputs *o)
{
    const size_t taps[4] = {0, 2, 20, 22};
    const conv_few few = {
        .w = 10, .o = 24, .out_h = 4, .out_w = 7, .stride = {2, 1}, .n_taps = 4, .taps = taps};
    const small_product m = {.rows = 11,
                             .depth = 9,
                             .columns = 24,
                             .a_row = 9,
                             .a_step = 1,
                             .b_panel = 144,
                             .b_step = 16,
                             .c_row = 24,
                             .add = true};
    const few_rows rows = {.rows = 15, .depth = 37, .outputs = 20, .add = true};

    float columns[37 * 32];

    t->conv_few_forward(&few, input[1], input[1] + 300, input[1] + 900, o->f[0]);
    t->conv_few_backward(&few, input[1], input[1] + 500, o->f[1], o->f[1] + 1000);
    t->product(&m, input[1], input[1] + 200, o->f[5]);
    t->dots_pack(&rows, input[1], columns);
    t->dots(&rows, columns, input[1] + 1000, o->f[5] + 1000, 1, 18);
    t->dots_dx(&rows, input[1], input[1] + 1000, o->f[5] + 1400, 2, 37);
}

/* Convolutions fuse products and sums where they can, so they may differ by rounding. */
static void compare_roughly(const simd_table *t)
{
    for (size_t k = 0; k < LS_COUNT_OF(got.f); k++) {
        for (size_t n = 0; n < FLOATS; n++) {
            if (!(fabsf(got.f[k][n] - want.f[k][n]) <= 1e-3F))
                fail_msg("%s: value %zu of loop %zu is %g, not %g", t->isa, n, k,
                         (double)got.f[k][n], (double)want.f[k][n]);
        }
    }
}

static void all_tables_convolve_alike(void **state)
{
    /* in the image; beyond its lower and right edges; beyond the upper and left ones */
    static const size_t positions[3][2] = {{1, 1}, {5, 4}, {SIZE_MAX, SIZE_MAX}};
    static const wino_case kinds[] = {
        {6, 4, 2, 0, 0}, {6, 2, 2, 0, 0}, {4, 2, 2, 0, 0}, {6, 2, 1, 0, 0}};

    LS_UNUSED(state);
    fill_inputs();
    memset(&want, 0, sizeof(want));
    run_convolutions(plainest(), &want);
    for (int i = 0; table_at(i) != NULL; i++) {
        memset(&got, 0, sizeof(got));
        run_convolutions(table_at(i), &got);
        compare_roughly(table_at(i));
    }
    for (size_t k = 0; k < LS_COUNT_OF(kinds) * LS_COUNT_OF(positions); k++) {
        wino_case c = kinds[k / LS_COUNT_OF(positions)];

        c.top = positions[k % LS_COUNT_OF(positions)][0];
        c.left = positions[k % LS_COUNT_OF(positions)][1];
        run_winograd(plainest(), &c, &want);
        for (int i = 0; table_at(i) != NULL; i++) {
            run_winograd(table_at(i), &c, &got);
            compare_roughly(table_at(i));
        }
    }
    memset(&got, 0, sizeof(got));
    memset(&want, 0, sizeof(want));
}

enum { FEW_COLUMNS = 167, FEW_OUTPUTS = 35 };

/* Of products of few rows: numbers whose sums of products float32 has exactly. */
typedef struct few_data {
    float x[FEW_COLUMNS * FEW_ROWS_MOST]; /* and dy */
    float w[FEW_COLUMNS * FEW_OUTPUTS];
    float columns[FEW_COLUMNS * FEW_ROWS_MOST];
    float y[FEW_OUTPUTS * FEW_ROWS_MOST + 1];
    float dx[FEW_COLUMNS * FEW_ROWS_MOST + 1];
} few_data;

/* In two halves, as two threads do. */
static void run_few(const simd_table *t, const few_rows *m, few_data *d)
{
    for (size_t i = 0; i < LS_COUNT_OF(d->y); i++)
        d->y[i] = 0.5F;
    for (size_t i = 0; i < LS_COUNT_OF(d->dx); i++)
        d->dx[i] = 0.25F;
    t->dots_pack(m, d->x, d->columns);
    t->dots(m, d->columns, d->w, d->y, 0, m->outputs / 2);
    t->dots(m, d->columns, d->w, d->y, m->outputs / 2, m->outputs);
    t->dots_dx(m, d->x, d->w, d->dx, 0, m->depth / 3);
    t->dots_dx(m, d->x, d->w, d->dx, m->depth / 3, m->depth);
}

static void check_few(const few_rows *m, const few_data *d)
{
    for (size_t row = 0; row < m->rows; row++) {
        for (size_t o = 0; o < m->outputs; o++) {
            float sum = m->add ? 0.5F : 0;

            for (size_t k = 0; k < m->depth; k++)
                sum += d->x[row * m->depth + k] * d->w[o * m->depth + k];
            assert_true(d->y[row * m->outputs + o] == sum);
        }
        for (size_t k = 0; k < m->depth; k++) {
            float sum = m->add ? 0.25F : 0;

            for (size_t o = 0; o < m->outputs; o++)
                sum += d->x[row * m->outputs + o] * d->w[o * m->depth + k];
            assert_true(d->dx[row * m->depth + k] == sum);
        }
    }
    assert_true(d->y[m->rows * m->outputs] == 0.5F);
    assert_true(d->dx[m->rows * m->depth] == 0.25F);
}

static void products_of_every_number_of_rows_are_right(void **state)
{
    static const size_t sizes[][2] = {{1, 1}, {16, 16}, {37, 20}, {130, 35}, {FEW_COLUMNS, 33}};
    static few_data d;
    ls_rng rng;

    LS_UNUSED(state);
    ls_rng_seed(&rng, 5);
    fill(&rng, d.x, LS_COUNT_OF(d.x));
    fill(&rng, d.w, LS_COUNT_OF(d.w));
    for (int i = 0; table_at(i) != NULL; i++)
        for (size_t rows = 1; rows <= FEW_ROWS_MOST; rows++)
            for (size_t k = 0; k < LS_COUNT_OF(sizes); k++) {
                const few_rows m = {.rows = rows,
                                    .depth = sizes[k][0],
                                    .outputs = sizes[k][1],
                                    .add = (rows + k) % 2 == 0};

                run_few(table_at(i), &m, &d);
                check_few(&m, &d);
            }
}

static void exp_is_near_the_libraries(void **state)
{
    const simd_table *t = simd_table_at(0);
    float x[1000];
    float y[1000];

    LS_UNUSED(state);
    for (int i = 0; i < 1000; i++)
        x[i] = -(float)i * 0.087F;
    t->exp_below(x, 0, y, 1000);
    for (int i = 0; i < 1000; i++) {
        const double right = exp((double)x[i]);

        assert_true(fabs((double)y[i] - right) <= 2e-7 * right);
    }
}

/* Over all of what is not 0 or 1, against erfc() of the C library. */
static void gelu_is_near_its_definition(void **state)
{
    enum { N = 2800 };
    static float x[N];
    static float y[N];

    LS_UNUSED(state);
    for (int i = 0; i < N; i++)
        x[i] = (float)(i - N / 2) / 100;
    simd_table_at(0)->activate(LS_ACT_GELU, (float[]){0, 0}, x, y, N);
    for (int i = 0; i < N; i++) {
        const double v = (double)x[i];
        const double right = v * erfc(-v * sqrt(0.5)) / 2;

        // exp(-x^2 / 2) loses as many places as its argument has in front of the point.
        assert_true(fabs((double)y[i] - right) <= (4e-7 + 3e-8 * v * v) * fabs(right) + 1e-37);
    }
}

static void a_rows_largest_and_sum_are_right_at_every_length(void **state)
{
    const simd_table *t = simd_table_at(0);
    float x[70];
    double sum = 0;

    LS_UNUSED(state);
    for (size_t n = 0; n < LS_COUNT_OF(x); n++) {
        x[n] = n == 41 ? 9 : (float)n / 64 - 1;
        sum += (double)x[n];
        assert_true(t->sum(x, n + 1) == sum);
        assert_true(t->largest(x, n + 1) == (n >= 41 ? 9 : x[n]));
    }
    x[3] = (float)NAN;
    assert_true(t->largest(x, 3) == x[2] && t->largest(x, 4) == x[2]);
    assert_true(isnan(t->sum(x, 4)));
}

/* Into a larger matrix, which keeps its other elements; its rows in reverse order as well. */
static void check_transpose(const simd_table *t, size_t rows, size_t columns, bool reverse)
{
    enum { SIDE = 40 };
    const ptrdiff_t to_row = reverse ? -SIDE : SIDE;
    float out[SIDE * SIDE];
    float expected[SIDE * SIDE];
    const size_t first = reverse ? (SIDE - 1) * SIDE : 0;

    for (size_t i = 0; i < LS_COUNT_OF(out); i++)
        out[i] = expected[i] = -1;
    for (size_t r = 0; r < rows; r++) {
        for (size_t c = 0; c < columns; c++)
            expected[(ptrdiff_t)(first + r) + (ptrdiff_t)c * to_row] = input[1][r * 41 + c];
    }
    t->transpose(input[1], 41, rows, columns, out + first, to_row);
    assert_memory_equal(out, expected, sizeof(out));
}

static void matrices_of_every_size_are_transposed(void **state)
{
    LS_UNUSED(state);
    for (int i = 0; table_at(i) != NULL; i++) {
        for (size_t rows = 0; rows <= 34; rows++) {
            for (size_t columns = 0; columns <= 34; columns++) {
                check_transpose(table_at(i), rows, columns, false);
                check_transpose(table_at(i), rows, columns, true);
            }
        }
    }
}

static void dropout_drops_what_the_hash_says(void **state)
{
    const drop_run r = {
        .random = 99, .threshold = (uint64_t)3 << 50, .first = 5, .step = 3, .scale = 2};
    float x[100];
    float y[100];

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(x); i++)
        x[i] = 1 + (float)i;
    simd_table_at(0)->dropout(&r, x, y, LS_COUNT_OF(x));
    for (size_t i = 0; i < LS_COUNT_OF(x); i++)
        assert_true(y[i] == (ls_hash3(99, 5 + 3 * i, 0) >> 11 < r.threshold ? 0 : 2 * x[i]));
}

static void the_best_table_of_a_level_needs_no_more(void **state)
{
    LS_UNUSED(state);
    assert_ptr_equal(simd_table_for(ISA_BASELINE), plainest());
    assert_ptr_equal(simd_table_for(ISA_AVX512), simd_table_at(0));
    assert_true(simd_table_for(ISA_AVX2)->level <= ISA_AVX2);
    for (int i = 0; simd_table_at(i) != NULL; i++)
        assert_ptr_equal(simd_table_for(simd_table_at(i)->level), simd_table_at(i));
}

enum { HALVES = 65536, NEAR = 5 };

/* All values of 16 bits, and float32 numbers: each of them, next to it, between neighbours, any. */
typedef struct half_inputs {
    uint16_t halves[HALVES];
    float floats[HALVES * NEAR];
} half_inputs;

static void fill_halves(half_inputs *in, bool f16)
{
    const uint32_t middle = f16 ? 0x1000 : 0x8000; // half the distance of neighbours
    ls_rng rng;

    ls_rng_seed(&rng, 9);
    for (uint32_t i = 0; i < HALVES; i++) {
        const float exact = f16 ? ls_f16_to_f32((uint16_t)i) : ls_bf16_to_f32((uint16_t)i);
        uint32_t bits[NEAR];

        in->halves[i] = (uint16_t)i;
        memcpy(bits, &exact, sizeof(exact));
        bits[1] = bits[0] + 1;
        bits[2] = bits[0] + middle;
        bits[3] = bits[2] + 1;
        bits[4] = (uint32_t)ls_rng_next(&rng);
        memcpy(&in->floats[i * NEAR], bits, sizeof(bits));
    }
}

static void check_conversions(const simd_table *t, const half_inputs *in, bool f16)
{
    static float wide[HALVES];
    static uint16_t narrow[HALVES * NEAR];

    (f16 ? t->widen_f16 : t->widen_bf16)(in->halves, wide, HALVES);
    (f16 ? t->narrow_f16 : t->narrow_bf16)(in->floats, narrow, HALVES * NEAR);
    for (size_t i = 0; i < HALVES; i++) {
        const float exact = f16 ? ls_f16_to_f32(in->halves[i]) : ls_bf16_to_f32(in->halves[i]);

        assert_memory_equal(&wide[i], &exact, sizeof(exact));
    }
    for (size_t i = 0; i < (size_t)HALVES * NEAR; i++)
        assert_int_equal(narrow[i],
                         f16 ? ls_f32_to_f16(in->floats[i]) : ls_f32_to_bf16(in->floats[i]));
}

static void conversions_give_the_bits_of_base_half(void **state)
{
    static half_inputs in;

    LS_UNUSED(state);
    for (int f16 = 0; f16 < 2; f16++) {
        fill_halves(&in, f16);
        for (int i = 0; table_at(i) != NULL; i++)
            check_conversions(table_at(i), &in, f16);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(conversions_give_the_bits_of_base_half),
        cmocka_unit_test(all_tables_give_the_same_bits),
        cmocka_unit_test(batch_norms_read_bfloat16_as_if_widened),
        cmocka_unit_test(all_tables_convolve_alike),
        cmocka_unit_test(products_of_every_number_of_rows_are_right),
        cmocka_unit_test(exp_is_near_the_libraries),
        cmocka_unit_test(gelu_is_near_its_definition),
        cmocka_unit_test(a_rows_largest_and_sum_are_right_at_every_length),
        cmocka_unit_test(matrices_of_every_size_are_transposed),
        cmocka_unit_test(dropout_drops_what_the_hash_says),
        cmocka_unit_test(the_best_table_of_a_level_needs_no_more),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
