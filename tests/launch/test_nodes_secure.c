/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs of two nodes in the modes of LOCKSTEP_SECURITY, and what an eavesdropper between them can
 * read. */
#include "launch/job.h"

#include "base/clock.h"
#include "base/thread.h"
#include "net/key.h"
#include "net/auth/seal.h"
#include "net/socket.h"

#include <poll.h>
#include <stdatomic.h>
#include <unistd.h>

#define test(name) cmocka_unit_test_teardown(name, job_clean_up)

static int port;
static char port_text[16];
static char key_path[64];
static char key_env[96];

static net_address at_host(const char *host)
{
    net_address at;

    assert_ok(net_address_parse(host, 0, &at));
    net_address_set_port(&at, port);
    return at;
}

static int set_up(void **state)
{
    net_address bound;
    net_address any = at_host("127.0.0.1");
    net_key key;
    int fd;

    LS_UNUSED(state);
    assert_ok(net_listen(&any, NET_STREAM, 1, &fd, &bound));
    (void)close(fd);
    port = net_address_port(&bound);
    text_format(port_text, sizeof(port_text), "%d", port);
    text_format(key_path, sizeof(key_path), "/tmp/lockstep-test-secure-%d-%llu", (int)getpid(),
                (unsigned long long)ls_now_ns());
    text_format(key_env, sizeof(key_env), NET_KEY_FILE_ENV "=%s", key_path);
    assert_ok(net_key_random(&key));
    assert_ok(net_key_write_file(key_path, &key));
    return 0;
}

static int clean_up(void **state)
{
    LS_UNUSED(state);
    (void)unlink(key_path);
    return 0;
}

/* One of two nodes with one rank; the head is at `host`. */
static job *start_node(const char *i, const char *host, const char *mode,
                       const char *const *program)
{
    const char *argv[20] = {JOB_TOOL,        "run", "--nnodes",      "2",       "--node-rank", i,
                            "--master-addr", host,  "--master-port", port_text, "-n",          "1"};
    char security[64];
    int n = 12;

    for (; *program != NULL && n < 19; program++)
        argv[n++] = *program;
    text_format(security, sizeof(security), "LOCKSTEP_SECURITY=%s", mode);
    return job_start(argv, JOB_LIST(key_env, security, "LOCKSTEP_TRANSPORT=tcp",
                                    "LOCKSTEP_LOG=warn,native=debug"));
}

static void nodes_and_their_ranks_use_the_mode(void **state)
{
    LS_UNUSED(state);
    for (int mode = NET_MAC; mode <= NET_ENCRYPT; mode++) {
        const char *name = net_security_text((net_security)mode);
        char line[64];
        job *a = start_node("0", "127.0.0.1", name, JOB_LIST(JOB_ACTOR, "steps", "50"));
        job *b = start_node("1", "127.0.0.1", name, JOB_LIST(JOB_ACTOR, "steps", "50"));

        job_expect_code(a, 0);
        job_expect_code(b, 0);
        text_format(line, sizeof(line), "connected with rank 0 over tcp, security %s", name);
        job_expect(b, job_printed(b, 1, line));
        job_expect_gone(a);
        job_expect_gone(b);
        job_clean_up(NULL);
    }
}

static void nodes_in_different_modes_are_both_notified(void **state)
{
    job *a = start_node("0", "127.0.0.1", "mac", JOB_LIST("true"));
    job *b = start_node("1", "127.0.0.1", "auth", JOB_LIST("true"));

    LS_UNUSED(state);
    job_expect_code(b, 1);
    job_expect(b, job_printed(b, 1, "security is auth here, mac at tcp://127.0.0.1:"));
    job_await_text(a, 1, "security is mac here, auth at tcp://127.0.0.1:");
}

/* The flag beats the variable, and the ranks receive it. */
static void the_flag_is_the_mode_of_nodes_and_ranks(void **state)
{
    job *a = start_node("0", "127.0.0.1", "auth",
                        JOB_LIST("--security", "encrypt", JOB_ACTOR, "steps", "20"));
    job *b = start_node("1", "127.0.0.1", "mac",
                        JOB_LIST("--security=encrypt", JOB_ACTOR, "steps", "20"));

    LS_UNUSED(state);
    job_expect_code(a, 0);
    job_expect_code(b, 0);
    job_expect(b, job_printed(b, 1, "connected with rank 0 over tcp, security encrypt"));
    job_clean_up(NULL);
    a = start_node("0", "127.0.0.1", "auth", JOB_LIST("--security", "tls", "true"));
    job_expect_code(a, 2);
    job_expect(a, job_printed(a, 1, "--security tls: auth, mac or encrypt"));
}

