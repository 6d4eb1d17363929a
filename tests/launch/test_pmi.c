/* SPDX-License-Identifier: Apache-2.0 */
/* The answering side of PMI-1, fed with what clients send and with what none should. */
#include "base/unit.h"

#include "base/alloc.h"
#include "launch/pmi/pmi.h"

#include <stdio.h>

#define JOB "0123456789abcdef"

static pmi *make(int n_ranks)
{
    pmi *p = NULL;

    char layout[PMI_LAYOUT_BYTES];

    pmi_write_layout(&n_ranks, 1, layout);
    assert_ok(pmi_create(JOB, n_ranks, n_ranks, layout, &p));
    return p;
}

/*
 * Sends bytes of a rank and returns all replies. A full barrier is released if no other node
 * exists.
 */
static char replies[1 << 16];
static const char *send_bytes(pmi *p, int rank, const char *bytes, size_t n)
{
    size_t length = 0;

    replies[0] = 0;
    for (bool more = pmi_receive(p, rank, bytes, n); more; more = pmi_receive(p, rank, "", 0)) {
        const text_buf *reply = &p->ranks[rank].reply;
        assert_true(length + reply->length < sizeof(replies));
        memcpy(replies + length, reply->data, reply->length + 1);
        length += reply->length;
        pmi_sent(p, rank, reply->length);
    }
    if (p->n_ranks < p->world_size || !pmi_take_full_barrier(p))
        return replies;
    pmi_release_barrier(p);
    return send_bytes(p, rank, "", 0);
}

static const char *send(pmi *p, int rank, const char *text)
{
    return send_bytes(p, rank, text, strlen(text));
}

#define expect(p, rank, request, reply) assert_string_equal(send(p, rank, request), reply)

static void client_gets_all_replies_of_a_session(void **state)
{
    pmi *p = make(2);

    LS_UNUSED(state);
    assert_int_equal(p->ranks[0].state, PMI_SILENT);
    expect(p, 0, "cmd=init pmi_version=1 pmi_subversion=1\n",
           "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n");
    assert_int_equal(p->ranks[0].state, PMI_JOINED);
    expect(p, 0, "cmd=get_maxes\n",
           "cmd=maxes rc=0 kvsname_max=256 keylen_max=64 vallen_max=1024\n");
    expect(p, 0, "cmd=get_appnum\n", "cmd=appnum rc=0 appnum=0\n");
    expect(p, 0, "cmd=get_universe_size\n", "cmd=universe_size rc=0 size=2\n");
    expect(p, 0, "cmd=get_my_kvsname\n", "cmd=my_kvsname rc=0 kvsname=" JOB "\n");
    expect(p, 0, "cmd=get kvsname=" JOB " key=PMI_process_mapping\n",
           "cmd=get_result rc=0 value=(vector,(0,1,2))\n");
    expect(p, 0, "cmd=put kvsname=" JOB " key=card value=here\n", "cmd=put_result rc=0\n");
    expect(p, 0, "cmd=barrier_in\n", "");
    expect(p, 1, "cmd=barrier_in\n", "cmd=barrier_out rc=0\n");
    expect(p, 0, "", "cmd=barrier_out rc=0\n");
    assert_int_equal(p->n_passed, 1);
    expect(p, 1, "cmd=get kvsname=" JOB " key=card\n", "cmd=get_result rc=0 value=here\n");
    expect(p, 1, "cmd=finalize\n", "cmd=finalize_ack rc=0\n");
    assert_int_equal(p->ranks[1].state, PMI_LEFT);
    pmi_destroy(p);
}

static void single_rank_passes_every_barrier(void **state)
{
    pmi *p = make(1);

    LS_UNUSED(state);
    for (int i = 0; i < 3; i++)
        expect(p, 0, "cmd=barrier_in\n", "cmd=barrier_out rc=0\n");
    assert_int_equal(p->n_passed, 3);
    pmi_destroy(p);
}

static void other_versions_get_this_version(void **state)
{
    pmi *p = make(1);

    LS_UNUSED(state);
    expect(p, 0, "cmd=init pmi_version=2 pmi_subversion=0\n",
           "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=-1\n");
    expect(p, 0, "cmd=init pmi_subversion=7 pmi_version=1\n",
           "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n");
    pmi_destroy(p);
}

