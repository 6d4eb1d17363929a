/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_check.c - what checks read of other processes: the first byte selects ids, stat and environ
 * files, a line of the kernel's table of connections, or CUDA_VISIBLE_DEVICES. An environment must
 * give the same marks in one piece and byte by byte.
 */
#include "fuzz/fuzz.h"

#include "host/process_id.h"
#include "base/text.h"
#include "host/leftover.h"
#include "net/port_holder.h"
#include "diagnose/gpu/visible_devices.h"

#include <string.h>

static void must(bool condition)
{
    if (!condition)
        __builtin_trap();
}

static void check_id(const char *text)
{
    char again[PROCESS_ID_TEXT_MAX];
    process_id id;
    process_id other;

    if (!process_id_parse(text, &id))
        return;
    must(id.pid > 0);
    must(process_id_parse(process_id_text(again, sizeof(again), &id), &other));
    must(process_id_equal(&id, &other));
}

static void check_stat(const char *text)
{
    process_stat facts;

    if (!process_stat_parse(text, &facts))
        return;
    must(facts.parent >= 0 && facts.n_threads >= 0);
    fuzz_must_be_printable(facts.name, "");
}

static void check_environment(const char *bytes, size_t n)
{
    mark_scan whole = {.n = 0};
    mark_scan pieces = {.n = 0};

    mark_scan_feed(&whole, bytes, n);
    mark_scan_feed(&whole, "", 1);
    for (size_t i = 0; i < n; i++)
        mark_scan_feed(&pieces, bytes + i, 1);
    mark_scan_feed(&pieces, "", 1);
    must(strcmp(whole.job, pieces.job) == 0 && strcmp(whole.agent, pieces.agent) == 0);
    fuzz_must_be_printable(whole.job, "");
}

static void check_devices(const char *text)
{
    for (int n_gpus = -1; n_gpus < 3; n_gpus++) {
        visible_devices v;
        visible_devices_read(text, n_gpus, &v);
        must(v.n >= 0 && (size_t)v.n <= strlen(text));
        fuzz_must_be_printable(v.bad, "");
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char text[2048];
    port_holder holder;

    if (size < 1 || size >= sizeof(text))
        return 0;
    memcpy(text, data + 1, size - 1);
    text[size - 1] = 0;
    switch (data[0] % 5) {
    case 0:
        check_id(text);
        break;
    case 1:
        check_stat(text);
        break;
    case 2:
        check_environment(text, size - 1);
        break;
    case 3:
        (void)port_holder_parse(text, 29500, &holder);
        break;
    default:
        check_devices(text);
    }
    return 0;
}
