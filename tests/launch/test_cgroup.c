/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cgroup.c - the control group of a process, the limit that caused an out-of-memory kill, and
 * a group of the test's own where the kernel permits it.
 */
#include "base/unit.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/text.h"
#include "host/cgroup.h"
#include "launch/isolate/oom.h"

#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define LONG_MS 20000

/* --- the group of a process --- */

#define MOUNTS                                                                                     \
    "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n"                                                        \
    "30 22 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - tmpfs tmpfs rw\n"                            \
    "31 30 0:27 / /sys/fs/cgroup/unified rw shared:10 - cgroup2 cgroup2 rw,nsdelegate\n"           \
    "33 30 0:30 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"                  \
    "34 30 0:31 / /sys/fs/cgroup/cpu\\040acct rw - cgroup cgroup rw,cpu,cpuacct\n"

static void group_is_found_in_both_versions(void **state)
{
    static const struct {
        const char *groups;
        const char *controller;
        const char *path; /* NULL: none */
        const char *name;
    } cases[] = {
        {"0::/user.slice/a.scope\n", NULL, "/sys/fs/cgroup/unified/user.slice/a.scope",
         "/user.slice/a.scope"},
        {"4:memory:/x\n0::/\n", NULL, "/sys/fs/cgroup/unified", ""},
        {"4:memory:/docker/abc/x\n", "memory", "/sys/fs/cgroup/memory/x", "/x"},
        {"4:memory:/docker/abc\n", "memory", "/sys/fs/cgroup/memory", ""},
        {"3:cpu,cpuacct:/y\n", "cpuacct", "/sys/fs/cgroup/cpu acct/y", "/y"},
        {"3:cpu,cpuacct:/y\n", "cpu", "/sys/fs/cgroup/cpu acct/y", "/y"},
        {"4:memory:/docker/abcd\n", "memory", NULL, NULL}, /* not below the root of the mount */
        {"4:memory:/docker\n", "memory", NULL, NULL},
        {"0::/../other\n", NULL, NULL, NULL}, /* outside the visible hierarchy */
        {"4:memory:/docker/abc/x\n", NULL, NULL, NULL},
        {"3:cpu,cpuacct:/y\n", "acct", NULL, NULL},
        {"0::", NULL, NULL, NULL},
        {"0:", NULL, NULL, NULL},
        {"\n\n", "memory", NULL, NULL},
    };
    cgroup_place place;

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(cases); i++) {
        const ls_status st =
            cgroup_find_place(MOUNTS, cases[i].groups, cases[i].controller, &place);

        assert_int_equal(st, cases[i].path != NULL ? LS_OK : LS_ENOTFOUND);
        if (st != LS_OK)
            continue;
        assert_string_equal(place.path, cases[i].path);
        assert_string_equal(place.path + place.n_mount, cases[i].name);
    }
    assert_int_equal(cgroup_find_place("", "0::/\n", NULL, &place), LS_ENOTFOUND);
}

static void group_name_contains_job_and_agent(void **state)
{
    char job[CGROUP_JOB_BYTES];
    process_id agent;

    LS_UNUSED(state);
    assert_true(cgroup_parse_name("lockstep-0123456789abcdef-47.12.99/below\n", job, &agent));
    assert_string_equal(job, "0123456789abcdef");
    assert_true(agent.pid == 47 && agent.start == 12 && agent.pid_ns == 99);
    assert_false(cgroup_parse_name("lockstep-0123456789abcdef", job, &agent));
    assert_false(cgroup_parse_name("lockstep-a-1.2.x", job, &agent));
    assert_false(cgroup_parse_name("lockstep-1.2.3", job, &agent));
    assert_false(cgroup_parse_name("lockstep-0123456789abcdef0123456789abcdef-1.2.3", job, &agent));
    assert_false(cgroup_parse_name("my-lockstep-a-1.2.3", job, &agent));
}

/* --- out of memory --- */

static char root[64];

