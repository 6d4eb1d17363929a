/* SPDX-License-Identifier: Apache-2.0 */
/* help_end.c - an example and a page for each command, printed behind its flags by print.c. */
#include "cli/help_end.h"

#include <string.h>

static const struct {
    const char *program; /* or its end */
    const char *example;
    const char *page;
} ends[] = {
    {"lockstep run", "lockstep run -n 2 mnist --epochs 1", "launching.md"},
    {"torchrun", "torchrun --nproc-per-node 2 train.py", "launching.md"},
    {"lockstep join", "lockstep join node0:29400", "launching.md"},
    {"lockstep bench", "lockstep bench all_reduce -n 2", "bench.md"},
    {"lockstep check", "lockstep check", "checking.md"},
    {"lockstep ps", "lockstep ps", "watching.md"},
    {"lockstep top", "lockstep top", "watching.md"},
    {"lockstep report", "lockstep report metrics.jsonl -o page.html", "training.md"},
    {"lockstep trace", "lockstep trace summarize profile.rank0.json", "training.md"},
    {"lockstep plan", "lockstep plan --link 1Gbit,0.2ms --batch 100 mnist --steps 40",
     "performance.md"},
    {"lockstep replay", "lockstep replay NAME.capsule.safetensors", "training.md"},
    {"lockstep clean", "lockstep clean", "checking.md"},
    {"lockstep data", "lockstep data folder DIR", "data.md"},
    {"_perf", "lockstep run -n 2 all_reduce_perf -b 8 -e 1M -f 2", "bench.md"},
};

static bool ends_with(const char *text, const char *end)
{
    const size_t n = strlen(text);
    const size_t k = strlen(end);

    return n >= k && text_equal(text + n - k, end);
}

void help_end_append(const char *program, text_buf *out)
{
    for (size_t i = 0; i < LS_COUNT_OF(ends); i++) {
        if (!ends_with(program, ends[i].program))
            continue;
        text_append(out, "\nExample: %s\nPage: docs/%s\n", ends[i].example, ends[i].page);
        return;
    }
}
