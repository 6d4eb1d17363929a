/* SPDX-License-Identifier: Apache-2.0 */
/* test_seal.c - session keys from a handshake, sealed records, and an attacker between two ends. */
#include "base/unit.h"

#include "base/alloc.h"
#include "net/messages/frame.h"
#include "net/auth/handshake.h"
#include "net/auth/kdf.h"
#include "net/wire.h"

#include <sodium.h>

#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define FRAMES_MAX ((size_t)1024 * 1024)

static const net_security modes[] = {NET_MAC, NET_ENCRYPT};

static size_t from_hex(const char *hex, uint8_t *out)
{
    const size_t n = strlen(hex) / 2;

    for (size_t i = 0; i < n; i++) {
        const char digits[3] = {hex[2 * i], hex[2 * i + 1], 0};

        out[i] = (uint8_t)strtoul(digits, NULL, 16);
    }
    return n;
}

static void assert_hex(const uint8_t *data, size_t bytes, const char *hex)
{
    uint8_t expected[128];

    assert_int_equal(from_hex(hex, expected), bytes);
    assert_memory_equal(data, expected, bytes);
}

/* --- RFC 5869, appendix A --- */

static void count_up(uint8_t *out, size_t n, int first)
{
    for (size_t i = 0; i < n; i++)
        out[i] = (uint8_t)(first + (int)i);
}

static void hkdf_gives_the_rfcs_vectors(void **state)
{
    uint8_t secret[80];
    uint8_t salt[80];
    uint8_t info[80];
    uint8_t extracted[KDF_BYTES];
    uint8_t out[82];

    LS_UNUSED(state);
    memset(secret, 0x0b, 22);
    count_up(salt, 13, 0);
    count_up(info, 10, 0xf0);
    kdf_extract(salt, 13, secret, 22, extracted);
    assert_hex(extracted, KDF_BYTES,
               "077709362c2e32df0ddc3f0dc47bba6390b6c73bb50f9c3122ec844ad7c2b3e5");
    kdf_expand(extracted, info, 10, out, 42);
    assert_hex(
        out, 42,
        "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865");

    count_up(secret, 80, 0);
    count_up(salt, 80, 0x60);
    count_up(info, 80, 0xb0);
    kdf_extract(salt, 80, secret, 80, extracted);
    assert_hex(extracted, KDF_BYTES,
               "06a6b88c5853361a06104c9ceb35b45cef760014904671014a193f40c15fc244");
    kdf_expand(extracted, info, 80, out, 82);
    assert_hex(
        out, 82,
        "b11e398dc80327a1c8e7f78c596a49344f012eda2d4efad8a050cc4c19afa97c59045a99cac7827271cb41c65e"
        "590e09da3275600c2f09b8367793a9aca3db71cc30c58179ec3e87c14c01d5c1f3434f1d87");

    memset(secret, 0x0b, 22);
    kdf_extract("", 0, secret, 22, extracted);
    assert_hex(extracted, KDF_BYTES,
               "19ef24a32c717b167f33a91d6f648bdf96596776afdb6377ac434c1c293ccb04");
    kdf_expand(extracted, "", 0, out, 42);
    assert_hex(
        out, 42,
        "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8");
}

/* --- the handshake's keys --- */

static const handshake_claim plain_claim = {.purpose = NET_PURPOSE_NODE, .job = "0123456789abcdef"};

static void pass(handshake *from, handshake *to)
{
    size_t n;
    size_t used;
    const uint8_t *out = handshake_output(from, &n);

    handshake_sent(from, n); // the bytes stay where they are
    if (n > 0 && to->state == HANDSHAKE_RUNNING && handshake_feed(to, out, n, &used) != LS_OK)
        assert_int_equal(to->state, HANDSHAKE_FAILED);
}

static const net_key job_key = {.bytes = {1, 2, 3}};

