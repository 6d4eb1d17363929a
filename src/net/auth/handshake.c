/* SPDX-License-Identifier: Apache-2.0 */
/*
 * handshake.c - both sides of the exchange in handshake.h, as one state machine over bytes;
 * listener.c runs the server's side, dial.c and store/ the client's.
 *
 * The transcript is the client's hello and the server's share. Every MAC covers all of it, so both
 * sides detect a changed byte in the hello or in a share. A client that finds the server's MAC
 * wrong still sends 32 bytes (zeros, which authenticate nothing), so that the server can report the
 * different key too. A MAC covers the verdict's numbers: an attacker cannot invent a reason.
 */
#include "net/auth/handshake.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "net/auth/kdf.h"
#include "net/socket.h"
#include "net/wire.h"

#include <sodium.h>

#include <poll.h>
#include <string.h>

#define MAGIC           "LSTP"
#define VERSION         2
#define HEAD_BYTES      5 /* magic and version, the start of each side's first message */
#define SHARE_BYTES     crypto_kx_PUBLICKEYBYTES
#define MAC_BYTES       crypto_auth_hmacsha256_BYTES
#define HELLO_BYTES     68
#define CHALLENGE_BYTES (HEAD_BYTES + SHARE_BYTES + MAC_BYTES)
#define PROOF_BYTES     MAC_BYTES
#define VERDICT_BYTES   (8 + MAC_BYTES)
#define SHARE_AT        (HELLO_BYTES - SHARE_BYTES) /* the client's; the server's follows it */
#define TRANSCRIPT      (HELLO_BYTES + SHARE_BYTES)
#define JOB_CHARS       (HANDSHAKE_JOB_BYTES - 1)

_Static_assert(TRANSCRIPT <= HANDSHAKE_BYTES && CHALLENGE_BYTES <= HANDSHAKE_BYTES,
               "a message fits its buffer");
// NOLINTNEXTLINE(misc-redundant-expression): two constants of libsodium
_Static_assert(HANDSHAKE_SECRET_BYTES == crypto_kx_SECRETKEYBYTES &&
                   HANDSHAKE_SECRET_BYTES == crypto_kx_SESSIONKEYBYTES &&
                   SEAL_KEY_BYTES == crypto_kx_SESSIONKEYBYTES,
               "keys of crypto_kx fit");

/* The errors that a server finds in the claim of an authenticated client. */
typedef enum verdict {
    VERDICT_OK = 0,
    VERDICT_PURPOSE = 1,
    VERDICT_JOB = 2,
    VERDICT_GENERATION = 3, /* value: the server's */
    VERDICT_RANK = 4,       /* value: the server's */
    VERDICT_SECURITY = 5    /* value: the server's */
} verdict;

static ls_status finish(handshake *h, ls_status st)
{
    sodium_memzero(h->secret, sizeof(h->secret));
    h->state = HANDSHAKE_FAILED;
    h->verdict = st;
    return st;
}

/* "10.0.0.1" of "tcp://10.0.0.1:29500", with the brackets of IPv6. */
static const char *host_of(const char *name, char *buf, size_t n)
{
    static const char scheme[] = "tcp://";
    const char *start = strstr(name, scheme);
    const char *colon = strrchr(name, ':');

    if (start == NULL || colon == start + 3)
        return text_format(buf, n, "HOST");
    start += sizeof(scheme) - 1;
    return text_format(buf, n, "%.*s", (int)(colon - start), start);
}

/* The server is node 0, or on the host of rank 0. Both sides name its key as the one to copy. */
static ls_status fail_user_key(handshake *h)
{
    const char *own = h->key->origin;
    const char *remote = strstr(own, NET_KEY_FILE_USER) != NULL ? NET_KEY_FILE_USER : own;
    const char *owner = h->own.purpose == NET_PURPOSE_NODE ? "node 0" : "rank 0's host";
    char host[HANDSHAKE_PEER_TEXT];

    host_of(h->name, host, sizeof(host));
    if (h->is_server)
        return ls_fail(LS_EAUTH,
                       "%s has another key than %s; copy this one, the key of %s, there: scp -p %s "
                       "%s:%s",
                       h->name, own, owner, own, host, remote);
    return ls_fail(
        LS_EAUTH, "%s has another key than %s; copy that one, the key of %s, here: scp -p %s:%s %s",
        h->name, own, owner, host, remote, own);
}