/* The value is the rest of the line, whatever is in it. */
static void values_keep_spaces_and_equals_signs(void **state)
{
    pmi *p = make(1);

    LS_UNUSED(state);
    expect(p, 0, "cmd=put kvsname=" JOB " key=a value=x = y key=b  cmd=z \n",
           "cmd=put_result rc=0\n");
    expect(p, 0, "cmd=get key=a\n", "cmd=get_result rc=0 value=x = y key=b  cmd=z \n");
    expect(p, 0, "cmd=put key=e value=\n", "cmd=put_result rc=0\n");
    expect(p, 0, "cmd=get key=e\n", "cmd=get_result rc=0 value=\n");
    expect(p, 0, "  cmd=get   extra=1  key=a=b junk\n", "cmd=get_result rc=-1 msg=key_not_found\n");
    pmi_destroy(p);
}

static void refused_requests_have_a_reason(void **state)
{
    char line[PMI_LINE_MOST];
    pmi *p = make(1);

    LS_UNUSED(state);
    expect(p, 0, "cmd=get kvsname=other key=a\n", "cmd=get_result rc=-1 msg=no_such_kvsname\n");
    expect(p, 0, "cmd=get kvsname=" JOB "\n", "cmd=get_result rc=-1 msg=no_key\n");
    expect(p, 0, "cmd=get key=\n", "cmd=get_result rc=-1 msg=no_key\n");
    expect(p, 0, "cmd=put key=a\n", "cmd=put_result rc=-1 msg=no_value\n");
    expect(p, 0, "cmd=put value=1 key=a\n", "cmd=put_result rc=-1 msg=no_key\n");
    expect(p, 0, "cmd=put key=PMI_process_mapping value=(vector,(0,9,9))\n",
           "cmd=put_result rc=-1 msg=key_is_reserved\n");
    text_format(line, sizeof(line), "cmd=put key=%0*d value=1\n", PMI_KEY_MOST + 1, 0);
    expect(p, 0, line, "cmd=put_result rc=-1 msg=key_too_long\n");
    expect(p, 0, "cmd=publish_name service=s port=p\n",
           "cmd=publish_result rc=-1 info=not_supported msg=not_supported\n");
    expect(p, 0, "cmd=lookup_name service=s\n",
           "cmd=lookup_result rc=-1 info=not_supported msg=not_supported\n");
    expect(p, 0, "cmd=unpublish_name service=s\n",
           "cmd=unpublish_result rc=-1 info=not_supported msg=not_supported\n");
    expect(p, 0, "cmd=make_coffee strength=9\n", "cmd=unknown rc=-1 msg=unknown_command\n");
    expect(p, 0, "cmd=\n", "cmd=unknown rc=-1 msg=unknown_command\n");
    expect(p, 0, "cmd=get_appnum\n", "cmd=appnum rc=0 appnum=0\n");
    pmi_destroy(p);
}

/* Several programs in one request: one reply, behind the last. */
static void starting_processes_is_refused_once(void **state)
{
    pmi *p = make(1);

    LS_UNUSED(state);
    expect(p, 0,
           "mcmd=spawn\nnprocs=1\nexecname=/bin/true\ntotspawns=2\nspawnssofar=1\n"
           "arg1=totspawns=1 totspawns=1\nargcnt=1\npreput_num=0\ninfo_num=0\nendcmd\n",
           "");
    expect(p, 0, "mcmd=spawn\nnprocs=1\nexecname=cmd=abort\ntotspawns=2\nspawnssofar=2\nendcmd\n",
           "cmd=spawn_result rc=-1 msg=not_supported\n");
    assert_false(p->ranks[0].has_aborted);
    expect(p, 0, "cmd=get_appnum\n", "cmd=appnum rc=0 appnum=0\n");
    pmi_destroy(p);
}

static void abort_has_code_and_message(void **state)
{
    static const struct {
        const char *line;
        int code;
        const char *text;
    } rows[] = {
        {"cmd=abort exitcode=7\n", 7, ""},
        {"cmd=abort\n", 1, ""},
        {"cmd=abort exitcode=-3 message=no\tmore = no less\n", -3, "no?more = no less"},
        {"cmd=abort exitcode=99999999999\n", 1, ""},
        {"cmd=abort exitcode=seven message=\n", 1, ""},
    };

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(rows); i++) {
        pmi *p = make(1);
        expect(p, 0, rows[i].line, "");
        assert_true(p->ranks[0].has_aborted);
        assert_int_equal(p->ranks[0].abort_code, rows[i].code);
        assert_string_equal(p->ranks[0].text, rows[i].text);
        pmi_destroy(p);
    }
}

