/* SPDX-License-Identifier: Apache-2.0 */
/*
 * event_file.c - encodes events for TensorBoard and appends them to a file. A message is encoded
 * before the message that contains it, since its length comes first. tensorboard.c calls it.
 */
#include "train/output/event_file.h"

#include "base/alloc.h"
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* --- Protocol Buffers: a key (field number, type), then the value --- */

enum wire_type { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 };

static void put_varint(text_buf *t, uint64_t value)
{
    char bytes[10];
    size_t n = 0;

    do {
        bytes[n++] = (char)((value & 0x7f) | (value > 0x7f ? 0x80 : 0));
        value >>= 7;
    } while (value > 0);
    text_append_bytes(t, bytes, n);
}

static void put_key(text_buf *t, unsigned field, enum wire_type type)
{
    put_varint(t, field << 3 | type);
}

static void put_int(text_buf *t, unsigned field, int64_t value)
{
    put_key(t, field, WIRE_VARINT);
    put_varint(t, (uint64_t)value);
}

static void put_little_endian(text_buf *t, uint64_t bits, size_t n)
{
    char bytes[8];

    for (size_t i = 0; i < n; i++)
        bytes[i] = (char)(bits >> 8 * i);
    text_append_bytes(t, bytes, n);
}

static uint64_t double_bits(double value)
{
    uint64_t bits;

    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static void put_double(text_buf *t, unsigned field, double value)
{
    put_key(t, field, WIRE_64);
    put_little_endian(t, double_bits(value), 8);
}

static void put_float(text_buf *t, unsigned field, double value)
{
    const float rounded = (float)value;
    uint32_t bits;

    memcpy(&bits, &rounded, sizeof(bits));
    put_key(t, field, WIRE_32);
    put_little_endian(t, bits, 4);
}

static void put_bytes(text_buf *t, unsigned field, const void *data, size_t n)
{
    put_key(t, field, WIRE_BYTES);
    put_varint(t, n);
    text_append_bytes(t, data, n);
}

static void put_text(text_buf *t, unsigned field, const char *s)
{
    put_bytes(t, field, s, strlen(s));
}

/* Ends `message`, which is freed. */
static void put_message(text_buf *t, unsigned field, text_buf *message)
{
    if (text_status(message) != LS_OK)
        t->failed = true;
    else
        put_bytes(t, field, text_str(message), message->length);
    text_free(message);
}

/* --- records --- */

/* CRC-32C (polynomial 0x1EDC6F41, reflected: RFC 3720 section 12.1), rotated and shifted as
 * TFRecord wants it. */
static uint32_t masked_crc(const char *data, size_t n)
{
    uint32_t crc = 0xffffffffU;

    for (size_t i = 0; i < n; i++) {
        crc ^= (unsigned char)data[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (0x82f63b78U & (0U - (crc & 1)));
    }
    crc = ~crc;
    return (crc >> 15 | crc << 17) + 0xa282ead8U;
}

static double wall_time_s(void)
{
    struct timespec now = {.tv_sec = 0};

    (void)clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Adds the event with the members in `event`, which is freed, and the present time. */
static void put_event(event_file *f, text_buf *event)
{
    text_buf length = {0};

    put_double(event, 1, wall_time_s()); // wall_time
    put_little_endian(&length, event->length, 8);
    if (text_status(event) != LS_OK || text_status(&length) != LS_OK) {
        f->data.failed = true;
    } else {
        text_append_bytes(&f->data, length.data, 8);
        put_little_endian(&f->data, masked_crc(length.data, 8), 4);
        text_append_bytes(&f->data, event->data, event->length);
        put_little_endian(&f->data, masked_crc(event->data, event->length), 4);
    }
    text_free(&length);
    text_free(event);
}

/* Adds Event{step, summary{value}}; `value` is freed. */
static void put_summary(event_file *f, int64_t step, text_buf *value)
{
    text_buf summary = {0};
    text_buf event = {0};

    put_message(&summary, 1, value);
    put_int(&event, 2, step);
    put_message(&event, 5, &summary);
    put_event(f, &event);
}

/* --- the file --- */

static ls_status create(event_file *f, const char *dir)
{
    char host[256];

    if (mkdir(dir, 0777) != 0 && errno != EEXIST)
        return ls_fail_errno("the folder %s", dir);
    if (gethostname(host, sizeof(host)) != 0)
        text_format(host, sizeof(host), "localhost");
    host[sizeof(host) - 1] = '\0';
    for (int i = 0; i < 1000; i++) { // an earlier run of this process in the same second
        text_format(f->path, sizeof(f->path), "%s/events.out.tfevents.%lld.%s.%ld.%d", dir,
                    (long long)wall_time_s(), host, (long)getpid(), i);
        f->fd = open(f->path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
        if (f->fd >= 0 || errno != EEXIST)
            break;
    }
    return f->fd >= 0 ? LS_OK : ls_fail_errno("%s", f->path);
}

ls_status event_file_open(event_file *f, const char *dir)
{
    text_buf event = {0};

    *f = (event_file){.fd = -1};
    LS_TRY(create(f, dir));
    put_text(&event, 3, "brain.Event:2"); // file_version
    put_event(f, &event);
    return event_file_flush(f);
}

ls_status event_file_flush(event_file *f)
{
    ls_status st = text_status(&f->data);

    if (st == LS_OK)
        st = file_write_all(f->fd, f->path, text_str(&f->data), f->data.length);
    if (st == LS_OK)
        f->bytes += (int64_t)f->data.length;
    else
        LS_UNUSED(ftruncate(f->fd, f->bytes));
    text_free(&f->data);
    return st;
}

void event_file_close(event_file *f)
{
    text_free(&f->data);
    file_close(&f->fd);
}

/* --- events --- */

void event_restart(event_file *f, int64_t step)
{
    text_buf log = {0};
    text_buf event = {0};

    put_int(&log, 1, 1); // SessionLog.START
    put_int(&event, 2, step);
    put_message(&event, 7, &log);
    put_event(f, &event);
}

void event_scalar(event_file *f, const char *tag, int64_t step, double value)
{
    text_buf v = {0};

    put_text(&v, 1, tag);
    put_float(&v, 2, value); // simple_value
    put_summary(f, step, &v);
}

/* The buckets of TensorFlow's histograms: each limit is 1.1 times the one before, from 1e-12 to
 * 1e20, the same below 0, and 0 between. */
enum { LIMITS_HALF = 774, LIMITS = 2 * LIMITS_HALF + 1 };

static void make_limits(double limits[LIMITS])
{
    double limit = 1e-12;

    limits[LIMITS_HALF] = 0;
    for (int i = 1; i <= LIMITS_HALF; i++, limit *= 1.1) {
        limits[LIMITS_HALF + i] = limit;
        limits[LIMITS_HALF - i] = -limit;
    }
}

/* The first bucket whose limit is above `value`; the last one for larger values. */
static int find_bucket(const double limits[LIMITS], double value)
{
    int low = 0;
    int high = LIMITS - 1;

    while (low < high) {
        const int middle = (low + high) / 2;

        if (limits[middle] > value)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

typedef struct distribution {
    double limits[LIMITS];
    double counts[LIMITS];
    double min;
    double max;
    double n;
    double sum;
    double sum_squares;
} distribution;

static void count_values(distribution *d, const float *values, size_t n)
{
    make_limits(d->limits);
    for (size_t i = 0; i < n; i++) {
        const double value = (double)values[i];

        if (!isfinite(value))
            continue;
        d->min = d->n == 0 || value < d->min ? value : d->min;
        d->max = d->n == 0 || value > d->max ? value : d->max;
        d->n++;
        d->sum += value;
        d->sum_squares += value * value;
        d->counts[find_bucket(d->limits, value)]++;
    }
}

/* A packed list of doubles. */
static void put_doubles(text_buf *t, unsigned field, const double *values, int n)
{
    put_key(t, field, WIRE_BYTES);
    put_varint(t, 8 * (uint64_t)n);
    for (int i = 0; i < n; i++)
        put_little_endian(t, double_bits(values[i]), 8);
}

/* The buckets from the first to the last that has values, and an empty one below, which gives the
 * first its lower limit. */
static void put_distribution(text_buf *t, const distribution *d)
{
    int first = 0;
    int last = LIMITS - 1;

    while (d->counts[first] == 0)
        first++;
    while (d->counts[last] == 0)
        last--;
    first -= first > 0;
    put_double(t, 1, d->min);
    put_double(t, 2, d->max);
    put_double(t, 3, d->n);
    put_double(t, 4, d->sum);
    put_double(t, 5, d->sum_squares);
    put_doubles(t, 6, d->limits + first, last - first + 1);
    put_doubles(t, 7, d->counts + first, last - first + 1);
}

void event_histogram(event_file *f, const char *tag, int64_t step, const float *values, size_t n)
{
    distribution *d = ls_calloc(1, sizeof(*d));
    text_buf histogram = {0};
    text_buf v = {0};

    if (d == NULL) {
        f->data.failed = true;
        return;
    }
    count_values(d, values, n);
    if (d->n > 0) {
        put_distribution(&histogram, d);
        put_text(&v, 1, tag);
        put_message(&v, 5, &histogram);
        put_summary(f, step, &v);
    }
    ls_free(d);
}

static int64_t big_endian_32(const unsigned char *bytes)
{
    return (int64_t)bytes[0] << 24 | bytes[1] << 16 | bytes[2] << 8 | bytes[3];
}

ls_status event_image(event_file *f, const char *tag, int64_t step, const void *png, size_t bytes)
{
    static const unsigned char begin[16] = "\x89PNG\r\n\x1a\n\0\0\0\rIHDR";
    const unsigned char *header = png; // signature, IHDR, width, height (PNG, section 11.2.1)
    text_buf image = {0};
    text_buf v = {0};

    if (bytes < 24 || memcmp(header, begin, sizeof(begin)) != 0)
        return ls_fail(LS_EFORMAT, "the image %s is not a PNG file", tag);
    put_int(&image, 1, big_endian_32(header + 20)); // height
    put_int(&image, 2, big_endian_32(header + 16));
    put_int(&image, 3, 3); // colorspace: RGB
    put_bytes(&image, 4, png, bytes);
    put_text(&v, 1, tag);
    put_message(&v, 4, &image);
    put_summary(f, step, &v);
    return LS_OK;
}

/* --- flags, in the messages of the plugin "hparams" --- */

/* google.protobuf.Value: 2 number, 3 text, 4 bool. */
static bool encode_flag(const ls_flag *flag, text_buf *value)
{
    switch (flag->kind) {
    case LS_FLAG_INT:
    case LS_FLAG_BYTES:
        put_double(value, 2, (double)*(const int64_t *)flag->value);
        return true;
    case LS_FLAG_REAL:
        put_double(value, 2, *(const double *)flag->value);
        return true;
    case LS_FLAG_BOOL:
        put_int(value, 4, *(const int *)flag->value != 0);
        return true;
    case LS_FLAG_TEXT:
        if (*(const char *const *)flag->value == NULL)
            return false;
        put_text(value, 3, *(const char *const *)flag->value);
        return true;
    default:
        return false;
    }
}

/* Value{tag, metadata{plugin_data{"hparams", HParamsPluginData{version, field: message}}}}. */
static void put_plugin_event(event_file *f, const char *tag, unsigned field, text_buf *message)
{
    text_buf content = {0};
    text_buf plugin = {0};
    text_buf metadata = {0};
    text_buf v = {0};

    put_int(&content, 1, 0); // version
    put_message(&content, field, message);
    put_text(&plugin, 1, "hparams");
    put_message(&plugin, 2, &content);
    put_message(&metadata, 1, &plugin);
    put_text(&v, 1, tag);
    put_message(&v, 9, &metadata);
    put_summary(f, 0, &v);
}

void event_flags(event_file *f, const ls_flag *flags, int n)
{
    text_buf session = {0};

    for (int i = 0; i < n; i++) {
        text_buf value = {0};
        text_buf entry = {0};

        if (!encode_flag(&flags[i], &value))
            continue;
        put_text(&entry, 1, flags[i].name);
        put_message(&entry, 2, &value);
        put_message(&session, 1, &entry);
    }
    put_double(&session, 5, wall_time_s()); // start_time_secs
    put_plugin_event(f, "_hparams_/session_start_info", 3, &session);
}
