/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_hub_owner.c - a hub in the loop of its owner, as in the agent: the owner has better causes
 * than the hub, and clients may be slow, break the protocol or close at any moment.
 */
#include "base/unit.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/text.h"
#include "base/thread.h"
#include "net/socket.h"
#include "hub/control.h"
#include "hub/hub.h"
#include "hub/hub_internal.h"
#include "hub/hublink.h"
#include "hub/hub_messages.h"

#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define SOON 20000 /* ms: much more than any step takes */
#define JOB  "0123456789abcdef"

/* The owner: its loop runs in a thread of its own. */
typedef struct owner {
    poller *loop;
    hub *hub;
    net_address at;
    ls_thread thread;
    atomic_bool is_over; // set by the test (release), read by the loop (acquire)
    atomic_int n_lost;   // counted by the loop, read by the test
    bool knows_signal;   /* calls hub_abort() on a loss */
    bool knows_exit;     /* calls hub_rank_exited() on a loss */
    bool exits_early;    /* rank 1 exits before any rank has joined */
} owner;

static net_key key;

static void on_lost(void *self, int rank)
{
    owner *o = self;
    job_cause cause = {.kind = CAUSE_DIED,
                       .group = GROUP_ALL,
                       .rank = rank,
                       .text = "rank 1 (pid 4711) was killed by signal 9 (SIGKILL)"};

    atomic_fetch_add_explicit(&o->n_lost, 1, memory_order_release);
    if (o->knows_signal)
        hub_abort(o->hub, &cause);
    if (o->knows_exit)
        hub_rank_exited(o->hub, rank);
}

static void describe(void *self, int rank, char *buf, size_t n)
{
    LS_UNUSED(self);
    text_format(buf, n, "stopped, says the owner of %d", rank);
}

static void run(void *arg)
{
    owner *o = arg;

    while (!atomic_load_explicit(&o->is_over, memory_order_acquire)) {
        if (poller_run_once(o->loop, 100) != LS_OK)
            return;
    }
}

static void begin(owner *o, int world_size)
{
    hub_options opt = {.job = JOB, .world_size = world_size, .key = &key, .death_grace_ms = 300};
    net_address any;
    int fd;

    opt.events = (hub_events){.self = o, .lost = on_lost, .describe = describe};
    assert_ok(poller_create(&o->loop));
    assert_ok(hub_create(o->loop, &opt, &o->hub));
    assert_ok(net_address_decode("127.0.0.1:0", &any));
    assert_ok(net_listen(&any, NET_STREAM, 16, &fd, &o->at)); // bound by the owner
    assert_ok(hub_listen_take(o->hub, fd));
    if (o->exits_early)
        hub_rank_exited(o->hub, 1);
    assert_ok(ls_thread_start(&o->thread, "owner", run, o));
}

static void end(owner *o)
{
    atomic_store_explicit(&o->is_over, true, memory_order_release);
    poller_wake(o->loop);
    ls_thread_join(&o->thread);
    hub_destroy(o->hub);
    poller_destroy(o->loop);
}

static control *join(const owner *o, int rank, int world_size)
{
    const control_options opt = {.hub = o->at,
                                 .key = &key,
                                 .job = JOB,
                                 .rank = rank,
                                 .world_size = world_size,
                                 .timeout_ms = SOON};
    control *c = NULL;

    assert_ok(control_open(&opt, &c));
    return c;
}

static void read_more(control *c)
{
    assert_ok(net_wait(control_fd(c), POLLIN, ls_deadline_ms(SOON)));
    assert_ok(control_poll(c));
}

static job_cause await_cause(control *c)
{
    job_cause cause = {0};

    while (!control_next_cause(c, &cause))
        read_more(c);
    return cause;
}

static void the_owners_cause_comes_before_the_hubs(void **state)
{
    owner o = {.knows_signal = true};
    control *a;
    control *b;

    LS_UNUSED(state);
    begin(&o, 2);
    a = join(&o, 0, 2);
    b = join(&o, 1, 2);
    assert_int_equal(shutdown(control_fd(b), SHUT_RDWR), 0);
    assert_non_null(strstr(await_cause(a).text, "signal 9 (SIGKILL)"));
    control_close(a);
    control_close(b);
    end(&o);
    assert_int_equal(atomic_load_explicit(&o.n_lost, memory_order_acquire), 1);
}

