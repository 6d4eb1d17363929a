/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/process/process_text.h"

#include "base/process_text.h"
#include "base/text.h"

const char *process_leftover_text(char *buf, size_t n, const leftover *what)
{
    char age[32];

    return text_format(buf, n, "pid %d (%s), %s old, of job %s", (int)what->id.pid, what->program,
                       process_age_text(age, sizeof(age), what->age_s),
                       what->job[0] != 0 ? what->job : "without a name");
}