static void write_text(const char *name, const char *text)
{
    char path[512];
    FILE *file;

    text_format(path, sizeof(path), "%s/%s", root, name);
    for (char *c = path + 1; (c = strchr(c, '/')) != NULL; c++) {
        *c = 0;
        (void)mkdir(path, 0700);
        *c = '/';
    }
    file = fopen(path, "we");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static int remove_one(const char *path, const struct stat *facts, int kind, struct FTW *where)
{
    LS_UNUSED(facts);
    LS_UNUSED(kind);
    LS_UNUSED(where);
    return remove(path);
}

static int make_root(void **state)
{
    LS_UNUSED(state);
    text_format(root, sizeof(root), "/tmp/lockstep-test-XXXXXX");
    return mkdtemp(root) == NULL;
}

static int remove_root(void **state)
{
    LS_UNUSED(state);
    return nftw(root, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static void make_v2(void)
{
    write_text("proc/self/mountinfo", "1 0 0:27 / /cg rw - cgroup2 cgroup2 rw\n");
    write_text("proc/self/cgroup", "0::/pod/job/step\n");
    write_text("proc/vmstat", "nr_free 1\noom_kill 7\n");
    write_text("cg/pod/memory.events", "low 0\noom 0\noom_kill 3\noom_group_kill 0\n");
    write_text("cg/pod/memory.max", "1073741824\n");
    write_text("cg/pod/job/memory.events", "low 0\noom 1\noom_kill 3\n");
    write_text("cg/pod/job/memory.max", "536870912\n");
    write_text("cg/pod/job/step/memory.events", "low 0\noom 0\noom_kill 2\n");
    write_text("cg/pod/job/step/memory.max", "max\n");
}

static void group_whose_limit_was_reached_is_named(void **state)
{
    char text[256];
    oom_watch w;

    LS_UNUSED(state);
    make_v2();
    oom_begin(&w, root, NULL);
    assert_false(oom_happened(&w, text, sizeof(text)));
    write_text("cg/pod/memory.events", "oom 1\noom_kill 4\n"); /* of a neighbouring group */
    write_text("proc/vmstat", "oom_kill 8\n");
    assert_false(oom_happened(&w, text, sizeof(text)));
    write_text("cg/pod/memory.events", "oom 2\noom_kill 5\n");
    write_text("cg/pod/job/memory.events", "oom 2\noom_kill 4\n");
    write_text("cg/pod/job/step/memory.events", "oom 0\noom_kill 3\n");
    assert_true(oom_happened(&w, text, sizeof(text)));
    assert_string_equal(text, "limit 512 MiB of cgroup /pod/job");
    assert_false(oom_happened(&w, text, sizeof(text))); /* reported once */
    write_text("cg/pod/job/step/memory.events", "oom 0\noom_kill 4\n");
    assert_true(oom_happened(&w, text, sizeof(text))); /* without a limit that was reached */
    assert_non_null(
        strstr(text, "this machine, or the container around this process, has none left"));
}

static void version_1_counts_in_other_files(void **state)
{
    char text[256];
    oom_watch w;

    LS_UNUSED(state);
    write_text("proc/self/mountinfo", "1 0 0:27 / /cg rw - cgroup cgroup rw,memory\n");
    write_text("proc/self/cgroup", "4:memory:/a/b\n0::/\n");
    write_text("proc/vmstat", "oom_kill 7\n");
    write_text("cg/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n");
    write_text("cg/a/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n");
    write_text("cg/a/memory.failcnt", "5\n");
    write_text("cg/a/memory.limit_in_bytes", "67108864\n");
    write_text("cg/a/b/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n");
    write_text("cg/a/b/memory.failcnt", "0\n");
    write_text("cg/a/b/memory.limit_in_bytes", "9223372036854771712\n");
    oom_begin(&w, root, NULL);
    write_text("cg/a/memory.failcnt", "9\n");
    write_text("cg/a/b/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n");
    assert_true(oom_happened(&w, text, sizeof(text)));
    assert_string_equal(text, "limit 64 MiB of cgroup /a");
}

static void machine_counts_without_groups(void **state)
{
    char text[256];
    oom_watch w;

    LS_UNUSED(state);
    oom_begin(&w, root, NULL); /* without any counter */
    assert_false(oom_happened(&w, text, sizeof(text)));
    write_text("proc/vmstat", "oom_kill 7\n");
    oom_begin(&w, root, NULL);
    assert_false(oom_happened(&w, text, sizeof(text)));
    write_text("proc/vmstat", "oom_kill 8\n");
    assert_true(oom_happened(&w, text, sizeof(text)));
    assert_string_equal(text, "this machine has none left");
}

/* --- a group of the test's own --- */

static pid_t start_inside(const cgroup *g)
{
    const pid_t pid = cgroup_fork(g);

    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;)
            pause();
    }
    assert_true(pid > 0);
    return pid;
}

typedef struct tally {
    int n;
    pid_t pid;
} tally;

static void count(void *arg, pid_t pid)
{
    tally *t = arg;

    t->n++;
    t->pid = pid;
}

static void await_inside(const cgroup *g, pid_t pid)
{
    const int64_t deadline_ms = ls_deadline_ms(LONG_MS);
    tally t = {0};

    while (t.pid != pid) {
        assert_true(ls_deadline_left(deadline_ms) > 0);
        t = (tally){0};
        cgroup_for_each(g, count, &t);
    }
    assert_int_equal(t.n, 1);
}

static void kill_ends_all_processes_and_removes_the_group(void **state)
{
    char path[CGROUP_PATH_BYTES + CGROUP_NAME_BYTES + 16];
    const int64_t since_ms = ls_now_ms();
    int status;
    cgroup g;
    pid_t pid;

    LS_UNUSED(state);
    if (cgroup_create("0123456789abcdef", &g) != LS_OK) {
        print_message("skipped: %s\n", ls_last_error());
        skip();
    }
    text_format(path, sizeof(path), "%s/%s", g.parent.path, g.name);
    assert_int_equal(access(path, F_OK), 0);
    for (int i = 0; i < 3; i++) { /* earlier kills do not affect later processes */
        assert_ok(cgroup_begin(&g));
        pid = start_inside(&g);
        await_inside(&g, pid);
        cgroup_kill(&g);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    }
    assert_ok(cgroup_begin(&g));
    g.takes_forks = false; /* as on older kernels, or under a seccomp filter */
    pid = start_inside(&g);
    await_inside(&g, pid);
    text_format(path, sizeof(path), "%s/%s/4/of_a_rank", g.parent.path, g.name);
    assert_int_equal(mkdir(path, 0755), 0);
    assert_true(cgroup_remove(&g, ls_deadline_ms(LONG_MS)));
    assert_int_equal(waitpid(pid, &status, 0), pid);
    text_format(path, sizeof(path), "%s/%s", g.parent.path, g.name);
    assert_int_equal(access(path, F_OK), -1);
    cgroup_close(&g);
    assert_true(cgroup_remove(&g, 0) &&
                ls_now_ms() - since_ms < LONG_MS); /* none has exited before the kill */
}

/* The next agent removes the group of a dead agent; the group of a living agent stays. */
static void groups_of_dead_agents_are_removed(void **state)
{
    char dead[CGROUP_PATH_BYTES + 128];
    char living[CGROUP_PATH_BYTES + 128];
    process_id self;
    cgroup g;

    LS_UNUSED(state);
    if (cgroup_create("0123456789abcdef", &g) != LS_OK)
        skip();
    assert_ok(process_id_self(&self));
    text_format(dead, sizeof(dead), "%s/lockstep-test-4194304.1.%llu", g.parent.path,
                (unsigned long long)self.pid_ns);
    text_format(living, sizeof(living), "%s/lockstep-test-1.1.1", g.parent.path);
    assert_true(cgroup_remove(&g, ls_deadline_ms(LONG_MS)));
    cgroup_close(&g);
    assert_int_equal(mkdir(dead, 0755), 0);
    assert_int_equal(mkdir(living, 0755),
                     0); /* of another pid namespace, so its agent is unknown */
    assert_ok(cgroup_create("0123456789abcdef", &g));
    assert_int_equal(access(dead, F_OK), -1);
    assert_int_equal(access(living, F_OK), 0);
    assert_int_equal(rmdir(living), 0);
    assert_int_equal(mkdir(dead, 0755), 0);
    cgroup_remove_stale();
    assert_int_equal(access(dead, F_OK), -1);
    assert_true(cgroup_remove(&g, ls_deadline_ms(LONG_MS)));
    cgroup_close(&g);
}

#define rooted(name) cmocka_unit_test_setup_teardown(name, make_root, remove_root)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(group_is_found_in_both_versions),
        cmocka_unit_test(group_name_contains_job_and_agent),
        rooted(group_whose_limit_was_reached_is_named),
        rooted(version_1_counts_in_other_files),
        rooted(machine_counts_without_groups),
        cmocka_unit_test(kill_ends_all_processes_and_removes_the_group),
        cmocka_unit_test(groups_of_dead_agents_are_removed),
    };

    return cmocka_run_group_tests_name("cgroup", tests, NULL, NULL);
}
