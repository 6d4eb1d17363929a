/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_augment.c - tests augment.c: invalid options, dimensions, and the distribution of crops and
 * flips.
 */
#include "base/unit.h"

#include "data/augment.h"

#include <math.h>

static const int64_t rgb[3] = {3, 0, 0};
static const int64_t grey[3] = {1, 28, 28};

static ls_augment checked(ls_augment a, const int64_t dims[3])
{
    a.size = sizeof(a);
    assert_ok(augment_check(&a, dims, &a));
    return a;
}

static augment_plan plan_of(const ls_augment *a, int width, int height, uint64_t epoch,
                            size_t index)
{
    augment_plan p;
    ls_rng rng;

    augment_seed(a, epoch, index, &rng);
    augment_choose(a, width, height, &rng, &p);
    return p;
}

static void invalid_options_are_named(void **state)
{
    static const struct {
        ls_augment a;
        const char *message;
    } wrong[] = {
        {{.size = 0, .height = 8}, "must be sizeof"},
        {{.crop = (ls_crop)9, .height = 8}, "invalid crop mode 9"},
        {{.crop = LS_CROP_CENTER}, "set height (and width)"},
        {{.crop = LS_CROP_NONE}, "set height (and width)"},
        {{.width = 8}, "set height (and width)"},
        {{.height = -1}, "outside 1 to 16384"},
        {{.height = 8, .width = 1 << 20}, "outside 1 to 16384"},
        {{.height = 8, .resize = 9}, "resize needs crop LS_CROP_CENTER"},
        {{.height = 8, .pad = 9}, "pad needs crop LS_CROP_PADDED"},
        {{.crop = LS_CROP_PADDED, .height = 8, .pad = -1}, "pad -1"},
        {{.height = 8, .scale_min = 2.0}, "not a range within (0, 1]"},
        {{.height = 8, .scale_min = 0.5, .scale_max = 0.4}, "not a range within (0, 1]"},
        {{.height = 8, .ratio_min = -1.0}, "not a range within 0.001 to 1000"},
        {{.height = 8, .ratio_min = (double)NAN}, "not a range within 0.001 to 1000"},
        {{.height = 8, .channels = 1}, "cannot convert images of 3 channels to 1"},
        {{.height = 8, .normalize = 1, .std = {1, 0, 1}}, "channel 1"},
        {{.height = 8, .normalize = 1, .mean = {(float)INFINITY}, .std = {1, 1, 1}}, "channel 0"},
    };

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(wrong); i++) {
        ls_augment a = wrong[i].a;

        a.size = i == 0 ? 4 : sizeof(a);
        assert_status(augment_check(&a, rgb, &a), LS_EINVAL);
        assert_last_error(wrong[i].message);
    }
}

static void dimensions_follow_the_options(void **state)
{
    const ls_augment same = checked((ls_augment){.flip = 1}, grey);
    const ls_augment three = checked((ls_augment){.height = 32, .channels = 3}, grey);
    const ls_augment wide = checked((ls_augment){.height = 32, .width = 64}, grey);
    int64_t dims[3];

    LS_UNUSED(state);
    augment_dims(&same, grey, dims);
    assert_memory_equal(dims, grey, sizeof(dims));
    augment_dims(&three, grey, dims);
    assert_memory_equal(dims, ((int64_t[]){3, 32, 32}), sizeof(dims));
    augment_dims(&wide, grey, dims);
    assert_memory_equal(dims, ((int64_t[]){1, 32, 64}), sizeof(dims));
}

/* 20000 boxes of a 500 x 375 image: inside it, in the requested ranges, with torchvision's
 * means. */
static void random_boxes_have_the_requested_areas_and_ratios(void **state)
{
    const ls_augment a = checked((ls_augment){.crop = LS_CROP_RANDOM_RESIZED, .height = 224}, rgb);
    const double all = 500.0 * 375.0;
    double areas = 0.0;
    double logs = 0.0;
    size_t n_right = 0;
    const size_t n = 20000;

    LS_UNUSED(state);
    for (size_t i = 0; i < n; i++) {
        const augment_plan p = plan_of(&a, 500, 375, 0, i);
        const image_box *b = &p.source;
        const double area = (double)b->width * b->height;
        const double ratio = (double)b->width / b->height;

        assert_true(b->x >= 0 && b->y >= 0 && b->width > 0 && b->height > 0);
        assert_true(b->x + b->width <= 500 && b->y + b->height <= 375);
        assert_true(area >= 0.078 * all && ratio > 0.74 && ratio < 1.35);
        assert_true(p.scaled_width == 224 && p.scaled_height == 224 && p.left == 0 && p.top == 0);
        assert_true(!p.flip);
        areas += area / all;
        logs += log(ratio);
        n_right += p.source.x > 250 - p.source.width / 2;
    }
    // The means of 40000 draws of torchvision 0.14. Boxes that do not fit are drawn again, so the
    // mean area is below 0.54.
    assert_true(fabs(areas / (double)n - 0.4330) < 0.007);
    assert_true(fabs(logs / (double)n - 0.0307) < 0.007);
    assert_true(n_right > n * 45 / 100 && n_right < n * 55 / 100);
}

