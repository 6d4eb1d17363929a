/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_handshake.c - the handshake in memory and over sockets: claims, different keys, and an
 * attacker that changes, repeats or reflects messages.
 */
#include "base/unit.h"

#include "base/clock.h"
#include "base/text.h"
#include "base/thread.h"
#include "net/auth/handshake.h"
#include "net/socket.h"

#include <sodium.h>

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#define HELLO     68
#define HEAD      5  /* of a hello and of a challenge: magic and version */
#define SHARE     32 /* at the end of a hello; behind the head of a challenge */
#define CHALLENGE 69
#define PROOF     32
#define VERDICT   40

static net_key key_of(uint8_t fill)
{
    net_key key = {{0}, ""};

    memset(key.bytes, fill, sizeof(key.bytes));
    return key;
}

static seal_pair seals; /* of the last connection */

static const handshake_claim good_claim = {
    .purpose = NET_PURPOSE_CONTROL, .job = "0123456789abcdef", .from = 3, .to = 0, .generation = 2};

/* Both ends in memory, with the bytes that they exchange. */
typedef struct exchange {
    handshake client;
    handshake server;
    ls_status client_status;
    ls_status server_status;
    char client_text[512];
    char server_text[512];
    size_t n_to_server;
    size_t n_to_client;
} exchange;

/* Changes bytes in transit; NULL: none. `at` counts the bytes of this direction from 0. */
typedef bool (*meddle_fn)(void *arg, bool to_server, size_t at, uint8_t *byte);

/* Moves the output of one end in pieces of at most `piece`; false when there was none. */
static bool pump(exchange *x, bool to_server, size_t piece, meddle_fn meddle, void *arg)
{
    handshake *from = to_server ? &x->client : &x->server;
    handshake *to = to_server ? &x->server : &x->client;
    ls_status *st = to_server ? &x->server_status : &x->client_status;
    char *text = to_server ? x->server_text : x->client_text;
    size_t *count = to_server ? &x->n_to_server : &x->n_to_client;
    uint8_t bytes[HANDSHAKE_BYTES];
    size_t n;
    size_t used = 0;
    size_t kept = 0;
    const uint8_t *out = handshake_output(from, &n);

    if (n == 0)
        return false;
    n = n < piece ? n : piece;
    for (size_t i = 0; i < n; i++) {
        uint8_t byte = out[i];

        if (meddle == NULL || meddle(arg, to_server, (*count)++, &byte))
            bytes[kept++] = byte;
    }
    handshake_sent(from, n);
    if (to->state != HANDSHAKE_RUNNING)
        return true;
    *st = handshake_feed(to, bytes, kept, &used);
    if (*st != LS_OK)
        text_format(text, sizeof(x->client_text), "%s", ls_last_error());
    return true;
}

static void run(exchange *x, const net_key *client_key, const net_key *server_key,
                const handshake_claim *claim, const handshake_claim *expected, size_t piece,
                meddle_fn meddle, void *arg)
{
    memset(x, 0, sizeof(*x));
    assert_ok(handshake_client(&x->client, client_key, claim, "the hub"));
    assert_ok(handshake_server(&x->server, server_key, expected, "rank 3"));
    while (pump(x, true, piece, meddle, arg) || pump(x, false, piece, meddle, arg))
        continue;
}

static void both_ends_authenticate_each_other(void **state)
{
    const net_key key = key_of(7);
    exchange x;

    LS_UNUSED(state);
    run(&x, &key, &key, &good_claim, &good_claim, SIZE_MAX, NULL, NULL);
    assert_int_equal(x.client.state, HANDSHAKE_DONE);
    assert_int_equal(x.server.state, HANDSHAKE_DONE);
    assert_int_equal(x.server.peer.from, 3);
    assert_string_equal(x.server.peer.job, good_claim.job);
}

static void both_ends_make_a_fresh_share_each_time(void **state)
{
    const net_key key = key_of(7);
    handshake client[2];
    handshake server[2];
    const uint8_t *hello[2];
    const uint8_t *challenge[2];
    size_t n;
    size_t used;

    LS_UNUSED(state);
    for (int i = 0; i < 2; i++) {
        assert_ok(handshake_client(&client[i], &key, &good_claim, "hub"));
        hello[i] = handshake_output(&client[i], &n);
        assert_int_equal(n, HELLO);
        assert_ok(handshake_server(&server[i], &key, &good_claim, "rank"));
        assert_ok(handshake_feed(&server[i], hello[0], HELLO, &used)); // the same one to both
        challenge[i] = handshake_output(&server[i], &n);
        assert_int_equal(n, CHALLENGE);
    }
    assert_memory_equal(hello[0], hello[1], HELLO - SHARE);
    assert_memory_not_equal(hello[0] + HELLO - SHARE, hello[1] + HELLO - SHARE, SHARE);
    assert_memory_not_equal(challenge[0] + HEAD, challenge[1] + HEAD, SHARE);
}

