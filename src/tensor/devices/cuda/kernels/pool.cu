/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pool.cu - maximum and average pooling of NHWC images, for all parameters. A thread computes one
 * element, or a pack of channels, of the result; the backward kernels gather from all windows that
 * cover a position, in their order. pool.c (of this folder) launches them.
 */
#include "tensor/devices/cuda/kernels/kernel.h"

/* The windows that cover a position of an axis, or the positions that a window covers. */
typedef struct span {
    int begin;
    int end;
    int size; /* of a window: what its sum is divided by */
} span;

#define POSITIONS_AT_ONCE 8 /* of a row of a window: read before an average uses the first */

KERNEL_FN int least(int a, int b)
{
    return a < b ? a : b;
}

KERNEL_FN int most(int a, int b)
{
    return a > b ? a : b;
}

/* Window i along an axis (0: height, 1: width) of `in` positions: window.h. */
KERNEL_FN span window_of(const pool_args *a, int axis, int in, int out, int i)
{
    int begin = i * a->stride[axis] - a->padding[axis];
    int end = least(begin + a->kernel[axis], in + a->padding[axis]);
    span s;

    if (a->adaptive) {
        begin = (int)((int64_t)i * in / out);
        end = (int)((((int64_t)i + 1) * in + out - 1) / out);
    }
    s.begin = most(begin, 0);
    s.end = least(end, in);
    s.size = end - begin;
    return s;
}

/* The windows that cover position i. */
KERNEL_FN span windows_over(const pool_args *a, int axis, int in, int out, int i)
{
    const int from = i + a->padding[axis] - a->kernel[axis];
    span s;

    if (a->adaptive) {
        s.begin = (int)((int64_t)i * out / in);
        s.end = (int)((((int64_t)i + 1) * out + in - 1) / in);
    } else {
        s.begin = from < 0 ? 0 : from / a->stride[axis] + 1;
        s.end = least((i + a->padding[axis]) / a->stride[axis] + 1, out);
    }
    s.size = 0;
    return s;
}

/* A thread's element, or pack of channels, of an image of `h` x `w`. */
typedef struct pixel {
    size_t image;
    int h;
    int w;
    int channel;
} pixel;

KERNEL_FN pixel pixel_at(const pool_args *a, size_t i, int h, int w, int width)
{
    const size_t units = (size_t)(a->channels / width);
    const size_t position = divide(i, units);
    const size_t row = divide(position, (size_t)w);
    pixel p;

    p.channel = (int)(i - position * units) * width;
    p.w = (int)(position - row * (size_t)w);
    p.image = divide(row, (size_t)h);
    p.h = (int)(row - p.image * (size_t)h);
    return p;
}

/* The position of (h, w) of the same image and channel, in images of `height` x `row`. */
KERNEL_FN size_t element_of(const pool_args *a, const pixel *p, int h, int w, int height, int row)
{
    return ((p->image * (size_t)height + (size_t)h) * (size_t)row + (size_t)w) *
               (size_t)a->channels +
           (size_t)p->channel;
}

/* The same element of channel `channel` in row-major images. */
KERNEL_FN size_t plain_element_of(const pool_args *a, const pixel *p, int channel, int h, int w)
{
    return ((p->image * (size_t)a->channels + (size_t)channel) * (size_t)a->out_h + (size_t)h) *
               (size_t)a->out_w +
           (size_t)w;
}

#define KERNEL_FILE "tensor/devices/cuda/kernels/pool.inc"
#include "tensor/devices/cuda/kernels/kernel_types.inc"