static void shake(handshake *client, net_security here, handshake *server, net_security there)
{
    handshake_claim claim = plain_claim;

    claim.security = here;
    assert_ok(handshake_client(client, &job_key, &claim, "the head"));
    claim.security = there;
    assert_ok(handshake_server(server, &job_key, &claim, "node 3"));
    for (int i = 0; i < 2; i++) {
        pass(client, server);
        pass(server, client);
    }
}

static void both_ends_derive_two_keys_that_differ_by_connection(void **state)
{
    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(modes); i++) {
        seal_pair client[2];
        seal_pair server[2];

        for (int n = 0; n < 2; n++) {
            handshake c;
            handshake s;

            shake(&c, modes[i], &s, modes[i]);
            handshake_seals(&c, &client[n]);
            handshake_seals(&s, &server[n]);
            assert_int_equal(client[n].out.mode, modes[i]);
            assert_memory_equal(&client[n].out, &server[n].in, sizeof(seal));
            assert_memory_equal(&client[n].in, &server[n].out, sizeof(seal));
            assert_memory_not_equal(client[n].in.key, client[n].out.key, SEAL_KEY_BYTES);
        }
        assert_memory_not_equal(client[0].out.key, client[1].out.key, SEAL_KEY_BYTES);
    }
}

/* --- an attacker with recorded traffic that gets the job's key later --- */

#define HELLO 68
#define SHARE crypto_kx_PUBLICKEYBYTES

typedef struct recording {
    uint8_t transcript[HELLO + SHARE]; /* the hello and the server's share, as sent */
    uint8_t record[SEAL_OVERHEAD + 6]; /* from the client */
} recording;

/* Whether the job's key and `secret`, as the client's, derive the key of the recorded record. */
static bool opens_with(const recording *r, const uint8_t *secret, size_t bytes)
{
    static const char direction[] = "lockstep client";
    uint8_t both[NET_KEY_BYTES + crypto_kx_SESSIONKEYBYTES];
    uint8_t extracted[KDF_BYTES];
    uint8_t key[SEAL_KEY_BYTES];
    uint8_t record[sizeof(r->record)];
    size_t whole;
    size_t n;
    seal s;

    memcpy(both, job_key.bytes, NET_KEY_BYTES);
    memcpy(both + NET_KEY_BYTES, secret, bytes);
    kdf_extract(r->transcript, sizeof(r->transcript), both, NET_KEY_BYTES + bytes, extracted);
    kdf_expand(extracted, direction, sizeof(direction) - 1, key, sizeof(key));
    seal_start(&s, NET_ENCRYPT, key);
    memcpy(record, r->record, sizeof(record));
    return seal_open(&s, record, sizeof(record), &whole, &n) == LS_OK && whole > 0;
}

/* The client's sending key, as crypto_kx derives it for the owner of `secret`. */
static bool opens_with_exchange(const recording *r, const uint8_t secret[SHARE])
{
    const uint8_t *client = r->transcript + HELLO - SHARE;
    const uint8_t *server = r->transcript + HELLO;
    uint8_t in[crypto_kx_SESSIONKEYBYTES];
    uint8_t out[crypto_kx_SESSIONKEYBYTES];

    return crypto_kx_client_session_keys(in, out, client, secret, server) == 0 &&
           opens_with(r, out, sizeof(out));
}

/* A connection as it is sent; returns the client's secret, which is not sent. */
static void record_connection(recording *r, uint8_t secret[SHARE])
{
    handshake_claim claim = plain_claim;
    handshake c;
    handshake s;
    seal_pair seals;
    size_t n;

    claim.security = NET_ENCRYPT;
    assert_ok(handshake_client(&c, &job_key, &claim, "the head"));
    assert_ok(handshake_server(&s, &job_key, &claim, "node 3"));
    memcpy(secret, c.secret, SHARE);
    memcpy(r->transcript, handshake_output(&c, &n), HELLO);
    pass(&c, &s);
    memcpy(r->transcript + HELLO, handshake_output(&s, &n) + 5, SHARE);
    pass(&s, &c);
    pass(&c, &s);
    pass(&s, &c);
    assert_int_equal(c.state, HANDSHAKE_DONE);
    handshake_seals(&c, &seals);
    memcpy(r->record + SEAL_HEAD_BYTES, "secret", 6);
    assert_int_equal(seal_close(&seals.out, r->record, 6), sizeof(r->record));
}

