/* SPDX-License-Identifier: Apache-2.0 */
/*
 * augment.c - torchvision's RandomResizedCrop, RandomCrop, Resize and CenterCrop as arithmetic on
 * boxes, for sample.c. The same seed gives the same crop on every machine: exp and log are computed
 * here from IEEE 754 operations, because those of libm differ between processors.
 */
#include "data/augment.h"

#include "base/options.h"

#include <math.h>

#define AUGMENT_STREAM 0x617567U /* separates this use of (seed, epoch) from others */
#define MAX_SIDE       16384
#define CROP_TRIES     10 /* torchvision's */

/* --- options --- */

void ls_augment_imagenet(int train, int image_size, ls_augment *out)
{
    if (out == NULL)
        return;
    *out = (ls_augment){
        .size = sizeof(*out),
        .crop = train ? LS_CROP_RANDOM_RESIZED : LS_CROP_CENTER,
        .height = image_size,
        .resize = train ? 0 : (int)((int64_t)image_size * 256 / 224),
        .flip = train ? 1 : 0,
        .channels = 3,
        .normalize = 1,
        .mean = {0.485F, 0.456F, 0.406F},
        .std = {0.229F, 0.224F, 0.225F},
    };
}

void ls_augment_cifar(int train, ls_augment *out)
{
    if (out == NULL)
        return;
    *out = (ls_augment){
        .size = sizeof(*out),
        .crop = train ? LS_CROP_PADDED : LS_CROP_NONE,
        .height = 32,
        .pad = train ? 4 : 0,
        .flip = train ? 1 : 0,
        .channels = 3,
        .normalize = 1,
        .mean = {0.4914F, 0.4822F, 0.4465F},
        .std = {0.2023F, 0.1994F, 0.2010F},
    };
}

static ls_status check_size(const ls_augment *a, const int64_t dims[3])
{
    if (a->crop < LS_CROP_NONE || a->crop > LS_CROP_CENTER)
        return ls_fail(LS_EINVAL, "augmentation: invalid crop mode %d", (int)a->crop);
    if (a->height < 0 || a->width < 0 || a->height > MAX_SIDE || a->width > MAX_SIDE)
        return ls_fail(LS_EINVAL, "augmentation: size %d x %d is outside 1 to %d", a->width,
                       a->height, MAX_SIDE);
    if (a->height == 0 && (a->crop != LS_CROP_NONE || a->width > 0 || dims[1] == 0))
        return ls_fail(LS_EINVAL, "augmentation: height is 0; set height (and width)");
    if (a->resize < 0 || a->resize > MAX_SIDE || a->pad < 0 || a->pad > MAX_SIDE)
        return ls_fail(LS_EINVAL, "augmentation: resize %d or pad %d is outside 0 to %d", a->resize,
                       a->pad, MAX_SIDE);
    if (a->crop != LS_CROP_CENTER && a->resize > 0)
        return ls_fail(LS_EINVAL, "augmentation: resize needs crop LS_CROP_CENTER");
    if (a->crop != LS_CROP_PADDED && a->pad > 0)
        return ls_fail(LS_EINVAL, "augmentation: pad needs crop LS_CROP_PADDED");
    return LS_OK;
}

static ls_status check_ranges(const ls_augment *a)
{
    if (!(a->scale_min > 0.0 && a->scale_min <= a->scale_max && a->scale_max <= 1.0))
        return ls_fail(LS_EINVAL, "augmentation: scale %g to %g is not a range within (0, 1]",
                       a->scale_min, a->scale_max);
    if (!(a->ratio_min >= 1e-3 && a->ratio_min <= a->ratio_max && a->ratio_max <= 1e3))
        return ls_fail(LS_EINVAL,
                       "augmentation: ratio %g to %g is not a range within 0.001 to 1000",
                       a->ratio_min, a->ratio_max);
    return LS_OK;
}