static ls_status fail_auth(handshake *h)
{
    if (h->key != NULL && h->key->origin[0] != 0)
        return finish(h, fail_user_key(h));
    return finish(h, ls_fail(LS_EAUTH, "%s does not have this job's key", h->name));
}

static const char *purpose_text(net_purpose purpose)
{
    switch (purpose) {
    case NET_PURPOSE_CONTROL:
        return "a hub";
    case NET_PURPOSE_STORE:
        return "a store";
    case NET_PURPOSE_DATA:
        return "a rank's data port";
    case NET_PURPOSE_NODE:
        return "the head of a job";
    case NET_PURPOSE_PROBE:
        return "a network probe";
    case NET_PURPOSE_STANDBY:
        return "a standby head";
    }
    return "something else";
}

static void mac(const handshake *h, const char *role, const uint8_t *more, size_t more_bytes,
                uint8_t out[MAC_BYTES])
{
    static const uint8_t no_key[NET_KEY_BYTES];
    crypto_auth_hmacsha256_state state;

    crypto_auth_hmacsha256_init(&state, h->key == NULL ? no_key : h->key->bytes, NET_KEY_BYTES);
    crypto_auth_hmacsha256_update(&state, (const uint8_t *)role, 3);
    crypto_auth_hmacsha256_update(&state, h->transcript, TRANSCRIPT);
    if (more_bytes > 0)
        crypto_auth_hmacsha256_update(&state, more, more_bytes);
    crypto_auth_hmacsha256_final(&state, out);
    sodium_memzero(&state, sizeof(state));
}

static bool mac_is(const handshake *h, const char *role, const uint8_t *more, size_t more_bytes,
                   const uint8_t *claimed)
{
    uint8_t expected[MAC_BYTES];
    bool equal;

    mac(h, role, more, more_bytes, expected);
    equal = sodium_memcmp(expected, claimed, MAC_BYTES) == 0;
    sodium_memzero(expected, sizeof(expected));
    return equal;
}

/* --- the hello --- */

static void encode_head(uint8_t out[HEAD_BYTES])
{
    memcpy(out, MAGIC, 4); // NOLINT(bugprone-not-null-terminated-result): no text
    out[4] = VERSION;
}

/* The peer's first message begins with a head in every version. A server with another version
 * replies with its own head alone, which the client reports. */
static ls_status check_head(handshake *h)
{
    const uint8_t version = h->in[4];

    if (h->step > 0 || h->in_bytes < HEAD_BYTES)
        return LS_OK;
    // LS_EAUTH ends the client's attempts: a server of another protocol stays one.
    if (memcmp(h->in, MAGIC, 4) != 0)
        return finish(h, ls_fail(h->is_server ? LS_EPROTO : LS_EAUTH,
                                 "%s does not use Lockstep's protocol", h->name));
    if (version == VERSION)
        return LS_OK;
    if (h->is_server) {
        encode_head(h->out);
        h->out_bytes = HEAD_BYTES;
    }
    return finish(h, ls_fail(LS_EMISMATCH,
                             "%s uses version %d of Lockstep's protocol, not %d: install the "
                             "same version of Lockstep on both hosts",
                             h->name, version, VERSION));
}

/* 32 fresh bytes. When session keys are made: the public half of a key pair of this connection,
 * with the secret half in h->secret. Otherwise a nonce, which costs no computation. */
static void make_share(handshake *h, uint8_t share[SHARE_BYTES])
{
    if (h->own.security == NET_AUTH)
        randombytes_buf(share, SHARE_BYTES);
    else
        crypto_kx_keypair(share, h->secret);
}

