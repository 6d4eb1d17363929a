/* SPDX-License-Identifier: Apache-2.0 */
/*
 * launch_request_env.c - selects the environment variables of a launch request. None identifies
 * this process in its own job. Called by the head's agent and by the check of several hosts.
 */
#include "launch/spec/launch_request.h"

#include "base/alloc.h"
#include "base/text.h"

#include <unistd.h>

extern char **environ;

/*
 * Variables in which a non-interactive shell differs from this one, and settings of the libraries
 * that train; but none that identify this process in its own job.
 */
static bool is_sent(const char *entry)
{
    static const char *const sent[] = {"PATH=",       "LD_LIBRARY_PATH=",
                                       "PYTHONPATH=", "VIRTUAL_ENV=",
                                       "CONDA_",      "LOCKSTEP_",
                                       "NCCL_",       "GLOO_",
                                       "OMP_",        "GOMP_",
                                       "CUDA_",       "TORCH_",
                                       "TERM=",       "COLORTERM="};
    static const char *const own[] = {"LOCKSTEP_JOB=", "LOCKSTEP_KEY_F",
                                      "LOCKSTEP_RING_FD=", "LOCKSTEP_TTY="};

    for (size_t i = 0; i < LS_COUNT_OF(own); i++)
        if (text_starts(entry, own[i]))
            return false;
    for (size_t i = 0; i < LS_COUNT_OF(sent); i++)
        if (text_starts(entry, sent[i]))
            return true;
    return false;
}

ls_status launch_request_list_env(char *const *exports, int n_exports, bool with_own,
                                  launch_request *o)
{
    size_t n_own = 0;
    size_t n = 0;

    while (environ[n_own] != NULL)
        n_own++;
    LS_TRY(LS_NEW(&o->env, n_own + (size_t)n_exports + 1, "for an environment"));
    for (size_t i = 0; i < n_own && with_own; i++)
        if (is_sent(environ[i]))
            o->env[n++] = environ[i];
    for (int i = 0; i < n_exports; i++)
        o->env[n++] = exports[i];
    if (n <= LAUNCH_REQUEST_STRINGS_MAX)
        return LS_OK;
    return ls_fail(LS_EINVAL, "%zu variables for other hosts, %d are the most", n,
                   LAUNCH_REQUEST_STRINGS_MAX);
}