static void a_rank_that_the_owner_saw_end_well_has_left(void **state)
{
    owner o = {.knows_exit = true};
    control *a;
    control *b;
    int rank = -1;

    LS_UNUSED(state);
    begin(&o, 2);
    a = join(&o, 0, 2);
    b = join(&o, 1, 2);
    assert_int_equal(shutdown(control_fd(b), SHUT_RDWR), 0); // no leave
    while (!control_next_left(a, &rank))
        read_more(a);
    assert_int_equal(rank, 1);
    control_close(a);
    control_close(b);
    end(&o);
}

/* Its connection ends first: then it counts as lost, until the owner says that it has exited. */
static void a_barrier_fails_when_a_rank_of_it_has_exited(void **state)
{
    static const int members[] = {0, 1};
    const control_barrier barrier = {.ticket = 7,
                                     .group = 3,
                                     .what = "monitored barrier",
                                     .members = members,
                                     .n_members = 2,
                                     .timeout_ms = -1,
                                     .report_in_ms = SOON};
    owner o = {.knows_exit = true};
    barrier_answer answer = {0};
    uint32_t first;
    control *a;
    control *b;

    LS_UNUSED(state);
    begin(&o, 2);
    a = join(&o, 0, 2);
    b = join(&o, 1, 2);
    assert_ok(control_meet(a, &barrier));
    assert_ok(control_reserve_groups(a, 1, &first)); // the hub has read the barrier
    assert_int_equal(shutdown(control_fd(b), SHUT_RDWR), 0);
    while (!control_next_answer(a, &answer))
        read_more(a);
    assert_int_equal(answer.ticket, barrier.ticket);
    assert_int_equal(answer.status, LS_EPEER);
    assert_non_null(strstr(answer.text, "left the job"));
    control_close(a);
    control_close(b);
    end(&o);
}

static void exit_before_joining_ends_the_wait_of_the_other_ranks(void **state)
{
    owner o = {.exits_early = true};
    job_cause cause;
    control *a;

    LS_UNUSED(state);
    begin(&o, 2);
    a = join(&o, 0, 2);
    cause = await_cause(a);
    assert_int_equal(cause.kind, CAUSE_LEFT);
    assert_int_equal(cause.rank, 1);
    assert_string_equal(cause.text, "rank 1 exited while the other ranks wait for it to join");
    control_close(a);
    end(&o);
}

/* --- clients that misbehave --- */

static ls_status ignore_push(void *arg, const frame *f)
{
    LS_UNUSED(arg);
    LS_UNUSED(f);
    return LS_OK;
}

/* An authenticated connection on which the test sends every frame itself. */
static void open_raw(const owner *o, hublink *l)
{
    hublink_options to = {.n_hub = 1, .key = &key, .deadline_ms = ls_deadline_ms(SOON)};

    to.hub[0] = o->at;
    to.claim = (handshake_claim){
        .purpose = NET_PURPOSE_CONTROL, .job = JOB, .from = 1, .to = HANDSHAKE_ANY_RANK};
    assert_ok(hublink_open(&to, ignore_push, NULL, l));
}

static void say_hello(hublink *l, uint32_t rank, uint32_t world)
{
    wire_writer_reset(&l->body);
    wire_write_u32(&l->body, rank);
    wire_write_u32(&l->body, world);
    wire_write_u32(&l->body, 99);
    assert_ok(hublink_send(l, HUB_MESSAGE_HELLO, &l->body));
    assert_ok(hublink_expect(l, HUB_MESSAGE_WELCOME, ls_deadline_ms(SOON)));
}

/* Reads until the hub has closed the connection. */
static void expect_closed(hublink *l)
{
    const int64_t deadline_ms = ls_deadline_ms(SOON);
    static uint8_t ignored[65536];
    size_t moved;

    while (net_recv_some(l->fd, "the hub", ignored, sizeof(ignored), &moved) == LS_OK) {
        if (moved == 0)
            assert_ok(net_wait(l->fd, POLLIN, deadline_ms));
    }
    hublink_close(l);
}

