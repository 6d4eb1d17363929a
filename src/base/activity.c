/* SPDX-License-Identifier: Apache-2.0 */
/* activity.c - holds the text of activity.h in a static buffer. */
#include "base/activity.h"

#include "base/text.h"

/* static, because an exit handler gets no argument */
static char activity[ACTIVITY_BYTES];

void activity_set(const char *text)
{
    (void)text_format(activity, sizeof(activity), "%s", text != NULL ? text : "");
}

const char *activity_get(void)
{
    return activity;
}
