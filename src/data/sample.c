/* SPDX-License-Identifier: Apache-2.0 */
/*
 * * sample.c - turns an image into the floats of a sample: decode, crop, resize, flip, normalize.
 * Only the visible part is decoded and resized. The loader's threads call it.
 */
#include "data/sample.h"

#include "data/augment.h"

/* Part of the scaled image that lies inside the sample: x, y, width, height. */
typedef struct window {
    int at[4];
} window;

static const float *values_of(const ls_dataset *d, int channel)
{
    return d->values[channel < 3 ? channel : 0]; // more than three are not normalized
}

/* Without augmentation: planes of bytes become planes of floats. */
static void convert_planes(const ls_dataset *d, const image_reader *r, float *x)
{
    const size_t n = (size_t)r->height * (size_t)r->width;

    for (int c = 0; c < r->channels; c++) {
        const float *values = values_of(d, c);
        const uint8_t *plane = r->bytes + (size_t)c * n;

        for (size_t i = 0; i < n; i++)
            x[(size_t)c * n + i] = values[plane[i]];
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
        dst[i] = value;
}

/* One row of one channel. `pixels` points at the channel's byte of w->at[2] pixels, or is NULL for
 * a row of padding. */
static void write_row(const augment_plan *p, const window *w, const uint8_t *pixels,
                      const float *values, float *dst)
{
    const size_t width = (size_t)p->width;
    const size_t before = (size_t)(w->at[0] - p->left);
    const size_t n = (size_t)w->at[2];

    if (pixels == NULL) {
        fill(dst, width, values[0]);
        return;
    }
    if (n < width)
        fill(dst, width, values[0]);
    if (p->flip) {
        float *last = dst + (width - 1 - before);

        for (size_t i = 0; i < n; i++)
            *(last - i) = values[pixels[4 * i]];
    } else {
        for (size_t i = 0; i < n; i++)
            dst[before + i] = values[pixels[4 * i]];
    }
}

static void write_planes(const ls_dataset *d, const augment_plan *p, const window *w,
                         const image_view *view, int plane, float *x)
{
    const int left = (int)d->sample_dims[0] - plane;
    const int n = left < 4 ? left : 4;

    for (int y = 0; y < p->height; y++) {
        const int row = p->top + y - w->at[1];
        const bool is_visible = w->at[2] > 0 && row >= 0 && row < w->at[3];

        for (int c = 0; c < n; c++) {
            const size_t at = ((size_t)(plane + c) * (size_t)p->height + (size_t)y);
            const uint8_t *pixels =
                is_visible ? view->pixels + (size_t)row * view->stride + (size_t)c : NULL;

            write_row(p, w, pixels, values_of(d, plane + c), x + at * (size_t)p->width);
        }
    }
}

ls_status sample_read(const ls_dataset *d, size_t index, size_t draw, uint64_t epoch,
                      sample_reader *s, float *x, int64_t *y)
{
    augment_plan plan;
    ls_rng rng;
    window w;

    LS_TRY(d->ops->open(d, index, &s->image));
    *y = d->ops->label(d, index);
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

void sample_reader_free(sample_reader *s)
{
    image_reader_free(&s->image);
    resizer_free(&s->resize);
}
