/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pointwise.cu - the kernels that compute each element from those at the same position: ReLU,
 * functions of two tensors, dropout, activations, gradients of losses, casts, floats of bytes.
 * own_elements.c launches them.
 */
#include "tensor/devices/cuda/kernels/kernel.h"

#include <lockstep/tensor.h>

typedef enum pointwise_kind {
    POINTWISE_FILL,
    POINTWISE_RELU,
    POINTWISE_RELU_BACK,
    POINTWISE_BINARY,
    POINTWISE_ADD_RELU,
    POINTWISE_DROPOUT,
    POINTWISE_ACTIVATE,
    POINTWISE_ACTIVATE_BACK,
    POINTWISE_MSE_BACK,
    POINTWISE_CROSS_BACK,
    POINTWISE_NLL_BACK
} pointwise_kind;

KERNEL_FN bool reads_x(pointwise_kind kind)
{
    return kind != POINTWISE_FILL && kind != POINTWISE_NLL_BACK;
}

KERNEL_FN bool reads_y(pointwise_kind kind)
{
    return kind == POINTWISE_RELU_BACK || kind == POINTWISE_BINARY || kind == POINTWISE_ADD_RELU ||
           kind == POINTWISE_ACTIVATE_BACK || kind == POINTWISE_MSE_BACK;
}

/* That a thread reads before it uses the first: of those that read one array, 32 bytes. */
KERNEL_FN size_t packs_at_once(pointwise_kind kind)
{
    return kind == POINTWISE_RELU || kind == POINTWISE_DROPOUT || kind == POINTWISE_ACTIVATE ? 2
                                                                                             : 1;
}

/* device_drops() for the element at position i of memory. */
KERNEL_FN bool is_dropped(const pointwise_args *a, size_t i)
{
    size_t number = a->run == 1 ? i : divide(i, a->run);

    if (a->channels > 0) {
        const size_t pixel = divide(i, a->channels);
        const size_t image = divide(pixel, a->area);
        const size_t channel = i - pixel * a->channels;

        number = (image * a->channels + channel) * a->area + pixel - image * a->area;
    }
    return drops(a->random, number, a->drop_limit);
}

/* Four neighbours of each type; STORE_FOUR writes four number i. */
#define FOUR(T, ALIGNMENT)                                                                         \
    typedef struct four_##T {                                                                      \
        T e[4];                                                                                    \
    } __attribute__((aligned(ALIGNMENT))) four_##T
FOUR(f32, 16);
FOUR(f64, 16);
FOUR(bf16, 8);
typedef four_bf16 four_f16;

#define STORE_FOUR(T, VIA, p, i, v)                                                                \
    do {                                                                                           \
        four_##T narrowed;                                                                         \
                                                                                                   \
        for (int e = 0; e < 4; e++)                                                                \
            narrowed.e[e] = narrow_##T((VIA)(v)[e]);                                               \
        ((four_##T *)(p))[i] = narrowed;                                                           \
    } while (0)

#define KERNEL_FILE "tensor/devices/cuda/kernels/pointwise.inc"
#include "tensor/devices/cuda/kernels/kernel_types.inc"

/* The float of element i of x and its byte's place: a walk over x needs no division. */
typedef struct pixel_place {
    size_t image;
    size_t channel;
    size_t at; /* in the plane */
} pixel_place;

KERNEL_FN pixel_place place_of(const normalize_args *a, size_t i)
{
    const size_t pixel = divide(i, a->channels);
    const size_t image = divide(pixel, a->area);
    const pixel_place p = {image, i - pixel * a->channels, pixel - image * a->area};

    return p;
}

KERNEL_FN float take_value(const normalize_args *a, pixel_place *p)
{
    const uint8_t byte = a->pixels[(p->image * a->channels + p->channel) * a->area + p->at];
    const float value = a->values[p->channel * a->value_step + byte];

    p->channel++;
    if (p->channel == a->channels) {
        p->channel = 0;
        p->at++;
    }
    if (p->at == a->area) {
        p->at = 0;
        p->image++;
    }
    return value;
}

KERNEL(normalize, normalize_args)
{
    const size_t first = (size_t)at.block * at.n_threads + at.thread;
    const size_t step = (size_t)at.n_blocks * at.n_threads;
    const size_t n_fours = a->wide ? a->count / 4 : 0;

    for (size_t i = first; i < n_fours; i += step) {
        pixel_place p = place_of(a, 4 * i);
        four_f32 four;

        for (int e = 0; e < 4; e++)
            four.e[e] = take_value(a, &p);
        ((four_f32 *)(void *)a->x)[i] = four;
    }
    for (size_t i = 4 * n_fours + first; i < a->count; i += step) {
        pixel_place p = place_of(a, i);

        a->x[i] = take_value(a, &p);
    }
}
