/* SPDX-License-Identifier: Apache-2.0 */
/*
 * chart.c - draws line and column charts over training steps as SVG, for page.c. Coordinates
 * go from 0 to SIZE; the page stretches them.
 */
#include "cli/report/chart.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { SIZE = 1000, TICKS = 5, POINTS_APART = 60, GAP = 2 };

typedef struct frame {
    double x0, x1, y0, y1; /* of the axes */
    double x_tick, y_tick;
} frame;

static bool is_shown(const chart *c, double y)
{
    return isfinite(y) && (!c->from_zero || y >= 0);
}

/* The last value that is drawn; NAN when there is none. */
static double last_of(const chart *c, const chart_series *one)
{
    int last = one->n - 1;

    while (last >= 0 && !is_shown(c, one->y[last]))
        last--;
    return last >= 0 ? one->y[last] : (double)NAN;
}

static bool has_not_finite(const chart *c)
{
    for (int s = 0; s < c->n_series; s++)
        for (int i = 0; i < c->series[s].n; i++)
            if (!isfinite(c->series[s].y[i]))
                return true;
    return false;
}

/* --- axes --- */

double chart_tick(double range)
{
    const double raw = range / TICKS;
    const double power = pow(10, floor(log10(raw)));
    const double part = raw / power * (1 - 1e-9); // 0.1 is not exact in binary

    return power * (part <= 1 ? 1 : part <= 2 ? 2 : part <= 5 ? 5 : 10);
}

void chart_tick_text(char out[CHART_TICK_BYTES], double value, double tick, double largest)
{
    static const struct {
        double least, tick, unit;
        const char *suffix;
    } units[] = {{1e6, 1e5, 1e6, "M"}, {1e4, 1e2, 1e3, "k"}, {0, 0, 1, ""}};
    size_t u = 0;
    double digits;

    if (fabs(value) < tick * 1e-6)
        value = 0;
    while (fabs(largest) < units[u].least || tick < units[u].tick)
        u++;
    digits = fmax(0, ceil(-log10(tick / units[u].unit) - 1e-6));
    if (value == 0)
        (void)snprintf(out, CHART_TICK_BYTES, "0");
    else if (digits > 5)
        (void)snprintf(out, CHART_TICK_BYTES, "%.3g", value);
    else
        (void)snprintf(out, CHART_TICK_BYTES, "%.*f%s", (int)digits, value / units[u].unit,
                       units[u].suffix);
}

static double column_height(const chart *c, int i)
{
    double sum = 0;

    for (int s = 0; s < c->n_series; s++)
        sum += is_shown(c, c->series[s].y[i]) ? c->series[s].y[i] : 0;
    return sum;
}

static void widen(frame *f, double x, double y)
{
    f->x0 = fmin(f->x0, x);
    f->x1 = fmax(f->x1, x);
    f->y0 = fmin(f->y0, y);
    f->y1 = fmax(f->y1, y);
}

/* Whether numbers between the two would be rounded to one of them: an axis needs ticks that differ.
 */
static bool is_narrow(double low, double high)
{
    return high - low <= 1e-12 * fmax(fabs(low), fabs(high));
}

/* False when there is nothing to show. */
static bool find_frame(const chart *c, frame *f)
{
    *f = (frame){HUGE_VAL, -HUGE_VAL, HUGE_VAL, -HUGE_VAL, 1, 1};
    for (int s = 0; s < c->n_series; s++) {
        const chart_series *one = &c->series[s];
        for (int i = 0; i < one->n; i++)
            if (is_shown(c, one->y[i]))
                widen(f, one->x[i], c->stacked ? column_height(c, i) : one->y[i]);
    }
    if (!isfinite(f->y0))
        return false;
    // Begins at step 0 unless the run began late: then its lines would use a part of the width
    // only.
    if (f->x0 < f->x1 / 2 || f->x0 >= f->x1)
        f->x0 = fmin(f->x0, 0);
    if (c->stacked)
        f->x0 = fmin(f->x0, c->begin);
    if (is_narrow(f->x0, f->x1))
        f->x1 = f->x0 + fmax(1, fabs(f->x0) / 1000);
    if (c->from_zero)
        f->y0 = 0;
    if (is_narrow(f->y0, f->y1)) {
        const double margin = f->y0 == 0 ? 1 : fabs(f->y0) / 10;
        f->y0 -= c->from_zero ? 0 : margin;
        f->y1 += margin;
    }
    f->y_tick = chart_tick(f->y1 - f->y0);
    f->y0 = floor(f->y0 / f->y_tick + 1e-6) * f->y_tick;
    f->y1 = ceil(f->y1 / f->y_tick - 1e-6) * f->y_tick;
    f->x_tick = fmax(1, chart_tick(f->x1 - f->x0));
    return true;
}