static void pieces_of_any_size_give_the_same_result(void **state)
{
    const net_key key = key_of(7);
    exchange x;

    LS_UNUSED(state);
    for (size_t piece = 1; piece <= HELLO; piece++) {
        run(&x, &key, &key, &good_claim, &good_claim, piece, NULL, NULL);
        assert_int_equal(x.client.state, HANDSHAKE_DONE);
        assert_int_equal(x.server.state, HANDSHAKE_DONE);
    }
}

static void without_a_key_the_claims_are_still_compared(void **state)
{
    handshake_claim other = good_claim;
    exchange x;

    LS_UNUSED(state);
    run(&x, NULL, NULL, &good_claim, &good_claim, SIZE_MAX, NULL, NULL);
    assert_int_equal(x.server.state, HANDSHAKE_DONE);
    other.generation = 9;
    run(&x, NULL, NULL, &good_claim, &other, SIZE_MAX, NULL, NULL);
    assert_int_equal(x.client_status, LS_EMISMATCH);
}

static void different_key_is_reported_on_both_sides_with_the_file_to_copy(void **state)
{
    net_key client = key_of(1);
    net_key server = key_of(2);
    exchange x;

    LS_UNUSED(state);
    text_format(client.origin, sizeof(client.origin), "/home/ann/.config/lockstep/key");
    text_format(server.origin, sizeof(server.origin), "/home/bob/key");
    run(&x, &client, &server, &good_claim, &good_claim, SIZE_MAX, NULL, NULL);
    assert_int_equal(x.client_status, LS_EAUTH);
    assert_int_equal(x.server_status, LS_EAUTH);
    assert_non_null(strstr(x.client_text, "the key of rank 0's host, here: scp -p HOST:"));
    assert_non_null(strstr(x.client_text, " /home/ann/.config/lockstep/key"));
    assert_non_null(strstr(x.client_text, "the hub"));
    assert_non_null(
        strstr(x.server_text, "the key of rank 0's host, there: scp -p /home/bob/key "));
    assert_non_null(strstr(x.server_text, "rank 3"));
    assert_int_equal(x.client.state, HANDSHAKE_FAILED);
    assert_int_equal(x.server.state, HANDSHAKE_FAILED);
}

static void claim_must_match_the_expectation(void **state)
{
    static const struct {
        handshake_claim expected;
        const char *client_error;
        const char *server_error;
    } cases[] = {
        {{NET_PURPOSE_DATA, "0123456789abcdef", 0, 0, 2, NET_AUTH, 0},
         "is not a hub",
         "wants a hub"},
        {{NET_PURPOSE_CONTROL, "fedcba9876543210", 0, 0, 2, NET_AUTH, 0},
         "another job",
         "fedcba9876543210"},
        {{NET_PURPOSE_CONTROL, "0123456789abcde", 0, 0, 2, NET_AUTH, 0},
         "another job",
         "0123456789abcde'"},
        {{NET_PURPOSE_CONTROL, "0123456789abcdef", 0, 0, 3, NET_AUTH, 0},
         "generation 3",
         "generation 2"},
        {{NET_PURPOSE_CONTROL, "0123456789abcdef", 0, 5, 2, NET_AUTH, 0},
         "is rank 5",
         "this is rank 5"},
        {{NET_PURPOSE_CONTROL, "0123456789abcdef", 0, 0, 2, NET_MAC, 0},
         "auth here, mac at",
         "mac here, auth at"},
    };
    const net_key key = key_of(7);
    handshake_claim any_rank = good_claim;
    exchange x;

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(cases); i++) {
        run(&x, &key, &key, &good_claim, &cases[i].expected, SIZE_MAX, NULL, NULL);
        assert_int_equal(x.client_status, LS_EMISMATCH);
        assert_int_equal(x.server_status, LS_EMISMATCH);
        assert_non_null(strstr(x.client_text, cases[i].client_error));
        assert_non_null(strstr(x.server_text, cases[i].server_error));
    }
    any_rank.to = HANDSHAKE_ANY_RANK;
    run(&x, &key, &key, &good_claim, &any_rank, SIZE_MAX, NULL, NULL);
    assert_int_equal(x.server.state, HANDSHAKE_DONE);
}

