/* SPDX-License-Identifier: Apache-2.0 */
/* bench_job.c - reads the table and the JSON of a run of lockstep bench. */
#include "cli/bench_job.h"

#include "base/alloc.h"
#include "base/file.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The columns of nccl-tests: size count type redop root, then time algbw busbw #wrong out of place
 * and in place. */
static bool parse_row(const char *line, bench_row *r)
{
    return sscanf(line, "%lld %lld %15s %15s %d %lf %lf %lf %lld %lf %lf %lf %lld", &r->size,
                  &r->count, r->type, r->redop, &r->root, &r->time[0], &r->algbw[0], &r->busbw[0],
                  &r->wrong[0], &r->time[1], &r->algbw[1], &r->busbw[1], &r->wrong[1]) == 13;
}

int bench_rows(job *j, const char *prefix, bench_row *rows, int max)
{
    const char *line = text_str(&j->out);
    int n = 0;

    while (*line != 0) {
        const char *end = strchr(line, '\n');

        job_expect(j, end != NULL && text_starts(line, prefix));
        line += strlen(prefix);
        if (*line != '#') {
            job_expect(j, n < max && parse_row(line, &rows[n]));
            n++;
        }
        line = end + 1;
    }
    return n;
}

int bench_count_rows(job *j)
{
    int n = 0;

    for (const char *line = text_str(&j->out); *line != '\0'; line = strchr(line, '\n') + 1)
        n += line[0] == ' ';
    return n;
}

json_value *bench_json(job *j, const char *path)
{
    json_value *v = NULL;
    char *text;
    size_t bytes;

    assert_ok(file_read(path, 1 << 20, &text, &bytes));
    assert_ok(json_parse(text, bytes, path, &v));
    ls_free(text);
    (void)unlink(path);
    job_expect(j, json_kind_of(v) == JSON_IS_ARRAY);
    return v;
}

const char *bench_text(const json_value *object, const char *key)
{
    return json_as_string(json_get(object, key), "");
}

void bench_expect_refused(const char *const *argv, int code, const char *text)
{
    job *j = job_start(argv, NULL);

    job_expect_code(j, code);
    if (!job_printed(j, 1, text))
        print_message("wanted: %s\n", text);
    job_expect(j, job_printed(j, 1, text) && j->out.length == 0);
    job_clean_up(NULL);
}
