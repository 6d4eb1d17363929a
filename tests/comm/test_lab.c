/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_lab.c - a link between two hosts goes down while ranks use it. Each rank is this program
 * again, on a node of a lab of network namespaces: the job's hub is reached over eth0, the ranks'
 * own connections go over eth1, which is taken away.
 */
#include "base/unit.h"
#include "harness/netlab.h"

#include <lockstep/comm.h>

#include "base/clock.h"
#include "base/text.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define NOTICE_MS 12000 /* 6 to 7 s until a silent host is lost, and a loaded machine */

enum { RANKS = 2 };

/* --- a rank --- */

static ls_status transfer(ls_comm *comm)
{
    enum { COUNT = 1 << 20 };
    static float data[COUNT];
    ls_status st = LS_OK;

    for (int i = 0; st == LS_OK; i++) {
        st = ls_all_reduce(comm, data, data, COUNT, LS_F32, LS_MAX, NULL);
        if (i == 2)
            puts("up");
    }
    return st;
}

/* Nothing is on its way: only probes find out that the other is gone. */
static ls_status wait_for_word(ls_comm *comm)
{
    float x = 0;
    ls_status st = ls_barrier(comm, NULL);

    puts("up");
    if (st == LS_OK)
        st = ls_recv(comm, &x, 1, LS_F32, 1 - ls_comm_rank(comm), 0, NULL);
    return st;
}

/* Rank 1 does not look at its connections, and rank 0 has sent more than it can take. */
static ls_status fill_window(ls_comm *comm)
{
    enum { COUNT = 1 << 14 };
    static float data[COUNT];
    ls_status st = ls_barrier(comm, NULL);
    ls_work *w;

    while (st == LS_OK && ls_comm_rank(comm) == 0) {
        st = ls_send(comm, data, COUNT, LS_F32, 1, 0, &w);
        if (st == LS_OK)
            st = ls_work_wait_for(w, 500);
        if (st == LS_ETIMEOUT) {
            puts("up");
            return ls_work_wait(w);
        }
    }
    if (st == LS_OK)
        puts("up");
    while (st == LS_OK) {
        (void)usleep(1000);
        st = ls_comm_status(comm);
    }
    return st;
}

static int be_rank(const char *what)
{
    const ls_init_options opt = {.size = sizeof(opt), .insecure = 1, .join_timeout_ms = 30000};
    ls_comm *comm = NULL;
    ls_status st = ls_init(&opt, &comm);

    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    if (st != LS_OK) {
        printf("cannot join: %s\n", ls_last_error());
        return 1;
    }
    st = strcmp(what, "transfer") == 0 ? transfer(comm)
         : strcmp(what, "full") == 0   ? fill_window(comm)
                                       : wait_for_word(comm);
    printf("%d %s\n", (int)st, ls_last_error());
    ls_comm_destroy(comm);
    return 0;
}

/* --- the test --- */

typedef struct job {
    const char *what;
    int port;
    FILE *output[RANKS];
    pid_t pids[RANKS];
} job;

static netlab lab;
static const char *self;

static void start(job *j)
{
    for (int r = 0; r < RANKS; r++) {
        char rank[24];
        char port[24];
        const char *const argv[] = {"env",
                                    text_format(rank, sizeof(rank), "RANK=%d", r),
                                    "WORLD_SIZE=2",
                                    "MASTER_ADDR=10.77.0.10",
                                    text_format(port, sizeof(port), "MASTER_PORT=%d", j->port),
                                    "LOCKSTEP_IFACE=eth1",
                                    self,
                                    j->what,
                                    NULL};
        int ends[2];

        assert_int_equal(pipe(ends), 0);
        j->pids[r] = netlab_start(&lab, r, argv, -1, ends[1]);
        assert_true(j->pids[r] > 0);
        (void)close(ends[1]);
        j->output[r] = fdopen(ends[0], "r");
        assert_non_null(j->output[r]);
    }
}

static void read_output(const job *j, int r, char *line, int n)
{
    if (fgets(line, n, j->output[r]) == NULL)
        fail_msg("%s: rank %d ended without a word", j->what, r);
}

static void wait_until_up(const job *j)
{
    char line[1024];

    for (int r = 0; r < RANKS; r++) {
        read_output(j, r, line, (int)sizeof(line));
        if (strcmp(line, "up\n") != 0)
            fail_msg("%s: rank %d: %s", j->what, r, line);
    }
}

static void end(job *j)
{
    for (int r = 0; r < RANKS; r++) {
        (void)fclose(j->output[r]);
        (void)kill(j->pids[r], SIGKILL);
        (void)waitpid(j->pids[r], NULL, 0);
    }
}

static void check_failures(const job *j, int64_t down_ms)
{
    for (int r = 0; r < RANKS; r++) {
        char line[1024];

        read_output(j, r, line, (int)sizeof(line));
        printf("%s: rank %d after %.1f s: %s", j->what, r, (double)(ls_now_ms() - down_ms) / 1000,
               line);
        assert_int_equal(strtol(line, NULL, 10), LS_EPEER);
        // The first to fail names the other, and both report that.
        assert_non_null(strstr(line, "connection to rank "));
        assert_non_null(strstr(line, "lost during "));
        assert_true(ls_now_ms() - down_ms < NOTICE_MS);
    }
}

static void a_link_that_goes_down_is_an_error_that_names_the_peer(void **state)
{
    job jobs[] = {{.what = "transfer", .port = 29555},
                  {.what = "word", .port = 29556},
                  {.what = "full", .port = 29557}};
    int64_t down_ms;

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(jobs); i++)
        start(&jobs[i]);
    for (size_t i = 0; i < LS_COUNT_OF(jobs); i++)
        wait_until_up(&jobs[i]);
    assert_true(netlab_run(&lab, 1, "ip link set eth1 down"));
    down_ms = ls_now_ms();
    for (size_t i = 0; i < LS_COUNT_OF(jobs); i++)
        check_failures(&jobs[i], down_ms);
    for (size_t i = 0; i < LS_COUNT_OF(jobs); i++)
        end(&jobs[i]);
}

static int take_lab_down(void **state)
{
    LS_UNUSED(state);
    netlab_down(&lab);
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_link_that_goes_down_is_an_error_that_names_the_peer),
    };
    int code;

    if (argc > 1)
        return be_rank(argv[1]);
    self = argv[0];
    code = netlab_up(&lab, RANKS, "");
    if (code != 0)
        return code;
    return cmocka_run_group_tests(tests, NULL, take_lab_down);
}