/* --- an attacker on the line --- */

typedef struct garble {
    bool to_server;
    size_t at;
    uint8_t flip;
} garble;

static bool flip_one(void *arg, bool to_server, size_t at, uint8_t *byte)
{
    const garble *g = arg;

    if (g->to_server == to_server && g->at == at)
        *byte ^= g->flip;
    return true;
}

static void flip_each_byte(net_security security, uint8_t flip)
{
    const net_key key = key_of(7);
    handshake_claim claim = good_claim;
    exchange x;

    claim.security = security;
    for (int direction = 0; direction < 2; direction++) {
        const bool to_server = direction == 0;
        const size_t n = to_server ? HELLO + PROOF : CHALLENGE + VERDICT;

        for (size_t at = 0; at < n; at++) {
            garble g = {to_server, at, flip};

            run(&x, &key, &key, &claim, &claim, SIZE_MAX, flip_one, &g);
            assert_int_not_equal(x.client.state, HANDSHAKE_DONE);
            // The last message is the server's: a change harms the client only.
            if (to_server || at < CHALLENGE)
                assert_int_not_equal(x.server.state, HANDSHAKE_DONE);
        }
    }
}

/* Includes the public keys of the exchange, with which an attacker could be in the middle. */
static void every_changed_bit_is_detected(void **state)
{
    static const uint8_t flips[] = {0x01, 0x80, 0xff};

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(flips); i++) {
        flip_each_byte(NET_AUTH, flips[i]);
        flip_each_byte(NET_ENCRYPT, flips[i]);
    }
}

/* The server's MAC for a transcript with this share. */
static void replace_server_share(handshake *server, const net_key *key)
{
    crypto_auth_hmacsha256_state mac;

    memset(server->transcript + HELLO, 0, SHARE);
    memset(server->out + HEAD, 0, SHARE);
    crypto_auth_hmacsha256_init(&mac, key->bytes, NET_KEY_BYTES);
    crypto_auth_hmacsha256_update(&mac, (const uint8_t *)"srv", 3);
    crypto_auth_hmacsha256_update(&mac, server->transcript, HELLO + SHARE);
    crypto_auth_hmacsha256_final(&mac, server->out + HEAD + SHARE);
}

static void public_key_without_a_secret_is_refused(void **state)
{
    const net_key key = key_of(7);
    handshake_claim claim = good_claim;
    exchange x;

    LS_UNUSED(state);
    claim.security = NET_ENCRYPT;
    for (int is_server = 0; is_server < 2; is_server++) {
        memset(&x, 0, sizeof(x));
        assert_ok(handshake_client(&x.client, &key, &claim, "the hub"));
        assert_ok(handshake_server(&x.server, &key, &claim, "rank 3"));
        if (!is_server) {
            memset(x.client.transcript + HELLO - SHARE, 0, SHARE);
            memset(x.client.out + HELLO - SHARE, 0, SHARE);
        }
        assert_true(pump(&x, true, SIZE_MAX, NULL, NULL));
        if (is_server)
            replace_server_share(&x.server, &key);
        while (pump(&x, false, SIZE_MAX, NULL, NULL) || pump(&x, true, SIZE_MAX, NULL, NULL))
            continue;
        assert_int_equal(is_server ? x.client_status : x.server_status, LS_EPROTO);
        assert_non_null(strstr(is_server ? x.client_text : x.server_text, "public key"));
        assert_int_not_equal(x.client.state, HANDSHAKE_DONE);
    }
}

static void secret_is_erased_at_the_end(void **state)
{
    static const uint8_t zeros[HANDSHAKE_SECRET_BYTES];
    const net_key keys[] = {key_of(7), key_of(8)};
    handshake_claim claim = good_claim;
    exchange x;

    LS_UNUSED(state);
    claim.security = NET_ENCRYPT;
    for (int other = 0; other < 2; other++) {
        run(&x, &keys[0], &keys[other], &claim, &claim, SIZE_MAX, NULL, NULL);
        assert_int_equal(x.client.state, other ? HANDSHAKE_FAILED : HANDSHAKE_DONE);
        assert_memory_equal(x.client.secret, zeros, sizeof(zeros));
        assert_memory_equal(x.server.secret, zeros, sizeof(zeros));
    }
    assert_ok(handshake_client(&x.client, &keys[0], &claim, "the hub"));
    assert_memory_not_equal(x.client.secret, zeros, sizeof(zeros));
    handshake_wipe(&x.client);
    assert_memory_equal(x.client.secret, zeros, sizeof(zeros));
}

