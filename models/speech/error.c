/* SPDX-License-Identifier: Apache-2.0 */
/* error.c - formats the error texts of models/speech; each of its files calls it. */
#include "models/speech/error.h"

#include <stdarg.h>
#include <stdio.h>

ls_status speech_fail(speech_error *error, ls_status status, const char *format, ...)
{
    va_list args;

    if (error == NULL)
        return status;
    va_start(args, format);
    (void)vsnprintf(error->text, sizeof(error->text), format, args);
    va_end(args);
    return status;
}