static double place_x(const frame *f, double x)
{
    return (x - f->x0) / (f->x1 - f->x0) * SIZE;
}

static double place_y(const frame *f, double y)
{
    return SIZE - (y - f->y0) / (f->y1 - f->y0) * SIZE;
}

/* The numbers of the y axis. A hidden copy of the longest one sets the width of the column. */
static void append_y_axis(text_buf *t, const frame *f)
{
    const int n = (int)lround((f->y1 - f->y0) / f->y_tick);
    char text[CHART_TICK_BYTES];
    char longest[CHART_TICK_BYTES] = "";

    text_append(t, "<div class=\"ys\">");
    for (int i = 0; i <= n; i++) {
        chart_tick_text(text, f->y0 + i * f->y_tick, f->y_tick, f->y1);
        text_append(t, "<span style=\"top:%.2f%%\">%s</span>", 100 - 100.0 * i / n, text);
        if (strlen(text) > strlen(longest))
            (void)snprintf(longest, sizeof(longest), "%s", text);
    }
    text_append(t, "<b>%s</b></div>", longest);
}

static double first_x_tick(const frame *f)
{
    return ceil(f->x0 / f->x_tick - 1e-6) * f->x_tick;
}

static void append_x_axis(text_buf *t, const chart *c, const frame *f)
{
    char text[CHART_TICK_BYTES];

    text_append(t, "<div class=\"xs\">");
    // NOLINTNEXTLINE(clang-analyzer-security.FloatLoopCounter): a few ticks
    for (double x = first_x_tick(f); x <= f->x1; x += f->x_tick) {
        chart_tick_text(text, x, f->x_tick, f->x1);
        text_append(t, "<span style=\"left:%.2f%%\">%s</span>", place_x(f, x) / (SIZE / 100.0),
                    text);
    }
    text_append(t, "</div><p class=\"x\">%s <span></span></p>",
                c->x_name == NULL ? "step" : c->x_name);
}

static void append_grid(text_buf *t, const frame *f)
{
    const int n = (int)lround((f->y1 - f->y0) / f->y_tick);

    text_append(t, "<path class=\"grid\" d=\"");
    for (int i = 0; i <= n; i++)
        text_append(t, "M0 %.1fH%d", SIZE - (double)SIZE * i / n, SIZE);
    // NOLINTNEXTLINE(clang-analyzer-security.FloatLoopCounter): a few ticks
    for (double x = first_x_tick(f); x <= f->x1; x += f->x_tick)
        text_append(t, "M%.1f 0V%d", place_x(f, x), SIZE);
    text_append(t, "\"/>\n");
}

/* --- lines and columns --- */

/* Points are lines of length 0, which stay round when the chart is stretched. */
static void append_points(text_buf *t, const chart *c, const frame *f, int s)
{
    const chart_series *one = &c->series[s];

    text_append(t, "<path class=\"point s%d\" d=\"", s);
    for (int i = 0; i < one->n; i++)
        if (is_shown(c, one->y[i]))
            text_append(t, "M%.1f %.1fh0", place_x(f, one->x[i]), place_y(f, one->y[i]));
    text_append(t, "\"/>\n");
}

static void append_line(text_buf *t, const chart *c, const frame *f, int s)
{
    const chart_series *one = &c->series[s];
    bool open = false;

    text_append(t, "<path class=\"line s%d\" d=\"", s);
    for (int i = 0; i < one->n; i++) {
        if (is_shown(c, one->y[i]))
            text_append(t, "%c%.1f %.1f", open ? 'L' : 'M', place_x(f, one->x[i]),
                        place_y(f, one->y[i]));
        open = is_shown(c, one->y[i]);
    }
    text_append(t, "\"/>\n");
    if (one->n <= POINTS_APART)
        append_points(t, c, f, s);
}

