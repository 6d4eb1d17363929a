/* SPDX-License-Identifier: Apache-2.0 */
/*
 * signal_list.c - reads and writes lists of signals that stop a job. Called by the flags of
 * `lockstep run`, by its agents, and by training programs.
 */
#include "base/signal_list.h"

#include "base/text.h"

#include <signal.h>
#include <string.h>

/* Signals that may stop a job. The agent uses the others itself, or cannot catch them. */
static const struct {
    const char *name;
    int number;
} known[] = {
    {"SIGTERM", SIGTERM}, {"SIGINT", SIGINT},   {"SIGHUP", SIGHUP},
    {"SIGQUIT", SIGQUIT}, {"SIGUSR1", SIGUSR1}, {"SIGUSR2", SIGUSR2},
};

uint64_t signal_list_default(void)
{
    return UINT64_C(1) << SIGTERM | UINT64_C(1) << SIGINT | UINT64_C(1) << SIGHUP |
           UINT64_C(1) << SIGQUIT;
}

const char *signal_list_name(int number)
{
    for (size_t i = 0; i < LS_COUNT_OF(known); i++)
        if (known[i].number == number)
            return known[i].name;
    return NULL;
}

const char *signal_list_text(char *buf, size_t n, uint64_t set)
{
    size_t length = 0;

    buf[0] = 0;
    for (size_t i = 0; i < LS_COUNT_OF(known) && length < n; i++)
        if (signal_list_has(set, known[i].number))
            length += strlen(text_format(buf + length, n - length, "%s%s", length > 0 ? "," : "",
                                         known[i].name));
    return buf;
}

/* With or without "SIG". */
static int number_of(const char *name, size_t n)
{
    for (size_t i = 0; i < LS_COUNT_OF(known); i++) {
        const char *bare = known[i].name + strlen("SIG");
        if ((strlen(known[i].name) == n && strncmp(known[i].name, name, n) == 0) ||
            (strlen(bare) == n && strncmp(bare, name, n) == 0))
            return known[i].number;
    }
    return 0;
}

ls_status signal_list_parse(const char *text, const char *what, uint64_t *out)
{
    uint64_t set = 0;

    for (const char *at = text;; at++) {
        const size_t n = strcspn(at, ",");
        const int number = number_of(at, n);
        char name[24];

        if (number == 0) {
            text_format(name, sizeof(name), "%.*s", (int)(n < sizeof(name) ? n : sizeof(name) - 1),
                        at);
            text_printable(name, sizeof(name), name);
            return ls_fail(LS_EINVAL,
                           "%s: \"%s\" is none of SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, "
                           "SIGUSR2",
                           what, name);
        }
        set |= UINT64_C(1) << number;
        at += n;
        if (*at == 0)
            break;
    }
    *out = set;
    return LS_OK;
}
