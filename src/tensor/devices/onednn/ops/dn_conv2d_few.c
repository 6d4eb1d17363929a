/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dn_conv2d_few.c - convolutions of images with few channels (the first layer of a network),
 * forward and by weights.
 *
 * oneDNN 2.6 has no vectorised gradient for them below AVX-512 and falls back to one that is
 * hundreds of times slower, or pads the channels to 8. Here an image is copied into a frame of
 * zeros, which fits into the L1 cache, and multiplied for 8 or 16 output channels at a time; y and
 * dy are in blocks of 8 channels.
 */
#include "tensor/devices/onednn/dn.h"

#include <string.h>

typedef struct few_work {
    const simd_table *simd;
    conv_few shape;
    size_t taps[CONV2D_FEW_TAPS];
    size_t c;
    size_t in_h; /* of the image without the frame */
    size_t in_w;
    size_t h; /* with the frame */
    size_t top;
    size_t left;
    size_t n_weights; /* of all output channels */
    const float *x;
    const float *dy;
    float *y;
    float *frames;  /* one framed image for each thread's share */
    float *weights; /* (C, KH, KW, O), or such gradients for each image */
    float *bias;    /* (O), or such gradients for each image */
} few_work;

/* The distances of the kernel's positions from the first, in the order of the weights (C,
 * KH, KW). */
static void set_taps(few_work *k, const op_attrs *a, const ls_tensor *w)
{
    size_t n = 0;

    for (size_t c = 0; c < k->c; c++) {
        for (size_t kh = 0; kh < (size_t)w->dims[2]; kh++) {
            const size_t row = (c * k->h + kh * (size_t)a->dilation[0]) * k->shape.w;

            for (size_t kw = 0; kw < (size_t)w->dims[3]; kw++)
                k->taps[n++] = row + kw * (size_t)a->dilation[1];
        }
    }
    k->shape.n_taps = n;
    k->shape.taps = k->taps;
}

static void describe(few_work *k, const device_state *self, const op_call *call, const ls_tensor *x,
                     const ls_tensor *w, const ls_tensor *y)
{
    const op_attrs *a = &call->attrs;

    k->simd = self->simd;
    k->c = (size_t)x->dims[1];
    k->in_h = (size_t)x->dims[2];
    k->in_w = (size_t)x->dims[3];
    k->top = (size_t)a->padding[0];
    k->left = (size_t)a->padding[1];
    k->h = k->in_h + 2 * k->top;
    k->shape = (conv_few){.w = k->in_w + 2 * k->left,
                          .o = (size_t)y->dims[1],
                          .out_h = (size_t)y->dims[2],
                          .out_w = (size_t)y->dims[3],
                          .stride = {(size_t)a->stride[0], (size_t)a->stride[1]}};
    set_taps(k, a, w);
    k->n_weights = k->shape.o * k->shape.n_taps;
}

static size_t frame_floats(const few_work *k)
{
    return k->c * k->h * k->shape.w;
}

/* Image n into `frame`, whose border is 0 already. */
static void fill_frame(const few_work *k, size_t n, float *frame)
{
    const float *image = k->x + n * k->c * k->in_h * k->in_w;

    for (size_t c = 0; c < k->c; c++) {
        for (size_t h = 0; h < k->in_h; h++) {
            float *row = frame + (c * k->h + k->top + h) * k->shape.w + k->left;

            memcpy(row, image + (c * k->in_h + h) * k->in_w, k->in_w * sizeof(*row));
        }
    }
}

/* --- forward --- */

static void forward_range(void *arg, size_t begin, size_t end, size_t thread)
{
    const few_work *k = arg;
    const size_t out_floats = k->shape.o * k->shape.out_h * k->shape.out_w;
    float *frame = k->frames + thread * frame_floats(k);

    memset(frame, 0, frame_floats(k) * sizeof(*frame));
    for (size_t n = begin; n < end; n++) {
        fill_frame(k, n, frame);
        k->simd->conv_few_forward(&k->shape, frame, k->weights, k->bias, k->y + n * out_floats);
    }
}