typedef struct cut {
    bool to_server;
    size_t at;
} cut;

static bool stop_at(void *arg, bool to_server, size_t at, uint8_t *byte)
{
    const cut *c = arg;

    LS_UNUSED(byte);
    return c->to_server != to_server || at < c->at;
}

/* The number of a connection cannot be changed in transit, and each hello has its own. */
static void number_of_a_data_connection_is_authenticated(void **state)
{
    const net_key key = key_of(7);
    handshake_claim claim = good_claim;
    handshake_claim expected = good_claim;
    garble g = {true, 7, 1};
    exchange x;

    LS_UNUSED(state);
    claim.purpose = NET_PURPOSE_DATA;
    expected.purpose = NET_PURPOSE_DATA;
    for (int stream = 0; stream < 256; stream += 51) {
        claim.stream = (uint8_t)stream;
        run(&x, &key, &key, &claim, &expected, SIZE_MAX, NULL, NULL);
        assert_int_equal(x.client.state, HANDSHAKE_DONE);
        assert_int_equal(x.server.state, HANDSHAKE_DONE);
        assert_int_equal(x.server.peer.stream, stream);
        run(&x, &key, &key, &claim, &expected, SIZE_MAX, flip_one, &g);
        assert_int_equal(x.client_status, LS_EAUTH);
        assert_int_equal(x.server_status, LS_EAUTH);
    }
    claim.purpose = NET_PURPOSE_CONTROL;
    run(&x, &key, &key, &claim, &good_claim, SIZE_MAX, NULL, NULL);
    assert_int_equal(x.server_status, LS_EPROTO);
    assert_non_null(strstr(x.server_text, "unknown fields"));
}

static void a_truncated_exchange_never_ends_well(void **state)
{
    const net_key key = key_of(7);
    exchange x;

    LS_UNUSED(state);
    for (size_t at = 0; at < HELLO + PROOF; at++) {
        cut c = {true, at};

        run(&x, &key, &key, &good_claim, &good_claim, SIZE_MAX, stop_at, &c);
        assert_int_equal(x.server.state, HANDSHAKE_RUNNING);
        assert_int_equal(x.client.state, HANDSHAKE_RUNNING);
    }
    for (size_t at = 0; at < CHALLENGE + VERDICT; at++) {
        cut c = {false, at};

        run(&x, &key, &key, &good_claim, &good_claim, SIZE_MAX, stop_at, &c);
        assert_int_equal(x.client.state, HANDSHAKE_RUNNING);
    }
}

/* All bytes to the server in a successful exchange. */
typedef struct recording {
    uint8_t bytes[HELLO + PROOF];
} recording;

static bool record(void *arg, bool to_server, size_t at, uint8_t *byte)
{
    recording *r = arg;

    if (to_server)
        r->bytes[at] = *byte;
    return true;
}

static void recorded_client_cannot_be_replayed(void **state)
{
    const net_key key = key_of(7);
    recording r;
    exchange x;
    handshake server;
    size_t used;
    size_t n;

    LS_UNUSED(state);
    run(&x, &key, &key, &good_claim, &good_claim, SIZE_MAX, record, &r);
    assert_int_equal(x.server.state, HANDSHAKE_DONE);
    assert_ok(handshake_server(&server, &key, &good_claim, "replay"));
    assert_ok(handshake_feed(&server, r.bytes, sizeof(r.bytes), &used));
    assert_int_equal(used, HELLO);
    handshake_output(&server, &n);
    handshake_sent(&server, n);
    assert_status(handshake_feed(&server, r.bytes + HELLO, PROOF, &used), LS_EAUTH);
}

