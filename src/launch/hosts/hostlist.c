/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hostlist.c - parses -H and host files, and places ranks on hosts. Every name that it accepts is
 * safe as an argument of ssh. Slurm's lists are in hostlist_slurm.c. Called by the tool's flags.
 */
#include "launch/hosts/hostlist_internal.h"

#include "base/alloc.h"
#include "base/file.h"
#include "base/map.h"
#include "base/text.h"

#include <string.h>

/* --- names --- */

bool hostlist_is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_name_char(char c)
{
    return hostlist_is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '.' ||
           c == '_' || c == '-';
}

static bool is_plain(const char *name, size_t n)
{
    if (n < 1 || n > HOSTLIST_NAME_MAX || name[0] == '-' || name[0] == '.')
        return false;
    for (size_t i = 0; i < n; i++)
        if (!is_name_char(name[i]))
            return false;
    return true;
}

/* "fe80::1%eth0": safe as an argument of ssh; the resolver checks the rest. */
static bool is_ipv6(const char *name, size_t n)
{
    const char *zone = memchr(name, '%', n);
    const size_t n_address = zone == NULL ? n : (size_t)(zone - name);
    int n_colons = 0;

    if (n_address < 2 || n_address > 45)
        return false;
    for (size_t i = 0; i < n_address; i++) {
        const char c = name[i];

        n_colons += c == ':';
        if (!hostlist_is_digit(c) && !(c >= 'a' && c <= 'f') && !(c >= 'A' && c <= 'F') &&
            c != ':' && c != '.')
            return false;
    }
    return n_colons >= 2 && (zone == NULL || is_plain(zone + 1, n - n_address - 1));
}

bool hostlist_is_name(const char *name, size_t n)
{
    const char *at = memchr(name, '@', n);
    const size_t n_user = at == NULL ? 0 : (size_t)(at - name);

    if (at == NULL)
        return is_plain(name, n) || is_ipv6(name, n);
    name += n_user + 1;
    n -= n_user + 1;
    return is_plain(at - n_user, n_user) && (is_plain(name, n) || is_ipv6(name, n));
}

/* The part of a wrong word that an error shows. */
const char *hostlist_printable(char *buf, size_t n, const char *word, size_t n_word)
{
    const size_t used = n_word < n - 1 ? n_word : n - 1;

    memcpy(buf, word, used);
    buf[used] = 0;
    for (size_t i = 0; i < used; i++)
        if (buf[i] < ' ' || buf[i] > '~')
            buf[i] = '?';
    return buf;
}

/* --- lists --- */

ls_status hostlist_append(hostlist *list, const char *name, size_t n, int slots)
{
    char *copy;

    if (list->n == HOSTLIST_HOSTS_MAX)
        return ls_fail(LS_EINVAL, "more than %d hosts", HOSTLIST_HOSTS_MAX);
    if (list->n == list->capacity) {
        const int capacity = list->capacity == 0 ? 16 : 2 * list->capacity;
        LS_TRY(LS_RESIZE(&list->hosts, (size_t)capacity, "for %d hosts", capacity));
        list->capacity = capacity;
    }
    LS_TRY(LS_NEW(&copy, n + 1, "for a host's name"));
    memcpy(copy, name, n);
    list->hosts[list->n++] = (hostlist_host){.name = copy, .slots = slots};
    return LS_OK;
}

void hostlist_free(hostlist *list)
{
    for (int i = 0; i < list->n; i++)
        ls_free(list->hosts[i].name);
    ls_free(list->hosts);
    *list = (hostlist){0};
}

/* A list that grows by names, which may repeat. */
typedef struct collector {
    hostlist *list;
    byte_map places; /* name -> its index + 1 */
} collector;

static ls_status add_host(collector *c, const char *name, size_t n, int slots, int max_slots)
{
    const uintptr_t place = (uintptr_t)byte_map_get(&c->places, name, n);
    hostlist_host *host;
    char shown[64];

    if (place == 0) {
        LS_TRY(hostlist_append(c->list, name, n, slots));
        LS_TRY(byte_map_set(&c->places, name, n, (void *)(uintptr_t)c->list->n, NULL));
        host = &c->list->hosts[c->list->n - 1];
    } else {
        host = &c->list->hosts[place - 1];
        host->slots = (host->slots == 0 ? 1 : host->slots) + (slots == 0 ? 1 : slots);
    }
    if (host->slots > max_slots)
        return ls_fail(LS_EINVAL, "%d slots on \"%s\", more than the maximum of %d", host->slots,
                       hostlist_printable(shown, sizeof(shown), name, n), max_slots);
    return LS_OK;
}