static void recorded_traffic_and_the_job_key_do_not_give_the_session_keys(void **state)
{
    static const uint8_t zeros[SHARE];
    uint8_t secret[SHARE];
    recording r;

    LS_UNUSED(state);
    record_connection(&r, secret);
    assert_true(opens_with_exchange(&r, secret)); // so the attempts below could succeed
    assert_false(opens_with(&r, zeros, 0));
    assert_false(opens_with(&r, zeros, sizeof(zeros)));
    assert_false(opens_with(&r, job_key.bytes, sizeof(job_key.bytes)));
    assert_false(opens_with(&r, r.transcript + HELLO - SHARE, SHARE));
    assert_false(opens_with(&r, r.transcript + HELLO, SHARE));
    assert_false(opens_with_exchange(&r, job_key.bytes));
    assert_false(opens_with_exchange(&r, zeros));
    secret[7] ^= 1; // libsodium ignores some bits of the first and the last byte
    assert_false(opens_with_exchange(&r, secret));
}

static void without_a_mode_nothing_is_sealed(void **state)
{
    const seal_pair none = {{0}, {0}};
    seal_pair seals;
    handshake c;
    handshake s;

    LS_UNUSED(state);
    shake(&c, NET_AUTH, &s, NET_AUTH);
    handshake_seals(&c, &seals);
    assert_memory_equal(&seals, &none, sizeof(seals));
}

static void different_mode_is_reported_on_both_sides(void **state)
{
    handshake c;
    handshake s;

    LS_UNUSED(state);
    shake(&c, NET_MAC, &s, NET_ENCRYPT);
    assert_status(s.verdict, LS_EMISMATCH);
    assert_status(c.verdict, LS_EMISMATCH);
    assert_last_error("security is mac here, encrypt at the head: set LOCKSTEP_SECURITY alike");
}

static void without_a_key_there_is_no_mode(void **state)
{
    handshake_claim claim = plain_claim;
    handshake h;

    LS_UNUSED(state);
    claim.security = NET_MAC;
    assert_status(handshake_client(&h, NULL, &claim, "the head"), LS_EAUTH);
    assert_last_error("LOCKSTEP_SECURITY=mac needs a key");
    assert_status(handshake_server(&h, NULL, &claim, "node 3"), LS_EAUTH);
}

static void a_unix_socket_needs_no_mode(void **state)
{
    handshake_claim claim = plain_claim;
    int fds[2];

    LS_UNUSED(state);
    claim.security = NET_ENCRYPT;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    assert_int_equal(handshake_claim_for(fds[0], &claim).security, NET_AUTH);
    close(fds[0]);
    close(fds[1]);
    fds[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(handshake_claim_for(fds[0], &claim).security, NET_ENCRYPT);
    close(fds[0]);
}

/* --- records --- */

static void start(net_security mode, seal *s)
{
    uint8_t key[SEAL_KEY_BYTES];

    count_up(key, sizeof(key), 0);
    seal_start(s, mode, key);
}

/* Computed by an independent program from the definitions (RFC 7693, RFC 8439). */
static void records_have_the_documented_layout(void **state)
{
    static const char *const expected[2][2] = {
        {"050000000000000068656c6c6f1ece626023cff200469b6e39577db8ec",
         "050000000100000068656c6c6f50957652821bf3fb2779c536b043d018"},
        {"050000000000000070dd2e5dc2937ca98ae213015992338afb16cfd0d6",
         "0500000001000000f7329f33da5d075ed570508ccb2fc12c0187d343e7"},
    };

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(modes); i++) {
        seal s;

        start(modes[i], &s);
        for (int n = 0; n < 2; n++) {
            uint8_t record[5 + SEAL_OVERHEAD];

            memcpy(record + SEAL_HEAD_BYTES, "hello", 5);
            assert_int_equal(seal_close(&s, record, 5), sizeof(record));
            assert_hex(record, sizeof(record), expected[i][n]);
        }
    }
}

