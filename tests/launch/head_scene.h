/* SPDX-License-Identifier: Apache-2.0 */
/* A head on a poller, and agents that send what a test requests: the own one and others, all
 * over socket pairs. */
#ifndef TESTS_LAUNCH_HEAD_SCENE_H
#define TESTS_LAUNCH_HEAD_SCENE_H

#include "base/unit.h"

#include "base/clock.h"
#include "launch/head/head_internal.h"

#define SOON  30000
#define TYPES 128
#define FAKES 4

/* An agent, as far as the head can see. */
typedef struct fake {
    frame_link link;
    int n[TYPES];   /* messages by type */
    text_buf notes; /* NODE_NOTE, NODE_WAIT and NODE_REJECT, a line each */
    node_welcome welcome;
    uint32_t started; /* generation */
    int master_port;
    node_owner_query owner;
    node_owner_answer owned;
    node_stop stop;
    job_cause abort;
    node_over over;
    text_buf report;
    uint8_t stream[256]; /* what came by NODE_STREAM and NODE_MPI_KEYS */
    size_t n_stream;
    node_barrier barrier;
    node_failure early_exit;
    int n_ended;
} fake;

typedef struct scene {
    poller *loop;
    head *head;
    net_key key;
    net_address at;
    fake fakes[FAKES]; /* the own one is the first */
    int n_described;
} scene;

#define until(s, condition)                                                                        \
    do {                                                                                           \
        for (int64_t until_ms = ls_deadline_ms(SOON); !(condition);) {                             \
            if (ls_deadline_left(until_ms) == 0)                                                   \
                fail_msg("%s:%d: %s does not come", __FILE__, __LINE__, #condition);               \
            assert_ok(poller_run_once((s)->loop, 20));                                             \
        }                                                                                          \
    } while (0)

/* --- a scene: finish() frees it --- */
head_options options_of(scene *s);
void begin_with(scene *s, const head_options *opt);
scene *begin(int n_nodes, int max_restarts); /* a job of n nodes by their numbers */
scene *begin_running(int n_nodes, int n_local,
                     int max_restarts); /* all n are here, ready and started */
void finish(scene *s);
void turn(scene *s);
void pass(scene *s, int64_t ms);

/* --- what agents do and say --- */
void attach(scene *s, fake *a, int fd);     /* this is its connection */
void come(scene *s, int i);                 /* the i-th connects */
void come_in(scene *s, int i, int n_local); /* and says hello */
void leave(fake *a);
void send_body(fake *a, node_message type, wire_writer *w);
void send_number(fake *a, node_message type, uint32_t number);
void say_hello(scene *s, int i, int n_local);
void say_ready(fake *a, uint32_t generation, int port);
void say_failure(fake *a, uint32_t generation, int local_rank, int code);
void say_left(fake *a, uint32_t generation, int local_rank);
void say_end(fake *a, const node_end *end);
void say_finished(fake *a, uint32_t generation, bool stopped);
void say_stream(fake *a, uint32_t id, const void *bytes, size_t n);

/* --- what comes of it --- */
void start(scene *s, int n, int n_local, uint32_t generation);
bool was_notified(const fake *a, const char *part);
head_node *find_node(const scene *s, int i); /* NULL: it is not there any more */
head_node *node_of(const scene *s, int i);

/* All agents receive the end with this code and text. */
void expect_over(scene *s, int n, int code, const char *part);

#endif
