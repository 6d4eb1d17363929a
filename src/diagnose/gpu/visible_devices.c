/* SPDX-License-Identifier: Apache-2.0 */
/*
 * visible_devices.c - parses CUDA_VISIBLE_DEVICES and names the first entry at which CUDA stops
 * reading. Called by the checks of GPUs.
 */
#include "diagnose/gpu/visible_devices.h"

#include "base/text.h"

#include <stdbool.h>
#include <string.h>

/* Whether an earlier entry is the same. */
static bool is_repeated(const char *list, const char *entry, size_t n)
{
    for (const char *at = list + strspn(list, " \t"); at < entry;) {
        if (strcspn(at, ", \t") == n && strncmp(at, entry, n) == 0)
            return true;
        at += strcspn(at, ",") + 1;
        at += strspn(at, " \t");
    }
    return false;
}

/* Why an entry of n bytes is wrong, or NULL. */
static const char *judge(const char *entry, size_t n, int n_gpus)
{
    int64_t number = 0;

    if (n == 0)
        return "it is empty";
    if (n > 4 && (strncmp(entry, "GPU-", 4) == 0 || strncmp(entry, "MIG-", 4) == 0)) {
        const size_t head = n > 8 && strncmp(entry, "MIG-GPU-", 8) == 0 ? 8 : 4;
        return strspn(entry + head, "0123456789abcdefABCDEF-/") >= n - head
                   ? NULL
                   : "it is not a name of a GPU";
    }
    if (n > 6 || strspn(entry, "0123456789") < n)
        return "it is neither a number nor the name of a GPU";
    for (size_t i = 0; i < n; i++)
        number = number * 10 + (entry[i] - '0');
    return n_gpus >= 0 && number >= n_gpus ? "there is no such GPU" : NULL;
}

void visible_devices_read(const char *text, int n_gpus, visible_devices *out)
{
    const char *at = text;
    char bad[VISIBLE_ENTRY_MAX];

    *out = (visible_devices){0};
    for (;;) {
        size_t n;
        at += strspn(at, " \t");
        n = strcspn(at, ", \t");
        out->why = judge(at, n, n_gpus);
        if (out->why == NULL && is_repeated(text, at, n)) {
            out->why = "it is listed twice, so CUDA sees no GPU at all";
            out->n = 0;
        }
        if (out->why != NULL) {
            text_format(bad, sizeof(bad), "%.*s", (int)(n < sizeof(bad) ? n : sizeof(bad) - 1), at);
            text_printable(out->bad, sizeof(out->bad), bad);
            return;
        }
        out->n++;
        at += n;
        at += strspn(at, " \t");
        if (*at != ',')
            return;
        at++;
    }
}