/* Frames of many sizes in one sealed stream. */
typedef struct stream {
    uint8_t *plain; /* the expected output: type and size of each frame, and its bytes */
    size_t n_plain;
    frame_queue sealed;
} stream;

static void add_plain(stream *t, const void *data, size_t bytes)
{
    t->plain = ls_realloc(t->plain, t->n_plain + bytes + 1, 1);
    assert_non_null(t->plain);
    memcpy(t->plain + t->n_plain, data, bytes);
    t->n_plain += bytes;
}

static void add_frame(stream *t, uint32_t type, const uint8_t *body, size_t bytes)
{
    uint8_t numbers[8];

    wire_put_u32(numbers, type);
    wire_put_u32(numbers + 4, (uint32_t)bytes);
    add_plain(t, numbers, sizeof(numbers));
    add_plain(t, body, bytes);
    assert_ok(frame_queue_add(&t->sealed, type, body, bytes));
}

static void make_stream(stream *t, net_security mode, const size_t *sizes, int n)
{
    static uint8_t body[200000];
    seal s;

    memset(t, 0, sizeof(*t));
    frame_queue_init(&t->sealed, FRAMES_MAX);
    start(mode, &s);
    t->sealed.seal = s;
    for (size_t i = 0; i < sizeof(body); i++)
        body[i] = (uint8_t)(i * 7);
    for (int i = 0; i < n; i++)
        add_frame(t, (uint32_t)i + 1, body, sizes[i]);
}

static void free_stream(stream *t)
{
    ls_free(t->plain);
    frame_queue_free(&t->sealed);
}

static const uint8_t *sealed_bytes(const stream *t)
{
    return t->sealed.out.data + t->sealed.out.start;
}

/* A reading end and its output. */
typedef struct listener {
    frame_reader in;
    stream received;
} listener;

static void open_ears(listener *l, net_security mode)
{
    seal s;

    memset(l, 0, sizeof(*l));
    frame_reader_init(&l->in, FRAMES_MAX);
    start(mode, &s);
    l->in.seal = s;
}

static ls_status receive(listener *l, const uint8_t *data, size_t bytes)
{
    const ls_status st = frame_reader_feed(&l->in, data, bytes);
    bool have = true;
    frame f;

    while (have) {
        uint8_t numbers[8];

        assert_ok(frame_reader_next(&l->in, &f, &have));
        if (!have)
            break;
        wire_put_u32(numbers, f.type);
        wire_put_u32(numbers + 4, (uint32_t)f.bytes);
        add_plain(&l->received, numbers, sizeof(numbers));
        add_plain(&l->received, f.body, f.bytes);
    }
    return st;
}

static void go(listener *l)
{
    frame_reader_free(&l->in);
    ls_free(l->received.plain);
}

static void frames_of_all_sizes_are_unchanged_by_sealing(void **state)
{
    static const size_t sizes[] = {
        0, 1, 100, SEAL_RECORD_MAX - 9, SEAL_RECORD_MAX - 8, SEAL_RECORD_MAX - 7, 200000, 0};

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(modes); i++) {
        stream t;
        listener l;
        size_t expected = 0;

        make_stream(&t, modes[i], sizes, LS_COUNT_OF(sizes));
        for (size_t k = 0; k < LS_COUNT_OF(sizes); k++)
            expected += seal_size(sizes[k] + FRAME_HEADER_BYTES);
        assert_int_equal(frame_queue_bytes(&t.sealed), expected);
        for (size_t piece = 1; piece < 3 * SEAL_RECORD_MAX; piece = piece * 5 + 1) {
            open_ears(&l, modes[i]);
            for (size_t at = 0; at < expected; at += piece)
                assert_ok(receive(&l, sealed_bytes(&t) + at,
                                  at + piece < expected ? piece : expected - at));
            assert_int_equal(l.received.n_plain, t.n_plain);
            assert_memory_equal(l.received.plain, t.plain, t.n_plain);
            go(&l);
        }
        free_stream(&t);
    }
}

