/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_launch_request.c - messages between an agent and the agents that it starts. The first byte
 * selects the message: a launch request; output, a size and requested input; a greeting. An
 * accepted request is encoded again and must read the same.
 */
#include "fuzz/fuzz.h"

#include "base/alloc.h"
#include "launch/spec/launch_request.h"

#include <stdbool.h>
#include <string.h>

static void must(bool is_true)
{
    if (!is_true)
        __builtin_trap();
}

static void check_words(char *const *words, size_t least)
{
    size_t n = 0;

    while (words[n] != NULL)
        n += strlen(words[n]) < SIZE_MAX;
    must(n >= least);
}

static void check_request(const uint8_t *data, size_t size)
{
    const frame f = {.type = REMOTE_LAUNCH_REQUEST, .body = data, .bytes = size};
    frame again = {.type = REMOTE_LAUNCH_REQUEST};
    wire_writer w = {0};
    wire_writer w2 = {0};
    static launch_request o;
    static launch_request o2;

    if (launch_request_read(&f, &o) != LS_OK) {
        must(o.memory == NULL && o.job.argv == NULL && o.env == NULL && ls_last_error()[0] != 0);
        return;
    }
    must(o.n_heads <= DIAL_ADDRESSES_MAX && o.n_ranks >= 1);
    must(o.job.redirect.n <= RANK_LIST_MOST && o.job.shown.n <= RANK_LIST_MOST);
    check_words(o.job.argv, 1);
    check_words(o.env, 0);
    launch_request_write(&w, &o);
    again.body = w.data;
    again.bytes = w.bytes;
    must(wire_writer_status(&w) == LS_OK && launch_request_read(&again, &o2) == LS_OK);
    launch_request_write(&w2, &o2);
    must(w2.bytes == w.bytes && memcmp(w.data, w2.data, w.bytes) == 0);
    launch_request_free(&o);
    launch_request_free(&o2);
    wire_writer_free(&w);
    wire_writer_free(&w2);
}

static void check_output(const uint8_t *data, size_t size)
{
    const frame f = {.type = REMOTE_OUTPUT, .body = data, .bytes = size};
    const char *bytes;
    pty_size terminal;
    size_t n;
    int rank;
    int stream;

    if (remote_read_size(&f, &terminal) == LS_OK)
        must(terminal.rows >= 0 && terminal.rows < 65536 && terminal.columns >= 0 &&
             terminal.columns < 65536);
    if (remote_read_window(&f, &n) == LS_OK)
        must(n > 0 && n <= REMOTE_INPUT_WINDOW);
    if (remote_read_output(&f, &rank, &stream, &bytes, &n) != LS_OK)
        return;
    must(rank >= 0 && stream >= 0 && stream <= 1 && n <= size);
    must(bytes + n == (const char *)data + size);
}

static void check_greeting(const uint8_t *data, size_t size)
{
    char *line = ls_calloc(size + 1, 1);
    char version[64];
    int cores;

    if (line == NULL)
        return;
    memcpy(line, data, size);
    if (remote_read_greeting(line, version, sizeof(version), &cores))
        must(cores >= 1 && version[0] != 0);
    ls_free(line);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1 || size > 65536)
        return 0;
    if (data[0] % 3 == 0)
        check_request(data + 1, size - 1);
    else if (data[0] % 3 == 1)
        check_output(data + 1, size - 1);
    else
        check_greeting(data + 1, size - 1);
    return 0;
}
