/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pmi.c - parses the PMI-1 requests of ranks and makes the replies, one function a command. At most
 * one reply of a rank is pending. Called by agent/agent_pmi.c.
 */
#include "launch/pmi/pmi_internal.h"

#include "base/alloc.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define NO_MEMORY "more than there is memory for"

/* --- parsing a line --- */

static bool is_word(pmi_slice s, const char *word)
{
    return s.n == strlen(word) && memcmp(s.at, word, s.n) == 0;
}

/* A value that may contain spaces; it is the last of its line. */
static bool is_text(pmi_slice name)
{
    return is_word(name, "value") || is_word(name, "message");
}

/* Finds the value behind NAME= in a line of such pairs. */
static bool find(const char *line, const char *searched, pmi_slice *out)
{
    for (line += strspn(line, " "); *line != 0; line += strspn(line, " ")) {
        const size_t length = strcspn(line, " ");
        const pmi_slice name = {line, strcspn(line, " =")};
        const char *value = line + name.n + 1;

        if (name.n < length && is_word(name, searched)) {
            *out = (pmi_slice){value, is_text(name) ? strlen(value) : length - name.n - 1};
            return true;
        }
        if (name.n < length && is_text(name))
            return false;
        line += length;
    }
    return false;
}

static int find_number(const char *line, const char *searched, int otherwise)
{
    char digits[16];
    int64_t value;
    pmi_slice s;

    if (!find(line, searched, &s) || s.n >= sizeof(digits))
        return otherwise;
    text_format(digits, sizeof(digits), "%.*s", (int)s.n, s.at);
    return text_parse_int(digits, searched, INT_MIN, INT_MAX, &value) == LS_OK ? (int)value
                                                                               : otherwise;
}

/* --- replies --- */

/* Stops answering the rank. */
static void fail_rank(pmi_rank *r, const char *fault)
{
    r->fault = fault;
    r->is_over = true;
}

static void reply(pmi_rank *r, const char *format, ...) LS_PRINTF(2, 3);
static void reply(pmi_rank *r, const char *format, ...)
{
    char line[PMI_LINE_MOST + 64];
    va_list args;

    if (r->is_over)
        return;
    va_start(args, format);
    (void)vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    text_append(&r->reply, "%s\n", line);
    if (r->reply.failed)
        fail_rank(r, NO_MEMORY);
}

/* --- one function a command --- */

static void answer_init(pmi *p, int rank, const char *line)
{
    const bool ours = find_number(line, "pmi_version", 1) == 1;

    p->ranks[rank].state = PMI_JOINED;
    reply(&p->ranks[rank], "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=%d",
          ours ? 0 : -1);
}

static void answer_universe(pmi *p, int rank, const char *line)
{
    LS_UNUSED(line);
    reply(&p->ranks[rank], "cmd=universe_size rc=0 size=%d", p->world_size);
}

static void answer_name(pmi *p, int rank, const char *line)
{
    LS_UNUSED(line);
    reply(&p->ranks[rank], "cmd=my_kvsname rc=0 kvsname=%s", p->name);
}

/* Finds the key of a request. Returns NULL, or the error of the request. */
static const char *find_key(const pmi *p, const char *line, pmi_slice *key)
{
    pmi_slice space;

    if (find(line, "kvsname", &space) && !is_word(space, p->name))
        return "no_such_kvsname";
    if (!find(line, "key", key) || key->n == 0)
        return "no_key";
    return key->n > PMI_KEY_MOST ? "key_too_long" : NULL;
}

static void answer_put(pmi *p, int rank, const char *line)
{
    pmi_slice key;
    pmi_slice value = {"", 0};
    const char *wrong = find_key(p, line, &key);

    if (wrong == NULL && !find(line, "value", &value))
        wrong = "no_value";
    if (wrong == NULL)
        wrong = pmi_put(p, rank, key, value);
    if (wrong == NULL)
        reply(&p->ranks[rank], "cmd=put_result rc=0");
    else
        reply(&p->ranks[rank], "cmd=put_result rc=-1 msg=%s", wrong);
}

