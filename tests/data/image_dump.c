/* SPDX-License-Identifier: Apache-2.0 */
/*
 * image_dump.c - decodes images and prints raw bytes, which image_parity.py compares with those of
 * Pillow and torchvision.
 *
 *     decode FILE                          "W H\n", then 3 bytes a pixel
 *     part FILE X Y W H SHRINK             the same for a part of the image
 *     resize FILE OUT_W OUT_H X Y W H      the same for a part of the resized image
 *     samples KIND DIR MODE SIZE           a line a sample, then all floats;
 *                                          KIND folder or cifar, MODE train, eval, or pad
 */
#include "data/augment.h"
#include "data/sample.h"

#include "base/alloc.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EPOCH 5

static int number(const char *text)
{
    return (int)strtol(text, NULL, 10);
}

static void put_view(const image_view *v)
{
    (void)printf("%d %d\n", v->width, v->height);
    for (int y = 0; y < v->height; y++)
        for (int x = 0; x < v->width; x++)
            (void)fwrite(v->pixels + (size_t)y * v->stride + 4 * (size_t)x, 1, 3, stdout);
}

static ls_status put_part(image_reader *r, char **argv)
{
    const image_box box = {number(argv[0]), number(argv[1]), number(argv[2]), number(argv[3])};
    image_view view;

    LS_TRY(image_decode(r, &box, number(argv[4]), 0, &view));
    put_view(&view);
    return LS_OK;
}

static ls_status put_resized(sample_reader *s, char **argv)
{
    const int window[4] = {number(argv[2]), number(argv[3]), number(argv[4]), number(argv[5])};
    const resizer *r = &s->resize;
    image_box box;
    image_view view;

    LS_TRY(resize_plan(&s->resize, s->image.width, s->image.height, number(argv[0]),
                       number(argv[1]), window));
    box = (image_box){r->x.first, r->y.first, r->x.end - r->x.first, r->y.end - r->y.first};
    LS_TRY(image_decode(&s->image, &box, 1, 0, &view));
    LS_TRY(resize_run(&s->resize, &view, &view));
    put_view(&view);
    return LS_OK;
}

/* The line names the file, what was drawn, and the label. */
static ls_status put_line(const ls_dataset *d, size_t index, sample_reader *s)
{
    augment_plan p;
    ls_rng rng;

    LS_TRY(d->images->open(d, index, &s->image));
    augment_seed(&d->augment, EPOCH, index, &rng);
    augment_choose(&d->augment, s->image.width, s->image.height, &rng, &p);
    (void)printf("%d %d %d %d %d %d %d %" PRId64 "\n", p.source.x, p.source.y, p.source.width,
                 p.source.height, p.left, p.top, p.flip ? 1 : 0, ls_dataset_label(d, index));
    return LS_OK;
}

static ls_status put_samples(ls_dataset *d, const char *mode, int size, int flip, sample_reader *s)
{
    const int64_t *dims = ls_dataset_sample_dims(d);
    ls_augment augment;
    float *x;
    size_t n;

    ls_augment_imagenet(strcmp(mode, "train") == 0, size, &augment);
    if (strcmp(mode, "pad") == 0) {
        ls_augment_cifar(1, &augment);
        augment.height = size;
    }
    augment.full_decode = 1;
    augment.flip = flip;
    augment.seed = 9;
    LS_TRY(ls_dataset_augment(d, &augment));
    n = (size_t)(dims[0] * dims[1] * dims[2]);
    x = ls_calloc(n, sizeof(*x));
    if (x == NULL)
        return ls_fail(LS_ENOMEM, "no memory");
    for (size_t i = 0; i < ls_dataset_count(d); i++)
        LS_TRY(put_line(d, i, s));
    for (size_t i = 0; i < ls_dataset_count(d); i++) {
        int64_t y;

        LS_TRY(sample_read(d, i, i, EPOCH, s, x, &y));
        (void)fwrite(x, sizeof(*x), n, stdout);
    }
    ls_free(x);
    return LS_OK;
}

static ls_status dump(int argc, char **argv, sample_reader *s)
{
    ls_dataset *d;

    if (argc == 6 && strcmp(argv[1], "samples") == 0) {
        if (strcmp(argv[2], "cifar") == 0)
            LS_TRY(ls_dataset_open_cifar(argv[3], "test", &d));
        else
            LS_TRY(ls_dataset_open_folder(argv[3], NULL, &d));
        LS_TRY(put_samples(d, argv[4], number(argv[5]), argv[4][0] != 'e', s));
        ls_dataset_close(d);
        return LS_OK;
    }
    if (argc < 3)
        return ls_fail(LS_EINVAL, "see image_dump.c");
    LS_TRY(image_open_file(&s->image, argv[2]));
    if (argc == 8 && strcmp(argv[1], "part") == 0)
        return put_part(&s->image, argv + 3);
    if (argc == 9 && strcmp(argv[1], "resize") == 0)
        return put_resized(s, argv + 3);
    const image_box all = {0, 0, s->image.width, s->image.height};
    image_view view;

    LS_TRY(image_decode(&s->image, &all, 1, 0, &view));
    put_view(&view);
    return LS_OK;
}

int main(int argc, char **argv)
{
    static sample_reader reader;
    const ls_status st = dump(argc, argv, &reader);

    if (st != LS_OK)
        (void)fprintf(stderr, "image_dump: %s\n", ls_last_error());
    sample_reader_free(&reader);
    return st == LS_OK ? 0 : 1;
}