static void reflected_mac_is_refused(void **state)
{
    const net_key key = key_of(7);
    handshake client;
    handshake server;
    const uint8_t *out;
    uint8_t mac[PROOF];
    size_t n;
    size_t used;

    LS_UNUSED(state);
    // The server's MAC, sent back as the client's.
    assert_ok(handshake_client(&client, &key, &good_claim, "hub"));
    assert_ok(handshake_server(&server, &key, &good_claim, "mirror"));
    out = handshake_output(&client, &n);
    assert_ok(handshake_feed(&server, out, n, &used));
    out = handshake_output(&server, &n);
    memcpy(mac, out + HEAD + SHARE, sizeof(mac));
    handshake_sent(&server, n);
    assert_status(handshake_feed(&server, mac, sizeof(mac), &used), LS_EAUTH);
    // A client that receives its own bytes.
    assert_ok(handshake_client(&client, &key, &good_claim, "mirror"));
    out = handshake_output(&client, &n);
    {
        uint8_t hello[CHALLENGE] = {0};

        memcpy(hello, out, HELLO);
        handshake_sent(&client, n);
        assert_status(handshake_feed(&client, hello, CHALLENGE, &used), LS_EAUTH);
    }
}

static void unauthenticated_client_receives_only_a_nonce_and_a_mac(void **state)
{
    const net_key key = key_of(7);
    const net_key wrong = key_of(8);
    handshake_claim secret = good_claim;
    exchange x;
    handshake server;
    const uint8_t *out;
    size_t n;
    size_t used;

    LS_UNUSED(state);
    secret.generation = 77;
    run(&x, &wrong, &key, &good_claim, &secret, SIZE_MAX, NULL, NULL);
    assert_int_equal(x.client_status, LS_EAUTH); // not LS_EMISMATCH for the generation
    assert_ok(handshake_server(&server, &key, &secret, "a client"));
    assert_status(handshake_feed(&server,
                                 "GET / HTTP/1.1\r\nHost: x\r\nUser-Agent: a-browser-of-no-"
                                 "fame/1.0\r\n\r\n\r\n",
                                 HELLO, &used),
                  LS_EPROTO);
    out = handshake_output(&server, &n);
    LS_UNUSED(out);
    assert_int_equal(n, 0);
}

static void different_version_is_reported_on_both_sides(void **state)
{
    const net_key key = key_of(7);
    uint8_t hello[HELLO] = "LSTP\1\1";
    handshake h;
    const uint8_t *out;
    size_t n;
    size_t used;

    LS_UNUSED(state);
    assert_ok(handshake_server(&h, &key, &good_claim, "rank 3"));
    assert_status(handshake_feed(&h, hello, HELLO, &used), LS_EMISMATCH);
    assert_last_error("rank 3 uses version 1 of Lockstep's protocol, not 2: install the same");
    out = handshake_output(&h, &n);
    assert_int_equal(n, HEAD);
    assert_memory_equal(out, "LSTP\2", HEAD);
    assert_ok(handshake_client(&h, &key, &good_claim, "the hub"));
    handshake_sent(&h, HELLO);
    assert_status(handshake_feed(&h, "LSTP\3", HEAD, &used), LS_EMISMATCH);
    assert_last_error("the hub uses version 3 of Lockstep's protocol, not 2: install the same");
}

/* Version 1 closes the connection after a hello of another version. */
static void missing_reply_names_an_older_version(void **state)
{
    const net_key key = key_of(7);
    uint8_t hello[HELLO];
    short events;
    handshake h;
    int fds[2];

    LS_UNUSED(state);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
    assert_ok(handshake_client(&h, &key, &good_claim, "the hub"));
    assert_ok(handshake_step(&h, fds[0], &events));
    assert_int_equal(read(fds[1], hello, HELLO), HELLO);
    close(fds[1]);
    assert_status(handshake_step(&h, fds[0], &events), LS_EPEER);
    assert_last_error("the hub closed the connection");
    assert_last_error("an older version of Lockstep");
    close(fds[0]);
}

static void bytes_behind_the_handshake_stay_untouched(void **state)
{
    const net_key key = key_of(7);
    exchange x;
    const uint8_t *out;
    uint8_t bytes[PROOF + 10] = {0};
    size_t n;
    size_t used;

    LS_UNUSED(state);
    memset(&x, 0, sizeof(x));
    assert_ok(handshake_client(&x.client, &key, &good_claim, "hub"));
    assert_ok(handshake_server(&x.server, &key, &good_claim, "rank"));
    assert_true(pump(&x, true, SIZE_MAX, NULL, NULL));
    assert_true(pump(&x, false, SIZE_MAX, NULL, NULL));
    out = handshake_output(&x.client, &n);
    assert_int_equal(n, PROOF);
    memcpy(bytes, out, n);
    assert_ok(handshake_feed(&x.server, bytes, sizeof(bytes), &used));
    assert_int_equal(used, PROOF);
    assert_ok(handshake_feed(&x.server, bytes, 10, &used));
    assert_int_equal(used, 0);
}