static ls_status check_channels(const ls_augment *a, int64_t channels)
{
    if (a->channels != 0 && a->channels != channels && !(a->channels == 3 && channels == 1))
        return ls_fail(LS_EINVAL, "augmentation: cannot convert images of %lld channels to %d",
                       (long long)channels, a->channels);
    if (!a->normalize)
        return LS_OK;
    channels = a->channels != 0 ? a->channels : channels;
    if (channels > 3)
        return ls_fail(LS_EINVAL, "augmentation: cannot normalize %lld channels, at most 3",
                       (long long)channels);
    for (int i = 0; i < channels; i++)
        if (!(a->std[i] > 0.0F) || !isfinite(a->std[i]) || !isfinite(a->mean[i]))
            return ls_fail(LS_EINVAL, "augmentation: channel %d: invalid mean %g or std %g", i,
                           (double)a->mean[i], (double)a->std[i]);
    return LS_OK;
}

ls_status augment_check(const ls_augment *given, const int64_t dims[3], ls_augment *out)
{
    ls_augment a;

    LS_TRY(ls_context(OPTIONS_COPY(ls_augment, given, &a), "augmentation"));
    LS_TRY(check_size(&a, dims));
    a.width = a.width == 0 ? a.height : a.width;
    a.scale_min = a.scale_min == 0.0 ? 0.08 : a.scale_min;
    a.scale_max = a.scale_max == 0.0 ? 1.0 : a.scale_max;
    a.ratio_min = a.ratio_min == 0.0 ? 3.0 / 4.0 : a.ratio_min;
    a.ratio_max = a.ratio_max == 0.0 ? 4.0 / 3.0 : a.ratio_max;
    LS_TRY(check_ranges(&a));
    LS_TRY(check_channels(&a, dims[0]));
    *out = a;
    return LS_OK;
}

void augment_dims(const ls_augment *a, const int64_t dims[3], int64_t out[3])
{
    out[0] = a->channels != 0 ? a->channels : dims[0];
    out[1] = a->height != 0 ? a->height : dims[1];
    out[2] = a->height != 0 ? a->width : dims[2];
}

/* --- numbers --- */

void augment_seed(const ls_augment *a, uint64_t epoch, size_t index, ls_rng *rng)
{
    ls_rng_seed(rng, ls_hash3(ls_hash3(a->seed, epoch, AUGMENT_STREAM), index, 0));
}

/* ln(x) for x in 0.001 ... 1000: by halving to near 1, then 2 artanh((x - 1) / (x + 1)). */
static double portable_log(double x)
{
    static const double ln2 = 0.693147180559945309417;
    double sum = 0.0;
    double whole = 0.0;
    double t;

    while (x > 1.5) {
        x /= 2.0;
        whole += ln2;
    }
    while (x < 0.75) {
        x *= 2.0;
        whole -= ln2;
    }
    t = (x - 1.0) / (x + 1.0);
    for (int k = 29; k >= 1; k -= 2)
        sum = sum * t * t + 1.0 / k;
    return whole + 2.0 * t * sum;
}

/* e^x for |x| below 7: Taylor's series of x / 32, squared five times. */
static double portable_exp(double x)
{
    const double small = x / 32.0;
    double sum = 1.0;

    for (int k = 12; k >= 1; k--)
        sum = 1.0 + sum * small / k;
    for (int k = 0; k < 5; k++)
        sum *= sum;
    return sum;
}

static double uniform(ls_rng *rng, double low, double high)
{
    return low + (high - low) * ls_rng_double(rng);
}

/* 0 ... most with equal probability. */
static int below_or_equal(ls_rng *rng, int most)
{
    return (int)ls_rng_below(rng, (uint64_t)most + 1);
}

/* Python's round(): halves go to the even neighbour. */
static int round_half_even(double x)
{
    return (int)nearbyint(x);
}

/* --- crops --- */

