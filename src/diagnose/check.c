/* SPDX-License-Identifier: Apache-2.0 */
#include "diagnose/check_internal.h"

static void (*const subjects[])(check *c) = {
    check_version, check_settings, check_memlock, check_memory, check_ports,     check_clock,
    check_key,     check_kernel,   check_ssh,     check_gpus,   check_leftovers,
};

ls_status check_all(const check_options *options, findings *out)
{
    check c;

    LS_TRY(check_begin(options, out, &c));
    c.is_patient = true;
    check_quick_subjects(&c);
    for (size_t i = 0; i < LS_COUNT_OF(subjects); i++)
        subjects[i](&c);
    return findings_status(out);
}
