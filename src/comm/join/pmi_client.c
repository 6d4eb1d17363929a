/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pmi_client.c - a client of PMI-1 servers, for join_pmi.c: one line per request, one line per
 * answer. Every answer is bounded and checked.
 */
#include "comm/join/pmi_client.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/report/wait_report.h"
#include "base/text.h"
#include "net/socket.h"

#include <dlfcn.h>
#include <poll.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { LINE_BYTES = 2048, SHOWN = 80 };

static const char peer[] = "the PMI server behind PMI_FD";
static const char barrier_answer[] = "barrier_out";

/* --- lines --- */

/* The server does not report which ranks are missing. */
static ls_status await_bytes(const pmi_client *c, const char *answer, wait_report *report)
{
    for (;;) {
        const ls_status st =
            net_wait(c->fd, POLLIN, wait_report_deadline_ms(report, c->deadline_ms));

        if (st != LS_ETIMEOUT || ls_deadline_left(c->deadline_ms) == 0)
            return ls_context(st, "%s", peer);
        if (wait_report_is_due(report))
            ls_log(LS_LOG_WARN, "comm", "joining has waited for %.1f s: %s",
                   wait_report_seconds(report),
                   text_equal(answer, barrier_answer)
                       ? "not all ranks have reached the launcher's PMI barrier"
                       : "the launcher's PMI server does not answer");
    }
}

/* There is one answer to each request, so nothing is read beyond its end. */
static ls_status read_line(const pmi_client *c, char line[LINE_BYTES], const char *answer)
{
    wait_report report = wait_report_begin(wait_report_setting_ms());
    size_t n = 0;

    for (;;) {
        size_t moved;

        LS_TRY(net_recv_some(c->fd, peer, line + n, LINE_BYTES - 1 - n, &moved));
        if (moved > 0 && memchr(line + n, 0, moved) != NULL)
            return ls_fail(LS_EPROTO, "%s: a zero byte", peer);
        n += moved;
        line[n] = 0;
        if (n > 0 && line[n - 1] == '\n')
            break;
        if (n == LINE_BYTES - 1)
            return ls_fail(LS_EPROTO, "%s: a line of more than %zu bytes", peer, n);
        if (moved == 0)
            LS_TRY(await_bytes(c, answer, &report));
    }
    line[n - 1] = 0;
    return LS_OK;
}

static ls_status refuse(const char *line)
{
    char shown[SHOWN];

    text_printable(shown, sizeof(shown), line);
    return ls_fail(LS_EPROTO, "%s answers \"%s\"", peer, shown);
}

/* The text after NAME=, to the next space, or for a value to the end of the line. */
static bool find(const char *line, const char *name, char *out, size_t n)
{
    const size_t length = strlen(name);

    for (line += strspn(line, " "); *line != 0; line += strspn(line, " ")) {
        const bool is_it = strncmp(line, name, length) == 0 && line[length] == '=';
        const bool is_value = text_starts(line, "value=");
        const size_t end = is_value ? strlen(line) : strcspn(line, " ");

        if (is_it) {
            if (end - length - 1 >= n)
                return false;
            text_format(out, n, "%.*s", (int)(end - length - 1), line + length + 1);
            return true;
        }
        line += end;
    }
    return false;
}

/* Sends a line and reads its answer, which must begin with cmd=`answer`. */
static ls_status ask(const pmi_client *c, char line[LINE_BYTES], const char *answer,
                     const char *format, ...) LS_PRINTF(4, 5);
static ls_status ask(const pmi_client *c, char line[LINE_BYTES], const char *answer,
                     const char *format, ...)
{
    char command[32];
    va_list args;
    int n;

    va_start(args, format);
    n = vsnprintf(line, LINE_BYTES, format, args);
    va_end(args);
    if (n < 0 || n >= LINE_BYTES)
        return ls_fail(LS_EINVAL, "a line to %s is too long", peer);
    LS_TRY(net_send_all(c->fd, peer, line, (size_t)n, c->deadline_ms));
    LS_TRY(read_line(c, line, answer));
    if (!find(line, "cmd", command, sizeof(command)) || !text_equal(command, answer))
        return refuse(line);
    return LS_OK;
}

/* An answer without a code is a success. */
static bool is_good(const char *line)
{
    char code[16];

    return !find(line, "rc", code, sizeof(code)) || text_equal(code, "0");
}

/* --- requests --- */

ls_status pmi_client_open(int fd, int64_t deadline_ms, pmi_client *out)
{
    char line[LINE_BYTES];

    *out = (pmi_client){.fd = fd, .deadline_ms = deadline_ms};
    LS_TRY(ask(out, line, "response_to_init", "cmd=init pmi_version=1 pmi_subversion=1\n"));
    if (!is_good(line))
        return refuse(line);
    LS_TRY(ask(out, line, "my_kvsname", "cmd=get_my_kvsname\n"));
    if (!is_good(line) || !find(line, "kvsname", out->space, sizeof(out->space)))
        return refuse(line);
    return LS_OK;
}

void pmi_client_close(pmi_client *c)
{
    char kept[LS_ERROR_BYTES];
    char line[LINE_BYTES];

    if (dlsym(RTLD_DEFAULT, "MPI_Init") != NULL)
        return;
    ls_error_save(kept);
    if (ask(c, line, "finalize_ack", "cmd=finalize\n") != LS_OK)
        ls_log(LS_LOG_DEBUG, "comm", "the PMI client is not finalized: %s", ls_last_error());
    ls_error_restore(kept);
}

ls_status pmi_client_put(pmi_client *c, const char *key, const char *value)
{
    char line[LINE_BYTES];

    LS_TRY(
        ask(c, line, "put_result", "cmd=put kvsname=%s key=%s value=%s\n", c->space, key, value));
    return is_good(line) ? LS_OK : refuse(line);
}

ls_status pmi_client_get(pmi_client *c, const char *key, char *value, size_t n)
{
    char line[LINE_BYTES];

    LS_TRY(ask(c, line, "get_result", "cmd=get kvsname=%s key=%s\n", c->space, key));
    if (!is_good(line))
        return ls_fail(LS_ENOTFOUND, "%s has no \"%s\"", peer, key);
    return find(line, "value", value, n) ? LS_OK : refuse(line);
}

ls_status pmi_client_barrier(pmi_client *c)
{
    char line[LINE_BYTES];
    const ls_status st = ask(c, line, barrier_answer, "cmd=barrier_in\n");

    if (st != LS_OK)
        return ls_context(st, "waiting for all ranks");
    return is_good(line) ? LS_OK : refuse(line);
}