static void append_columns(text_buf *t, const chart *c, const frame *f)
{
    const chart_series *first = &c->series[0];

    for (int i = 0; i < first->n; i++) {
        const double left = place_x(f, i > 0 ? first->x[i - 1] : c->begin);
        const double width = place_x(f, first->x[i]) - left;
        const double gap = fmin(0.05 * width, GAP);
        double below = 0;

        for (int s = 0; s < c->n_series; s++) {
            const double y = c->series[s].y[i];
            if (!is_shown(c, y) || y <= 0)
                continue;
            text_append(t,
                        "<rect class=\"s%d\" x=\"%.2f\" width=\"%.2f\" y=\"%.2f\" "
                        "height=\"%.2f\"/>",
                        s, left + gap, width - 2 * gap, place_y(f, below + y),
                        place_y(f, below) - place_y(f, below + y));
            below += y;
        }
    }
    text_append(t, "\n");
}

/* --- data of the script --- */

static void append_number(text_buf *t, bool first, double value, int digits)
{
    text_append(t, "%s%.*g", first ? "" : ",", digits, value);
}

static void append_series(text_buf *t, const chart *c, const chart_series *one)
{
    text_append(t, "{\"x\":[");
    for (int i = 0; i < one->n; i++)
        append_number(t, i == 0, one->x[i], 10);
    text_append(t, "],\"y\":[");
    for (int i = 0; i < one->n; i++) {
        if (is_shown(c, one->y[i]))
            append_number(t, i == 0, one->y[i], 4);
        else
            text_append(t, i == 0 ? "null" : ",null");
    }
    text_append(t, "]}");
}

static void append_values(text_buf *t, const chart *c, const frame *f)
{
    text_append(
        t,
        "<script type=\"application/json\">{\"stacked\":%s,\"x0\":%.10g,\"x1\":%.10g,\"series\":[",
        c->stacked ? "true" : "false", f->x0, f->x1);
    for (int s = 0, n = 0; s < c->n_series; s++) { // one for each key
        if (!isfinite(last_of(c, &c->series[s])))
            continue;
        text_append(t, n++ > 0 ? "," : "");
        append_series(t, c, &c->series[s]);
    }
    text_append(t, "]}</script>");
}

/* --- the figure --- */

/* Names of the series that have values, with their last value. */
static void append_keys(text_buf *t, const chart *c)
{
    for (int s = 0; s < c->n_series; s++) {
        const double last = last_of(c, &c->series[s]);

        if (isfinite(last))
            text_append(t, " <span class=\"key\"><i class=\"s%d\"></i>%s <b>%.4g</b></span>", s,
                        c->series[s].name, last);
    }
}

void chart_append(text_buf *t, const chart *c)
{
    frame f;

    text_append(t, "<figure><figcaption>%s%s%s", c->title, c->unit == NULL ? "" : ", ",
                c->unit == NULL ? "" : c->unit);
    append_keys(t, c);
    text_append(t, "</figcaption>\n");
    if (!find_frame(c, &f)) {
        text_append(t, "<p class=\"none\">%s</p></figure>\n",
                    has_not_finite(c) ? "no value is a finite number (NaN or infinite)"
                                      : "no values yet");
        return;
    }
    text_append(t, "<div class=\"plot\">");
    append_y_axis(t, &f);
    text_append(t,
                "<div class=\"area\"><svg viewBox=\"0 0 %d %d\" preserveAspectRatio=\"none\" "
                "role=\"img\" aria-label=\"%s\">\n",
                SIZE, SIZE, c->title);
    append_grid(t, &f);
    if (c->stacked)
        append_columns(t, c, &f);
    else
        for (int s = 0; s < c->n_series; s++)
            append_line(t, c, &f, s);
    text_append(t, "<path class=\"at\" d=\"\"/></svg></div>");
    append_x_axis(t, c, &f);
    text_append(t, "</div>");
    append_values(t, c, &f);
    text_append(t, "</figure>\n");
}
