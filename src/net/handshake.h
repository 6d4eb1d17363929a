/* SPDX-License-Identifier: Apache-2.0 */
/*
 * handshake.h - both ends of a new connection prove that they know the job's key before anything
 * else is read.
 *
 *   C -> S  "LSTP" version purpose security stream |                                       68 bytes
 *           job[16] | from u32 | to u32 | generation u32 | share[32]
 *   S -> C  "LSTP" version | share[32] | HMAC(K, "srv" | transcript)[32]                   69
 *   C -> S  HMAC(K, "cli" | transcript)[32]                                                32
 *   S -> C  verdict u32 | value u32 | HMAC(K, "end" | transcript | verdict | value)[32]    40
 *
 * Transcript: the hello and the server's share. Roles in the MACs stop reflection, fresh shares on
 * both sides replay, the generation stale peers. A server sends nothing about its job, rank or
 * generation to a peer without the key, and to one of another version only magic and version. At
 * most HANDSHAKE_BYTES of input are ever held, and not one byte behind the handshake is consumed.
 *
 * What comes behind it is protected as the claim says (seal.h). With NET_AUTH it is not, and a
 * share is a nonce. Else a share is a public key of X25519, made for this connection. libsodium's
 * crypto_kx gives a key for each direction from the two; the session key of a direction is HKDF
 * with salt = transcript, secret = K | that key. So recorded traffic and K do not give it.
 */
#ifndef LS_NET_HANDSHAKE_H
#define LS_NET_HANDSHAKE_H

#include "base/wait_report.h"
#include "net/key.h"
#include "net/seal.h"

#include <stdbool.h>

#define HANDSHAKE_BYTES        128        /* more than any message */
#define HANDSHAKE_JOB_BYTES    17         /* 16 characters and a 0 */
#define HANDSHAKE_ANY_RANK     UINT32_MAX /* no rank: a client without one, a server that serves all */
#define HANDSHAKE_PEER_TEXT    160
#define HANDSHAKE_SECRET_BYTES 32 /* of the key pair of one connection */

typedef enum net_purpose {
    NET_PURPOSE_CONTROL = 1, /* a rank's connection to its hub */
    NET_PURPOSE_STORE = 2,   /* a store without a job */
    NET_PURPOSE_DATA = 3,    /* between two ranks */
    NET_PURPOSE_NODE = 4,    /* an agent's connection to the head of its job */
    NET_PURPOSE_PROBE = 5    /* an agent trying its way to another one; ranks are node numbers */
} net_purpose;

/* What a client says it is, and what a server expects. */
typedef struct handshake_claim {
    net_purpose purpose;
    char job[HANDSHAKE_JOB_BYTES]; /* terminated; shorter ones are filled with 0 */
    uint32_t from;                 /* the client's rank; a server ignores it in what it expects */
    uint32_t to;                   /* the server's rank, or HANDSHAKE_ANY_RANK */
    uint32_t generation;
    net_security security; /* must be the same on both sides; without a key NET_AUTH only */
    uint8_t
        stream; /* NET_PURPOSE_DATA: which connection of the pair, from 0; a server ignores it in what it expects. Else 0 */
} handshake_claim;

typedef enum handshake_state {
    HANDSHAKE_RUNNING = 0,
    HANDSHAKE_DONE,
    HANDSHAKE_FAILED
} handshake_state;

typedef struct handshake {
    handshake_state state;
    bool is_server;
    bool is_last;         /* the output waiting is the last; then done or failed */
    ls_status verdict;    /* what a failed one ends with */
    handshake_claim own;  /* client: the claim; server: the expectation */
    handshake_claim peer; /* server: what the client proved, valid once done */
    /* --- private --- */
    const net_key *key;
    char name[HANDSHAKE_PEER_TEXT]; /* the peer in error texts */
    int step;
    uint8_t transcript[HANDSHAKE_BYTES];    /* hello and server's share: 100 bytes */
    uint8_t secret[HANDSHAKE_SECRET_BYTES]; /* zeros once it has ended, well or not */
    uint8_t key_out[SEAL_KEY_BYTES];        /* once done, unless NET_AUTH */
    uint8_t key_in[SEAL_KEY_BYTES];
    uint8_t in[HANDSHAKE_BYTES];
    size_t in_bytes;
    size_t in_need; /* bytes of the message that is awaited */
    uint8_t out[HANDSHAKE_BYTES];
    size_t out_bytes;
    size_t out_sent;
} handshake;

/* key NULL: no secret (unix sockets of the same user, --insecure): the exchange still checks job, generation and ranks.
 * The key is borrowed until the end. */
LS_MUST_USE ls_status handshake_client(handshake *h, const net_key *key,
                                       const handshake_claim *claim, const char *peer);
LS_MUST_USE ls_status handshake_server(handshake *h, const net_key *key,
                                       const handshake_claim *expected, const char *peer);

/* For what comes behind a handshake that is done. Once only: numbers of records start at 0. */
void handshake_seals(const handshake *h, seal_pair *out);

/* Overwrites it with zeros, proofs, secret and session keys. */
void handshake_wipe(handshake *h);

/*
 * Takes bytes that came; *used of them. It stops while there is output and behind the last message: give the rest again
 * once the output has gone. A failure is LS_EAUTH (keys differ: which file to copy; a server that
 * is not Lockstep), LS_EMISMATCH (job, generation, rank, purpose, security or version differ: both
 * values) or LS_EPROTO (a client that is not Lockstep, no valid public key); there may still be
 * output that tells the peer.
 */
LS_MUST_USE ls_status handshake_feed(handshake *h, const void *data, size_t bytes, size_t *used);

/* Bytes to send; handshake_sent() takes them off. The state becomes HANDSHAKE_DONE only when the last are gone. */
const uint8_t *handshake_output(const handshake *h, size_t *bytes);
void handshake_sent(handshake *h, size_t bytes);

/* Moves it on over a nonblocking socket as far as possible. *events gets POLLIN or POLLOUT while it runs, 0 when done. On
 * failure what tells the peer has been sent if the socket took it. */
LS_MUST_USE ls_status handshake_step(handshake *h, int fd, short *events);

/* The claim for this connection: unix sockets do not leave the host, so theirs is always NET_AUTH. */
handshake_claim handshake_claim_for(int fd, const handshake_claim *claim);

/* The client's whole exchange, with a deadline, as handshake_claim_for() makes the claim. report: a
 * line is logged when the server has not answered for so long; NULL: none is. */
LS_MUST_USE ls_status handshake_connect(int fd, const net_key *key, const handshake_claim *claim,
                                        const char *peer, int64_t deadline_ms, wait_report *report,
                                        seal_pair *seals);

#endif
