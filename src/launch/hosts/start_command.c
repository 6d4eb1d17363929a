/* SPDX-License-Identifier: Apache-2.0 */
/*
 * start_command.c - the command lines of ssh and srun, the script that they run on a host, and the
 * fixes for their errors. No secret and nothing of the job is in a command line. Called by
 * starter.c.
 */
#include "launch/hosts/start_command.h"

#include "base/alloc.h"
#include "base/text.h"

#include <string.h>
#include <unistd.h>

enum { WORDS_MOST = 64, SPLIT_MOST = 32 /* of --ssh, the rest is ours */, PATH_MOST = 4096 };

/* --- the script --- */

/*
 * For any login shell: no newline, no single quote, no backslash, no exclamation mark. Any `head
 * -c` works, also one that reads ahead: nothing follows the agent binary until the agent's
 * greeting. The file of mktemp is unlinked before its first byte arrives; [ -x ] is false on file
 * systems with noexec.
 */
static const char script_end[] =
    "do if [ \"$(\"$a\" --version </dev/null 2>/dev/null)\" = \"lockstep $v\" ]; "
    "then exec \"$a\" agent --stdio; fi; done; "
    "echo; echo \"" START_SEND_AGENT " $(uname -m)\"; read -r n || exit 1; "
    "for d in \"${XDG_RUNTIME_DIR:-/dev/shm}\" /dev/shm /tmp /var/tmp \"$HOME\"; do "
    "f=$(mktemp \"$d/lockstep.XXXXXXXX\" 2>/dev/null) || continue; "
    "if chmod 700 \"$f\" && [ -x \"$f\" ]; then exec 3<\"$f\" 4>\"$f\"; rm -f \"$f\"; "
    "head -c \"$n\" >&4 || { echo no space for the agent in \"$d\" >&2; exit 1; }; "
    "exec 4>&-; exec /proc/self/fd/3 agent --stdio; fi; rm -f \"$f\"; done; "
    "echo no writable folder without noexec: /dev/shm, /tmp, /var/tmp, home >&2; exit 1";