/* A node that joins with another mode than the head.s is notified, and so is the head. */
static void joining_node_sends_the_mode(void **state)
{
    job *a = job_start(JOB_LIST(JOB_TOOL, "run", "--nnodes", "2", "--rdzv-backend", "c10d",
                                "--rdzv-endpoint", "127.0.0.1", "--master-port", port_text,
                                "--security", "mac", "sh", "-c", "echo mode $LOCKSTEP_SECURITY"),
                       JOB_LIST(key_env));
    char place[64];
    job *b;

    LS_UNUSED(state);
    text_format(place, sizeof(place), "127.0.0.1:%s", port_text);
    b = job_start(JOB_LIST(JOB_TOOL, "join", "--security", "encrypt", place), JOB_LIST(key_env));
    job_expect_code(b, 1);
    job_expect(b, job_printed(b, 1, "security is encrypt here, mac at tcp://127.0.0.1:"));
    job_await_text(a, 1, "security is mac here, encrypt at tcp://127.0.0.1:");
    b = job_start(JOB_LIST(JOB_TOOL, "join", "--security", "mac", place),
                  JOB_LIST(key_env, "LOCKSTEP_SECURITY=auth"));
    job_expect_code(a, 0);
    job_expect_code(b, 0);
    job_expect(a, job_printed(a, 0, "mode mac"));
    job_expect(b, job_printed(b, 0, "mode mac"));
}

static void a_mode_without_a_key_is_refused(void **state)
{
    job *a = start_node("0", "127.0.0.1", "encrypt", JOB_LIST("--insecure", "true"));

    LS_UNUSED(state);
    job_expect_code(a, 1);
    job_expect(a, job_printed(a, 1, "LOCKSTEP_SECURITY=encrypt needs a key"));
}

/* --- an eavesdropper --- */

/* Takes one connection to 127.0.0.2, carries it on to 127.0.0.1, and keeps what passes. */
typedef struct eavesdropper {
    ls_thread thread;
    int listener;
    atomic_bool is_over;
    uint8_t captured[1 << 16];
    size_t n_captured;
} eavesdropper;

/* False at the end of either side. */
static bool carry(eavesdropper *e, int from, int to)
{
    uint8_t data[4096];
    size_t n = 0;

    if (net_recv_some(from, "one", data, sizeof(data), &n) != LS_OK ||
        net_send_all(to, "other", data, n, ls_deadline_ms(JOB_LONG_MS)) != LS_OK)
        return false;
    for (size_t i = 0; i < n && e->n_captured < sizeof(e->captured); i++)
        e->captured[e->n_captured++] = data[i];
    return true;
}

static void eavesdrop(void *arg)
{
    const net_address head = at_host("127.0.0.1");
    eavesdropper *e = arg;
    struct pollfd fds[3] = {{.fd = e->listener, .events = POLLIN},
                            {.fd = -1, .events = POLLIN},
                            {.fd = -1, .events = POLLIN}};
    bool is_open = false;

    while (!atomic_load(&e->is_over)) {
        (void)poll(fds, 3, 10);
        if (!is_open && fds[0].revents != 0 && net_accept(e->listener, &fds[1].fd) == LS_OK) {
            is_open = net_connect_retry(&head, NET_STREAM, ls_deadline_ms(JOB_LONG_MS),
                                        &fds[2].fd) == LS_OK;
            fds[0].fd = -1;
        }
        if (is_open)
            is_open = carry(e, fds[1].fd, fds[2].fd) && carry(e, fds[2].fd, fds[1].fd);
        if (!is_open && fds[1].fd >= 0) {
            (void)close(fds[1].fd);
            (void)close(fds[2].fd);
            fds[1].fd = fds[2].fd = -1;
        }
    }
    for (int i = 1; i < 3; i++)
        if (fds[i].fd >= 0)
            (void)close(fds[i].fd);
}

/* Whether what a node says first, its version, can be read on the line. */
static bool version_is_readable(const char *mode)
{
    static eavesdropper e;
    const net_address at = at_host("127.0.0.2");
    job *a;
    job *b;

    e = (eavesdropper){.listener = -1};
    assert_ok(net_listen(&at, NET_STREAM, 4, &e.listener, NULL));
    assert_ok(ls_thread_start(&e.thread, "line", eavesdrop, &e));
    a = start_node("0", "127.0.0.1", mode, JOB_LIST("true"));
    b = start_node("1", "127.0.0.2", mode, JOB_LIST("true"));
    job_await_end(a);
    job_await_end(b);
    atomic_store(&e.is_over, true);
    ls_thread_join(&e.thread);
    (void)close(e.listener);
    job_expect_code(a, 0);
    job_expect_code(b, 0);
    job_clean_up(NULL);
    assert_true(e.n_captured > 400 && e.n_captured < sizeof(e.captured));
    return memmem(e.captured, e.n_captured, ls_version(), strlen(ls_version())) != NULL;
}

static void only_what_is_encrypted_cannot_be_read_on_the_line(void **state)
{
    LS_UNUSED(state);
    assert_true(version_is_readable("auth"));
    assert_true(version_is_readable("mac"));
    assert_false(version_is_readable("encrypt"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        test(nodes_and_their_ranks_use_the_mode),
        test(nodes_in_different_modes_are_both_notified),
        test(the_flag_is_the_mode_of_nodes_and_ranks),
        test(joining_node_sends_the_mode),
        test(a_mode_without_a_key_is_refused),
        test(only_what_is_encrypted_cannot_be_read_on_the_line),
    };

    return cmocka_run_group_tests_name("launch nodes secure", tests, set_up, clean_up);
}
