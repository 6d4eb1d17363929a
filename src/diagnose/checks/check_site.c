/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_site.c - small facts: version, settings, clock, the user's key, ssh. Subjects of
 * check_all().
 */
#include "diagnose/checks/check_internal.h"

#include "base/config.h"
#include "base/file.h"
#include "base/text.h"
#include "host/build_id.h"
#include "net/key.h"

#include <dirent.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#define EARLIEST_S ((int64_t)1735689600) /* 2025-01-01: any earlier clock is wrong */

void check_version(check *c)
{
    struct utsname kernel;
    char id[BUILD_ID_TEXT_MAX];

    if (uname(&kernel) != 0)
        return;
    finding_add(c->out, FINDING_VERSION_OK_KIND, FINDING_OK, NULL,
                "lockstep %s, build %s, for %s; %s %s", ls_version(), build_id_text(id, sizeof(id)),
                kernel.machine, kernel.sysname, kernel.release);
}

void check_settings(check *c)
{
    if (config_check() != LS_OK)
        finding_add(c->out, FINDING_SETTING_BAD_KIND, FINDING_ERROR, "lockstep check --settings",
                    "%s", ls_last_error());
    else
        finding_add(c->out, FINDING_SETTING_OK_KIND, FINDING_OK, NULL,
                    "all LOCKSTEP_* settings are valid");
}

void check_clock(check *c)
{
    const int64_t now_s = c->from->seconds(c->from->self);
    const time_t now = (time_t)now_s;
    struct tm parts;
    char text[64] = "?";

    if (gmtime_r(&now, &parts) != NULL)
        (void)strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S UTC", &parts);
    if (now_s < EARLIEST_S)
        finding_add(c->out, FINDING_CLOCK_WRONG_KIND, FINDING_ERROR, "timedatectl set-ntp true",
                    "the clock shows %s", text);
    else if (!c->from->clock_is_synchronized(c->from->self))
        finding_add(c->out, FINDING_CLOCK_ALONE_KIND, FINDING_NOTE, "timedatectl set-ntp true",
                    "clock not synchronized (no NTP); it shows %s", text);
    else
        finding_add(c->out, FINDING_CLOCK_OK_KIND, FINDING_OK, NULL, "the clock shows %s", text);
}

/* A command that makes a refused key file acceptable. */
static void describe_key_fix(const char *path, char *buf, size_t n)
{
    struct stat facts;

    if (lstat(path, &facts) == 0 && S_ISREG(facts.st_mode) && facts.st_uid != geteuid())
        text_format(buf, n, "chown %u '%s'", (unsigned)geteuid(), path);
    else if (lstat(path, &facts) == 0 && S_ISREG(facts.st_mode) && (facts.st_mode & 077) != 0)
        text_format(buf, n, "chmod 600 '%s'", path);
    else
        text_format(buf, n, "mv '%s' '%s.bad'   # then copy a valid key from another machine", path,
                    path);
}

/* Reports "key.DIGITS" files, 16 hexadecimal digits: temporary files of key creation. */
static void check_stale(check *c, const char *path)
{
    const char *slash = strrchr(path, '/');
    const size_t n_name = slash != NULL ? strlen(slash + 1) : 0;
    char folder[PATH_MAX];
    char fix[1024];
    const struct dirent *entry;
    DIR *files;

    text_format(folder, sizeof(folder), "%.*s", slash != NULL ? (int)(slash - path) : 0, path);
    files = n_name > 0 ? opendir(folder) : NULL;
    while (files != NULL && (entry = file_next_entry(files)) != NULL) {
        const char *name = entry->d_name;
        if (!text_starts(name, slash + 1) || name[n_name] != '.' || strlen(name) != n_name + 17 ||
            strspn(name + n_name + 1, "0123456789abcdef") != 16)
            continue;
        text_format(fix, sizeof(fix), "rm '%s/%s'", folder, name);
        finding_add(c->out, FINDING_KEY_STALE_KIND, FINDING_NOTE, fix,
                    "%s/%s is an incomplete key file", folder, name);
    }
    if (files != NULL)
        closedir(files);
}

void check_key(check *c)
{
    char path[PATH_MAX];
    char fix[1024];
    net_key key;
    ls_status st = c->from->key_path(c->from->self, path, sizeof(path));

    if (st != LS_OK) {
        finding_add(c->out, FINDING_KEY_MISSING_KIND, FINDING_NOTE,
                    "export " NET_KEY_FILE_ENV "=FILE", "%s", ls_last_error());
        return;
    }
    st = net_key_read_file(path, &key);
    net_key_wipe(&key);
    describe_key_fix(path, fix, sizeof(fix));
    if (st == LS_OK)
        finding_add(c->out, FINDING_KEY_OK_KIND, FINDING_OK, NULL, "key file of this user: %s",
                    path);
    else if (st == LS_ENOTFOUND)
        finding_add(c->out, FINDING_KEY_MISSING_KIND, FINDING_NOTE, NULL,
                    "no key file %s yet; the first program that needs it creates it", path);
    else
        finding_add(c->out, FINDING_KEY_BAD_KIND, FINDING_ERROR, fix, "%s", ls_last_error());
    check_stale(c, path);
}

static bool is_in_path(check *c, const char *program)
{
    const char *at = c->from->variable(c->from->self, "PATH");

    while (at != NULL && *at != 0) {
        const size_t n = strcspn(at, ":");
        char path[PATH_MAX];
        text_format(path, sizeof(path), "%.*s/%s", (int)n, at, program);
        if (check_exists(c, path))
            return true;
        at += n + (at[n] == ':');
    }
    return false;
}

void check_ssh(check *c)
{
    const bool client = is_in_path(c, "ssh");
    const bool server = check_exists(c, "/usr/sbin/sshd") || is_in_path(c, "sshd");

    if (!client)
        finding_add(c->out, FINDING_SSH_MISSING_KIND, FINDING_NOTE,
                    "apt-get install openssh-client", "ssh is not installed");
    if (!server)
        finding_add(c->out, FINDING_SSHD_MISSING_KIND, FINDING_NOTE,
                    "apt-get install openssh-server", "sshd is not installed");
    if (client && server)
        finding_add(c->out, FINDING_SSH_OK_KIND, FINDING_OK, NULL, "ssh and sshd are installed");
}