static const size_t few[] = {3, 0, 40, 5};

static void records_may_arrive_in_pieces_of_any_size(void **state)
{
    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(modes); i++) {
        stream t;
        size_t n;

        make_stream(&t, modes[i], few, LS_COUNT_OF(few));
        n = frame_queue_bytes(&t.sealed);
        for (size_t at = 0; at <= n; at++) {
            listener l;

            open_ears(&l, modes[i]);
            assert_ok(receive(&l, sealed_bytes(&t), at));
            assert_ok(receive(&l, sealed_bytes(&t) + at, n - at));
            assert_int_equal(l.received.n_plain, t.n_plain);
            assert_memory_equal(l.received.plain, t.plain, t.n_plain);
            go(&l);
        }
        free_stream(&t);
    }
}

/* The output before the damage is a prefix of the input, and none follows. */
static void expect_damage(const stream *t, net_security mode, const uint8_t *data, size_t bytes,
                          const char *error)
{
    listener l;

    open_ears(&l, mode);
    assert_status(receive(&l, data, bytes), LS_EPROTO);
    assert_last_error(error);
    assert_true(l.received.n_plain < t->n_plain);
    if (l.received.n_plain > 0)
        assert_memory_equal(l.received.plain, t->plain, l.received.n_plain);
    bytes = l.received.n_plain;
    assert_status(receive(&l, data, 1), LS_EPROTO);
    assert_int_equal(l.received.n_plain, bytes);
    go(&l);
}

/* Where record `n` of `few` begins: one for each frame. */
static size_t record_at(int n)
{
    size_t at = 0;

    for (int i = 0; i < n; i++)
        at += few[i] + FRAME_HEADER_BYTES + SEAL_OVERHEAD;
    return at;
}

/* Whether this byte is in the number of a record, not in its length. */
static bool is_number(size_t at)
{
    bool is = false;

    for (int i = 0; i < (int)LS_COUNT_OF(few); i++)
        is |= at >= record_at(i) + 4 && at < record_at(i) + SEAL_HEAD_BYTES;
    return is;
}

static void every_changed_bit_of_a_record_is_detected(void **state)
{
    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(modes); i++) {
        stream t;
        size_t n;
        uint8_t *data;

        make_stream(&t, modes[i], few, LS_COUNT_OF(few));
        n = frame_queue_bytes(&t.sealed);
        data = t.sealed.out.data + t.sealed.out.start;
        for (size_t at = 0; at < n; at++) {
            bool is_length = false;

            for (int k = 0; k < (int)LS_COUNT_OF(few); k++)
                is_length |= at >= record_at(k) && at < record_at(k) + 4;
            data[at] ^= 0x40;
            if (!is_length) {
                expect_damage(&t, modes[i], data, n, is_number(at) ? "expected" : "was modified");
            } else { // a longer record is awaited, or is too long
                listener l;

                open_ears(&l, modes[i]);
                (void)receive(&l, data, n);
                assert_true(l.received.n_plain < t.n_plain);
                go(&l);
            }
            data[at] ^= 0x40;
        }
        free_stream(&t);
    }
}