static void a_box_that_never_fits_is_centred(void **state)
{
    const ls_augment a = checked(
        (ls_augment){
            .crop = LS_CROP_RANDOM_RESIZED, .height = 10, .scale_min = 1.0, .scale_max = 1.0},
        rgb);
    augment_plan p;

    LS_UNUSED(state);
    p = plan_of(&a, 1000, 3, 0, 0); // far too wide: 4 pixels for 3
    assert_int_equal(p.source.width, 4);
    assert_int_equal(p.source.height, 3);
    assert_int_equal(p.source.x, 498);
    assert_int_equal(p.source.y, 0);
    p = plan_of(&a, 3, 1000, 0, 0);
    assert_int_equal(p.source.width, 3);
    assert_int_equal(p.source.height, 4);
    assert_int_equal(p.source.y, 498);
    p = plan_of(&a, 1, 1000, 0, 0); // round(1 / 0.75)
    assert_int_equal(p.source.height, 1);
}

static void a_crop_depends_on_seed_epoch_and_index_only(void **state)
{
    ls_augment a;
    augment_plan p;
    augment_plan q;
    size_t n_equal = 0;

    LS_UNUSED(state);
    ls_augment_imagenet(1, 224, &a);
    a = checked(a, rgb);
    for (size_t i = 0; i < 100; i++) {
        ls_augment other = a;

        p = plan_of(&a, 400, 300, 7, i);
        q = plan_of(&a, 400, 300, 7, i);
        assert_memory_equal(&p.source, &q.source, sizeof(p.source));
        assert_int_equal(p.flip, q.flip);
        q = plan_of(&a, 400, 300, 8, i);
        n_equal += memcmp(&p.source, &q.source, sizeof(p.source)) == 0;
        q = plan_of(&a, 400, 300, 7, i + 1);
        n_equal += memcmp(&p.source, &q.source, sizeof(p.source)) == 0;
        other.seed = 1;
        q = plan_of(&other, 400, 300, 7, i);
        n_equal += memcmp(&p.source, &q.source, sizeof(p.source)) == 0;
    }
    assert_true(n_equal < 5);
}

static void half_of_the_samples_are_flipped(void **state)
{
    ls_augment a;
    size_t n = 0;

    LS_UNUSED(state);
    ls_augment_cifar(1, &a);
    a = checked(a, (int64_t[]){3, 32, 32});
    for (size_t i = 0; i < 2000; i++)
        n += plan_of(&a, 32, 32, 0, i).flip;
    assert_in_range(n, 900, 1100);
}

static void padded_crops_reach_every_corner(void **state)
{
    bool seen[9][9] = {{false}};
    ls_augment a;

    LS_UNUSED(state);
    ls_augment_cifar(1, &a);
    a = checked(a, (int64_t[]){3, 32, 32});
    for (size_t i = 0; i < 3000; i++) {
        const augment_plan p = plan_of(&a, 32, 32, 0, i);

        assert_true(p.left >= -4 && p.left <= 4 && p.top >= -4 && p.top <= 4);
        seen[p.top + 4][p.left + 4] = true;
    }
    for (int i = 0; i < 81; i++)
        assert_true(seen[i / 9][i % 9]);
}

static void centre_crops_equal_torchvisions(void **state)
{
    // Width, height, resize, crop; then scaled width and height, left, top.
    static const int cases[][8] = {
        {500, 375, 256, 224, 341, 256, 58, 16}, {375, 500, 256, 224, 256, 341, 16, 58},
        {256, 256, 256, 224, 256, 256, 16, 16}, {100, 99, 0, 50, 100, 99, 25, 24},
        {100, 97, 0, 50, 100, 97, 25, 24},      {100, 99, 0, 224, 100, 99, -62, -62},
        {2000, 10, 20, 16, 4000, 20, 1992, 2},
    };

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(cases); i++) {
        const int *c = cases[i];
        const ls_augment a =
            checked((ls_augment){.crop = LS_CROP_CENTER, .resize = c[2], .height = c[3]}, rgb);
        const augment_plan p = plan_of(&a, c[0], c[1], 0, 0);

        assert_int_equal(p.scaled_width, c[4]);
        assert_int_equal(p.scaled_height, c[5]);
        assert_int_equal(p.left, c[6]);
        assert_int_equal(p.top, c[7]);
        assert_int_equal(p.shrink, 1);
    }
}

static void only_large_crops_are_decoded_at_reduced_size(void **state)
{
    ls_augment a;

    LS_UNUSED(state);
    ls_augment_imagenet(1, 100, &a);
    a.scale_min = 1.0;
    a.ratio_min = 1.0;
    a.ratio_max = 1.0;
    a = checked(a, rgb);
    assert_int_equal(plan_of(&a, 199, 199, 0, 0).shrink, 1);
    assert_int_equal(plan_of(&a, 200, 200, 0, 0).shrink, 2);
    assert_int_equal(plan_of(&a, 799, 799, 0, 0).shrink, 4);
    assert_int_equal(plan_of(&a, 800, 800, 0, 0).shrink, 8);
    assert_int_equal(plan_of(&a, 9000, 9000, 0, 0).shrink, 8);
    a.full_decode = 1;
    assert_int_equal(plan_of(&a, 9000, 9000, 0, 0).shrink, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(invalid_options_are_named),
        cmocka_unit_test(dimensions_follow_the_options),
        cmocka_unit_test(random_boxes_have_the_requested_areas_and_ratios),
        cmocka_unit_test(a_box_that_never_fits_is_centred),
        cmocka_unit_test(a_crop_depends_on_seed_epoch_and_index_only),
        cmocka_unit_test(half_of_the_samples_are_flipped),
        cmocka_unit_test(padded_crops_reach_every_corner),
        cmocka_unit_test(centre_crops_equal_torchvisions),
        cmocka_unit_test(only_large_crops_are_decoded_at_reduced_size),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