static ls_status forward(device_state *self, const op_call *call, few_work *k, ls_tensor **memory)
{
    ls_tensor *const x = call->in[0];
    ls_tensor *const y = call->out[0];
    const size_t n_frames = (size_t)self->threads * frame_floats(k);
    void *plain;

    LS_TRY(dn_host->tensor_plain(call->in[1], &plain));
    LS_TRY(dn_floats(x->device, n_frames + k->n_weights + k->shape.o, memory, &k->frames));
    k->weights = k->frames + n_frames;
    k->bias = k->weights + k->n_weights;
    k->simd->transpose(plain, k->shape.n_taps, k->shape.o, k->shape.n_taps, k->weights,
                       (ptrdiff_t)k->shape.o);
    memset(k->bias, 0, k->shape.o * sizeof(*k->bias));
    if (call->in[2] != NULL) {
        LS_TRY(dn_host->tensor_plain(call->in[2], &plain));
        memcpy(k->bias, plain, k->shape.o * sizeof(*k->bias));
    }
    LS_TRY(layout_place(y, layout_blocked(self, 8, y->dims)));
    k->y = dn_data(y);
    threads_for(self, (size_t)x->dims[0], k->n_weights * k->shape.out_h * k->shape.out_w,
                forward_range, k);
    return LS_OK;
}

ls_status conv2d_few(device_state *self, const op_call *call)
{
    ls_tensor *const x = call->in[0];
    few_work k;
    ls_tensor *memory = NULL;
    void *plain;
    ls_status st;

    describe(&k, self, call, x, call->in[1], call->out[0]);
    LS_TRY(dn_host->tensor_plain(x, &plain));
    k.x = plain;
    st = forward(self, call, &k, &memory);
    dn_host->tensor_destroy(memory);
    return st;
}

/* --- backward by weights --- */

/* A gradient for each image: their sum does not depend on the assignment of images to threads. */
static void backward_range(void *arg, size_t begin, size_t end, size_t thread)
{
    const few_work *k = arg;
    const size_t out_floats = k->shape.o * k->shape.out_h * k->shape.out_w;
    float *frame = k->frames + thread * frame_floats(k);

    memset(frame, 0, frame_floats(k) * sizeof(*frame));
    for (size_t n = begin; n < end; n++) {
        float *dw = k->weights + n * k->n_weights;
        float *db = k->bias + n * k->shape.o;

        memset(dw, 0, k->n_weights * sizeof(*dw));
        memset(db, 0, k->shape.o * sizeof(*db));
        fill_frame(k, n, frame);
        k->simd->conv_few_backward(&k->shape, frame, k->dy + n * out_floats, dw, db);
    }
}

/* Adds the gradients of all images to the first. */
static void sum_images(const few_work *k, float *of, size_t n_images, size_t floats)
{
    for (size_t n = 1; n < n_images; n++)
        k->simd->add(of, of + n * floats, of, floats);
}

static void write_one(float *gradient, const float *value, size_t i, bool accumulate)
{
    gradient[i] = accumulate ? gradient[i] + *value : *value;
}

static void write_gradients(const op_call *call, const few_work *k)
{
    const size_t per_output = k->shape.n_taps;
    float *dw = dn_data(call->out[0]);

    for (size_t o = 0; o < k->shape.o; o++) {
        for (size_t j = 0; j < per_output; j++)
            write_one(dw, &k->weights[j * k->shape.o + o], o * per_output + j, call->accumulate);
        if (call->out[1] != NULL)
            write_one(dn_data(call->out[1]), &k->bias[o], o, call->accumulate);
    }
}

static ls_status backward(device_state *self, const op_call *call, few_work *k, ls_tensor **memory)
{
    const size_t n_images = (size_t)call->in[0]->dims[0];
    const size_t n_frames = (size_t)self->threads * frame_floats(k);

    LS_TRY(dn_floats(call->in[0]->device, n_frames + n_images * (k->n_weights + k->shape.o), memory,
                     &k->frames));
    k->weights = k->frames + n_frames;
    k->bias = k->weights + n_images * k->n_weights;
    threads_for(self, n_images, k->n_weights * k->shape.out_h * k->shape.out_w, backward_range, k);
    sum_images(k, k->weights, n_images, k->n_weights);
    sum_images(k, k->bias, n_images, k->shape.o);
    write_gradients(call, k);
    return LS_OK;
}

ls_status conv2d_few_backward_weights(device_state *self, const op_call *call)
{
    ls_tensor *const dy = call->in[1];
    few_work k;
    ls_tensor *moved = NULL;
    ls_tensor *memory = NULL;
    void *data = NULL;
    ls_status st;

    describe(&k, self, call, call->in[0], call->out[0], dy);
    LS_TRY(dn_host->tensor_plain(call->in[0], &data));
    k.x = data;
    st = layout_arrange(self, dy, layout_blocked(self, 8, dy->dims), &moved, &data);
    k.dy = data;
    if (st == LS_OK)
        st = backward(self, call, &k, &memory);
    dn_host->tensor_destroy(memory);
    dn_host->tensor_destroy(moved);
    return st;
}
