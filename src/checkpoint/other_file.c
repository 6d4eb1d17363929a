/* SPDX-License-Identifier: Apache-2.0 */
/* other_file.c - recognizes what is often found in the place of a file of weights: see
 * other_file.h. */
#include "checkpoint/other_file.h"

#include "base/file.h"
#include "base/text.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

enum { START_BYTES = 256, SHOWN_BYTES = 64 };

static bool starts_with(const char *text, const char *start)
{
    return strncasecmp(text, start, strlen(start)) == 0;
}

static bool is_html(const char *text)
{
    if (strncmp(text, "\xef\xbb\xbf", 3) == 0)
        text += 3;
    while (isspace((unsigned char)*text))
        text++;
    return starts_with(text, "<!doctype html") || starts_with(text, "<html");
}

/* A header begins with its length, whose high bytes are 0. */
static bool is_text(const char *start)
{
    for (int i = 0; i < 8; i++)
        if (!isprint((unsigned char)start[i]) && !isspace((unsigned char)start[i]))
            return false;
    return true;
}

ls_status other_file_refuse(int fd, const char *path, uint64_t file_bytes)
{
    char start[START_BYTES + 1] = "";
    char shown[SHOWN_BYTES];
    const size_t n = file_bytes < START_BYTES ? (size_t)file_bytes : START_BYTES;

    LS_TRY(file_pread_all(fd, path, start, n, 0));
    if (starts_with(start, "version https://git-lfs"))
        return ls_fail(LS_EFORMAT,
                       "%s is a pointer of Git LFS, not the file of weights: get that with "
                       "git lfs pull, or download it again",
                       path);
    if (is_html(start))
        return ls_fail(LS_EFORMAT,
                       "%s is an HTML page, not a file of weights: the download has got a page of "
                       "the server (a login, a license or an error); open the address in a browser",
                       path);
    text_printable(shown, sizeof(shown), start);
    if (is_text(start))
        return ls_fail(LS_EFORMAT,
                       "%s is text, not a file of weights: it begins with \"%s\"; if that is an "
                       "answer of the server, download the file again",
                       path, shown);
    return LS_OK;
}