static void repeated_reordered_and_missing_records_are_named(void **state)
{
    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(modes); i++) {
        uint8_t changed[512];
        const size_t one = record_at(1);
        const size_t two = record_at(2);
        stream t;
        size_t n;

        make_stream(&t, modes[i], few, LS_COUNT_OF(few));
        n = frame_queue_bytes(&t.sealed);
        memcpy(changed, sealed_bytes(&t), two); // 0 1 1 2 3
        memcpy(changed + two, sealed_bytes(&t) + one, n - one);
        expect_damage(&t, modes[i], changed, two + n - one, "record 1 was repeated, expected 2");
        memcpy(changed, sealed_bytes(&t), one); // 0 2 3
        memcpy(changed + one, sealed_bytes(&t) + two, n - two);
        expect_damage(&t, modes[i], changed, one + n - two, "record 2 was received, expected 1");
        memcpy(changed, sealed_bytes(&t) + one, two - one); // 1 0
        memcpy(changed + two - one, sealed_bytes(&t), one);
        expect_damage(&t, modes[i], changed, two, "record 1 was received, expected 0");
        free_stream(&t);
    }
}

static void a_record_of_the_other_mode_or_key_is_no_record(void **state)
{
    stream t;
    listener l;

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(modes); i++) {
        make_stream(&t, modes[i], few, LS_COUNT_OF(few));
        expect_damage(&t, modes[1 - i], sealed_bytes(&t), frame_queue_bytes(&t.sealed), "modified");
        open_ears(&l, modes[i]);
        l.in.seal.key[31] ^= 1;
        assert_status(receive(&l, sealed_bytes(&t), frame_queue_bytes(&t.sealed)), LS_EPROTO);
        assert_int_equal(l.received.n_plain, 0);
        go(&l);
        free_stream(&t);
    }
}

static void announced_length_allocates_nothing(void **state)
{
    static const uint32_t claims[] = {0, (uint32_t)SEAL_RECORD_MAX + 1, 0x7fffffff, 0xffffffff};

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(claims); i++) {
        uint8_t head[SEAL_HEAD_BYTES] = {0};
        listener l;

        wire_put_u32(head, claims[i]);
        open_ears(&l, NET_MAC);
        assert_status(receive(&l, head, sizeof(head)), LS_EPROTO);
        assert_last_error("record 0 has");
        assert_true(l.in.sealed.capacity <= 4096 && l.in.in.capacity == 0);
        go(&l);
    }
}

static void an_end_within_a_record_is_named(void **state)
{
    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(modes); i++) {
        const size_t two = record_at(2);
        stream t;

        make_stream(&t, modes[i], few, LS_COUNT_OF(few));
        for (size_t at = 0; at <= two; at++) {
            int fds[2];
            listener l;
            size_t moved;

            open_ears(&l, modes[i]);
            assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
            assert_int_equal(write(fds[0], sealed_bytes(&t), at), at);
            close(fds[0]);
            if (at > 0)
                assert_ok(frame_reader_fill(&l.in, fds[1], "node 3", &moved));
            assert_status(frame_reader_fill(&l.in, fds[1], "node 3", &moved), LS_EPEER);
            assert_last_error("node 3");
            assert_int_equal(strstr(ls_last_error(), "in the middle of a record") == NULL,
                             at == 0 || at == record_at(1) || at == two);
            close(fds[1]);
            go(&l);
        }
        free_stream(&t);
    }
}

static void without_memory_a_frame_is_not_half_added(void **state)
{
    static uint8_t body[100000];
    stream t;

    LS_UNUSED(state);
    make_stream(&t, NET_ENCRYPT, few, LS_COUNT_OF(few));
    for (uint64_t at = 1; at <= 2; at++) {
        const size_t before = frame_queue_bytes(&t.sealed);
        const uint64_t number = t.sealed.seal.next;
        ls_status st;

        ls_alloc_fail_at(at);
        st = frame_queue_add(&t.sealed, 9, body, sizeof(body));
        ls_alloc_fail_at(0);
        if (st == LS_OK)
            break;
        assert_int_equal(frame_queue_bytes(&t.sealed), before);
        assert_int_equal(t.sealed.seal.next, number);
    }
    assert_status(frame_queue_add(&t.sealed, 9, body, FRAMES_MAX), LS_ENOMEM);
    free_stream(&t);
}

