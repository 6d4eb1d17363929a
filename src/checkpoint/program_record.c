/* SPDX-License-Identifier: Apache-2.0 */
/* program_record.c - see program_record.h. */
#include "checkpoint/program_record.h"

#include "base/alloc.h"
#include "base/file.h"
#include "base/report/json.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { COMMAND_BYTES = 1 << 18, RECORD_BYTES = 1 << 21 };

static const char *const variables[] = {"LOCKSTEP_DEVICE", "LOCKSTEP_CONVOLUTIONS",
                                        "ONEDNN_MAX_CPU_ISA"};
_Static_assert(sizeof(variables) / sizeof(*variables) <= PROGRAM_RECORD_VARIABLES,
               "a record holds all variables");

/* --- writing --- */

/* The arguments of this process, each with its 0 byte. */
static ls_status read_command(char **out, size_t *n)
{
    int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    ssize_t bytes;

    if (fd < 0)
        return ls_fail_errno("/proc/self/cmdline");
    *out = ls_calloc(COMMAND_BYTES, 1);
    bytes = *out != NULL ? file_read_fd(fd, *out, COMMAND_BYTES) : 0;
    file_close(&fd);
    if (bytes > 0 && bytes < COMMAND_BYTES) {
        *n = (size_t)bytes;
        return LS_OK;
    }
    ls_free(*out);
    *out = NULL;
    return ls_fail(LS_EIO, "the command of this process is not readable, or has %d bytes or more",
                   COMMAND_BYTES);
}

static void put_variables(json_writer *w)
{
    json_open(w, "environment", '{');
    for (size_t i = 0; i < LS_COUNT_OF(variables); i++) {
        const char *value = getenv(variables[i]); // NOLINT(concurrency-mt-unsafe): never set

        if (value != NULL)
            json_put_string(w, variables[i], value);
    }
    json_close(w, '}');
}

ls_status program_record_append(text_buf *out)
{
    char executable[PATH_MAX] = "";
    char folder[PATH_MAX];
    json_writer w;
    char *command;
    size_t n = 0;

    if (readlink("/proc/self/exe", executable, sizeof(executable) - 1) < 0)
        return ls_fail_errno("/proc/self/exe");
    if (getcwd(folder, sizeof(folder)) == NULL)
        return ls_fail_errno("the working folder");
    LS_TRY(read_command(&command, &n));
    json_begin(&w, out);
    json_open(&w, NULL, '{');
    json_open(&w, "command", '[');
    for (size_t at = 0; at < n; at += strlen(command + at) + 1)
        json_put_string(&w, NULL, command + at);
    json_close(&w, ']');
    json_put_string(&w, "executable", executable);
    json_put_string(&w, "folder", folder);
    put_variables(&w);
    json_close(&w, '}');
    ls_free(command);
    return text_status(out);
}

/* --- reading --- */

static ls_status copy_text(const char *text, char **out)
{
    text_buf copy = {0};

    text_append(&copy, "%s", text);
    *out = copy.data;
    return text_status(&copy);
}

static ls_status copy_string(const json_value *v, const char *what, char **out)
{
    const char *text = json_as_string(v, NULL);

    if (text == NULL || text[0] == 0)
        return ls_fail(LS_EFORMAT, "the record of the program has no %s", what);
    return copy_text(text, out);
}

static ls_status read_arguments(const json_value *list, program_record *r)
{
    const size_t n = json_size(list);

    if (json_kind_of(list) != JSON_IS_ARRAY || n == 0 || n > PROGRAM_RECORD_ARGUMENTS)
        return ls_fail(LS_EFORMAT, "the record of the program has not 1 to %d arguments",
                       PROGRAM_RECORD_ARGUMENTS);
    LS_TRY(LS_NEW(&r->argv, n + 1, "for %zu arguments", n));
    for (size_t i = 0; i < n; i++) {
        const char *text = json_as_string(json_at(list, i), NULL);

        if (text == NULL)
            return ls_fail(LS_EFORMAT, "argument %zu of the program is not a text", i);
        LS_TRY(copy_text(text, &r->argv[i]));
        r->argc++;
    }
    return LS_OK;
}

static ls_status read_variables(const json_value *set, program_record *r)
{
    for (size_t i = 0; i < LS_COUNT_OF(variables); i++) {
        const char *value = json_as_string(json_get(set, variables[i]), NULL);
        text_buf text = {0};

        text_append(&text, "%s%s%s", variables[i], value != NULL ? "=" : "",
                    value != NULL ? value : "");
        r->variables[r->n_variables++] = text.data;
        LS_TRY(text_status(&text));
    }
    return LS_OK;
}

static ls_status read_members(const json_value *record, program_record *r)
{
    LS_TRY(read_arguments(json_get(record, "command"), r));
    LS_TRY(copy_string(json_get(record, "executable"), "executable", &r->executable));
    LS_TRY(copy_string(json_get(record, "folder"), "folder", &r->folder));
    return read_variables(json_get(record, "environment"), r);
}

ls_status program_record_read(const char *text, program_record *out)
{
    const size_t n = strlen(text);
    json_value *record;
    ls_status st;

    *out = (program_record){.argc = 0};
    if (n > RECORD_BYTES)
        return ls_fail(LS_EFORMAT, "the record of the program has %zu bytes, more than %d", n,
                       RECORD_BYTES);
    LS_TRY(json_parse(text, n, "the record of the program", &record));
    st = read_members(record, out);
    json_free(record);
    if (st != LS_OK)
        program_record_free(out);
    return st;
}

void program_record_free(program_record *r)
{
    for (int i = 0; i < r->argc; i++)
        ls_free(r->argv[i]);
    ls_free(r->argv);
    ls_free(r->executable);
    ls_free(r->folder);
    for (int i = 0; i < r->n_variables; i++)
        ls_free(r->variables[i]);
    *r = (program_record){.argc = 0};
}
