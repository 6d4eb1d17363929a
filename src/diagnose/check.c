/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check.c - the full check: the quick subjects (check_quick.c), then those that take longer. Called
 * by lockstep check, and on each host by the check of several.
 */
#include "diagnose/check_internal.h"

static void (*const subjects[])(check *c) = {
    check_version, check_settings, check_memlock, check_memory, check_ports,     check_clock,
    check_key,     check_kernel,   check_ssh,     check_gpus,   check_leftovers,
};

ls_status check_all(const check_options *options, findings *out)
{
    check c;

    LS_TRY(check_begin(options, out, &c));
    c.is_full = true;
    check_quick_subjects(&c);
    for (size_t i = 0; i < LS_COUNT_OF(subjects); i++)
        subjects[i](&c);
    return findings_status(out);
}