static void client_that_does_not_read_is_disconnected_and_delays_no_other(void **state)
{
    enum { VALUE = 4 * 1024 * 1024, N_GETS = 64 };
    owner o = {0};
    control *a;
    hublink rude;
    char *value = ls_calloc(VALUE, 1);
    int64_t count = 0;

    LS_UNUSED(state);
    assert_non_null(value);
    begin(&o, 2);
    a = join(&o, 0, 2);
    assert_ok(ls_store_set(control_store(a), "large", value, VALUE));
    ls_free(value);
    open_raw(&o, &rude);
    say_hello(&rude, 1, 2);
    for (int i = 0; i < N_GETS; i++) {
        wire_writer *w = hublink_begin(&rude);

        wire_write_i64(w, 0);
        wire_write_bytes(w, "large", 5);
        if (hublink_send(&rude, HUB_MESSAGE_GET, w) != LS_OK)
            break;                                           // dropped already
        assert_ok(ls_store_count(control_store(a), &count)); // served all the while
    }
    assert_int_equal(await_cause(a).rank, 1);
    expect_closed(&rude);
    control_close(a);
    end(&o);
}

/* ticket, group, no timeout, no report, "x" */
#define MEET_HEAD                                                                                  \
    "\1\0\0\0\0\0\0\0\0\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff\0\0\0\0\0\0\0\0\1\0\0\0x"

