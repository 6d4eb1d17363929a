/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simd_isa.h - the inner loops under the names of the instruction set that a source is compiled
 * for.
 */
#ifndef LS_TENSOR_DEVICES_ONEDNN_SIMD_SIMD_ISA_H
#define LS_TENSOR_DEVICES_ONEDNN_SIMD_SIMD_ISA_H

#include "tensor/devices/onednn/simd/simd.h"

#define SIMD_JOIN(name, isa)   name##_##isa
#define SIMD_EXPAND(name, isa) SIMD_JOIN(name, isa)
#define SIMD_NAME(name)        SIMD_EXPAND(name, SIMD_ISA) /* SIMD_ISA comes from the build */

void SIMD_NAME(widen_bf16)(const uint16_t *from, float *to, size_t n);
void SIMD_NAME(narrow_bf16)(const float *from, uint16_t *to, size_t n);
void SIMD_NAME(widen_f16)(const uint16_t *from, float *to, size_t n);
void SIMD_NAME(narrow_f16)(const float *from, uint16_t *to, size_t n);
void SIMD_NAME(relu)(const float *x, float *y, size_t n);
void SIMD_NAME(relu_backward)(const float *y, const float *dy, float *dx, size_t n);
void SIMD_NAME(add)(const float *a, const float *b, float *y, size_t n);
void SIMD_NAME(binary)(op_binary f, float p, const float *a, const float *b, float *y, size_t n);
void SIMD_NAME(binary_slope)(const binary_term *t, const float *dy, const float *a, const float *b,
                             float *d, size_t n);
void SIMD_NAME(accumulate)(const float *x, double *sums, size_t n);
void SIMD_NAME(add_relu)(const float *a, const float *b, float *y, size_t n);
void SIMD_NAME(bn_moments)(const void *x, bool bf16, size_t rows, size_t lanes, float *mean,
                           float *squares);
void SIMD_NAME(bn_apply)(const void *x, const void *added, void *y, bool bf16, size_t rows,
                         size_t lanes, const bn_lanes *p);
void SIMD_NAME(bn_sums)(const void *x, const void *dy, const bn_mask *m, bool bf16, size_t rows,
                        size_t lanes, const bn_lanes *p, float *sum_dy, float *sum_dy_x);
void SIMD_NAME(bn_dx)(const void *x, const void *dy, void *dx, bool bf16, size_t rows, size_t lanes,
                      const bn_lanes *p, const bn_slopes *s);
void SIMD_NAME(pool_max)(const pool_plane *p, const float *x, float *y, uint8_t *indices);
void SIMD_NAME(pool_max_backward)(const pool_plane *p, const float *dy, const uint8_t *indices,
                                  float *dx);
void SIMD_NAME(pool_mean)(const avg_window *k, const float *x, float *y);
void SIMD_NAME(pool_mean_backward)(const avg_window *k, const float *dy, float *dx);
void SIMD_NAME(conv_few_forward)(const conv_few *s, const float *image, const float *w,
                                 const float *bias, float *y);
void SIMD_NAME(conv_few_backward)(const conv_few *s, const float *image, const float *dy, float *dw,
                                  float *db);
void SIMD_NAME(wino_image)(const wino_patch *t, const float *image, float *points);
void SIMD_NAME(wino_gradient)(const wino_patch *t, const float *image, float *points);
void SIMD_NAME(wino_results)(const wino_patch *t, const float *points, const float *bias,
                             float *image);
void SIMD_NAME(wino_weights)(const wino_kernel *k, const float *taps, float *points);
void SIMD_NAME(wino_taps)(const wino_kernel *k, const float *points, float *taps);
void SIMD_NAME(product)(const small_product *m, const float *a, const float *b, float *c);
size_t SIMD_NAME(dots_width)(size_t rows);
void SIMD_NAME(dots_pack)(const few_rows *m, const float *x, float *columns);
void SIMD_NAME(dots)(const few_rows *m, const float *x, const float *w, float *y, size_t begin,
                     size_t end);
void SIMD_NAME(dots_dx)(const few_rows *m, const float *dy, const float *w, float *dx, size_t begin,
                        size_t end);
void SIMD_NAME(exp_below)(const float *x, float top, float *out, size_t n);
float SIMD_NAME(exp_sum)(const float *x, float top, float *out, size_t n);
void SIMD_NAME(transpose)(const float *x, size_t row, size_t n_rows, size_t n_columns, float *to,
                          ptrdiff_t to_row);
float SIMD_NAME(largest)(const float *x, size_t n);
double SIMD_NAME(sum)(const float *x, size_t n);
void SIMD_NAME(shift)(const float *x, float a, float b, float *y, size_t n);
void SIMD_NAME(shift_scale)(const float *x, float a, float b, float *y, size_t n);
void SIMD_NAME(log_softmax_dx)(const float *y, const float *dy, float sum, float *dx, size_t n);
void SIMD_NAME(dropout)(const drop_run *r, const float *x, float *y, size_t n);
void SIMD_NAME(activate)(ls_activation f, const float *p, const float *x, float *y, size_t n);
void SIMD_NAME(activate_backward)(ls_activation f, const float *p, const float *x, const float *dy,
                                  float *dx, size_t n);
double SIMD_NAME(dot)(const float *x, const float *y, size_t n);
double SIMD_NAME(spread)(const float *x, float mean, size_t n);
void SIMD_NAME(norm_apply)(const norm_row *r, const float *x, const float *weight,
                           const float *bias, float *y, size_t n);
void SIMD_NAME(norm_slopes)(const norm_row *r, const float *x, const float *dy, const float *weight,
                            float *xhat, float *g, size_t n);
void SIMD_NAME(norm_dx)(const norm_row *r, const float *xhat, const float *g, float *dx, size_t n);
void SIMD_NAME(norm_sums)(const norm_row *r, const float *x, const float *dy, double *dweight,
                          double *dbias, size_t n);
void SIMD_NAME(softmax_dx)(const float *y, const float *dy, float sum, float scale, float *dx,
                           size_t n);
void SIMD_NAME(lstm)(const recurrent_row *r, size_t n);
void SIMD_NAME(lstm_backward)(const recurrent_slope *r, size_t n);
void SIMD_NAME(gru)(const recurrent_row *r, size_t n);
void SIMD_NAME(gru_backward)(const recurrent_slope *r, size_t n);

extern const simd_table SIMD_NAME(simd_table);

#endif