/* The largest centred box of an allowed ratio: the fallback when no random box fits. */
static image_box central_box(const ls_augment *a, int width, int height)
{
    const double ratio = (double)width / height;
    image_box box = {0, 0, width, height};

    if (ratio < a->ratio_min)
        box.height = round_half_even(width / a->ratio_min);
    else if (ratio > a->ratio_max)
        box.width = round_half_even(height * a->ratio_max);
    box.height = box.height < 1 ? 1 : box.height > height ? height : box.height;
    box.width = box.width < 1 ? 1 : box.width > width ? width : box.width;
    box.x = (width - box.width) / 2;
    box.y = (height - box.height) / 2;
    return box;
}

static image_box random_box(const ls_augment *a, int width, int height, ls_rng *rng)
{
    const double area = (double)width * height;
    const double log_min = portable_log(a->ratio_min);
    const double log_max = portable_log(a->ratio_max);

    for (int i = 0; i < CROP_TRIES; i++) {
        const double target = area * uniform(rng, a->scale_min, a->scale_max);
        const double ratio = portable_exp(uniform(rng, log_min, log_max));
        const double w = nearbyint(sqrt(target * ratio));
        const double h = nearbyint(sqrt(target / ratio));
        image_box box;

        if (!(w > 0.0 && w <= width && h > 0.0 && h <= height))
            continue;
        box.width = (int)w;
        box.height = (int)h;
        box.y = below_or_equal(rng, height - box.height);
        box.x = below_or_equal(rng, width - box.width);
        return box;
    }
    return central_box(a, width, height);
}

/* The largest factor at which the decoded crop is not smaller than the sample. */
static int allowed_shrink(const augment_plan *p)
{
    int shrink = 8;

    while (shrink > 1 && (p->source.width / shrink < p->scaled_width ||
                          p->source.height / shrink < p->scaled_height))
        shrink /= 2;
    return shrink;
}

static void choose_random_resized(const ls_augment *a, int width, int height, ls_rng *rng,
                                  augment_plan *p)
{
    p->source = random_box(a, width, height, rng);
    p->scaled_width = p->width;
    p->scaled_height = p->height;
    p->shrink = a->full_decode ? 1 : allowed_shrink(p);
}

/* torchvision pads both sides by `pad`, then by what a crop of `wanted` still lacks. */
static int padded_start(const ls_augment *a, int side, int wanted, ls_rng *rng)
{
    const int all = side + 2 * a->pad;
    const int pad = a->pad + (all < wanted ? wanted - all : 0);

    return below_or_equal(rng, side + 2 * pad - wanted) - pad;
}

static int central_start(int side, int wanted)
{
    if (side < wanted)
        return -((wanted - side) / 2);
    return round_half_even((side - wanted) / 2.0);
}

static void choose_center(const ls_augment *a, int width, int height, augment_plan *p)
{
    if (a->resize > 0 && width <= height) {
        p->scaled_width = a->resize;
        p->scaled_height = (int)((int64_t)a->resize * height / width);
    } else if (a->resize > 0) {
        p->scaled_height = a->resize;
        p->scaled_width = (int)((int64_t)a->resize * width / height);
    }
    p->left = central_start(p->scaled_width, p->width);
    p->top = central_start(p->scaled_height, p->height);
}

void augment_choose(const ls_augment *a, int width, int height, ls_rng *rng, augment_plan *out)
{
    augment_plan p = {
        .source = {0, 0, width, height},
        .scaled_width = width,
        .scaled_height = height,
        .width = a->height != 0 ? a->width : width,
        .height = a->height != 0 ? a->height : height,
        .shrink = 1,
    };

    switch (a->crop) {
    case LS_CROP_RANDOM_RESIZED:
        choose_random_resized(a, width, height, rng, &p);
        break;
    case LS_CROP_PADDED:
        p.top = padded_start(a, height, p.height, rng);
        p.left = padded_start(a, width, p.width, rng);
        break;
    case LS_CROP_CENTER:
        choose_center(a, width, height, &p);
        break;
    case LS_CROP_NONE:
        p.scaled_width = p.width;
        p.scaled_height = p.height;
        break;
    }
    p.flip = a->flip && ls_rng_double(rng) < 0.5;
    *out = p;
}