static void encode_hello(handshake *h, uint8_t *out)
{
    const handshake_claim *claim = &h->own;

    encode_head(out);
    out[5] = (uint8_t)claim->purpose;
    out[6] = (uint8_t)claim->security;
    out[7] = claim->stream;
    memset(out + 8, 0, JOB_CHARS);
    memcpy(out + 8, claim->job, strnlen(claim->job, JOB_CHARS));
    wire_put_u32(out + 24, claim->from);
    wire_put_u32(out + 28, claim->to);
    wire_put_u32(out + 32, claim->generation);
    make_share(h, out + SHARE_AT);
}

static ls_status decode_hello(handshake *h, const uint8_t *in)
{
    if (in[5] < NET_PURPOSE_CONTROL || in[5] > NET_PURPOSE_STANDBY || in[6] > NET_ENCRYPT ||
        (in[7] != 0 && in[5] != NET_PURPOSE_DATA))
        return finish(h, ls_fail(LS_EPROTO, "%s sent a hello with unknown fields", h->name));
    h->peer.purpose = (net_purpose)in[5];
    h->peer.security = (net_security)in[6];
    h->peer.stream = in[7];
    memcpy(h->peer.job, in + 8, JOB_CHARS);
    h->peer.job[JOB_CHARS] = 0;
    h->peer.from = wire_get_u32(in + 24);
    h->peer.to = wire_get_u32(in + 28);
    h->peer.generation = wire_get_u32(in + 32);
    return LS_OK;
}

static ls_status begin(handshake *h, const net_key *key, const handshake_claim *own,
                       const char *peer)
{
    memset(h, 0, sizeof(*h));
    LS_TRY(net_crypto_init());
    if (key == NULL && own->security != NET_AUTH)
        return ls_fail(LS_EAUTH, "LOCKSTEP_SECURITY=%s needs a key (no --insecure)",
                       net_security_text(own->security));
    h->key = key;
    h->own = *own;
    text_printable(h->name, sizeof(h->name), peer);
    return LS_OK;
}

ls_status handshake_client(handshake *h, const net_key *key, const handshake_claim *claim,
                           const char *peer)
{
    LS_TRY(begin(h, key, claim, peer));
    encode_hello(h, h->out);
    h->out_bytes = HELLO_BYTES;
    memcpy(h->transcript, h->out, HELLO_BYTES);
    h->in_need = CHALLENGE_BYTES;
    return LS_OK;
}

ls_status handshake_server(handshake *h, const net_key *key, const handshake_claim *expected,
                           const char *peer)
{
    LS_TRY(begin(h, key, expected, peer));
    h->is_server = true;
    h->in_need = HELLO_BYTES;
    return LS_OK;
}

/* --- the keys of the session --- */

/* crypto_kx derives a key for each direction from the two shares, X25519 and BLAKE2b. The job's key
 * in it authenticates the peer; the shares in it are erased at the end of the connection. */
static void derive_key(const handshake *h, const char *direction,
                       const uint8_t exchanged[HANDSHAKE_SECRET_BYTES], uint8_t *out)
{
    uint8_t both[NET_KEY_BYTES + HANDSHAKE_SECRET_BYTES];
    uint8_t extracted[KDF_BYTES];

    // NOLINTNEXTLINE(clang-analyzer-core.NonNullParamChecker): it is that of the session
    memcpy(both, h->key->bytes, NET_KEY_BYTES);
    memcpy(both + NET_KEY_BYTES, exchanged, HANDSHAKE_SECRET_BYTES);
    kdf_extract(h->transcript, TRANSCRIPT, both, sizeof(both), extracted);
    kdf_expand(extracted, direction, strlen(direction), out, SEAL_KEY_BYTES);
    sodium_memzero(both, sizeof(both));
    sodium_memzero(extracted, sizeof(extracted));
}