static void answer_get(pmi *p, int rank, const char *line)
{
    pmi_slice key;
    const char *wrong = find_key(p, line, &key);
    const char *value = wrong == NULL ? pmi_get(p, key) : NULL;

    if (value != NULL)
        reply(&p->ranks[rank], "cmd=get_result rc=0 value=%s", value);
    else
        reply(&p->ranks[rank], "cmd=get_result rc=-1 msg=%s",
              wrong == NULL ? "key_not_found" : wrong);
}

static void answer_barrier(pmi *p, int rank, const char *line)
{
    LS_UNUSED(line);
    p->ranks[rank].in_barrier = true;
    p->has_full_barrier = ++p->n_waiting == p->n_ranks;
}

static void answer_finalize(pmi *p, int rank, const char *line)
{
    LS_UNUSED(line);
    p->ranks[rank].state = PMI_LEFT;
    reply(&p->ranks[rank], "cmd=finalize_ack rc=0");
}

/* Sends no reply: clients do not continue after an abort. */
static void take_abort(pmi *p, int rank, const char *line)
{
    pmi_rank *r = &p->ranks[rank];
    char text[sizeof(r->text)];
    pmi_slice message;

    r->has_aborted = true;
    r->abort_code = find_number(line, "exitcode", 1);
    if (find(line, "message", &message)) {
        text_format(text, sizeof(text), "%.*s", (int)message.n, message.at);
        text_printable(r->text, sizeof(r->text), text);
    }
}

#define SPAWN_RESULT "cmd=spawn_result rc=-1 msg=not_supported"

/* The limits in the maxes are the same as from the launchers of MPICH. */
static const struct {
    const char *name;
    void (*answer)(pmi *p, int rank, const char *line);
    const char *fixed_reply;
} commands[] = {
    {"init", answer_init, NULL},
    {"get_maxes", NULL, "cmd=maxes rc=0 kvsname_max=256 keylen_max=64 vallen_max=1024"},
    {"get_appnum", NULL, "cmd=appnum rc=0 appnum=0"},
    {"get_universe_size", answer_universe, NULL},
    {"get_my_kvsname", answer_name, NULL},
    {"put", answer_put, NULL},
    {"get", answer_get, NULL},
    {"barrier_in", answer_barrier, NULL},
    {"finalize", answer_finalize, NULL},
    {"abort", take_abort, NULL},
    {"publish_name", NULL, "cmd=publish_result rc=-1 info=not_supported msg=not_supported"},
    {"unpublish_name", NULL, "cmd=unpublish_result rc=-1 info=not_supported msg=not_supported"},
    {"lookup_name", NULL, "cmd=lookup_result rc=-1 info=not_supported msg=not_supported"},
    {"spawn", NULL, SPAWN_RESULT},
};

/* A spawn request has several lines, once for each program. The client expects one reply. */
static void take_spawn(pmi *p, int rank, const char *line)
{
    pmi_rank *r = &p->ranks[rank];

    if (text_starts(line, "totspawns="))
        r->n_spawns = find_number(line, "totspawns", 1);
    if (text_starts(line, "spawnssofar="))
        r->spawn_number = find_number(line, "spawnssofar", 1);
    if (!text_equal(line, "endcmd"))
        return;
    if (r->spawn_number >= r->n_spawns)
        reply(r, SPAWN_RESULT);
    r->n_spawns = 0;
}

static void answer(pmi *p, int rank, const char *line)
{
    pmi_rank *r = &p->ranks[rank];
    pmi_slice command;

    if (r->n_spawns > 0) {
        take_spawn(p, rank, line);
        return;
    }
    if (text_equal(line, "mcmd=spawn")) {
        r->n_spawns = r->spawn_number = 1;
        return;
    }
    if (r->in_barrier) {
        fail_rank(r, "a request while it waits in a barrier");
        return;
    }
    if (!find(line, "cmd", &command)) {
        fail_rank(r, "a line without a command");
        return;
    }
    for (size_t i = 0; i < LS_COUNT_OF(commands); i++) {
        if (!is_word(command, commands[i].name))
            continue;
        if (r->state == PMI_SILENT)
            r->state = PMI_JOINED; /* some clients do not send init */
        if (commands[i].answer != NULL)
            commands[i].answer(p, rank, line);
        else
            reply(r, "%s", commands[i].fixed_reply);
        return;
    }
    reply(r, "cmd=unknown rc=-1 msg=unknown_command");
}

