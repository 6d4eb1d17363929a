/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fake_ssh.c - in the place of ssh and srun, for tests: runs the command on this machine, in a
 * session of its own, and carries its streams as ssh does, so that killing one of the two is like
 * killing ssh or what sshd has started.
 *
 * With FAKE_SSH_LAB, the path of netlab.sh, "nodeI" is that node of the lab LS_NETLAB.
 *
 * fake_ssh [options] HOST COMMAND, or, as srun: ... -w HOST /bin/sh -c COMMAND.
 * FAKE_SSH="HOST=MODE,..." makes a host one of those below. Some wait for a file "go" in
 * FAKE_SSH_FOLDER.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const struct {
    const char *mode;
    const char *text; /* on stderr, then it ends with 255 */
} refusals[] = {
    {"denied", "Warning: a banner\r\nme@b: Permission denied (publickey).\r\n"},
    {"changed",
     "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed.\n"},
    {"unknown", "ssh: Could not resolve hostname b: Name or service not known\n"},
    {"refused", "ssh: connect to host b port 22: Connection refused\n"},
    {"down", "ssh: connect to host b port 22: No route to host\n"},
    {"silent", ""},
};

static bool holds_request; /* nothing goes there before the file is there */

static void leave_file(const char *name)
{
    const char *folder = getenv("FAKE_SSH_FOLDER");
    char path[256];

    snprintf(path, sizeof(path), "%s/%s", folder != NULL ? folder : "", name);
    close(open(path, O_WRONLY | O_CREAT, 0600));
}

static bool may_go(void)
{
    const char *folder = getenv("FAKE_SSH_FOLDER");
    char path[256];

    snprintf(path, sizeof(path), "%s/go", folder != NULL ? folder : "");
    return access(path, F_OK) == 0;
}

/* Puts `to` in the place of the first `from`. */
static void replace(char *text, size_t n, const char *from, const char *to)
{
    char rest[8192];
    char *at = strstr(text, from);

    if (at == NULL)
        return;
    snprintf(rest, sizeof(rest), "%s", at + strlen(from));
    snprintf(at, n - (size_t)(at - text), "%s%s", to, rest);
}

/* Whether this host refuses once more; each refusal leaves a file behind. */
static bool is_busy(const char *host, int times)
{
    const char *folder = getenv("FAKE_SSH_FOLDER");
    char path[256];

    for (int i = 0; i < times; i++) {
        int fd;

        snprintf(path, sizeof(path), "%s/%s.%d", folder, host, i);
        fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
        if (fd < 0)
            continue;
        close(fd);
        return true;
    }
    return false;
}

/* A host without Lockstep, and without PATH. */
static void strip(char *command, size_t n)
{
    char *begin = strstr(command, "for a in \"");
    char *end = begin == NULL ? NULL : strstr(begin, "lockstep; ");

    if (end != NULL) {
        begin += strlen("for a in ");
        memmove(begin, end, strlen(end) + 1);
    }
    replace(command, n, "lockstep; ", "lockstep-nowhere; ");
    unsetenv("PATH");
}

static void play(const char *host, const char *mode, char *command, size_t n)
{
    for (size_t i = 0; i < sizeof(refusals) / sizeof(refusals[0]); i++)
        if (strcmp(mode, refusals[i].mode) == 0) {
            fprintf(stderr, "%s", refusals[i].text);
            exit(255);
        }
    if (strncmp(mode, "busy", 4) == 0 && is_busy(host, atoi(mode + 4))) {
        fprintf(stderr, "kex_exchange_identification: Connection closed by remote host\r\n"
                        "Connection closed by 127.0.0.1 port 22\r\n");
        exit(255);
    }
    if (strcmp(mode, "once") == 0 && !is_busy(host, 1))
        play(host, "refused", command, n);
    holds_request = strcmp(mode, "held") == 0 || strcmp(mode, "bareheld") == 0;
    while (strcmp(mode, "later") == 0 && !may_go())
        usleep(10000);
    if (strcmp(mode, "still") == 0)
        snprintf(command, n, "exec %s", getenv("FAKE_SSH_STILL"));
    if (strcmp(mode, "bare") == 0 || strcmp(mode, "bareheld") == 0 || strcmp(mode, "other") == 0 ||
        strcmp(mode, "full") == 0)
        strip(command, n);
    if (strcmp(mode, "full") == 0) /* and without space for the agent */
        replace(command, n, "exec /bin/sh", "ulimit -f 8; exec /bin/sh");
    if (strcmp(mode, "other") == 0)
        replace(command, n, "uname -m", "echo sparc64");
    if (strcmp(mode, "old") == 0)
        snprintf(command, n, "echo LOCKSTEP-AGENT 5 0.0.1 2; exec cat");
    if (strcmp(mode, "gone") == 0)
        snprintf(command, n, "echo LOCKSTEP-AGENT 5 %s 2; echo the cable was pulled >&2; exit 9",
                 getenv("FAKE_SSH_VERSION"));
    if (strcmp(mode, "elsewhere") == 0) { /* where the folder is not */
        char folder[4096];

        if (getcwd(folder, sizeof(folder)) != NULL)
            (void)!rmdir(folder);
    }
    if (strcmp(mode, "hangs") == 0)
        snprintf(command, n, "exec cat");
    if (strcmp(mode, "noise") == 0) {
        printf("Welcome to the cluster!\nno end of line");
        fflush(stdout);
    }
}