/* --- over sockets --- */

typedef struct accepter {
    int fd;
    const net_key *key;
    ls_status st;
    handshake_claim got;
} accepter;

static void accept_one(void *arg)
{
    accepter *a = arg;
    const int64_t deadline_ms = ls_deadline_ms(10000);
    handshake h = {0};
    short events;

    a->st = handshake_server(&h, a->key, &good_claim, "client");
    while (a->st == LS_OK && h.state == HANDSHAKE_RUNNING) {
        a->st = handshake_step(&h, a->fd, &events);
        if (a->st == LS_OK && h.state == HANDSHAKE_RUNNING)
            a->st = net_wait(a->fd, events, deadline_ms);
    }
    a->got = h.peer;
    handshake_wipe(&h);
}

static void socket_handshake_leaves_the_following_bytes(void **state)
{
    const net_key key = key_of(7);
    accepter a = {.key = &key};
    ls_thread thread = {0};
    int fds[2];
    char text[6] = "";

    LS_UNUSED(state);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    a.fd = fds[1];
    assert_ok(ls_thread_start(&thread, "accept", accept_one, &a));
    assert_ok(handshake_connect(fds[0], &key, &good_claim, "server", ls_deadline_ms(10000), NULL,
                                &seals));
    assert_ok(net_send_all(fds[0], "server", "first", 5, ls_deadline_ms(10000)));
    ls_thread_join(&thread);
    assert_ok(a.st);
    assert_int_equal(a.got.from, 3);
    assert_ok(net_recv_all(fds[1], "client", text, 5, ls_deadline_ms(10000)));
    assert_string_equal(text, "first");
    close(fds[0]);
    close(fds[1]);
}

static void both_ends_of_a_socket_report_a_different_key(void **state)
{
    const net_key key = key_of(7);
    const net_key other = key_of(8);
    accepter a = {.key = &other};
    ls_thread thread = {0};
    int fds[2];

    LS_UNUSED(state);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    a.fd = fds[1];
    assert_ok(ls_thread_start(&thread, "accept", accept_one, &a));
    assert_status(
        handshake_connect(fds[0], &key, &good_claim, "server", ls_deadline_ms(10000), NULL, &seals),
        LS_EAUTH);
    ls_thread_join(&thread);
    assert_status(a.st, LS_EAUTH);
    close(fds[0]);
    close(fds[1]);
}

static void silent_peer_times_out_and_closed_connection_fails_at_once(void **state)
{
    const net_key key = key_of(7);
    int fds[2];

    LS_UNUSED(state);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    assert_status(
        handshake_connect(fds[0], &key, &good_claim, "the hub", ls_deadline_ms(50), NULL, &seals),
        LS_ETIMEOUT);
    assert_last_error("the hub");
    close(fds[1]);
    assert_status(handshake_connect(fds[0], &key, &good_claim, "the hub", ls_deadline_ms(60000),
                                    NULL, &seals),
                  LS_EPEER);
    assert_last_error("the hub");
    close(fds[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_ends_authenticate_each_other),
        cmocka_unit_test(both_ends_make_a_fresh_share_each_time),
        cmocka_unit_test(pieces_of_any_size_give_the_same_result),
        cmocka_unit_test(without_a_key_the_claims_are_still_compared),
        cmocka_unit_test(different_key_is_reported_on_both_sides_with_the_file_to_copy),
        cmocka_unit_test(claim_must_match_the_expectation),
        cmocka_unit_test(every_changed_bit_is_detected),
        cmocka_unit_test(number_of_a_data_connection_is_authenticated),
        cmocka_unit_test(a_truncated_exchange_never_ends_well),
        cmocka_unit_test(recorded_client_cannot_be_replayed),
        cmocka_unit_test(reflected_mac_is_refused),
        cmocka_unit_test(unauthenticated_client_receives_only_a_nonce_and_a_mac),
        cmocka_unit_test(different_version_is_reported_on_both_sides),
        cmocka_unit_test(missing_reply_names_an_older_version),
        cmocka_unit_test(public_key_without_a_secret_is_refused),
        cmocka_unit_test(secret_is_erased_at_the_end),
        cmocka_unit_test(bytes_behind_the_handshake_stay_untouched),
        cmocka_unit_test(socket_handshake_leaves_the_following_bytes),
        cmocka_unit_test(both_ends_of_a_socket_report_a_different_key),
        cmocka_unit_test(silent_peer_times_out_and_closed_connection_fails_at_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
