/* SPDX-License-Identifier: Apache-2.0 */
/*
 * port_holder.c - explains "address already in use": finds the socket by its port, then the process
 * by the socket's inode. Reads only what the kernel shows to this user. Called by socket.c and
 * launch/.
 */
#include "net/port_holder.h"

#include "base/file.h"
#include "base/text.h"
#include "host/process_id.h"
#include "host/process_marks.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STATE_LISTEN 0x0A

static const char *skip_words(const char *at, int n)
{
    at += strspn(at, " ");
    for (; n > 0; n--) {
        at += strcspn(at, " ");
        at += strspn(at, " ");
    }
    return at;
}

/* "sl: LOCAL:PORT REMOTE:PORT ST TX:RX TR:WHEN RETRANSMITS UID TIMEOUT INODE ..." The inode of a
 * socket without a process (TIME_WAIT) is 0. */
bool port_holder_parse(const char *line, int port, port_holder *out)
{
    const char *local = skip_words(line, 1);
    const char *colon = local + strcspn(local, ": ");
    const char *state = skip_words(line, 3);
    const char *uid = skip_words(line, 7);
    const char *inode = skip_words(line, 9);

    *out = (port_holder){0};
    if (*colon != ':' || strtoul(colon + 1, NULL, 16) != (unsigned long)port ||
        !isdigit((unsigned char)*uid) || !isdigit((unsigned char)*inode))
        return false;
    out->is_listening = strtoul(state, NULL, 16) == STATE_LISTEN;
    out->uid = (uid_t)strtoul(uid, NULL, 10);
    out->inode = strtoull(inode, NULL, 10);
    return out->inode != 0;
}

static bool find_socket(const char *root, const char *table, int port, bool is_listening,
                        port_holder *out)
{
    char path[PATH_MAX];
    char line[512];
    bool found = false;
    FILE *file;

    text_format(path, sizeof(path), "%s/proc/net/%s", root, table);
    file = fopen(path, "re");
    while (file != NULL && !found && fgets(line, sizeof(line), file) != NULL)
        found = port_holder_parse(line, port, out) && out->is_listening == is_listening;
    if (file != NULL)
        (void)fclose(file);
    return found;
}

static bool has_socket(const char *root, pid_t pid, const char *socket)
{
    char path[PATH_MAX];
    const struct dirent *entry;
    bool found = false;
    DIR *fds;

    text_format(path, sizeof(path), "%s/proc/%d/fd", root, (int)pid);
    fds = opendir(path);
    if (fds == NULL)
        return false;
    while (!found && (entry = file_next_entry(fds)) != NULL) {
        char link[64];
        const ssize_t n = readlinkat(dirfd(fds), entry->d_name, link, sizeof(link) - 1);
        link[n > 0 ? n : 0] = 0;
        found = text_equal(link, socket);
    }
    closedir(fds);
    return found;
}

static void describe_process(const char *root, pid_t pid, port_holder *out)
{
    process_stat facts;
    process_id agent;
    uint64_t space;
    mark_scan marks;

    if (!process_stat_read(root, pid, &facts))
        return;
    out->pid = pid;
    process_command(root, pid, out->command, sizeof(out->command));
    if (out->command[0] == 0)
        text_format(out->command, sizeof(out->command), "%s", facts.name);
    process_marks_read(root, pid, &marks);
    text_format(out->job, sizeof(out->job), "%s", marks.job);
    out->is_leftover = process_id_parse(marks.agent, &agent) &&
                       process_namespace(root, &space) == LS_OK &&
                       process_id_liveness(root, space, &agent) == PROCESS_DEAD;
}

static void find_process(const char *root, port_holder *out)
{
    char path[PATH_MAX];
    char socket[64];
    pid_t pid;
    DIR *proc;

    text_format(path, sizeof(path), "%s/proc", root);
    text_format(socket, sizeof(socket), "socket:[%" PRIu64 "]", out->inode);
    proc = opendir(path);
    if (proc == NULL)
        return;
    while (out->pid == 0 && (pid = file_next_number(proc)) >= 0)
        if (has_socket(root, pid, socket))
            describe_process(root, pid, out);
    closedir(proc);
}

static bool find(const char *root, int port, bool is_listening, port_holder *out)
{
    char saved[LS_ERROR_BYTES];

    if (!find_socket(root, "tcp", port, is_listening, out) &&
        !find_socket(root, "tcp6", port, is_listening, out))
        return false;
    ls_error_save(saved);
    find_process(root, out);
    ls_error_restore(saved);
    return true;
}

bool port_holder_find(const char *root, int port, port_holder *out)
{
    return find(root, port, true, out);
}

/* --- texts --- */

const char *port_holder_text(const char *root, const port_holder *holder, char *buf, size_t n)
{
    process_stat facts;
    char user[64];
    char age[32];
    char job[64] = "";

    process_user_text(user, sizeof(user), holder->uid);
    if (holder->pid == 0)
        return text_format(buf, n,
                           "a process of %s that is not visible here (no permission, or in "
                           "another container)",
                           user);
    if (!process_stat_read(root, holder->pid, &facts))
        facts.start = 0;
    process_age_text(age, sizeof(age), process_age(process_uptime(root), &facts));
    if (holder->job[0] != 0)
        text_format(job, sizeof(job), ", %s job %s", holder->is_leftover ? "left of" : "of",
                    holder->job);
    return text_format(buf, n, "pid %d (%s) of %s, %s old%s%s", (int)holder->pid, holder->command,
                       user, age, job, holder->is_leftover ? ", whose launcher is dead" : "");
}

const char *port_holder_fix(const port_holder *holder, int port, char *buf, size_t n)
{
    char user[64];

    if (holder->is_leftover && holder->uid != geteuid())
        return text_format(buf, n, "sudo -u %s lockstep clean",
                           process_user_text(user, sizeof(user), holder->uid));
    if (holder->is_leftover)
        return text_format(buf, n, "lockstep clean");
    if (holder->pid > 0)
        return text_format(buf, n, "kill %d", (int)holder->pid);
    return text_format(buf, n, "sudo ss -tanp 'sport = :%d'", port);
}

ls_status port_holder_explain(ls_status st, const net_address *at)
{
    const int error = errno;
    const int port = net_address_port(at);
    const bool is_tcp = net_address_family(at) == NET_IPV4 || net_address_family(at) == NET_IPV6;
    char saved[LS_ERROR_BYTES];
    char text[PORT_HOLDER_TEXT_BYTES];
    char fix[96];
    port_holder holder;

    if (st == LS_OK || error != EADDRINUSE || !is_tcp || port == 0)
        return st;
    ls_error_save(saved);
    if (find("", port, true, &holder) || find("", port, false, &holder))
        st = ls_fail(st, "%s. The port is %s %s. To %s: %s. Otherwise take another port", saved,
                     holder.is_listening ? "held by" : "that of a connection of",
                     port_holder_text("", &holder, text, sizeof(text)),
                     holder.pid > 0 ? "end it" : "see it",
                     port_holder_fix(&holder, port, fix, sizeof(fix)));
    else
        st = ls_fail(st,
                     "%s. /proc/net/tcp names no holder: it may be in another container. Take "
                     "another port",
                     saved);
    errno = error;
    return st;
}
