/* SPDX-License-Identifier: Apache-2.0 */
/*
 * native_ranks.c - runs one function as several ranks of one host, for the tests of local ranks,
 * segments and teams.
 */
#include "comm/native_ranks.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/text.h"
#include "base/thread.h"
#include "net/socket.h"

#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define RANKS_MAX 64

typedef struct one_rank {
    comm_boot boot;
    rank_fn fn;
    void *arg;
    int failed;
    pid_t pid;
    ls_thread thread;
} one_rank;

static void run_one(void *arg)
{
    one_rank *r = arg;

    r->failed = r->fn(&r->boot, r->arg);
}

static int listen_all(ranks_kind kind, int n, one_rank *ranks, boot_record *records)
{
    for (int i = 0; i < n; i++) {
        comm_boot *boot = &ranks[i].boot;

        records[i] = (boot_record){.rank = i,
                                   .pid = getpid(),
                                   .instance = kind == AS_THREADS ? 4711 : 4711 + (uint64_t)i,
                                   .generation = 3};
        *boot = (comm_boot){.rank = i,
                            .size = n,
                            .generation = 3,
                            .records = records,
                            .local_fd = -1,
                            .listen_fd = -1,
                            .control_fd = -1,
                            .transport = "shm",
                            .deadline_ms = ls_deadline_ms(RANKS_TIMEOUT_MS)};
        text_format(boot->job, sizeof(boot->job), "%016x", (unsigned)getpid());
        if (net_address_fresh_unix("test", &records[i].local) != LS_OK ||
            net_listen(&records[i].local, NET_PACKET, 64, &boot->local_fd, NULL) != LS_OK) {
            fprintf(stderr, "cannot listen: %s\n", ls_last_error());
            return 1;
        }
    }
    return 0;
}

static int run_threads(int n, one_rank *ranks)
{
    int failed = 0;

    for (int i = 0; i < n; i++) {
        if (ls_thread_start(&ranks[i].thread, "rank", run_one, &ranks[i]) != LS_OK)
            failed++;
    }
    for (int i = 0; i < n; i++) {
        ls_thread_join(&ranks[i].thread);
        failed += ranks[i].failed != 0;
    }
    return failed;
}

static int wait_for_process(pid_t pid, int64_t deadline_ms)
{
    int status = 0;

    while (waitpid(pid, &status, WNOHANG) == 0) {
        if (ls_deadline_left(deadline_ms) == 0) {
            fprintf(stderr, "rank with pid %d still runs\n", (int)pid);
            kill(pid, SIGKILL);
            waitpid(pid, &status, 0);
            break;
        }
        poll(NULL, 0, 5);
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static int run_processes(int n, one_rank *ranks)
{
    const int64_t deadline_ms = ls_deadline_ms(RANKS_TIMEOUT_MS);
    int failed = 0;

    fflush(NULL);
    for (int i = 0; i < n; i++) {
        ranks[i].pid = fork();
        if (ranks[i].pid == 0) {
            for (int k = 0; k < n; k++) {
                if (k != i)
                    file_close(&ranks[k].boot.local_fd);
            }
            run_one(&ranks[i]);
            fflush(NULL);
            _exit(ranks[i].failed);
        }
    }
    for (int i = 0; i < n; i++)
        file_close(&ranks[i].boot.local_fd);
    for (int i = 0; i < n; i++) {
        failed += ranks[i].pid < 0 || wait_for_process(ranks[i].pid, deadline_ms) != 0;
    }
    return failed;
}

int ranks_run(ranks_kind kind, int n, rank_fn fn, void *arg)
{
    static one_rank ranks[RANKS_MAX];
    static boot_record records[RANKS_MAX];

    memset(ranks, 0, sizeof(ranks));
    if (n > RANKS_MAX || listen_all(kind, n, ranks, records) != 0)
        return n;
    for (int i = 0; i < n; i++) {
        ranks[i].fn = fn;
        ranks[i].arg = arg;
    }
    return kind == AS_THREADS ? run_threads(n, ranks) : run_processes(n, ranks);
}

void *ranks_shared(size_t bytes)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    return at == MAP_FAILED ? NULL : at;
}
