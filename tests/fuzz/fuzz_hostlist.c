/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_hostlist.c - -H, host files, Slurm's lists and counts. Accepted hosts are valid arguments of
 * ssh, within the bounds.
 */
#include "fuzz/fuzz.h"

#include "base/alloc.h"
#include "launch/hosts/hostlist.h"

#include <stdlib.h>
#include <string.h>

static const char allowed[] =
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-:%@";

static void check(hostlist *list)
{
    if (list->n < 1 || list->n > HOSTLIST_HOSTS_MAX)
        __builtin_trap();
    for (int i = 0; i < list->n; i++) {
        const hostlist_host *host = &list->hosts[i];
        const size_t n = strlen(host->name);

        if (n < 1 || n > 2 * HOSTLIST_NAME_MAX + 1 || host->name[0] == '-' ||
            strspn(host->name, allowed) != n || host->slots < 0 || host->slots > HOSTLIST_SLOTS_MAX)
            __builtin_trap();
    }
    hostlist_free(list);
}

static void check_failed(const hostlist *list)
{
    if (list->hosts != NULL || list->n != 0 || ls_last_error()[0] == 0)
        __builtin_trap();
}

/* The first byte selects the kind of the rest. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text;
    char *counts;
    hostlist list;
    ls_status st;
    int *numbers;
    int n;

    if (size < 1 || size > 4096)
        return 0;
    text = ls_calloc(size, 1);
    if (text == NULL)
        return 0;
    memcpy(text, data + 1, size - 1);
    counts = strchr(text, '\n'); // a second line holds the counts
    if (data[0] % 4 == 0)
        st = hostlist_parse(text, &list);
    else if (data[0] % 4 == 1)
        st = hostlist_parse_file(text, size - 1, "hosts", &list);
    else if (data[0] % 4 == 2 && counts != NULL) {
        *counts = 0;
        st = hostlist_parse_slurm(text, counts + 1, &list);
    } else if (data[0] % 4 == 2) {
        st = hostlist_parse_slurm(text, NULL, &list);
    } else {
        list = (hostlist){0};
        st = hostlist_parse_counts(text, "-g", &numbers, &n);
        if (st == LS_OK && (n < 1 || n > HOSTLIST_HOSTS_MAX))
            __builtin_trap();
        if (st == LS_OK)
            ls_free(numbers);
        ls_free(text);
        return 0;
    }
    if (st == LS_OK)
        check(&list);
    else
        check_failed(&list);
    ls_free(text);
    return 0;
}