static void expect_fault(pmi_state state, const char *bytes, size_t n, const char *fault)
{
    pmi *p = make(2);

    send_bytes(p, 0, bytes, n);
    assert_non_null(p->ranks[0].fault);
    assert_string_equal(p->ranks[0].fault, fault);
    assert_int_equal(p->ranks[0].state, state);
    assert_string_equal(send(p, 0, "cmd=get_appnum\n"), "");
    pmi_destroy(p);
}

static void other_bytes_end_the_session(void **state)
{
    static char line[PMI_LINE_MOST];

    LS_UNUSED(state);
    memset(line, 'x', sizeof(line));
    expect_fault(PMI_SILENT, line, sizeof(line), "a line that is too long");
    line[PMI_LINE_MOST - 1] = 0;
    expect_fault(PMI_SILENT, line, sizeof(line), "a zero byte");
    expect_fault(PMI_SILENT, "cmd=get_appnum\0\n", 16, "a zero byte");
    expect_fault(PMI_SILENT, "GET / HTTP/1.1\n", 15, "a line without a command");
    expect_fault(PMI_SILENT, "\n", 1, "a line without a command");
    expect_fault(PMI_JOINED, "cmd=barrier_in\ncmd=get_appnum\n", 30,
                 "a request while it waits in a barrier");
}

/* The longest line there may be, and the same one byte longer, in two pieces. */
static void lines_may_have_the_promised_length(void **state)
{
    static char line[PMI_LINE_MOST + 2];
    static const char start[] = "cmd=put key=k value=";
    pmi *p = make(1);

    LS_UNUSED(state);
    memset(line, 'v', sizeof(line));
    memcpy(line, start, strlen(start));
    line[PMI_LINE_MOST - 1] = '\n';
    assert_string_equal(send_bytes(p, 0, line, PMI_LINE_MOST), "cmd=put_result rc=0\n");
    send(p, 0, "cmd=get key=k\n");
    assert_int_equal(strlen(replies),
                     strlen("cmd=get_result rc=0 value=\n") + PMI_LINE_MOST - 1 - strlen(start));
    line[PMI_LINE_MOST - 1] = 'v';
    line[PMI_LINE_MOST] = '\n';
    send_bytes(p, 0, line, PMI_LINE_MOST - 1);
    assert_null(p->ranks[0].fault);
    send_bytes(p, 0, line + PMI_LINE_MOST - 1, 2);
    assert_non_null(p->ranks[0].fault);
    pmi_destroy(p);
}

/* A rank may fill its own share; what it puts again counts once; the others have theirs. */
static void keys_of_a_rank_are_bounded(void **state)
{
    char line[PMI_LINE_MOST];
    pmi *p = make(2);
    int n_put = 0;

    LS_UNUSED(state);
    for (int i = 0; i < 3; i++) {
        text_format(line, sizeof(line), "cmd=put key=same value=%03000d\n", i);
        expect(p, 0, line, "cmd=put_result rc=0\n");
    }
    assert_in_range(p->ranks[0].key_bytes, 3000, 3200);
    do {
        text_format(line, sizeof(line), "cmd=put key=k%d value=%03000d\n", n_put++, 7);
    } while (text_equal(send(p, 0, line), "cmd=put_result rc=0\n"));
    assert_string_equal(replies, "cmd=put_result rc=-1 msg=no_space\n");
    assert_in_range(n_put, 300, 350);
    assert_true(p->ranks[0].key_bytes <= PMI_RANK_MOST);
    expect(p, 0, "cmd=get key=k5\n", send(p, 1, "cmd=get key=k5\n"));
    expect(p, 0, "cmd=put key=k5 value=1\n", "cmd=put_result rc=0\n");
    expect(p, 1, "cmd=put key=k6 value=2\n", "cmd=put_result rc=0\n");
    expect(p, 0, "cmd=get key=k6\n", "cmd=get_result rc=0 value=2\n");
    pmi_destroy(p);
}

