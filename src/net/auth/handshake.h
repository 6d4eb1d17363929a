/* SPDX-License-Identifier: Apache-2.0 */
/*
 * handshake.h - the mutual authentication at the start of a connection: both ends show that they
 * have the job's key before anything else is read.
 *
 *   C -> S  "LSTP" version purpose security stream |                                       68 bytes
 *           job[16] | from u32 | to u32 | generation u32 | share[32]
 *   S -> C  "LSTP" version | share[32] | HMAC(K, "srv" | transcript)[32]                   69
 *   C -> S  HMAC(K, "cli" | transcript)[32]                                                32
 *   S -> C  verdict u32 | value u32 | HMAC(K, "end" | transcript | verdict | value)[32]    40
 *
 * The transcript is the hello and the server's share. Role labels in the MACs prevent reflection,
 * fresh shares on both sides prevent replay, the generation keeps out processes of an earlier
 * generation. A server reveals nothing of its job, rank or generation to a peer without the key,
 * and only magic and version to a peer of another version. At most HANDSHAKE_BYTES of input are
 * held, and no byte behind the handshake is consumed.
 *
 * The claim selects the protection of the bytes that follow (seal.h). With NET_AUTH they are not
 * protected, and a share is a nonce. Otherwise a share is an X25519 public key made for this
 * connection. libsodium's crypto_kx derives one key per direction from the two shares; the session
 * key of a direction is HKDF with salt = transcript, secret = K | that key. So K does not decrypt
 * recorded traffic.
 *
 * net/auth/: connections that both sides have authenticated: handshake, listener, dial, and
 * encryption (seal.h). Called by hub, comm and launch.
 */
#ifndef LS_NET_AUTH_HANDSHAKE_H
#define LS_NET_AUTH_HANDSHAKE_H

#include "base/report/wait_report.h"
#include "net/auth/seal.h"
#include "net/key.h"

#include <stdbool.h>

#define HANDSHAKE_BYTES        128        /* larger than any message */
#define HANDSHAKE_JOB_BYTES    17         /* 16 characters and a terminator */
#define HANDSHAKE_ANY_RANK     UINT32_MAX /* no rank: a client without one, a server for all */
#define HANDSHAKE_PEER_TEXT    160
#define HANDSHAKE_SECRET_BYTES 32 /* of the key pair of one connection */

typedef enum net_purpose {
    NET_PURPOSE_CONTROL = 1, /* a rank and its hub */
    NET_PURPOSE_STORE = 2,   /* a store without a job */
    NET_PURPOSE_DATA = 3,    /* between two ranks */
    NET_PURPOSE_NODE = 4,    /* an agent and the head of its job */
    /* an agent that tests a path to another one; `from` and `to` are nodes */
    NET_PURPOSE_PROBE = 5,
    NET_PURPOSE_STANDBY = 6 /* between agents that may host the head; `from` is a node */
} net_purpose;

/* The identity that a client claims, and the identity that a server expects. */
typedef struct handshake_claim {
    net_purpose purpose;
    char job[HANDSHAKE_JOB_BYTES]; /* terminated, filled up with zeros */
    uint32_t from;                 /* the client's rank; a server expects any */
    uint32_t to;                   /* the server's rank, or HANDSHAKE_ANY_RANK */
    uint32_t generation;
    net_security security; /* the same on both sides; without a key only NET_AUTH */
    /* NET_PURPOSE_DATA: the number of the connection between two ranks, from 0; a server expects
     * any. 0 for all other purposes. */
    uint8_t stream;
} handshake_claim;

typedef enum handshake_state {
    HANDSHAKE_RUNNING = 0,
    HANDSHAKE_DONE,
    HANDSHAKE_FAILED
} handshake_state;

typedef struct handshake {
    handshake_state state;
    bool is_server;
    bool is_last;         /* the pending output is the last */
    ls_status verdict;    /* the result of a failed handshake */
    handshake_claim own;  /* client: the claim; server: the expectation */
    handshake_claim peer; /* server: the client's authenticated claim, valid once done */
    /* --- private --- */
    const net_key *key;
    char name[HANDSHAKE_PEER_TEXT]; /* the peer's name in error texts */
    int step;
    uint8_t transcript[HANDSHAKE_BYTES];    /* the hello and the server's share: 100 bytes */
    uint8_t secret[HANDSHAKE_SECRET_BYTES]; /* zeros after the end of the handshake */
    uint8_t key_out[SEAL_KEY_BYTES];        /* once done, unless NET_AUTH */
    uint8_t key_in[SEAL_KEY_BYTES];
    uint8_t in[HANDSHAKE_BYTES];
    size_t in_bytes;
    size_t in_need; /* bytes of the expected message */
    uint8_t out[HANDSHAKE_BYTES];
    size_t out_bytes;
    size_t out_sent;
} handshake;

/* key NULL: no secret (unix sockets of the same user, --insecure): the exchange still checks job,
 * generation and ranks. The key is borrowed until the end of the handshake. */
LS_MUST_USE ls_status handshake_client(handshake *h, const net_key *key,
                                       const handshake_claim *claim, const char *peer);
LS_MUST_USE ls_status handshake_server(handshake *h, const net_key *key,
                                       const handshake_claim *expected, const char *peer);

/* The seals of the bytes behind a finished handshake. Call it once: record numbers start at 0. */
void handshake_seals(const handshake *h, seal_pair *out);

/* Overwrites the handshake, its secret and its session keys with zeros. */
void handshake_wipe(handshake *h);

/* Consumes received bytes, *used of them. It stops while output is pending and behind the last
 * message: pass the remaining bytes again after the output has been sent. Fails with LS_EAUTH (the
 * keys differ, with the file to copy; a server that is not Lockstep), LS_EMISMATCH (job,
 * generation, rank, purpose, security or version differ, with both values) or LS_EPROTO (a client
 * that is not Lockstep, an invalid public key). Output that notifies the peer may then still be
 * pending. */
LS_MUST_USE ls_status handshake_feed(handshake *h, const void *data, size_t bytes, size_t *used);

/* The pending output; handshake_sent() removes it. The state becomes HANDSHAKE_DONE after the last
 * byte. */
const uint8_t *handshake_output(const handshake *h, size_t *bytes);
void handshake_sent(handshake *h, size_t bytes);

/* Advances the handshake over a nonblocking socket as far as possible. *events gets POLLIN or
 * POLLOUT while it runs, 0 when done. On failure the message to the peer has been sent if the
 * socket accepted it. */
LS_MUST_USE ls_status handshake_step(handshake *h, int fd, short *events);

/* The claim for this connection: NET_AUTH for unix sockets, whose bytes do not leave the host. */
handshake_claim handshake_claim_for(int fd, const handshake_claim *claim);

/* Runs the client's handshake until the deadline, with the claim of handshake_claim_for(). While
 * the server does not reply, wait reports are logged; none when `report` is NULL. */
LS_MUST_USE ls_status handshake_connect(int fd, const net_key *key, const handshake_claim *claim,
                                        const char *peer, int64_t deadline_ms, wait_report *report,
                                        seal_pair *seals);

#endif
