/* SPDX-License-Identifier: Apache-2.0 */
/*
 * metrics_check.h - checks the text format of Prometheus (version 0.0.4) more strictly than its
 * reader: each metric has HELP and TYPE in front, its lines are together, and no two lines of it
 * have the same labels.
 */
#ifndef TESTS_LAUNCH_METRICS_CHECK_H
#define TESTS_LAUNCH_METRICS_CHECK_H

#include <ctype.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static inline size_t metrics_name(const char *s)
{
    size_t n = 0;

    while (isalpha((unsigned char)s[n]) || s[n] == '_' || s[n] == ':' ||
           (n > 0 && isdigit((unsigned char)s[n])))
        n++;
    return n;
}

/* Behind {name="value",...}; NULL: malformed. */
static inline const char *metrics_labels(const char *s)
{
    if (*s != '{')
        return s;
    do {
        const size_t n = metrics_name(++s);

        if (n == 0 || s[n] != '=' || s[n + 1] != '"')
            return NULL;
        for (s += n + 2; *s != '"'; s++) {
            if (*s == '\n' || *s == '\0' || (*s == '\\' && strchr("\\\"n", s[1]) == NULL))
                return NULL;
            s += *s == '\\';
        }
        s++;
    } while (*s == ',');
    return *s == '}' ? s + 1 : NULL;
}

static inline bool metrics_sample(const char *line, size_t bytes, const char *name, size_t n_name)
{
    const char *s = line + metrics_name(line);
    char *end;

    if ((size_t)(s - line) != n_name || strncmp(line, name, n_name) != 0)
        return false;
    s = metrics_labels(s);
    if (s == NULL || *s != ' ' || isspace((unsigned char)s[1]))
        return false;
    (void)strtod(s + 1, &end);
    return end > s + 1 && end == line + bytes;
}

/* Whether the part of `text` in front of `line` has the same name and labels. */
static inline bool metrics_repeats(const char *text, const char *line)
{
    const size_t n = (size_t)(metrics_labels(line + metrics_name(line)) - line) + 1;

    for (const char *at = text; at < line; at = strchr(at, '\n') + 1)
        if (strncmp(at, line, n) == 0)
            return true;
    return false;
}

/* The number of samples; -1: malformed. */
static inline int metrics_count(const char *text)
{
    const char *name = NULL;
    size_t n_name = 0;
    int n = 0;

    for (const char *line = text; *line != '\0';) {
        const char *end = strchr(line, '\n');

        if (end == NULL)
            return -1;
        if (strncmp(line, "# HELP ", 7) == 0) {
            name = line + 7;
            n_name = metrics_name(name);
            line = end + 1;
            if (n_name == 0 || name[n_name] != ' ' || strncmp(line, "# TYPE ", 7) != 0 ||
                strncmp(line + 7, name, n_name) != 0 ||
                (strncmp(line + 7 + n_name, " gauge\n", 7) != 0 &&
                 strncmp(line + 7 + n_name, " counter\n", 9) != 0))
                return -1;
            end = strchr(line, '\n');
        } else if (name == NULL || !metrics_sample(line, (size_t)(end - line), name, n_name) ||
                   metrics_repeats(text, line)) {
            return -1;
        } else {
            n++;
        }
        line = end + 1;
    }
    return n;
}

#endif
