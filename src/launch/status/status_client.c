/* SPDX-License-Identifier: Apache-2.0 */
/* status_client.c - the tool's side of status_client.h. Blocks until an answer or a deadline. */
#include "launch/status/status_client.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/file.h"
#include "net/messages/frame.h"
#include "net/socket.h"
#include "net/wire.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define PREFIX "lockstep-view-"

enum { ANSWER_MAX = 128 * 1024 * 1024, CONNECT_MS = 2000, LIST_BYTES_MAX = 64 * 1024 * 1024 };

struct status_client {
    int fd;
    frame_reader in;
};

ls_status status_address(const char *agent_name, net_address *out)
{
    char text[NET_ADDRESS_TEXT_MAX];

    text_format(text, sizeof(text), "unix:@" PREFIX "%u-%s", (unsigned)geteuid(), agent_name);
    return net_address_decode(text, out);
}

/* --- the list of jobs --- */

static bool has_name(char names[][STATUS_NAME], int n, const char *name)
{
    for (int i = 0; i < n; i++)
        if (text_equal(names[i], name))
            return true;
    return false;
}

/* The listening socket and its connections are lines of the same name. */
static void take_line(const char *line, size_t bytes, char names[][STATUS_NAME], int *n)
{
    char prefix[64];
    char name[STATUS_NAME];
    const char *found;

    text_format(prefix, sizeof(prefix), "@" PREFIX "%u-", (unsigned)geteuid());
    found = memmem(line, bytes, prefix, strlen(prefix));
    if (found == NULL || *n == STATUS_JOBS_MAX)
        return;
    found += strlen(prefix);
    if (bytes - (size_t)(found - line) != 16 || strspn(found, "0123456789abcdef") < 16)
        return;
    text_format(name, sizeof(name), "%.16s", found);
    if (!has_name(names, *n, name))
        memcpy(names[(*n)++], name, sizeof(name));
}

ls_status status_list(char names[][STATUS_NAME], int *n)
{
    char *text;
    size_t bytes;
    const char *line;
    const char *end;

    *n = 0;
    LS_TRY(file_read("/proc/net/unix", LIST_BYTES_MAX, &text, &bytes));
    for (line = text; (end = memchr(line, '\n', bytes - (size_t)(line - text))) != NULL;
         line = end + 1)
        take_line(line, (size_t)(end - line), names, n);
    ls_free(text);
    return LS_OK;
}

/* --- a connection --- */

static ls_status check_agent(int fd)
{
    uid_t user;

    LS_TRY(net_peer_user(fd, &user, NULL));
    return user == geteuid()
               ? LS_OK
               : ls_fail(LS_EAUTH, "the socket of the job belongs to user %u", (unsigned)user);
}

ls_status status_client_open(const char *agent_name, status_client **out)
{
    status_client *c;
    net_address at;
    ls_status st;

    LS_TRY(LS_NEW(&c, 1, "for a connection to a job"));
    c->fd = -1;
    frame_reader_init(&c->in, ANSWER_MAX);
    st = status_address(agent_name, &at);
    if (st == LS_OK)
        st = net_connect(&at, NET_STREAM, ls_deadline_ms(CONNECT_MS), &c->fd);
    if (st == LS_OK)
        st = check_agent(c->fd);
    if (st == LS_OK)
        *out = c;
    else
        status_client_close(c);
    return st;
}

void status_client_close(status_client *c)
{
    if (c == NULL)
        return;
    frame_reader_free(&c->in);
    file_close(&c->fd);
    ls_free(c);
}

static ls_status read_answer(status_client *c, int64_t deadline_ms, frame *out)
{
    bool have = false;
    size_t moved;

    for (;;) {
        LS_TRY(frame_reader_next(&c->in, out, &have));
        if (have)
            return LS_OK;
        LS_TRY(net_wait(c->fd, POLLIN, deadline_ms));
        LS_TRY(frame_reader_fill(&c->in, c->fd, "the job", &moved));
    }
}

ls_status status_client_ask(status_client *c, int rank, int64_t deadline_ms, job_status *out)
{
    uint8_t ask[FRAME_HEADER_BYTES + STATUS_ASK_BYTES];
    frame answer;

    wire_put_u32(ask, STATUS_ASK_BYTES);
    wire_put_u32(ask + 4, STATUS_ASK);
    wire_put_u32(ask + FRAME_HEADER_BYTES, (uint32_t)rank);
    LS_TRY(net_send_all(c->fd, "the job", ask, sizeof(ask), deadline_ms));
    LS_TRY(read_answer(c, deadline_ms, &answer));
    if (answer.type != STATUS_ANSWER)
        return ls_fail(LS_EPROTO, "the job has answered with a message of type %u", answer.type);
    return job_status_read((const char *)answer.body, answer.bytes, out);
}