/* --- an observer of the connection --- */

static bool holds(const uint8_t *data, size_t bytes, const char *text)
{
    return memmem(data, bytes, text, strlen(text)) != NULL;
}

static void only_encrypt_hides_the_content(void **state)
{
    static const char secret[] = "the password is swordfish";

    LS_UNUSED(state);
    for (int mode = NET_AUTH; mode <= NET_ENCRYPT; mode++) {
        frame_queue out;
        uint8_t line[512];
        ssize_t n;
        seal s;
        int fds[2];

        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds),
                         0);
        frame_queue_init(&out, FRAMES_MAX);
        start((net_security)mode, &s);
        out.seal = s;
        assert_ok(frame_queue_add(&out, 1, secret, sizeof(secret)));
        assert_ok(frame_queue_flush(&out, fds[0], "node 3"));
        n = read(fds[1], line, sizeof(line));
        assert_true(n > (ssize_t)sizeof(secret));
        assert_int_equal(holds(line, (size_t)n, secret), mode != NET_ENCRYPT);
        assert_int_equal(holds(line, (size_t)n, "sword"), mode != NET_ENCRYPT);
        frame_queue_free(&out);
        close(fds[0]);
        close(fds[1]);
    }
}

static void setting_selects_the_mode(void **state)
{
    net_security mode = NET_MAC;

    LS_UNUSED(state);
    unsetenv("LOCKSTEP_SECURITY");
    assert_ok(net_security_setting(&mode));
    assert_int_equal(mode, NET_AUTH);
    for (int i = NET_AUTH; i <= NET_ENCRYPT; i++) {
        setenv("LOCKSTEP_SECURITY", net_security_text((net_security)i), 1);
        assert_ok(net_security_setting(&mode));
        assert_int_equal(mode, i);
    }
    setenv("LOCKSTEP_SECURITY", "tls", 1);
    assert_status(net_security_setting(&mode), LS_EINVAL);
    assert_last_error("auth|mac|encrypt");
    assert_ok(net_security_set("encrypt", "--security")); /* overrides the variable */
    assert_ok(net_security_setting(&mode));
    assert_int_equal(mode, NET_ENCRYPT);
    assert_string_equal(getenv("LOCKSTEP_SECURITY"), "encrypt");
    assert_status(net_security_set("", "--security"), LS_EINVAL);
    assert_status(net_security_set("tls", "--security"), LS_EINVAL);
    assert_last_error("--security tls: auth, mac or encrypt");
    unsetenv("LOCKSTEP_SECURITY");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hkdf_gives_the_rfcs_vectors),
        cmocka_unit_test(both_ends_derive_two_keys_that_differ_by_connection),
        cmocka_unit_test(recorded_traffic_and_the_job_key_do_not_give_the_session_keys),
        cmocka_unit_test(without_a_mode_nothing_is_sealed),
        cmocka_unit_test(different_mode_is_reported_on_both_sides),
        cmocka_unit_test(without_a_key_there_is_no_mode),
        cmocka_unit_test(a_unix_socket_needs_no_mode),
        cmocka_unit_test(records_have_the_documented_layout),
        cmocka_unit_test(frames_of_all_sizes_are_unchanged_by_sealing),
        cmocka_unit_test(records_may_arrive_in_pieces_of_any_size),
        cmocka_unit_test(every_changed_bit_of_a_record_is_detected),
        cmocka_unit_test(repeated_reordered_and_missing_records_are_named),
        cmocka_unit_test(a_record_of_the_other_mode_or_key_is_no_record),
        cmocka_unit_test(announced_length_allocates_nothing),
        cmocka_unit_test(an_end_within_a_record_is_named),
        cmocka_unit_test(without_memory_a_frame_is_not_half_added),
        cmocka_unit_test(only_encrypt_hides_the_content),
        cmocka_unit_test(setting_selects_the_mode),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