static void messages_that_make_no_sense_end_the_connection(void **state)
{
    static const struct {
        uint32_t type;
        const char *body;
        size_t bytes;
    } bad[] = {
        {HUB_MESSAGE_HELLO, "", 0}, // a second one
        {HUB_MESSAGE_WELCOME, "", 0},
        {999, "", 0},
        {HUB_MESSAGE_SET, "\1\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 16}, // an empty key
        {HUB_MESSAGE_SET, "\1\0\0\0\0\0\0\0\xff\xff\xff\xffk", 13},
        {HUB_MESSAGE_WAIT, "\1\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\xff\xff\xff\x7f", 20},
        {HUB_MESSAGE_CHECK, "\1\0\0\0\0\0\0\0\0\0\0\0", 12},
        {HUB_MESSAGE_WAITING, "short", 5},
        {HUB_MESSAGE_ARRIVED, "", 0},
        {HUB_MESSAGE_FAIL, "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 16},
        {HUB_MESSAGE_FAIL, "\1\0\0\0\0\0\0\0\x07\0\0\0\0\0\0\0", 16}, // names rank 7 of 1
        {HUB_MESSAGE_LEAVE_JOB, "x", 1},
        {HUB_MESSAGE_STACK, "\1\0\0\0x", 5}, // not asked for
        {HUB_MESSAGE_STACK, "\xff\xff\xff\xffx", 5},
        {HUB_MESSAGE_MEET, "short", 5},
        // rank 7 of 1; more members than bytes; without the sender
        {HUB_MESSAGE_MEET, MEET_HEAD "\1\0\0\0\7\0\0\0", 41},
        {HUB_MESSAGE_MEET, MEET_HEAD "\xff\xff\xff\x7f\0\0\0\0", 41},
        {HUB_MESSAGE_MEET, MEET_HEAD "\1\0\0\0", 37},
    };
    owner o = {0};

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(bad); i++) {
        hublink l;

        o = (owner){.knows_exit = true};
        begin(&o, 1);
        open_raw(&o, &l);
        say_hello(&l, 0, 1);
        wire_writer_reset(&l.body);
        wire_write_raw(&l.body, bad[i].body, bad[i].bytes);
        assert_ok(hublink_send(&l, bad[i].type, &l.body));
        expect_closed(&l);
        end(&o);
    }
}

static void a_frame_that_claims_gigabytes_ends_the_connection(void **state)
{
    owner o = {0};
    hublink l;
    const uint8_t header[8] = {0xff, 0xff, 0xff, 0xff, HUB_MESSAGE_SET};

    LS_UNUSED(state);
    begin(&o, 2);
    open_raw(&o, &l);
    say_hello(&l, 1, 2);
    assert_ok(net_send_all(l.fd, "the hub", header, sizeof(header), ls_deadline_ms(SOON)));
    expect_closed(&l);
    end(&o);
}

static void authenticated_connections_must_send_their_hello_first(void **state)
{
    owner o = {0};
    hublink l;

    LS_UNUSED(state);
    begin(&o, 2);
    open_raw(&o, &l);
    hublink_begin(&l);
    assert_ok(hublink_send(&l, HUB_MESSAGE_COUNT, &l.body));
    expect_closed(&l);
    end(&o);
}

/* --- the late report with an owner that can look --- */

static void owner_describes_the_process_of_a_rank(void **state)
{
    owner o = {0};
    const int members[] = {0, 1};
    control_wait wait = {.members = members, .n_members = 2, .waited_ms = 10000};
    op_stamp s = {.sequence = 4, .kind = COLL_BARRIER, .dtype = 255, .redop = 255, .root = -1};
    control *a;
    control *b;

    LS_UNUSED(state);
    begin(&o, 2);
    a = join(&o, 0, 2);
    b = join(&o, 1, 2);
    wait.stamp = &s;
    assert_ok(control_waiting(a, &wait, NULL)); // logged, because no event handler is set
    assert_ok(ls_store_set(control_store(a), "k", "v", 1));
    assert_ok(control_arrived(a, &s, 0));
    control_close(a);
    control_close(b);
    end(&o);
}

/* --- no memory --- */

static void requests_survive_every_failing_allocation(void **state)
{
    static const uint8_t hello[] = {12, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 9, 0, 0, 0};
    static const uint8_t set[] = {18, 0, 0, 0, 10, 0, 0, 0,   1, 0, 0, 0, 0,
                                  0,  0, 0, 1, 0,  0, 0, 'k', 1, 0, 0, 0, 'v'};
    static const uint8_t get[] = {21,   0,    0,    0,    11, 0, 0,    0,    2,    0,
                                  0,    0,    0,    0,    0,  0, 0xff, 0xff, 0xff, 0xff,
                                  0xff, 0xff, 0xff, 0xff, 1,  0, 0,    0,    'm'};
    static const uint8_t gather[] = {29, 0, 0, 0,    19,   0,    0,    0,    3,    0,    0,    0, 0,
                                     0,  0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0,
                                     0,  0, 1, 0,    0,    0,    'g',  0,    0,    0,    0};
    static const struct {
        const uint8_t *bytes;
        ssize_t n;
    } frames[] = {
        {hello, sizeof(hello)}, {set, sizeof(set)}, {get, sizeof(get)}, {gather, sizeof(gather)}};

    LS_UNUSED(state);
    for (uint64_t n = 1; n <= 60; n++) {
        hub_options opt = {.job = JOB, .world_size = 2, .key = &key};
        poller *loop = NULL;
        hub *h = NULL;
        int fds[2];

        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds),
                         0);
        ls_alloc_fail_at(n);
        if (poller_create(&loop) == LS_OK && hub_create(loop, &opt, &h) == LS_OK) {
            hub_enter(h, &(listener_peer){.fd = fds[1], .name = "a client"});
            for (size_t i = 0; i < LS_COUNT_OF(frames); i++) {
                const size_t bytes = (size_t)frames[i].n;

                if (send(fds[0], frames[i].bytes, bytes, MSG_NOSIGNAL) != frames[i].n)
                    break;
                assert_ok(poller_run_once(loop, 0));
            }
            assert_ok(poller_run_once(loop, 0));
            fds[1] = -1; // taken
        }
        ls_alloc_fail_at(0);
        hub_destroy(h);
        poller_destroy(loop);
        close(fds[0]);
        if (fds[1] >= 0)
            close(fds[1]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_owners_cause_comes_before_the_hubs),
        cmocka_unit_test(a_rank_that_the_owner_saw_end_well_has_left),
        cmocka_unit_test(a_barrier_fails_when_a_rank_of_it_has_exited),
        cmocka_unit_test(exit_before_joining_ends_the_wait_of_the_other_ranks),
        cmocka_unit_test(client_that_does_not_read_is_disconnected_and_delays_no_other),
        cmocka_unit_test(messages_that_make_no_sense_end_the_connection),
        cmocka_unit_test(a_frame_that_claims_gigabytes_ends_the_connection),
        cmocka_unit_test(authenticated_connections_must_send_their_hello_first),
        cmocka_unit_test(owner_describes_the_process_of_a_rank),
        cmocka_unit_test(requests_survive_every_failing_allocation),
    };

    setenv("LOCKSTEP_LOG", "error", 1);
    if (net_key_random(&key) != LS_OK)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