/* Requires an authenticated peer. Erases this side's secret. */
static ls_status agree_on_keys(handshake *h)
{
    const uint8_t *client = h->transcript + SHARE_AT;
    const uint8_t *server = h->transcript + HELLO_BYTES;
    uint8_t in[crypto_kx_SESSIONKEYBYTES];
    uint8_t out[crypto_kx_SESSIONKEYBYTES];
    int failed;

    if (h->own.security == NET_AUTH)
        return LS_OK;
    failed = h->is_server ? crypto_kx_server_session_keys(in, out, server, h->secret, client)
                          : crypto_kx_client_session_keys(in, out, client, h->secret, server);
    if (failed == 0) {
        derive_key(h, h->is_server ? "lockstep client" : "lockstep server", in, h->key_in);
        derive_key(h, h->is_server ? "lockstep server" : "lockstep client", out, h->key_out);
    }
    sodium_memzero(h->secret, sizeof(h->secret));
    sodium_memzero(in, sizeof(in));
    sodium_memzero(out, sizeof(out));
    if (failed != 0)
        return finish(
            h, ls_fail(LS_EPROTO, "%s sent a public key that gives no session key", h->name));
    return LS_OK;
}

void handshake_seals(const handshake *h, seal_pair *out)
{
    LS_ASSERT(h->state == HANDSHAKE_DONE);
    memset(out, 0, sizeof(*out));
    if (h->own.security == NET_AUTH)
        return;
    seal_start(&out->out, h->own.security, h->key_out);
    seal_start(&out->in, h->own.security, h->key_in);
}

void handshake_wipe(handshake *h)
{
    sodium_memzero(h, sizeof(*h));
}

static ls_status fail_security(const handshake *h, net_security peers)
{
    return ls_fail(LS_EMISMATCH, "security is %s here, %s at %s: set LOCKSTEP_SECURITY alike",
                   net_security_text(h->own.security), net_security_text(peers), h->name);
}

/* --- the server's steps --- */

static ls_status server_challenge(handshake *h)
{
    LS_TRY(decode_hello(h, h->in));
    memcpy(h->transcript, h->in, HELLO_BYTES);
    make_share(h, h->transcript + HELLO_BYTES);
    encode_head(h->out);
    memcpy(h->out + HEAD_BYTES, h->transcript + HELLO_BYTES, SHARE_BYTES);
    mac(h, "srv", NULL, 0, h->out + HEAD_BYTES + SHARE_BYTES);
    h->out_bytes = CHALLENGE_BYTES;
    h->in_need = PROOF_BYTES;
    return LS_OK;
}

/* Checks the claim of an authenticated client; the error text is for this side. */
static verdict judge(handshake *h, uint32_t *value)
{
    const handshake_claim *peer = &h->peer;
    const handshake_claim *own = &h->own;
    char job[HANDSHAKE_JOB_BYTES];

    *value = 0;
    if (peer->purpose != own->purpose) {
        finish(h, ls_fail(LS_EMISMATCH, "%s wants %s, but this is %s", h->name,
                          purpose_text(peer->purpose), purpose_text(own->purpose)));
        return VERDICT_PURPOSE;
    }
    if (strncmp(peer->job, own->job, HANDSHAKE_JOB_BYTES) != 0) {
        text_printable(job, sizeof(job), peer->job);
        finish(h,
               ls_fail(LS_EMISMATCH, "%s belongs to job '%s', not '%s'", h->name, job, own->job));
        return VERDICT_JOB;
    }
    if (peer->generation != own->generation) {
        *value = own->generation;
        finish(h, ls_fail(LS_EMISMATCH, "%s belongs to generation %u of the job, not %u", h->name,
                          peer->generation, own->generation));
        return VERDICT_GENERATION;
    }
    if (peer->to != own->to && own->to != HANDSHAKE_ANY_RANK) {
        *value = own->to;
        finish(h, ls_fail(LS_EMISMATCH, "%s looks for rank %u, but this is rank %u", h->name,
                          peer->to, own->to));
        return VERDICT_RANK;
    }
    if (peer->security != own->security) {
        *value = own->security;
        finish(h, fail_security(h, peer->security));
        return VERDICT_SECURITY;
    }
    return VERDICT_OK;
}

