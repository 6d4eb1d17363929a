/* SPDX-License-Identifier: Apache-2.0 */
/*
 * process_text.c - the texts of process_text.h, for messages of net/, launch/ and diagnose/.
 */
#include "base/process_text.h"

#include "base/text.h"

#include <pwd.h>

const char *process_age_text(char *buf, size_t n, int64_t seconds)
{
    static const struct {
        int64_t seconds;
        const char *unit;
    } units[] = {{86400, "days"}, {3600, "h"}, {60, "min"}, {1, "s"}};
    size_t i = 0;

    while (i + 1 < LS_COUNT_OF(units) && seconds < 2 * units[i].seconds)
        i++;
    return text_format(buf, n, "%lld %s", (long long)(seconds / units[i].seconds), units[i].unit);
}

const char *process_user_text(char *buf, size_t n, uid_t uid)
{
    struct passwd entry;
    struct passwd *found = NULL;
    char space[4096];

    if (getpwuid_r(uid, &entry, space, sizeof(space), &found) == 0 && found != NULL)
        return text_format(buf, n, "%s", found->pw_name);
    return text_format(buf, n, "user %u", (unsigned)uid);
}
