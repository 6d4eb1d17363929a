/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_link.c - an authenticated peer that sends arbitrary bytes: rank 0 of two has collectives and
 * receives in progress, the input is what rank 1 writes. The first byte selects the pieces.
 */
#include "fuzz/fuzz.h"

#include "comm/backends/native/p2p/match.h"

#include <string.h>

#define COUNT 4200 /* elements of the large operations: more than an eager message holds */
#define WORKS 5

typedef struct script {
    const uint8_t *data;
    size_t left;
    size_t piece;
} script;

static ssize_t read_script(peer_link *l, const struct iovec *iov, int n)
{
    script *s = l->stream;
    size_t budget = s->piece < s->left ? s->piece : s->left;
    size_t moved = 0;

    if (s->left == 0)
        return -1;
    for (int i = 0; i < n && budget > 0; i++) {
        const size_t bytes = iov[i].iov_len < budget ? iov[i].iov_len : budget;

        memcpy(iov[i].iov_base, s->data, bytes);
        s->data += bytes;
        s->left -= bytes;
        budget -= bytes;
        moved += bytes;
    }
    return (ssize_t)moved;
}

static ssize_t write_nowhere(peer_link *l, const struct iovec *iov, int n)
{
    size_t moved = 0;

    LS_UNUSED(l);
    for (int i = 0; i < n; i++)
        moved += iov[i].iov_len;
    return (ssize_t)moved;
}

static bool is_delivered(peer_link *l)
{
    LS_UNUSED(l);
    return true;
}

static void do_nothing(peer_link *l)
{
    LS_UNUSED(l);
}

static const link_ops script_ops = {.write = write_nowhere,
                                    .read = read_script,
                                    .is_delivered = is_delivered,
                                    .finish = do_nothing,
                                    .close = do_nothing};

static void on_done(void *self, backend_work *work, ls_status status, const char *text)
{
    int *n_done = self;

    LS_UNUSED(work);
    LS_UNUSED(status);
    LS_UNUSED(text);
    ++*n_done;
}

static void on_broken(void *self, const job_cause *cause)
{
    LS_UNUSED(self);
    if (cause->text[0] == '\0')
        __builtin_trap(); // broken without an error
}

static void start_all(backend_group *g, backend_work works[WORKS], float *data)
{
    static const coll ops[WORKS] = {
        {.kind = COLL_ALL_REDUCE, .dtype = LS_F32, .count = 4},
        {.kind = COLL_BROADCAST, .dtype = LS_F32, .count = COUNT, .root = 1},
        {.kind = COLL_RECV, .dtype = LS_F32, .count = 4, .root = LS_ANY_SOURCE, .tag = 1},
        {.kind = COLL_RECV, .dtype = LS_F32, .count = COUNT, .root = 1, .tag = 2},
        {.kind = COLL_SEND, .dtype = LS_F32, .count = COUNT, .root = 1, .tag = 3},
    };

    for (int i = 0; i < WORKS; i++) {
        backend_work *w = &works[i];

        *w = (backend_work){.op = ops[i], .group = g, .source = -1};
        w->op.src = data;
        w->op.dst = data + (size_t)i * COUNT;
        w->op.stamp = (op_stamp){.sequence = (uint64_t)(i < 2 ? i + 1 : 1),
                                 .kind = (uint8_t)ops[i].kind,
                                 .dtype = LS_F32,
                                 .redop = ops[i].kind == COLL_ALL_REDUCE ? LS_SUM : 255,
                                 .root = ops[i].kind == COLL_ALL_REDUCE ? -1 : ops[i].root,
                                 .count = ops[i].count};
        native_backend_ops.start(g, w);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const int members[2] = {0, 1};
    static float buffers[WORKS * COUNT];
    const group_info info = {.id = 0, .rank = 0, .size = 2, .members = members};
    const comm_boot boot = {
        .size = 2, .local_fd = -1, .listen_fd = -1, .control_fd = -1, .transport = "tcp"};
    script s = {.data = data + 1, .left = size - 1};
    int n_done = 0;
    const comm_host host = {
        .abi = BACKEND_ABI, .self = &n_done, .done = on_done, .broken = on_broken};
    backend_work works[WORKS];
    link_sink sink;
    native_state *n;
    backend_group *g;

    if (size < 1)
        return 0;
    s.piece = (size_t)data[0] * 8 + 1;
    if (native_create(&boot, &host, &n) != LS_OK)
        return 0;
    sink = match_sink(&n->peers[1]);
    if (link_create(&script_ops, &s, -1, &sink, &n->peers[1].link) != LS_OK ||
        native_backend_ops.open_group(n, &info, &g) != LS_OK) {
        native_destroy(n);
        return 0;
    }
    start_all(g, works, buffers);
    for (size_t i = 0; i < size / s.piece + 10;
         i++) // one piece each; a link without expected messages is not read
        (void)native_backend_ops.progress(n);
    native_backend_ops.abort_group(g, LS_ECANCELED, "over");
    if (n_done != WORKS)
        __builtin_trap(); // every work ends exactly once
    native_backend_ops.close_group(g);
    native_destroy(n);
    return 0;
}