static ls_status server_verdict(handshake *h)
{
    uint32_t value;
    verdict v;

    if (!mac_is(h, "cli", NULL, 0, h->in))
        return fail_auth(h);
    v = judge(h, &value);
    if (v == VERDICT_OK)
        LS_TRY(agree_on_keys(h));
    wire_put_u32(h->out, (uint32_t)v);
    wire_put_u32(h->out + 4, value);
    mac(h, "end", h->out, 8, h->out + 8);
    h->out_bytes = VERDICT_BYTES;
    h->is_last = true;
    if (v != VERDICT_OK)
        return h->verdict;
    h->in_need = 0;
    return LS_OK;
}

/* --- the client's steps --- */

static ls_status client_proof(handshake *h)
{
    memcpy(h->transcript + HELLO_BYTES, h->in + HEAD_BYTES, SHARE_BYTES);
    h->out_bytes = PROOF_BYTES;
    if (!mac_is(h, "srv", NULL, 0, h->in + HEAD_BYTES + SHARE_BYTES)) {
        memset(h->out, 0, PROOF_BYTES);
        h->is_last = true;
        return fail_auth(h);
    }
    mac(h, "cli", NULL, 0, h->out);
    h->in_need = VERDICT_BYTES;
    return LS_OK;
}

static ls_status client_end(handshake *h)
{
    const uint32_t v = wire_get_u32(h->in);
    const uint32_t value = wire_get_u32(h->in + 4);

    if (!mac_is(h, "end", h->in, 8, h->in + 8))
        return fail_auth(h);
    switch (v) {
    case VERDICT_OK:
        LS_TRY(agree_on_keys(h));
        h->in_need = 0;
        h->state = HANDSHAKE_DONE;
        return LS_OK;
    case VERDICT_PURPOSE:
        return finish(h,
                      ls_fail(LS_EMISMATCH, "%s is not %s", h->name, purpose_text(h->own.purpose)));
    case VERDICT_JOB:
        return finish(
            h, ls_fail(LS_EMISMATCH, "%s belongs to another job than '%s'", h->name, h->own.job));
    case VERDICT_GENERATION:
        return finish(h, ls_fail(LS_EMISMATCH, "%s belongs to generation %u of the job, not %u",
                                 h->name, value, h->own.generation));
    case VERDICT_RANK:
        return finish(
            h, ls_fail(LS_EMISMATCH, "%s is rank %u, not rank %u", h->name, value, h->own.to));
    case VERDICT_SECURITY:
        return finish(h, fail_security(h, (net_security)value));
    default:
        return finish(h, ls_fail(LS_EPROTO, "%s sent verdict %u", h->name, v));
    }
}

/* One complete message is in h->in. */
static ls_status take_message(handshake *h)
{
    h->step++;
    h->in_bytes = 0;
    if (h->is_server)
        return h->step == 1 ? server_challenge(h) : server_verdict(h);
    return h->step == 1 ? client_proof(h) : client_end(h);
}

/* Stops while output is pending: one output buffer is enough, and the result does not depend on how
 * the input was cut. */
ls_status handshake_feed(handshake *h, const void *data, size_t bytes, size_t *used)
{
    const uint8_t *at = data;

    *used = 0;
    while (h->state == HANDSHAKE_RUNNING && h->out_bytes == 0 && *used < bytes) {
        size_t n = h->in_need - h->in_bytes;

        if (n > bytes - *used)
            n = bytes - *used;
        memcpy(h->in + h->in_bytes, at + *used, n);
        h->in_bytes += n;
        *used += n;
        LS_TRY(check_head(h));
        if (h->in_bytes == h->in_need) {
            const ls_status st = take_message(h);

            if (st != LS_OK)
                return finish(h, st);
        }
    }
    return LS_OK;
}

const uint8_t *handshake_output(const handshake *h, size_t *bytes)
{
    *bytes = h->out_bytes - h->out_sent;
    return h->out + h->out_sent;
}

void handshake_sent(handshake *h, size_t bytes)
{
    LS_ASSERT(bytes <= h->out_bytes - h->out_sent);
    h->out_sent += bytes;
    if (h->out_sent < h->out_bytes)
        return;
    h->out_sent = 0;
    h->out_bytes = 0;
    if (h->is_last && h->state == HANDSHAKE_RUNNING)
        h->state = HANDSHAKE_DONE;
}

