/* SPDX-License-Identifier: Apache-2.0 */
/*
 * c10d_client.h - requests as PyTorch's clients write them, for tests of the c10d store: numbers of
 * commands and layouts stand here a second time, independently of the parser's.
 */
#ifndef TESTS_STORE_C10D_CLIENT_H
#define TESTS_STORE_C10D_CLIENT_H

#include "base/unit.h"

#include "c10d/c10d_internal.h"

/* How PyTorch has spoken to its store over the years. */
typedef enum client_version {
    UP_TO_2_0, /* raw */
    OF_2_1,    /* raw, other numbers */
    PREFIXED,
    VALIDATED, /* since 2.2 */
    N_CLIENT_VERSIONS
} client_version;

c10d_dialect dialect_of(client_version t);

/* A message being made. Zero-initialise; free with byte_queue_free(). */
typedef byte_queue message;

/* What a connection says first: nothing, or the validation. */
void msg_hello(message *m, client_version t);

/* Whether this client_version has the command. */
bool msg_has(client_version t, c10d_op op);

/* Starts a request; its fields follow. */
void msg_command(message *m, client_version t, c10d_op op);

void msg_raw(message *m, const void *data, size_t bytes);
void msg_u8(message *m, uint8_t v);
void msg_u32(message *m, uint32_t v);
void msg_i64(message *m, int64_t v); /* also counts */
void msg_text(message *m, const char *text);
void msg_bytes(message *m, const void *data, size_t bytes);

#define MSG_SIZE(m) ((m)->end - (m)->start)
#define MSG_DATA(m) ((m)->data + (m)->start)

/* One request of every command that can be followed by another one at once, on a few keys, with the
 * hello in front. Only the last one may have to wait. */
void msg_tour(message *m, client_version t);

typedef struct fixture {
    poller *loop;
    c10d_store *store;
} fixture;

typedef struct client {
    fixture *f;
    client_version version;
    int fd;
    message out;
    byte_queue in;
} client;

fixture start(void);
void stop(fixture *f);

/* Connects; the first message begins with the hello. */
client open_client(fixture *f, client_version t);
void close_client(client *c);

/* No silence of this test is long enough to decide anything, however busy the machine is. */
void forget_silence(c10d_store *s);

/* Requests join c->out; whatever expects an answer sends them first. */
void on_key(client *c, c10d_op op, const char *key);
void on_pair(client *c, c10d_op op, const char *key, const char *value);
void on_keys(client *c, c10d_op op, const char *a, const char *b); /* b may be NULL */
void alone(client *c, c10d_op op);

/* Sends what is in c->out. */
void say(client *c);

/* Lets the store work until this client has `bytes` of answers, in c->in. */
void listen_for(client *c, size_t bytes);

void expect_u8(client *c, uint8_t v);
void expect_raw(client *c, const void *data, size_t bytes);
void expect_i64(client *c, int64_t v);
void expect_text(client *c, const char *text);
void expect_silence(client *c); /* no further answer */
void expect_stored(client *c, const char *key, const char *value);
void expect_dropped(client *c);

#endif
