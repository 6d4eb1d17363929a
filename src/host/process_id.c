/* SPDX-License-Identifier: Apache-2.0 */
/*
 * process_id.c - parses /proc, which is the only source for the identity, state and age of other
 * processes. A process that is not proven to be dead counts as alive. Used by net/, launch/ and
 * store/.
 */
#include "host/process_id.h"

#include "base/alloc.h"
#include "base/file.h"
#include "base/text.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <pwd.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STATUS_BYTES_MAX = 4 << 20 };

/* --- /proc/PID/stat --- */

/* Reads the number at *at, which must end at `stop`, a line feed or the end; *at then points behind
 * it. */
static bool take_number(const char **at, char stop, uint64_t *out)
{
    uint64_t value = 0;

    if (!isdigit((unsigned char)**at))
        return false;
    for (; isdigit((unsigned char)**at); (*at)++) {
        const uint64_t digit = (uint64_t)(**at - '0');
        if (value > (UINT64_MAX - digit) / 10)
            return false;
        value = value * 10 + digit;
    }
    if (**at != stop && **at != 0 && **at != '\n')
        return false;
    *at += **at == stop && stop != 0;
    *out = value;
    return true;
}

/* Skips `n` fields. */
static const char *skip_fields(const char *at, int n)
{
    for (; n > 0; n--) {
        at += strcspn(at, " ");
        at += *at == ' ';
    }
    return at;
}

bool process_stat_parse(const char *stat, process_stat *out)
{
    const char *open_at = strchr(stat, '(');
    /* The program's name may contain any of these characters. */
    const char *end = strrchr(stat, ')');
    char name[sizeof(out->name)];
    uint64_t parent;
    uint64_t user;
    uint64_t system;
    uint64_t threads;

    memset(out, 0, sizeof(*out));
    if (open_at == NULL || end == NULL || end < open_at || end[1] != ' ' || end[2] == 0 ||
        end[3] != ' ')
        return false;
    text_format(name, sizeof(name), "%.*s", (int)(end - open_at - 1), open_at + 1);
    text_printable(out->name, sizeof(out->name), name);
    out->state = end[2];
    end += 4;
    if (!take_number(&end, ' ', &parent) || parent > INT_MAX)
        return false;
    out->parent = (pid_t)parent;
    end = skip_fields(end, 9);
    if (!take_number(&end, ' ', &user) || !take_number(&end, ' ', &system))
        return false;
    out->cpu_ticks = user + system;
    end = skip_fields(end, 4);
    if (!take_number(&end, ' ', &threads) || threads > INT_MAX)
        return false;
    out->n_threads = (int)threads;
    end = skip_fields(end, 1);
    return take_number(&end, ' ', &out->start);
}

bool process_stat_read(const char *root, pid_t pid, process_stat *out)
{
    char path[PATH_MAX];
    char stat[1024];

    text_format(path, sizeof(path), "%s/proc/%d/stat", root, (int)pid);
    return file_read_start(path, stat, sizeof(stat)) > 0 && process_stat_parse(stat, out);
}

char process_state(pid_t pid)
{
    process_stat stat;

    return (char)(process_stat_read("", pid, &stat) ? stat.state : 0);
}

const char *process_state_text(char state)
{
    switch (state) {
    case 'R':
        return "running";
    case 'T':
    case 't':
        return "stopped";
    case 'D':
        return "waiting for I/O";
    case 'S':
    case 'I':
        return "asleep";
    default:
        return "dead";
    }
}

bool process_stat_has_exited(const process_stat *facts)
{
    return (facts->state == 'Z' && facts->n_threads <= 1) || facts->state == 'X' ||
           facts->state == 'x';
}

/* --- identities --- */

const char *process_id_text(char *buf, size_t n, const process_id *id)
{
    return text_format(buf, n, "%d.%" PRIu64 ".%" PRIu64, (int)id->pid, id->start, id->pid_ns);
}

bool process_id_parse(const char *text, process_id *out)
{
    uint64_t pid;

    memset(out, 0, sizeof(*out));
    if (!take_number(&text, '.', &pid) || pid == 0 || pid > INT_MAX ||
        !take_number(&text, '.', &out->start) || !take_number(&text, 0, &out->pid_ns) || *text != 0)
        return false;
    out->pid = (pid_t)pid;
    return true;
}

bool process_id_equal(const process_id *a, const process_id *b)
{
    return a->pid == b->pid && a->start == b->start && a->pid_ns == b->pid_ns;
}

bool process_status_line(const char *root, const char *pid, const char *name, char *buf, size_t n)
{
    char path[PATH_MAX];
    char label[64];
    char *status;
    char *line;
    size_t bytes;

    text_format(path, sizeof(path), "%s/proc/%s/status", root, pid);
    text_format(label, sizeof(label), "\n%s:", name);
    if (file_read(path, STATUS_BYTES_MAX, &status, &bytes) != LS_OK)
        return false;
    line = strstr(status, label);
    if (line != NULL) {
        line += strlen(label);
        line += strspn(line, "\t ");
        text_format(buf, n, "%.*s", (int)strcspn(line, "\n"), line);
    }
    ls_free(status);
    return line != NULL;
}

