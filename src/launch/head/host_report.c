/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host_report.c - groups the errors of hosts by their kind, which is the text with the host's name
 * and addresses replaced. Called by the agent (hosts that it could not start) and by head_report.c.
 */
#include "launch/head/host_report.h"

#include "base/alloc.h"
#include "launch/hosts/hostlist.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <stdbool.h>
#include <string.h>

enum { NAMES_MOST = 4096, WORD_MOST = 256 };

/* --- kinds --- */

static bool is_word_char(char c)
{
    return isalnum((unsigned char)c) || strchr("._-:", c) != NULL;
}

/* "node2", "node2.cluster" and "node2" of "me@node2.cluster" are one host. */
static bool is_host(const char *word, const char *host)
{
    const char *at = strchr(host, '@');
    const char *name = at != NULL ? at + 1 : host;
    const size_t n_word = strlen(word);
    const size_t n_name = strlen(name);
    const size_t n = n_word < n_name ? n_word : n_name;

    return n > 0 && strncmp(word, name, n) == 0 && (word[n] == 0 || word[n] == '.') &&
           (name[n] == 0 || (name[n] == '.' && strspn(name, "0123456789.") < n_name));
}

static bool is_address(const char *word)
{
    struct in6_addr parsed;

    return inet_pton(AF_INET, word, &parsed) == 1 || inet_pton(AF_INET6, word, &parsed) == 1;
}

static void append_word(const char *bytes, size_t n, const char *host, text_buf *out)
{
    char word[WORD_MOST];
    size_t n_word = n;

    while (n_word > 0 && strchr(".:-", bytes[n_word - 1]) != NULL)
        n_word--; /* punctuation of the sentence */
    text_format(word, sizeof(word), "%.*s", (int)n_word, bytes);
    if (n_word < sizeof(word) && is_host(word, host))
        text_append(out, "HOST");
    else if (n_word < sizeof(word) && is_address(word))
        text_append(out, "ADDRESS");
    else
        text_append_bytes(out, bytes, n_word);
    text_append_bytes(out, bytes + n_word, n - n_word);
}

static void append_kind(const char *why, const char *host, text_buf *out)
{
    while (*why != 0) {
        size_t n = 0;

        while (why[n] != 0 && is_word_char(why[n]))
            n++;
        if (n > 0)
            append_word(why, n, host, out);
        else
            text_append_bytes(out, why, n = 1);
        why += n;
    }
}

/* --- items --- */

static void free_item(host_error *item)
{
    ls_free(item->host);
    ls_free(item->why);
    ls_free(item->kind);
}

static char *copy_printable(const char *text)
{
    const size_t n = strlen(text) + 1;
    char *copy = ls_calloc(n, 1);

    if (copy != NULL)
        text_printable(copy, n, text);
    return copy;
}

static ls_status reserve(host_report *r)
{
    const int capacity = r->capacity == 0 ? 16 : 2 * r->capacity;

    if (r->n < r->capacity)
        return LS_OK;
    LS_TRY(LS_RESIZE(&r->items, (size_t)capacity, "for the errors of %d hosts", capacity));
    r->capacity = capacity;
    return LS_OK;
}

ls_status host_report_add(host_report *r, const char *host, const char *why)
{
    host_error item = {0};
    text_buf kind = {0};

    LS_TRY(reserve(r));
    item.host = copy_printable(host);
    item.why = copy_printable(why);
    text_append(&kind, "%s", ""); /* it may be all of it */
    if (item.host != NULL && item.why != NULL)
        append_kind(item.why, item.host, &kind);
    item.kind = kind.data;
    if (item.host == NULL || item.why == NULL || text_status(&kind) != LS_OK) {
        free_item(&item);
        return ls_fail(LS_ENOMEM, "no memory for the error of %s", host);
    }
    r->items[r->n++] = item;
    return LS_OK;
}

void host_report_free(host_report *r)
{
    for (int i = 0; i < r->n; i++)
        free_item(&r->items[i]);
    ls_free(r->items);
    *r = (host_report){0};
}

/* --- lines --- */

/* The hosts of this item's kind, if it is the first of them; gives their number. */
static size_t list_hosts(const host_report *r, int first, const char **names)
{
    size_t n = 0;

    for (int i = 0; i < r->n; i++) {
        if (!text_equal(r->items[i].kind, r->items[first].kind))
            continue;
        if (i < first)
            return 0;
        names[n++] = r->items[i].host;
    }
    return n;
}

static void append_hosts(const char *const *names, size_t n, text_buf *out)
{
    text_buf list = {0};

    hostlist_fold(names, n, &list);
    if (list.length <= NAMES_MOST)
        text_append(out, "%s", text_str(&list));
    else
        text_append(out, "%.*s... (%zu hosts)", NAMES_MOST, text_str(&list), n);
    text_free(&list);
}

void host_report_write(const host_report *r, void (*line)(void *self, const char *text), void *self)
{
    const char **names = ls_calloc((size_t)r->n + 1, sizeof(*names));
    const char *alone;

    for (int i = 0; i < r->n; i++) {
        const char **list = names != NULL ? names : &alone; /* without memory each has its line */
        const size_t n = names != NULL ? list_hosts(r, i, names) : 1;
        text_buf text = {0};

        alone = r->items[i].host;

        if (n == 0)
            continue;
        text_append(&text, n == 1 ? "host " : "hosts ");
        append_hosts(list, n, &text);
        text_append(&text, ": %s", n == 1 ? r->items[i].why : r->items[i].kind);
        line(self, text_str(&text));
        text_free(&text);
    }
    ls_free(names);
}
