/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_rank_list.c - the lists of -r, -t, --ranks and --signals-to-handle, and ${local_rank} in an
 * argument. A parsed list is compared with its text; an invalid one gives an error text that a
 * terminal may show.
 */
#include "fuzz/fuzz.h"

#include "base/signal_list.h"
#include "launch/agent/rank_args.h"
#include "launch/spec/rank_list.h"

#include <string.h>

static void check_error(void)
{
    const char *text = ls_last_error();

    if (strncmp(text, "--x: ", 5) != 0)
        __builtin_trap();
    for (; *text != 0; text++)
        if (*text < ' ' || *text > '~')
            __builtin_trap();
}

static void check_list(ls_status st, const rank_list *list)
{
    static const int ranks[] = {0, 1, 9, 4095, RANK_LIST_RANK_MOST, RANK_LIST_RANK_MOST + 1};
    const bool is_empty = st == LS_OK && rank_list_is_empty(list);

    if (st != LS_OK) {
        check_error();
        return;
    }
    for (int i = 0; i < list->n; i++)
        if (list->parts[i].first > list->parts[i].last)
            __builtin_trap();
    for (size_t i = 0; i < sizeof(ranks) / sizeof(ranks[0]); i++) {
        const unsigned streams = rank_list_streams(list, ranks[i]);
        if (streams > RANK_STREAMS_BOTH || (is_empty && streams != 0))
            __builtin_trap();
    }
}

static void check_signals(const char *text)
{
    uint64_t set = 0;

    if (signal_list_parse(text, "--x", &set) != LS_OK)
        check_error();
    else if (set == 0 || set >> 32 != 0)
        __builtin_trap();
}

static void check_args(char *text)
{
    static char program[] = "program";
    char *argv[] = {program, text, NULL};
    char **made;

    if (rank_args_make(argv, 7, &made) != LS_OK || strlen(made[1]) > strlen(text) ||
        (strchr(text, '$') == NULL && strcmp(made[1], text) != 0))
        __builtin_trap();
    rank_args_free(made);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char text[1024];
    rank_list list;

    if (size >= sizeof(text))
        return 0;
    memcpy(text, data, size);
    text[size] = 0;
    check_list(rank_list_parse_streams(text, "--x", &list), &list);
    check_list(rank_list_parse_ranks(text, "--x", &list), &list);
    check_signals(text);
    check_args(text);
    return 0;
}
