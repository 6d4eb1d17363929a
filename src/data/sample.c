/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sample.c - turns an image into a sample: decode, crop, resize, flip, and for floats normalize.
 * Only the visible part is decoded and resized. The loader's threads call it.
 */
#include "data/sample.h"

#include "data/augment.h"

#include <string.h>

/* Memory of a sample; one of the two is NULL. */
typedef struct sample_memory {
    float *floats;
    uint8_t *bytes;
} sample_memory;

/* Part of the scaled image that lies inside the sample: x, y, width, height. */
typedef struct window {
    int at[4];
} window;

const float *sample_values(const ls_dataset *d, int channel)
{
    return d->values[channel < 3 ? channel : 0];
}

/* Without augmentation: the planes as they are. */
static void convert_planes(const ls_dataset *d, const image_reader *r, sample_memory x)
{
    const size_t n = (size_t)r->height * (size_t)r->width;

    if (x.bytes != NULL) {
        memcpy(x.bytes, r->bytes, (size_t)r->channels * n);
        return;
    }
    for (int c = 0; c < r->channels; c++) {
        const float *values = sample_values(d, c);
        const uint8_t *plane = r->bytes + (size_t)c * n;

        for (size_t i = 0; i < n; i++)
            // NOLINTNEXTLINE(clang-analyzer-core.NullDereference): the row has memory
            x.floats[(size_t)c * n + i] = values[plane[i]];
    }
}

static window visible_part(const augment_plan *p)
{
    const int x = p->left > 0 ? p->left : 0;
    const int y = p->top > 0 ? p->top : 0;
    const int right = p->left + p->width;
    const int bottom = p->top + p->height;
    const int width = (right < p->scaled_width ? right : p->scaled_width) - x;
    const int height = (bottom < p->scaled_height ? bottom : p->scaled_height) - y;

    return (window){{x, y, width, height}};
}

/* Decodes and resizes the window, of the planes from `plane` on. */
static ls_status scaled_part(sample_reader *s, const augment_plan *p, const window *w, int plane,
                             image_view *out)
{
    const int shrink = s->image.format == IMAGE_JPEG ? p->shrink : 1;
    const resizer *r = &s->resize;
    image_view source;
    image_box box;

    LS_TRY(resize_plan(&s->resize, p->source.width / shrink, p->source.height / shrink,
                       p->scaled_width, p->scaled_height, w->at));
    box = (image_box){p->source.x / shrink + r->x.first, p->source.y / shrink + r->y.first,
                      r->x.end - r->x.first, r->y.end - r->y.first};
    LS_TRY(image_decode(&s->image, &box, shrink, plane, &source));
    return resize_run(&s->resize, &source, out);
}

static void fill(float *dst, size_t n, float value)
{
    for (size_t i = 0; i < n; i++)
        // NOLINTNEXTLINE(clang-analyzer-core.NullDereference): the row has memory
        dst[i] = value;
}

/* The visible pixels of a row in one channel: n bytes, each 4 behind the one before. The first one
 * becomes element `at` of the row; the others follow, to the left if the row is flipped. */
typedef struct row_pixels {
    const uint8_t *bytes;
    size_t n;
    size_t at;
    bool flip;
} row_pixels;

static void put_bytes(const row_pixels *p, uint8_t *row)
{
    uint8_t *first = row + p->at;

    if (p->flip) {
        for (size_t i = 0; i < p->n; i++)
            *(first - i) = p->bytes[4 * i];
    } else {
        for (size_t i = 0; i < p->n; i++)
            first[i] = p->bytes[4 * i];
    }
}

static void put_floats(const row_pixels *p, const float *values, float *row)
{
    float *first = row + p->at;

    if (p->flip) {
        for (size_t i = 0; i < p->n; i++)
            // NOLINTNEXTLINE(clang-analyzer-core.NullDereference): the row has memory
            *(first - i) = values[p->bytes[4 * i]];
    } else {
        for (size_t i = 0; i < p->n; i++)
            // NOLINTNEXTLINE(clang-analyzer-core.NullDereference): the row has memory
            first[i] = values[p->bytes[4 * i]];
    }
}

/* One row of one channel, from element `at` of the sample on. `pixels` points at the channel's byte
 * of w->at[2] pixels, or is NULL for a row of padding. */
static void write_row(const augment_plan *p, const window *w, const uint8_t *pixels,
                      const float *values, sample_memory x, size_t at)
{
    const size_t width = (size_t)p->width;
    const size_t before = (size_t)(w->at[0] - p->left);
    const row_pixels visible = {.bytes = pixels,
                                .n = (size_t)w->at[2],
                                .at = p->flip ? width - 1 - before : before,
                                .flip = p->flip};
    const bool is_padded = pixels == NULL || visible.n < width;

    if (x.bytes != NULL) {
        if (is_padded)
            memset(x.bytes + at, 0, width);
        if (pixels != NULL)
            put_bytes(&visible, x.bytes + at);
    } else {
        if (is_padded)
            fill(x.floats + at, width, values[0]);
        if (pixels != NULL)
            put_floats(&visible, values, x.floats + at);
    }
}

static void write_planes(const ls_dataset *d, const augment_plan *p, const window *w,
                         const image_view *view, int plane, sample_memory x)
{
    const int left = (int)d->sample_dims[0] - plane;
    const int n = left < 4 ? left : 4;

    for (int y = 0; y < p->height; y++) {
        const int row = p->top + y - w->at[1];
        const bool is_visible = w->at[2] > 0 && row >= 0 && row < w->at[3];

        for (int c = 0; c < n; c++) {
            const size_t row_at = (size_t)(plane + c) * (size_t)p->height + (size_t)y;
            const uint8_t *pixels =
                is_visible ? view->pixels + (size_t)row * view->stride + (size_t)c : NULL;

            write_row(p, w, pixels, sample_values(d, plane + c), x, row_at * (size_t)p->width);
        }
    }
}

static ls_status read_into(const ls_dataset *d, size_t index, size_t draw, uint64_t epoch,
                           sample_reader *s, sample_memory x, int64_t *y)
{
    augment_plan plan;
    ls_rng rng;
    window w;

    LS_TRY(d->images->open(d, index, &s->image));
    *y = d->images->label(d, index);
    if (!d->is_augmented) {
        convert_planes(d, &s->image, x);
        return LS_OK;
    }
    augment_seed(&d->augment, epoch, draw, &rng);
    augment_choose(&d->augment, s->image.width, s->image.height, &rng, &plan);
    w = visible_part(&plan);
    for (int plane = 0; plane < d->sample_dims[0]; plane += 4) {
        image_view view = {0};

        if (w.at[2] > 0 && w.at[3] > 0)
            LS_TRY(scaled_part(s, &plan, &w, plane, &view));
        write_planes(d, &plan, &w, &view, plane, x);
    }
    return LS_OK;
}

ls_status sample_read(const ls_dataset *d, size_t index, size_t draw, uint64_t epoch,
                      sample_reader *s, float *x, int64_t *y)
{
    return read_into(d, index, draw, epoch, s, (sample_memory){.floats = x}, y);
}

ls_status sample_read_bytes(const ls_dataset *d, size_t index, size_t draw, uint64_t epoch,
                            sample_reader *s, uint8_t *x, int64_t *y)
{
    return read_into(d, index, draw, epoch, s, (sample_memory){.bytes = x}, y);
}

void sample_reader_free(sample_reader *s)
{
    image_reader_free(&s->image);
    resizer_free(&s->resize);
}