static void play_mode_of(const char *host, char *command, size_t n)
{
    const char *modes = getenv("FAKE_SSH");
    char mode[64];
    char wanted[300];
    const char *at;

    if (modes == NULL)
        return;
    snprintf(wanted, sizeof(wanted), "%s=", host);
    at = strstr(modes, wanted);
    if (at == NULL)
        return;
    at += strlen(wanted);
    snprintf(mode, sizeof(mode), "%.*s", (int)strcspn(at, ","), at);
    play(host, mode, command, n);
}

/* False: no more comes from there. */
static bool carry(int from, int to)
{
    static char bytes[65536];
    ssize_t n;

    do {
        n = read(from, bytes, sizeof(bytes));
    } while (n < 0 && errno == EINTR);
    for (ssize_t at = 0; at < n;) {
        const ssize_t done = write(to, bytes + at, (size_t)(n - at));

        if (done <= 0 && errno != EINTR)
            return false;
        at += done > 0 ? done : 0;
    }
    return n > 0;
}

/* Whether something is there to be carried; says so the first time. */
static bool is_held(const struct pollfd *in)
{
    static bool reported;

    if (holds_request && in->revents != 0 && !reported) {
        reported = true;
        leave_file("held");
    }
    holds_request = holds_request && !may_go();
    return holds_request;
}

static void carry_all(int in, int out, int err)
{
    struct pollfd fds[] = {{.fd = 0, .events = POLLIN | POLLRDHUP},
                           {.fd = out, .events = POLLIN},
                           {.fd = err, .events = POLLIN}};
    const int to[] = {in, 1, 2};

    while (fds[1].fd >= 0 || fds[2].fd >= 0) {
        if (poll(fds, 3, -1) < 0)
            continue;
        if (is_held(&fds[0])) {
            fds[0].revents &= POLLHUP | POLLRDHUP; /* its end is seen */
            usleep(10000);
        }
        for (int i = 0; i < 3; i++) {
            if (fds[i].fd < 0 || fds[i].revents == 0 || carry(fds[i].fd, to[i]))
                continue;
            fds[i].fd = -1;
            if (i == 0)
                close(in);
        }
    }
}

static void run(const char *host, const char *command)
{
    const char *lab = getenv("FAKE_SSH_LAB");

    if (lab != NULL && strncmp(host, "node", 4) == 0)
        execl(lab, lab, "exec", host + 4, "sh", "-c", command, (char *)NULL);
    else
        execl("/bin/sh", "sh", "-c", command, (char *)NULL);
    _exit(127);
}

int main(int argc, char **argv)
{
    const bool is_srun = argc > 4 && strcmp(argv[argc - 2], "-c") == 0;
    const char *host = argc > 4 ? argv[argc - (is_srun ? 4 : 2)] : "";
    static char command[8192];
    int in[2];
    int out[2];
    int err[2];
    int status;
    pid_t child;

    if (argc < 3)
        return 255;
    snprintf(command, sizeof(command), "%s", argv[argc - 1]);
    play_mode_of(host, command, sizeof(command));
    signal(SIGPIPE, SIG_IGN);
    if (is_srun)
        setenv("SLURMD_NODENAME", host, 1);
    if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0)
        return 255;
    child = fork();
    if (child == 0) {
        signal(SIGPIPE, SIG_DFL);
        setsid();
        dup2(in[0], 0);
        dup2(out[1], 1);
        dup2(err[1], 2);
        run(host, command);
    }
    close(in[0]);
    close(out[1]);
    close(err[1]);
    carry_all(in[1], out[0], err[0]);
    if (child < 0 || waitpid(child, &status, 0) != child)
        return 255;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 255;
}