static ls_status send_output(handshake *h, int fd)
{
    size_t bytes;
    const uint8_t *out = handshake_output(h, &bytes);
    size_t moved;

    if (bytes == 0)
        return LS_OK;
    LS_TRY(net_send_some(fd, h->name, out, bytes, &moved));
    handshake_sent(h, moved);
    return LS_OK;
}

/* Reads no more than the expected message: the bytes behind it belong to the caller. */
static ls_status read_input(handshake *h, int fd, bool *moved_any)
{
    uint8_t data[HANDSHAKE_BYTES];
    size_t moved;
    size_t used;

    LS_TRY(net_recv_some(fd, h->name, data, h->in_need - h->in_bytes, &moved));
    *moved_any = moved > 0;
    return handshake_feed(h, data, moved, &used);
}

/* A server that is older than the head of this version closes the connection instead of
 * replying. */
static ls_status fail_io(handshake *h, ls_status st)
{
    if (st == LS_EPEER && !h->is_server && h->step == 0 && h->in_bytes == 0)
        return finish(h, ls_context(st, "no reply in the handshake (an older version of Lockstep "
                                        "sends none)"));
    return finish(h, ls_context(st, "in the handshake"));
}

ls_status handshake_step(handshake *h, int fd, short *events)
{
    ls_status st = LS_OK;
    bool moved = true;

    *events = 0;
    while (h->state == HANDSHAKE_RUNNING && moved) {
        st = send_output(h, fd);
        if (st != LS_OK)
            return fail_io(h, st);
        moved = false;
        if (h->state == HANDSHAKE_RUNNING && h->out_bytes == 0)
            st = read_input(h, fd, &moved);
        if (st != LS_OK && h->state == HANDSHAKE_RUNNING)
            return fail_io(h, st);
    }
    if (h->state == HANDSHAKE_FAILED) {
        char saved[LS_ERROR_BYTES];

        ls_error_save(saved);
        if (send_output(h, fd) != LS_OK) // the peer misses the reason; this side's counts
            ls_error_restore(saved);
        return h->verdict;
    }
    if (h->state == HANDSHAKE_RUNNING)
        *events = h->out_bytes > 0 ? POLLOUT : POLLIN;
    return LS_OK;
}

static ls_status run_until(handshake *h, int fd, int64_t deadline_ms, wait_report *report)
{
    short events = 0;

    for (;;) {
        ls_status st;

        LS_TRY(handshake_step(h, fd, &events));
        if (h->state == HANDSHAKE_DONE)
            return LS_OK;
        st = net_wait(fd, events,
                      report == NULL ? deadline_ms : wait_report_deadline_ms(report, deadline_ms));
        if (st == LS_ETIMEOUT && report != NULL && wait_report_is_due(report))
            ls_log(LS_LOG_WARN, "net",
                   "%s has not answered for %.1f s: is it stopped, or is something else listening?",
                   h->name, wait_report_seconds(report));
        if (st == LS_ETIMEOUT && ls_deadline_left(deadline_ms) != 0)
            continue;
        if (st == LS_ETIMEOUT)
            return ls_fail(st, "handshake with %s timed out", h->name);
        LS_TRY(st);
    }
}

handshake_claim handshake_claim_for(int fd, const handshake_claim *claim)
{
    handshake_claim own = *claim;
    net_address at;

    if (net_address_of_socket(fd, &at) == LS_OK && net_address_family(&at) == NET_UNIX)
        own.security = NET_AUTH;
    return own;
}

ls_status handshake_connect(int fd, const net_key *key, const handshake_claim *claim,
                            const char *peer, int64_t deadline_ms, wait_report *report,
                            seal_pair *seals)
{
    const handshake_claim own = handshake_claim_for(fd, claim);
    handshake h = {0};
    ls_status st = handshake_client(&h, key, &own, peer);

    if (st == LS_OK)
        st = run_until(&h, fd, deadline_ms, report);
    if (st == LS_OK)
        handshake_seals(&h, seals);
    handshake_wipe(&h);
    return st;
}
