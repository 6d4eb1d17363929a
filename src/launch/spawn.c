/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/launch.h"

#include "launch/process.h"

#include <stdio.h>
#include <string.h>

ls_status ls_spawn(ls_spawn_fn fn, int n, void *arg, const ls_spawn_options *opt)
{
    ls_spawn_options options = {.size = sizeof(options)};
    agent_spec spec = {.n_ranks = n, .fn = fn, .fn_arg = arg};
    agent_result result;
    ls_status st;

    if (opt != NULL)
        memcpy(&options, opt, opt->size < sizeof(options) ? opt->size : sizeof(options));
    if (fn == NULL || n < 1)
        return ls_fail(LS_EINVAL, "ls_spawn needs a function and at least one rank, not %d", n);
    if (options.nodes > 1)
        return ls_fail(LS_EUNSUPPORTED,
                       "ls_spawn starts the ranks of one machine; %d are asked for", options.nodes);
    if (process_count_threads() > 1)
        return ls_fail(LS_EINVAL,
                       "ls_spawn needs a process with one thread, this one has %d: call it before "
                       "anything that "
                       "starts threads (OpenMP, a device)",
                       process_count_threads());
    spec.grace_ms = options.grace_ms > 0 ? options.grace_ms : 10000;
    (void)fflush(NULL); /* or each child would print what is buffered now */
    LS_TRY(agent_run(&spec, &result));
    st = LS_OK;
    if (result.failed) /* the report's first line; the children have printed the rest themselves */
        st = ls_fail(LS_EPEER, "%.*s", (int)strcspn(text_str(&result.report), "\n"),
                     text_str(&result.report));
    else if (result.exit_code != 0)
        st = ls_fail(LS_ECANCELED, "stopped by signal %d (%s)", result.exit_code - 128,
                     process_signal_name(result.exit_code - 128));
    text_free(&result.report);
    return st;
}