/* "NSpid:" lists the pids of this process in the namespace of /proc and in each inner one, down to
 * its own; before Linux 4.1 it is not there. */
static bool has_one_number(const char *root)
{
    char pids[64];

    return process_status_line(root, "self", "NSpid", pids, sizeof(pids)) &&
           pids[strspn(pids, "0123456789")] == 0;
}

ls_status process_namespace(const char *root, uint64_t *out)
{
    char path[PATH_MAX];
    char link[64];
    const char *at = link + strlen("pid:[");
    ssize_t n;

    text_format(path, sizeof(path), "%s/proc/self/ns/pid", root);
    n = readlink(path, link, sizeof(link) - 1);
    link[n > 0 ? n : 0] = 0;
    if (!text_starts(link, "pid:[") || !take_number(&at, ']', out))
        return ls_fail(LS_ESYSTEM, "%s does not tell which process is which", path);
    if (!has_one_number(root))
        return ls_fail(
            LS_ESYSTEM,
            "%s/proc is that of another namespace of processes: mount -t proc proc /proc", root);
    return LS_OK;
}

ls_status process_id_self(process_id *out)
{
    process_stat facts;

    memset(out, 0, sizeof(*out));
    LS_TRY(process_namespace("", &out->pid_ns));
    out->pid = getpid();
    if (!process_stat_read("", out->pid, &facts))
        return ls_fail(LS_ESYSTEM, "/proc/%d/stat cannot be read", (int)out->pid);
    out->start = facts.start;
    return LS_OK;
}

process_liveness process_id_liveness(const char *root, uint64_t pid_ns, const process_id *id)
{
    process_stat facts;

    if (id->pid_ns != pid_ns)
        return PROCESS_OTHER_NAMESPACE;
    if (process_stat_read(root, id->pid, &facts))
        return facts.start == id->start && !process_stat_has_exited(&facts) ? PROCESS_ALIVE
                                                                            : PROCESS_DEAD;
    /* /proc may hide the processes of other users; the pid is free only if no process at all has
     * it. */
    return kill(id->pid, 0) != 0 && errno == ESRCH ? PROCESS_DEAD : PROCESS_ALIVE;
}

pid_t process_outer_pid(void)
{
    const char *text =
        getenv(PROCESS_OUTER_PID_ENV); // NOLINT(concurrency-mt-unsafe): no thread sets it
    uint64_t inner;
    uint64_t outer;

    if (text == NULL || !take_number(&text, ':', &inner) || inner != (uint64_t)getpid() ||
        !take_number(&text, 0, &outer) || *text != 0 || outer == 0 || outer > INT_MAX)
        return getpid();
    return (pid_t)outer;
}

/* --- ages, command lines and users --- */

int64_t process_uptime(const char *root)
{
    char path[PATH_MAX];
    char text[64];

    text_format(path, sizeof(path), "%s/proc/uptime", root);
    return file_read_start(path, text, sizeof(text)) > 0 ? strtoll(text, NULL, 10) : 0;
}

static uint64_t ticks_a_second(void)
{
    const long ticks = sysconf(_SC_CLK_TCK);

    return ticks > 0 ? (uint64_t)ticks : 100;
}

int64_t process_age(int64_t uptime_s, const process_stat *facts)
{
    const int64_t age_s = uptime_s - (int64_t)(facts->start / ticks_a_second());

    return age_s > 0 ? age_s : 0;
}

void process_command(const char *root, pid_t pid, char *buf, size_t n)
{
    char path[PATH_MAX];
    char line[1024];
    ssize_t bytes;

    text_format(path, sizeof(path), "%s/proc/%d/cmdline", root, (int)pid);
    bytes = file_read_start(path, line, sizeof(line));
    for (ssize_t i = 0; i + 1 < bytes; i++)
        if (line[i] == 0 || isspace((unsigned char)line[i]))
            line[i] = ' ';
    text_printable(buf, n, bytes > 0 ? line : "");
}

const char *process_age_text(char *buf, size_t n, int64_t seconds)
{
    static const struct {
        int64_t seconds;
        const char *unit;
    } units[] = {{86400, "days"}, {3600, "h"}, {60, "min"}, {1, "s"}};
    size_t i = 0;

    while (i + 1 < LS_COUNT_OF(units) && seconds < 2 * units[i].seconds)
        i++;
    return text_format(buf, n, "%lld %s", (long long)(seconds / units[i].seconds), units[i].unit);
}

const char *process_user_text(char *buf, size_t n, uid_t uid)
{
    struct passwd entry;
    struct passwd *found = NULL;
    char space[4096];

    if (getpwuid_r(uid, &entry, space, sizeof(space), &found) == 0 && found != NULL)
        return text_format(buf, n, "%s", found->pw_name);
    return text_format(buf, n, "user %u", (unsigned)uid);
}