/* The script holds paths of these characters only: others would need quotes within quotes. */
static bool is_simple(const char *path)
{
    static const char plain[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._+-";

    return path != NULL && path[0] == '/' && strspn(path, plain) == strlen(path);
}

static void write_script(const start_options *opt, text_buf *out)
{
    text_append(out, "PATH=\"${PATH:+$PATH:}/usr/local/bin:/usr/bin:/bin\"; v=\"%s\"; for a in ",
                ls_version());
    if (is_simple(opt->tool))
        text_append(out, "\"%s\" ", opt->tool);
    text_append(out, "lockstep; %s", script_end);
}

/* --- arguments --- */

typedef struct words {
    char **list;
    int n;
    ls_status status;
} words;

static void add_bytes(words *w, const char *text, size_t n)
{
    char *copy;

    if (w->status != LS_OK)
        return;
    LS_ASSERT(w->n < WORDS_MOST);
    copy = ls_calloc(n + 1, 1);
    if (copy == NULL) {
        w->status = ls_fail(LS_ENOMEM, "no memory for a command");
        return;
    }
    memcpy(copy, text, n);
    w->list[w->n++] = copy;
}

static void add(words *w, const char *text)
{
    add_bytes(w, text, strlen(text));
}

static void add_split(words *w, const char *text)
{
    for (;;) {
        text += strspn(text, " \t");
        if (*text != 0 && w->n == SPLIT_MOST && w->status == LS_OK)
            w->status = ls_fail(LS_EINVAL, "--ssh: more than %d words", SPLIT_MOST);
        if (*text == 0 || w->status != LS_OK)
            return;
        add_bytes(w, text, strcspn(text, " \t"));
        text += strcspn(text, " \t");
    }
}

/* No terminal (it would change bytes), no prompts, and keepalives that detect a dead network. */
static void add_ssh(words *w, const start_options *opt, const char *host, const char *script)
{
    static const char *const options[] = {"-T",
                                          "-o",
                                          "BatchMode=yes",
                                          "-o",
                                          "ConnectTimeout=10",
                                          "-o",
                                          "ServerAliveInterval=15",
                                          "-o",
                                          "StrictHostKeyChecking=accept-new"};
    text_buf command = {0};
    char port[16];

    add_split(w, opt->program != NULL ? opt->program : "ssh");
    for (size_t i = 0; i < LS_COUNT_OF(options); i++)
        add(w, options[i]);
    if (opt->port != 0) {
        add(w, "-p");
        add(w, text_format(port, sizeof(port), "%d", opt->port));
    }
    add(w, host);
    text_append(&command, "exec /bin/sh -c '%s'", script);
    add(w, text_str(&command));
    if (text_status(&command) != LS_OK)
        w->status = LS_ENOMEM;
    text_free(&command);
}

/* --unbuffered: srun would hold back an incomplete line. --overlap: the allocation may run
 * steps. */
static void add_srun(words *w, const start_options *opt, const char *host, const char *script)
{
    static const char *const options[] = {"-N1",          "-n1",
                                          "--overlap",    "--cpu-bind=none",
                                          "--mpi=none",   "--kill-on-bad-exit=1",
                                          "--unbuffered", "--export=ALL"};

    add_split(w, opt->program != NULL ? opt->program : "srun");
    for (size_t i = 0; i < LS_COUNT_OF(options); i++)
        add(w, options[i]);
    add(w, "-w");
    add(w, host);
    add(w, "/bin/sh");
    add(w, "-c");
    add(w, script);
}

ls_status start_command_make(const start_options *opt, const char *host, char ***out)
{
    words w = {.list = ls_calloc(WORDS_MOST + 1, sizeof(*w.list))};
    text_buf script = {0};

    *out = NULL;
    if (w.list == NULL)
        return ls_fail(LS_ENOMEM, "no memory for a command");
    write_script(opt, &script);
    w.status = text_status(&script);
    if (opt->way == START_SSH)
        add_ssh(&w, opt, host, text_str(&script));
    else
        add_srun(&w, opt, host, text_str(&script));
    text_free(&script);
    if (w.status != LS_OK)
        start_command_free(w.list);
    else
        *out = w.list;
    return w.status;
}

void start_command_free(char **argv)
{
    for (char **word = argv; word != NULL && *word != NULL; word++)
        ls_free(*word);
    ls_free(argv);
}

/* --- failures --- */

static bool has(const char *line, const char *part)
{
    return strstr(line, part) != NULL;
}

bool start_may_retry(const char *line)
{
    return has(line, "kex_exchange_identification") || has(line, "ssh_exchange_identification") ||
           has(line, "MaxStartups") || has(line, "Connection reset by peer") ||
           text_starts(line, "Connection closed by");
}

const char *start_fix(start_way way, const char *host, const char *line, char *buf, size_t n)
{
    if (way == START_SLURM)
        return text_format(buf, n, "srun -N1 -n1 -w %s --overlap hostname (shows the error)", host);
    if (has(line, "Permission denied") || has(line, "Too many authentication failures"))
        return text_format(buf, n, "ssh-copy-id %s (login without a password)", host);
    if (has(line, "Host key verification failed") || has(line, "HOST IDENTIFICATION HAS CHANGED"))
        return text_format(buf, n, "if the machine was reinstalled: ssh-keygen -R %s", host);
    if (has(line, "Could not resolve"))
        return text_format(buf, n,
                           "add the name to /etc/hosts or ~/.ssh/config, or pass an address");
    if (has(line, "Connection refused"))
        return text_format(buf, n, "start sshd there, or pass its port (--ssh-port)");
    if (has(line, "timed out") || has(line, "No route to host") || has(line, "unreachable"))
        return text_format(buf, n, "check that the machine is up and no firewall blocks ssh");
    if (start_may_retry(line))
        return text_format(buf, n, "raise MaxStartups in its sshd_config");
    if (text_starts(line, "cannot run "))
        return text_format(buf, n, "apt-get install openssh-client, or pass --ssh COMMAND");
    return text_format(buf, n, "ssh %s true (shows the error)", host);
}

/* --- the agent binary --- */

ls_status start_find_agent_binary(char *path, size_t n)
{
    char own[PATH_MOST];
    const ssize_t length = readlink("/proc/self/exe", own, sizeof(own) - 1);
    char *slash;

    if (length <= 0)
        return ls_fail_errno("the path of this program");
    own[length] = 0;
    slash = strrchr(own, '/');
    *slash = 0;
    text_format(path, n, "%s/%s", own, LOCKSTEP_AGENT_BINARY);
    if (access(path, R_OK) != 0)
        return ls_fail(LS_ENOTFOUND, "this build of Lockstep has no static agent binary");
    return LS_OK;
}
