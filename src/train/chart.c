/* SPDX-License-Identifier: Apache-2.0 */
#include "train/chart.h"

#include <math.h>

/* In units of the viewBox. */
enum { WIDTH = 640, HEIGHT = 260, LEFT = 62, RIGHT = 12, TOP = 10, BOTTOM = 28, TICKS = 5 };

typedef struct frame {
    double x0, x1, y0, y1; /* of the data */
    double y_tick;
} frame;

static bool is_shown(const chart *c, double y)
{
    return isfinite(y) && (!c->from_zero || y >= 0);
}

static double column_height(const chart *c, int i)
{
    double sum = 0;

    for (int s = 0; s < c->n_series; s++)
        sum += is_shown(c, c->series[s].y[i]) ? c->series[s].y[i] : 0;
    return sum;
}

/* 1, 2 or 5 times a power of ten, so that about TICKS of them make up `range`. */
static double nice_tick(double range)
{
    const double raw = range / TICKS;
    const double power = pow(10, floor(log10(raw)));
    const double part = raw / power;

    return power * (part <= 1 ? 1 : part <= 2 ? 2 : part <= 5 ? 5 : 10);
}

static void widen(frame *f, double x, double y)
{
    f->x0 = fmin(f->x0, x);
    f->x1 = fmax(f->x1, x);
    f->y0 = fmin(f->y0, y);
    f->y1 = fmax(f->y1, y);
}

/* False when there is nothing to show. */
static bool find_frame(const chart *c, frame *f)
{
    *f = (frame){INFINITY, -INFINITY, INFINITY, -INFINITY, 1};
    for (int s = 0; s < c->n_series; s++) {
        const chart_series *one = &c->series[s];
        for (int i = 0; i < one->n; i++)
            if (is_shown(c, one->y[i]))
                widen(f, one->x[i], c->stacked ? column_height(c, i) : one->y[i]);
    }
    if (!isfinite(f->y0))
        return false;
    if (c->from_zero)
        f->y0 = 0;
    if (f->x1 <= f->x0)
        f->x1 = f->x0 + 1;
    if (f->y1 <= f->y0)
        f->y1 = f->y0 + 1;
    f->y_tick = nice_tick(f->y1 - f->y0);
    f->y0 = floor(f->y0 / f->y_tick) * f->y_tick;
    f->y1 = ceil(f->y1 / f->y_tick) * f->y_tick;
    return true;
}

static double place_x(const frame *f, double x)
{
    return LEFT + (x - f->x0) / (f->x1 - f->x0) * (WIDTH - LEFT - RIGHT);
}

static double place_y(const frame *f, double y)
{
    return HEIGHT - BOTTOM - (y - f->y0) / (f->y1 - f->y0) * (HEIGHT - TOP - BOTTOM);
}

static void append_axes(text_buf *t, const frame *f)
{
    const int n = (int)lround((f->y1 - f->y0) / f->y_tick);

    for (int i = 0; i <= n; i++) {
        const double value = f->y0 + i * f->y_tick;
        const double y = place_y(f, value);
        text_append(t,
                    "<line class=\"grid\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/>"
                    "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%.4g</text>",
                    LEFT, WIDTH - RIGHT, y, y, LEFT - 6, y + 4, fabs(value) < 1e-12 ? 0 : value);
    }
    text_append(t,
                "<text x=\"%d\" y=\"%d\">step %.0f</text>"
                "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">%.0f</text>\n",
                LEFT, HEIGHT - 8, f->x0, WIDTH - RIGHT, HEIGHT - 8, f->x1);
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
    for (int i = 0; i < one->n && one->n <= 40; i++) /* few enough to be told apart */
        if (is_shown(c, one->y[i]))
            text_append(t, "<circle class=\"s%d\" r=\"2.5\" cx=\"%.1f\" cy=\"%.1f\"/>", s,
                        place_x(f, one->x[i]), place_y(f, one->y[i]));
}

static void append_columns(text_buf *t, const chart *c, const frame *f)
{
    const int n = c->series[0].n;
    const double width = (double)(WIDTH - LEFT - RIGHT) / n;

    for (int i = 0; i < n; i++) {
        double below = 0;
        for (int s = 0; s < c->n_series; s++) {
            const double y = c->series[s].y[i];
            if (!is_shown(c, y) || y <= 0)
                continue;
            text_append(t,
                        "<rect class=\"s%d\" x=\"%.1f\" width=\"%.1f\" y=\"%.1f\" "
                        "height=\"%.2f\"/>",
                        s, LEFT + i * width, width * 0.85, place_y(f, below + y),
                        place_y(f, below) - place_y(f, below + y));
            below += y;
        }
    }
    text_append(t, "\n");
}

static void append_numbers(text_buf *t, const double *values, int n)
{
    for (int i = 0; i < n; i++) {
        if (isfinite(values[i]))
            text_append(t, "%s%.5g", i > 0 ? "," : "", values[i]);
        else
            text_append(t, "%snull", i > 0 ? "," : "");
    }
}

