/* SPDX-License-Identifier: Apache-2.0 */
#include "base/activity.h"

#include "base/text.h"

/* An exit handler can reach nothing but a global. */
static char activity[ACTIVITY_BYTES];

void activity_set(const char *text)
{
    (void)text_format(activity, sizeof(activity), "%s", text != NULL ? text : "");
}

const char *activity_get(void)
{
    return activity;
}