/* Small keys cost what holds them. */
static void many_small_keys_are_bounded_too(void **state)
{
    char line[64];
    pmi *p = make(1);
    int n = 0;

    LS_UNUSED(state);
    do {
        text_format(line, sizeof(line), "cmd=put key=%d value=\n", n++);
    } while (text_equal(send(p, 0, line), "cmd=put_result rc=0\n") && n < 100000);
    assert_in_range(n, 5000, 11000);
    pmi_destroy(p);
}

/* A rank that sends a thousand requests and reads nothing has one pending reply. */
static void replies_wait_until_the_last_is_sent(void **state)
{
    char requests[PMI_LINE_MOST];
    size_t n = 0;
    pmi *p = make(1);

    LS_UNUSED(state);
    for (; n + 16 < sizeof(requests); n += 14)
        memcpy(requests + n, "cmd=get_maxes\n", 14);
    assert_true(pmi_receive(p, 0, requests, n));
    for (int i = 0; i < 5; i++)
        assert_true(pmi_receive(p, 0, NULL, 0));
    assert_in_range(p->ranks[0].reply.length, 1, 100);
    pmi_sent(p, 0, 4);
    assert_memory_equal(p->ranks[0].reply.data, "maxes ", 6);
    pmi_sent(p, 0, p->ranks[0].reply.length);
    assert_true(pmi_receive(p, 0, NULL, 0));
    pmi_destroy(p);
}

static void ended_rank_gets_no_reply_and_leaves_the_barrier(void **state)
{
    pmi *p = make(3);

    LS_UNUSED(state);
    expect(p, 0, "cmd=barrier_in\n", "");
    pmi_end_rank(p, 0);
    assert_int_equal(p->n_waiting, 0);
    expect(p, 1, "cmd=barrier_in\n", "");
    expect(p, 2, "cmd=barrier_in\n", "");
    assert_int_equal(p->n_waiting, 2);
    expect(p, 0, "cmd=get_appnum\n", "");
    pmi_destroy(p);
}

/* At each allocation in turn: an error or a fault, and nothing lost. */
static void missing_memory_is_an_error_reply(void **state)
{
    LS_UNUSED(state);
    for (uint64_t n = 1; n < 20; n++) {
        pmi *p = NULL;
        ls_alloc_fail_at(n);
        if (pmi_create(JOB, 2, 2, "(vector,(0,1,2))", &p) == LS_OK) {
            send(p, 0, "cmd=init pmi_version=1 pmi_subversion=1\n");
            send(p, 0, "cmd=put key=a value=1\ncmd=barrier_in\n");
            send(p, 1, "cmd=barrier_in\ncmd=get key=a\n");
        }
        ls_alloc_fail_at(0);
        pmi_destroy(p);
    }
}

/* --- several nodes --- */

/* Node i of n, with two ranks each. */
static pmi *make_node(int n_nodes)
{
    char layout[PMI_LAYOUT_BYTES];
    int n_local[8] = {2, 2, 2, 2, 2, 2, 2, 2};
    pmi *p = NULL;

    pmi_write_layout(n_local, n_nodes, layout);
    assert_ok(pmi_create(JOB, 2, 2 * n_nodes, layout, &p));
    return p;
}

/* Passes the new keys of a to b in pieces of `most` bytes. Returns the number of pieces. */
static int pass_keys(pmi *a, pmi *b, size_t most)
{
    wire_writer w = {0};
    int n = 0;

    while (pmi_write_new_keys(a, &w, most)) {
        wire_reader r = wire_reader_over(w.data, w.bytes);
        assert_ok(wire_writer_status(&w));
        assert_ok(pmi_read_keys(b, &r));
        wire_writer_reset(&w);
        n++;
    }
    wire_writer_free(&w);
    return n;
}