/* What the script reads: where the frame is, and all values. */
static void append_values(text_buf *t, const chart *c, const frame *f)
{
    text_append(
        t,
        "<script "
        "type=\"application/json\">{\"left\":%d,\"right\":%d,\"x0\":%.6g,\"x1\":%.6g,\"series\":[",
        LEFT, WIDTH - RIGHT, f->x0, f->x1);
    for (int s = 0; s < c->n_series; s++) {
        text_append(t, "%s{\"name\":\"%s\",\"x\":[", s > 0 ? "," : "", c->series[s].name);
        append_numbers(t, c->series[s].x, c->series[s].n);
        text_append(t, "],\"y\":[");
        append_numbers(t, c->series[s].y, c->series[s].n);
        text_append(t, "]}");
    }
    text_append(t, "]}</script>");
}

void chart_append(text_buf *t, const chart *c)
{
    frame f;

    text_append(t, "<figure><figcaption>%s", c->title);
    for (int s = 0; s < c->n_series; s++)
        text_append(t, " <span class=\"key\"><i class=\"s%d\"></i>%s</span>", s, c->series[s].name);
    text_append(t, "</figcaption>\n");
    if (!find_frame(c, &f)) {
        text_append(t, "<p class=\"none\">nothing yet</p></figure>\n");
        return;
    }
    text_append(t, "<svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"%s\">\n", WIDTH, HEIGHT,
                c->title);
    append_axes(t, &f);
    if (c->stacked)
        append_columns(t, c, &f);
    else
        for (int s = 0; s < c->n_series; s++)
            append_line(t, c, &f, s);
    text_append(t, "<line class=\"at\" y1=\"%d\" y2=\"%d\"/></svg>\n", TOP, HEIGHT - BOTTOM);
    append_values(t, c, &f);
    text_append(t, "<p class=\"values\"></p></figure>\n");
}

const char *chart_style(void)
{
    return ":root{--s0:#1668b8;--s1:#c2571a;--s2:#2e8540;--s3:#7d4fb3;--s4:#8a6d00;--s5:#a3344d}\n"
           "@media(prefers-color-scheme:dark){:root{--s0:#6cb2f5;--s1:#f0955c;--s2:#74c586;--s3:#"
           "b99be6;"
           "--s4:#d9bb4e;--s5:#ea8198}}\n"
           ".s0{--c:var(--s0)}.s1{--c:var(--s1)}.s2{--c:var(--s2)}.s3{--c:var(--s3)}.s4{--c:var(--"
           "s4)}"
           ".s5{--c:var(--s5)}\n"
           "figure{margin:0;padding:14px 16px;border:1px solid var(--rule);border-radius:8px;"
           "background:var(--card)}\n"
           "figcaption{font-weight:600;margin-bottom:6px}.key{font-weight:400;margin-left:12px;"
           "color:var(--soft);white-space:nowrap}.key "
           "i{display:inline-block;width:10px;height:10px;"
           "border-radius:2px;background:var(--c);margin-right:5px}\n"
           "svg{display:block;width:100%;height:auto}svg text{font-size:11px;fill:var(--soft)}\n"
           ".grid{stroke:var(--rule);stroke-width:1}.line{fill:none;stroke:var(--c);stroke-width:1."
           "6;"
           "stroke-linejoin:round}circle,rect{fill:var(--c)}.at{stroke:var(--soft);stroke-width:1;"
           "visibility:hidden}\n"
           ".values{min-height:1.3em;margin:4px 0 0;color:var(--soft);font-size:13px}"
           ".none{color:var(--soft)}\n";
}

const char *chart_script(void)
{
    return "document.querySelectorAll('figure').forEach(function(figure){\n"
           "  var svg=figure.querySelector('svg');if(!svg)return;\n"
           "  var chart=JSON.parse(figure.querySelector('script').textContent);\n"
           "  var mark=svg.querySelector('.at'),values=figure.querySelector('.values');\n"
           "  svg.addEventListener('mousemove',function(event){\n"
           "    var box=svg.getBoundingClientRect();\n"
           "    var at=(event.clientX-box.left)/box.width*svg.viewBox.baseVal.width;\n"
           "    at=Math.min(chart.right,Math.max(chart.left,at));\n"
           "    var x=chart.x0+(at-chart.left)/(chart.right-chart.left)*(chart.x1-chart.x0);\n"
           "    var words=[];\n"
           "    chart.series.forEach(function(one){\n"
           "      var best=-1;\n"
           "      one.x.forEach(function(value,i){\n"
           "        if(best===-1||Math.abs(one.x[best]-x)>Math.abs(value-x))best=i;});\n"
           "      if(best!==-1)words.push(one.name+' '+one.y[best]+' (step '+one.x[best]+')');});\n"
           "    values.textContent=words.join('   ');\n"
           "    "
           "mark.setAttribute('x1',at);mark.setAttribute('x2',at);mark.style.visibility='visible';}"
           ");\n"
           "  svg.addEventListener('mouseleave',function(){\n"
           "    values.textContent='';mark.style.visibility='hidden';});\n"
           "});\n";
}
