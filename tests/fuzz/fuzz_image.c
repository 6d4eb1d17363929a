/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_image.c - the input's first byte selects a part and a size, the rest is an image: decoded
 * whole, in that part, and resized.
 */
#include "fuzz/fuzz.h"

#include "base/rng.h"
#include "data/images/image.h"
#include "data/images/resize.h"

/* real files are larger, but slow */
#define MAX_PIXELS (1 << 20)

/* Every byte of a result must have been written. */
static unsigned add_up(const image_view *v)
{
    unsigned sum = 0;

    for (int y = 0; y < v->height; y++)
        for (int i = 0; i < 4 * v->width; i++)
            sum += v->pixels[(size_t)y * v->stride + (size_t)i];
    return sum;
}

static int below(ls_rng *rng, int bound)
{
    return (int)ls_rng_below(rng, (uint64_t)bound);
}

static void decode(image_reader *r, resizer *resize, ls_rng *rng, int shrink)
{
    const int width = (r->width + shrink - 1) / shrink;
    const int height = (r->height + shrink - 1) / shrink;
    image_box box;
    image_view v;

    box.width = 1 + below(rng, width);
    box.height = 1 + below(rng, height);
    box.x = below(rng, width - box.width + 1);
    box.y = below(rng, height - box.height + 1);
    if (image_decode(r, &box, shrink, 0, &v) != LS_OK)
        return;
    if (resize_plan(resize, v.width, v.height, 7, 5, (int[]){0, 0, 7, 5}) != LS_OK ||
        resize_run(resize, &v, &v) != LS_OK)
        __builtin_trap();
    if (add_up(&v) > 7 * 5 * 4 * 255)
        __builtin_trap();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    image_reader r = {0};
    resizer resize = {0};
    ls_rng rng;

    if (size == 0)
        return 0;
    ls_rng_seed(&rng, data[0]);
    for (int shrink = 1; shrink <= 8; shrink *= 2) {
        if (image_open_bytes(&r, "input", data + 1, size - 1) != LS_OK)
            break;
        if ((int64_t)r.width * r.height > MAX_PIXELS || (shrink > 1 && r.format != IMAGE_JPEG))
            break;
        decode(&r, &resize, &rng, shrink);
    }
    resizer_free(&resize);
    image_reader_free(&r);
    return 0;
}