static void keys_of_one_node_are_known_on_others_after_a_barrier(void **state)
{
    pmi *a = make_node(2);
    pmi *b = make_node(2);

    LS_UNUSED(state);
    expect(a, 0, "cmd=get_universe_size\n", "cmd=universe_size rc=0 size=4\n");
    expect(a, 1, "cmd=put key=card1 value=a = b\n", "cmd=put_result rc=0\n");
    expect(a, 0, "cmd=put key=card0 value=\n", "cmd=put_result rc=0\n");
    expect(a, 0, "cmd=put key=card0 value=again\n", "cmd=put_result rc=0\n");
    expect(a, 0, "cmd=barrier_in\n", "");
    assert_false(pmi_take_full_barrier(a));
    expect(a, 1, "cmd=barrier_in\n", "");
    assert_true(pmi_take_full_barrier(a));
    assert_false(pmi_take_full_barrier(a));
    assert_int_equal(pass_keys(a, b, 4096), 1);
    assert_int_equal(pass_keys(a, b, 4096), 0);
    expect(b, 1, "cmd=get key=card1\n", "cmd=get_result rc=0 value=a = b\n");
    expect(b, 1, "cmd=get key=card0\n", "cmd=get_result rc=0 value=again\n");
    assert_int_equal(pass_keys(b, a, 4096), 0); /* keys of other nodes are not sent on */
    expect(a, 0, "", "");
    pmi_release_barrier(a);
    expect(a, 0, "", "cmd=barrier_out rc=0\n");
    expect(a, 1, "", "cmd=barrier_out rc=0\n");
    pmi_destroy(a);
    pmi_destroy(b);
}

static void many_keys_are_sent_in_pieces(void **state)
{
    pmi *a = make_node(2);
    pmi *b = make_node(2);
    char line[128];

    LS_UNUSED(state);
    for (int i = 0; i < 100; i++) {
        text_format(line, sizeof(line), "cmd=put key=%d value=%030d\n", i, i);
        expect(a, i % 2, line, "cmd=put_result rc=0\n");
    }
    assert_in_range(pass_keys(a, b, 400), 9, 12); /* about 40 bytes each */
    assert_int_equal(b->n_new, 0);
    for (int i = 0; i < 100; i++) {
        char value[64];

        text_format(line, sizeof(line), "cmd=get key=%d\n", i);
        text_format(value, sizeof(value), "cmd=get_result rc=0 value=%030d\n", i);
        expect(b, 0, line, value);
    }
    pmi_destroy(a);
    pmi_destroy(b);
}

/* A key of both nodes: the later word counts, and each counts where it came from. */
static void a_key_may_change_its_owner(void **state)
{
    pmi *a = make_node(2);
    pmi *b = make_node(2);

    LS_UNUSED(state);
    expect(a, 0, "cmd=put key=k value=a\n", "cmd=put_result rc=0\n");
    assert_int_equal(pass_keys(a, b, 4096), 1);
    assert_in_range(b->remote_bytes, 2, 200);
    expect(b, 1, "cmd=put key=k value=b\n", "cmd=put_result rc=0\n");
    assert_int_equal(b->remote_bytes, 0);
    assert_in_range(b->ranks[1].key_bytes, 2, 200);
    assert_int_equal(pass_keys(b, a, 4096), 1);
    assert_int_equal(a->ranks[0].key_bytes, 0);
    expect(a, 0, "cmd=get key=k\n", "cmd=get_result rc=0 value=b\n");
    pmi_destroy(a);
    pmi_destroy(b);
}

static ls_status learn(pmi *p, const char *key, size_t key_bytes, const char *value,
                       size_t value_bytes)
{
    wire_writer w = {0};
    wire_reader r;
    ls_status st;

    wire_write_bytes(&w, key, key_bytes);
    wire_write_bytes(&w, value, value_bytes);
    r = wire_reader_over(w.data, w.bytes);
    st = pmi_read_keys(p, &r);
    wire_writer_free(&w);
    return st;
}