/* Reads the digits at s, up to end; -1 for none, or a number beyond max. */
int hostlist_number(const char **s, const char *end, int max)
{
    int value = 0;

    if (*s == end || !hostlist_is_digit(**s))
        return -1;
    for (; *s < end && hostlist_is_digit(**s); (*s)++) {
        const int digit = **s - '0';

        if (value > (max - digit) / 10)
            return -1;
        value = value * 10 + digit;
    }
    return value;
}

/* --- host, host:slots, [v6]:slots --- */

typedef struct host_word {
    const char *name;
    size_t n_name;
    int slots;
} host_word;

static ls_status bad_word(const char *word, size_t n)
{
    char shown[64];

    if (memchr(word, ':', n) != NULL && is_ipv6(word, n))
        return ls_fail(LS_EINVAL, "\"%s\" is an IPv6 address; write it in brackets",
                       hostlist_printable(shown, sizeof(shown), word, n));
    return ls_fail(
        LS_EINVAL,
        "\"%s\" is not a host; write host or host:slots, of letters, digits, \".\", \"_\", \"-\"",
        hostlist_printable(shown, sizeof(shown), word, n));
}

/* Where the name ends and ":slots" begins; NULL when the brackets do not match. */
static const char *end_of_name(const char *word, size_t n, host_word *out)
{
    const char *open = memchr(word, '[', n);
    const char *end = word + n;
    const char *close;

    if (open == NULL) {
        close = memchr(word, ':', n);
        end = close == NULL ? end : close;
        *out = (host_word){.name = word, .n_name = (size_t)(end - word)};
        return end;
    }
    close = memchr(open, ']', (size_t)(end - open));
    if (open != word || close == NULL)
        return NULL;
    *out = (host_word){.name = open + 1, .n_name = (size_t)(close - open - 1)};
    return is_ipv6(out->name, out->n_name) ? close + 1 : NULL;
}

static ls_status read_word(const char *word, size_t n, host_word *out)
{
    const char *end = word + n;
    const char *rest = end_of_name(word, n, out);
    char shown[64];

    if (rest == NULL || !hostlist_is_name(out->name, out->n_name) || (rest < end && *rest != ':'))
        return bad_word(word, n);
    if (rest == end)
        return LS_OK;
    rest++;
    out->slots = hostlist_number(&rest, end, HOSTLIST_SLOTS_MAX);
    if (out->slots < 1 || rest != end) {
        if (is_ipv6(word, n))
            return bad_word(word, n);
        return ls_fail(LS_EINVAL, "\"%s\": after the colon write a number of slots from 1 to %d",
                       hostlist_printable(shown, sizeof(shown), word, n), HOSTLIST_SLOTS_MAX);
    }
    return LS_OK;
}

/* --- -H --- */

static ls_status parse_words(const char *text, collector *c)
{
    const char *word = text;

    for (;;) {
        const size_t n = strcspn(word, ",");
        host_word host;
        ls_status st = LS_OK;

        if (n == 0)
            st = ls_fail(LS_EINVAL, "empty host name; write host:slots,host:slots");
        if (st == LS_OK)
            st = read_word(word, n, &host);
        if (st == LS_OK)
            st = add_host(c, host.name, host.n_name, host.slots, HOSTLIST_SLOTS_MAX);
        if (st != LS_OK)
            return ls_context(st, "-H, position %zu", (size_t)(word - text) + 1);
        if (word[n] == 0)
            return LS_OK;
        word += n + 1;
    }
}

static ls_status finish(collector *c, ls_status st)
{
    byte_map_free(&c->places);
    if (st != LS_OK)
        hostlist_free(c->list);
    return st;
}

ls_status hostlist_parse(const char *text, hostlist *out)
{
    collector c = {.list = out};

    *out = (hostlist){0};
    return finish(&c, parse_words(text, &c));
}

/* --- host files --- */

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

/* The next word of a line: up to a blank or "=", or "=" itself. Empty at its end. */
static size_t next_word(const char **s, const char *end)
{
    const char *p;

    while (*s < end && is_blank(**s))
        (*s)++;
    p = *s;
    if (p < end && *p == '=')
        return 1;
    while (p < end && !is_blank(*p) && *p != '=')
        p++;
    return (size_t)(p - *s);
}

