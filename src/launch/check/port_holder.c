/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/check/port_holder.h"

#include "base/process_id.h"
#include "base/text.h"

#include <ctype.h>
#include <dirent.h>
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

/* "sl: LOCAL:PORT REMOTE:PORT ST TX:RX TR:WHEN RETRANSMITS UID TIMEOUT INODE ..." */
bool port_holder_parse(const char *line, int port, port_holder *out)
{
    const char *local = skip_words(line, 1);
    const char *colon = local + strcspn(local, ": ");
    const char *state = skip_words(line, 3);
    const char *uid = skip_words(line, 7);
    const char *inode = skip_words(line, 9);

    *out = (port_holder){0};
    if (*colon != ':' || strtoul(colon + 1, NULL, 16) != (unsigned long)port ||
        strtoul(state, NULL, 16) != STATE_LISTEN || !isdigit((unsigned char)*uid) ||
        !isdigit((unsigned char)*inode))
        return false;
    out->uid = (uid_t)strtoul(uid, NULL, 10);
    out->inode = strtoull(inode, NULL, 10);
    return true;
}

static bool find_listener(const char *root, const char *table, int port, port_holder *out)
{
    char path[PATH_MAX];
    char line[512];
    bool found = false;
    FILE *file;

    text_format(path, sizeof(path), "%s/proc/net/%s", root, table);
    file = fopen(path, "re");
    while (file != NULL && !found && fgets(line, sizeof(line), file) != NULL)
        found = port_holder_parse(line, port, out);
    if (file != NULL)
        (void)fclose(file);
    return found;
}

static bool has_socket(const char *root, const char *pid, const char *socket)
{
    char path[PATH_MAX];
    const struct dirent *entry;
    bool found = false;
    DIR *fds;

    text_format(path, sizeof(path), "%s/proc/%s/fd", root, pid);
    fds = opendir(path);
    if (fds == NULL)
        return false;
    while (!found && (entry = readdir(fds)) != NULL) { // NOLINT(concurrency-mt-unsafe)
        char link[64];
        const ssize_t n = readlinkat(dirfd(fds), entry->d_name, link, sizeof(link) - 1);
        link[n > 0 ? n : 0] = 0;
        found = text_equal(link, socket);
    }
    closedir(fds);
    return found;
}

static void find_process(const char *root, port_holder *out)
{
    char path[PATH_MAX];
    char socket[64];
    const struct dirent *entry;
    process_facts facts;
    DIR *proc;

    text_format(path, sizeof(path), "%s/proc", root);
    text_format(socket, sizeof(socket), "socket:[%" PRIu64 "]", out->inode);
    proc = opendir(path);
    if (proc == NULL)
        return;
    while (out->pid == 0 && (entry = readdir(proc)) != NULL) { // NOLINT(concurrency-mt-unsafe)
        pid_t pid;
        if (!isdigit((unsigned char)entry->d_name[0]) || !has_socket(root, entry->d_name, socket))
            continue;
        pid = (pid_t)strtol(entry->d_name, NULL, 10);
        if (process_facts_read(root, pid, &facts)) {
            out->pid = pid;
            memcpy(out->program, facts.name, sizeof(out->program));
        }
    }
    closedir(proc);
}

bool port_holder_find(const char *root, int port, port_holder *out)
{
    if (!find_listener(root, "tcp", port, out) && !find_listener(root, "tcp6", port, out))
        return false;
    find_process(root, out);
    return true;
}