static void keys_of_another_node_are_validated(void **state)
{
    static char much[PMI_LINE_MOST + 1];
    wire_reader half = wire_reader_over("\1\0\0\0k\7\0\0\0v", 10);
    pmi *p = make_node(2);

    LS_UNUSED(state);
    memset(much, 'x', sizeof(much));
    assert_ok(learn(p, "k", 1, "", 0));
    assert_ok(learn(p, much, PMI_KEY_MOST, much, PMI_LINE_MOST));
    assert_status(learn(p, "", 0, "v", 1), LS_EPROTO);
    assert_status(learn(p, "a b", 3, "v", 1), LS_EPROTO);
    assert_status(learn(p, "a\n", 2, "v", 1), LS_EPROTO);
    assert_status(learn(p, "a\0b", 3, "v", 1), LS_EPROTO);
    assert_status(learn(p, "k", 1, "v\ncmd=abort", 11), LS_EPROTO);
    assert_status(learn(p, "k", 1, "\0", 1), LS_EPROTO);
    assert_status(learn(p, much, PMI_KEY_MOST + 1, "v", 1), LS_EPROTO);
    assert_status(learn(p, "k", 1, much, PMI_LINE_MOST + 1), LS_EPROTO);
    assert_status(pmi_read_keys(p, &half), LS_EPROTO);
    assert_status(learn(p, "PMI_process_mapping", 19, "v", 1), LS_ENOMEM);
    p->remote_bytes = PMI_REMOTE_MOST - 50;
    assert_status(learn(p, "more", 4, "v", 1), LS_ENOMEM);
    pmi_destroy(p);
}

static void expect_layout(const char *wanted, int n, const int *n_local)
{
    char layout[PMI_LAYOUT_BYTES];

    pmi_write_layout(n_local, n, layout);
    assert_string_equal(layout, wanted);
    assert_true(pmi_is_layout(layout));
}

static void a_layout_has_a_block_for_each_run_of_equal_nodes(void **state)
{
    static int alternating[1000];

    LS_UNUSED(state);
    expect_layout("(vector,(0,1,4))", 1, (const int[]){4});
    expect_layout("(vector,(0,3,8))", 3, (const int[]){8, 8, 8});
    expect_layout("(vector,(0,1,2),(1,1,1))", 2, (const int[]){2, 1});
    expect_layout("(vector,(0,2,8),(2,1,2),(3,2,8))", 5, (const int[]){8, 8, 2, 8, 8});
    for (int i = 0; i < 1000; i++)
        alternating[i] = 1 + i % 2;
    expect_layout("", 1000, alternating); /* MPICH has another way then */
    for (int n = 60; n < 120; n++) {      /* whole or not at all */
        char layout[PMI_LAYOUT_BYTES];
        pmi_write_layout(alternating, n, layout);
        assert_true(layout[0] == 0 || layout[strlen(layout) - 2] == ')');
        assert_int_equal(layout[0] == 0, n > 100);
    }
    assert_true(pmi_is_layout(""));
    assert_false(pmi_is_layout("(vector,(0,1,2)) "));
    assert_false(pmi_is_layout("vector"));
}

static void without_a_layout_there_is_no_such_key(void **state)
{
    pmi *p = NULL;

    LS_UNUSED(state);
    assert_ok(pmi_create(JOB, 1, 5, "", &p));
    expect(p, 0, "cmd=get key=PMI_process_mapping\n", "cmd=get_result rc=-1 msg=key_not_found\n");
    pmi_destroy(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(client_gets_all_replies_of_a_session),
        cmocka_unit_test(single_rank_passes_every_barrier),
        cmocka_unit_test(other_versions_get_this_version),
        cmocka_unit_test(values_keep_spaces_and_equals_signs),
        cmocka_unit_test(refused_requests_have_a_reason),
        cmocka_unit_test(starting_processes_is_refused_once),
        cmocka_unit_test(abort_has_code_and_message),
        cmocka_unit_test(other_bytes_end_the_session),
        cmocka_unit_test(lines_may_have_the_promised_length),
        cmocka_unit_test(keys_of_a_rank_are_bounded),
        cmocka_unit_test(many_small_keys_are_bounded_too),
        cmocka_unit_test(replies_wait_until_the_last_is_sent),
        cmocka_unit_test(ended_rank_gets_no_reply_and_leaves_the_barrier),
        cmocka_unit_test(missing_memory_is_an_error_reply),
        cmocka_unit_test(keys_of_one_node_are_known_on_others_after_a_barrier),
        cmocka_unit_test(many_keys_are_sent_in_pieces),
        cmocka_unit_test(a_key_may_change_its_owner),
        cmocka_unit_test(keys_of_another_node_are_validated),
        cmocka_unit_test(a_layout_has_a_block_for_each_run_of_equal_nodes),
        cmocka_unit_test(without_a_layout_there_is_no_such_key),
    };

    return cmocka_run_group_tests_name("launch pmi", tests, NULL, NULL);
}