static bool is_word(const char *s, size_t n, const char *word)
{
    return n == strlen(word) && memcmp(s, word, n) == 0;
}

/* "slots=4", "max_slots = 8". */
static ls_status read_setting(const char **s, const char *end, int *slots, int *max_slots)
{
    const char *key = *s;
    const size_t n_key = next_word(s, end);
    const bool is_slots = is_word(key, n_key, "slots");
    const char *number;
    size_t n;
    int value;
    char shown[64];

    if (!is_slots && !is_word(key, n_key, "max_slots") && !is_word(key, n_key, "max-slots"))
        return ls_fail(LS_EINVAL,
                       "unknown setting \"%s\"; after a host write slots=N or max_slots=N",
                       hostlist_printable(shown, sizeof(shown), key, n_key));
    *s += n_key;
    n = next_word(s, end);
    if (is_word(*s, n, "=")) {
        *s += n;
        n = next_word(s, end);
        number = *s;
        value = hostlist_number(s, end, HOSTLIST_SLOTS_MAX);
        if (value >= 1 && (size_t)(*s - number) == n) {
            *(is_slots ? slots : max_slots) = value;
            return LS_OK;
        }
    }
    return ls_fail(LS_EINVAL, "after %s write = and a number from 1 to %d",
                   is_slots ? "slots" : "max_slots", HOSTLIST_SLOTS_MAX);
}

static ls_status read_line(const char *line, const char *end, collector *c)
{
    const char *comment = memchr(line, '#', (size_t)(end - line));
    int max_slots = HOSTLIST_SLOTS_MAX;
    host_word host = {.name = line};
    size_t n;

    if (comment != NULL)
        end = comment;
    n = next_word(&line, end);
    if (n == 0)
        return LS_OK;
    LS_TRY(read_word(line, n, &host));
    for (line += n;;) {
        n = next_word(&line, end);
        if (n == 0)
            return add_host(c, host.name, host.n_name, host.slots, max_slots);
        LS_TRY(read_setting(&line, end, &host.slots, &max_slots));
    }
}

static ls_status parse_lines(const char *bytes, size_t n, const char *name, collector *c)
{
    const char *const end = bytes + n;
    int number = 1;

    for (const char *line = bytes; line < end; number++) {
        const char *newline = memchr(line, '\n', (size_t)(end - line));
        const char *line_end = newline == NULL ? end : newline;
        const ls_status st = read_line(line, line_end, c);

        if (st != LS_OK)
            return ls_context(st, "%s, line %d", name, number);
        line = newline == NULL ? end : newline + 1;
    }
    if (c->list->n == 0)
        return ls_fail(LS_EINVAL, "%s: no hosts; write one per line, as \"host slots=8\"", name);
    return LS_OK;
}

ls_status hostlist_parse_file(const char *bytes, size_t n, const char *name, hostlist *out)
{
    collector c = {.list = out};

    *out = (hostlist){0};
    return finish(&c, parse_lines(bytes, n, name, &c));
}

ls_status hostlist_load(const char *path, hostlist *out)
{
    char *bytes;
    size_t n;
    ls_status st;

    *out = (hostlist){0};
    LS_TRY(file_read_input(path, HOSTLIST_FILE_BYTES_MAX, &bytes, &n));
    st = hostlist_parse_file(bytes, n, path, out);
    ls_free(bytes);
    return st;
}

/* --- placing --- */

ls_status hostlist_place(hostlist *list, int n_ranks)
{
    int64_t n_slots = 0;
    int64_t left;

    for (int i = 0; i < list->n; i++)
        n_slots += list->hosts[i].slots;
    left = n_ranks == 0 ? n_slots : n_ranks;
    if (left > n_slots)
        return ls_fail(LS_EINVAL,
                       "%d ranks (-n), but the %d host%s %lld slot%s; fix: give more slots (-H "
                       "HOST:SLOTS, or slots=N in the file)",
                       n_ranks, list->n, list->n == 1 ? " has" : "s have", (long long)n_slots,
                       n_slots == 1 ? "" : "s");
    if (left < 1 || left > HOSTLIST_SLOTS_MAX)
        return ls_fail(LS_EINVAL, "%lld ranks; a job has 1 to %d", (long long)left,
                       HOSTLIST_SLOTS_MAX);
    for (int i = 0; i < list->n; i++) {
        hostlist_host *host = &list->hosts[i];

        host->slots = host->slots < left ? host->slots : (int)left;
        left -= host->slots;
    }
    return LS_OK;
}