/* --- bytes --- */

static void drop_front(text_buf *t, size_t n)
{
    if (n == t->length) {
        text_free(t); /* most ranks send nothing more */
        return;
    }
    memmove(t->data, t->data + n, t->length - n + 1);
    t->length -= n;
}

/* Answers the first line, if it is complete. */
static bool answer_next(pmi *p, int rank)
{
    pmi_rank *r = &p->ranks[rank];
    const size_t searched = r->request.length < PMI_LINE_MOST ? r->request.length : PMI_LINE_MOST;
    char *end = searched > 0 ? memchr(r->request.data, '\n', searched) : NULL;
    const size_t length = end != NULL ? (size_t)(end - r->request.data) : searched;

    if (searched > 0 && memchr(r->request.data, 0, length) != NULL)
        fail_rank(r, "a zero byte");
    else if (end == NULL && searched == PMI_LINE_MOST)
        fail_rank(r, "a line that is too long");
    if (end == NULL || r->fault != NULL)
        return false;
    *end = 0;
    answer(p, rank, r->request.data);
    drop_front(&r->request, length + 1);
    return true;
}

bool pmi_receive(pmi *p, int rank, const char *bytes, size_t n)
{
    pmi_rank *r = &p->ranks[rank];

    if (r->is_over)
        return r->reply.length > 0;
    if (n > 0)
        text_append_bytes(&r->request, bytes, n);
    if (r->request.failed)
        fail_rank(r, NO_MEMORY);
    while (r->reply.length == 0 && !r->is_over && answer_next(p, rank))
        continue;
    return r->reply.length > 0;
}

void pmi_sent(pmi *p, int rank, size_t n)
{
    if (n > 0)
        drop_front(&p->ranks[rank].reply, n);
}

void pmi_end_rank(pmi *p, int rank)
{
    pmi_rank *r = &p->ranks[rank];

    p->n_waiting -= r->in_barrier;
    r->in_barrier = false;
    r->is_over = true;
    text_free(&r->request);
    text_free(&r->reply);
}

/* --- the barrier --- */

bool pmi_take_full_barrier(pmi *p)
{
    const bool is_full = p->has_full_barrier;

    p->has_full_barrier = false;
    return is_full;
}

void pmi_release_barrier(pmi *p)
{
    p->n_waiting = 0;
    p->n_passed++;
    for (int i = 0; i < p->n_ranks; i++) {
        p->ranks[i].in_barrier = false;
        reply(&p->ranks[i], "cmd=barrier_out rc=0");
    }
}

const char *pmi_early_exit_text(pmi_state state)
{
    switch (state) {
    case PMI_SILENT:
        return "exited with code 0 without MPI_Init, where other ranks wait for it";
    case PMI_JOINED:
        return "exited with code 0 without MPI_Finalize, while other ranks were in MPI with it";
    case PMI_LEFT:
        return "exited with code 0, while other ranks wait for it in MPI";
    }
    return "";
}

/* --- life --- */

ls_status pmi_create(const char *name, int n_ranks, int world_size, const char *layout, pmi **out)
{
    pmi *p = ls_calloc(1, sizeof(*p));

    if (p != NULL)
        p->ranks = ls_calloc((size_t)n_ranks, sizeof(*p->ranks));
    if (p == NULL || p->ranks == NULL)
        goto fail;
    p->n_ranks = n_ranks;
    p->world_size = world_size;
    text_format(p->name, sizeof(p->name), "%s", name);
    if (pmi_put_layout(p, layout) != NULL)
        goto fail;
    *out = p;
    return LS_OK;

fail:
    pmi_destroy(p);
    return ls_fail(LS_ENOMEM, "no memory to serve PMI to %d rank%s", n_ranks, text_plural(n_ranks));
}

void pmi_destroy(pmi *p)
{
    if (p == NULL)
        return;
    pmi_free_keys(p);
    for (int i = 0; p->ranks != NULL && i < p->n_ranks; i++) {
        text_free(&p->ranks[i].request);
        text_free(&p->ranks[i].reply);
    }
    ls_free(p->ranks);
    ls_free(p);
}
