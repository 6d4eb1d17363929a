/* SPDX-License-Identifier: Apache-2.0 */
/*
 * join_listen.c - opens this rank's listeners for its peers, and computes the value that identifies
 * its process; join.c calls it. TCP listens at one address only.
 */
#include "comm/join/join.h"

#include "base/rng.h"
#include "base/text.h"
#include "host/process_id.h"
#include "net/interface.h"
#include "net/socket.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define INTERFACES_MAX 16

static uint64_t hash_namespace(const char *path, uint64_t seed)
{
    struct stat info;

    return stat(path, &info) == 0 ? ls_hash3(seed, (uint64_t)info.st_dev, (uint64_t)info.st_ino)
                                  : seed;
}

/* A process number and its start time, which are unique while the kernel runs. */
uint64_t join_process_value(void)
{
    const uint64_t hash = hash_namespace("/proc/self/ns/pid", net_host_value());
    process_stat stat = {.start = 0};

    (void)process_stat_read("", getpid(), &stat);
    return ls_hash3(hash, (uint64_t)getpid(), stat.start);
}

bool join_needs_tcp(const join *j, const join_settings *s)
{
    if (text_equal(s->transport, "tcp"))
        return true;
    return text_equal(s->transport, "auto") && !j->is_one_host;
}

ls_status join_interface_address(const char *filter, net_address *out)
{
    net_interface found[INTERFACES_MAX];
    int n = 0;

    LS_TRY(net_interfaces(filter, found, INTERFACES_MAX, &n));
    if (n == 0) {
        char all[512];

        return ls_fail(LS_ENOTFOUND, "no network interface%s%s; this host has: %s",
                       *filter != '\0' ? " matches LOCKSTEP_IFACE=" : " connects to other hosts",
                       filter, net_interfaces_text(all, sizeof(all)));
    }
    *out = found[0].address;
    return LS_OK;
}

/* The address to listen at: on one host loopback; else the requested interface, else the one that
 * reaches the hub. Rank 0 reaches its own hub over any address, so it takes the hub's address. */
static ls_status choose_address(const join *j, const join_settings *s, net_address *out)
{
    if (j->is_one_host)
        return net_address_decode("tcp://127.0.0.1:0", out);
    if (*s->iface != '\0')
        return join_interface_address(s->iface, out);
    if (j->hub != NULL)
        *out = j->hub_address;
    else
        LS_TRY(net_address_of_socket(control_fd(j->control), out));
    if (net_address_is_loopback(out) || net_address_is_any(out))
        return join_interface_address("", out);
    net_address_set_port(out, 0);
    return LS_OK;
}

/* When a process is in two jobs, only one of them can use the launcher's listener, because a
 * connection shows its job only after it has been accepted. */
static atomic_bool listener_is_lent; // of the process, like the descriptor

void join_release_listener(join *j)
{
    if (j->has_launcher_listener)
        atomic_store_explicit(&listener_is_lent, false, memory_order_release);
    j->has_launcher_listener = false;
}

/* The listener stays open for later joins of this process, so each join duplicates it. Programs
 * that the process runs must not inherit it. */
static ls_status take_listener(join *j)
{
    net_address at;

    j->boot.listen_fd = fcntl(j->id.listen_fd, F_DUPFD_CLOEXEC, 0);
    if (j->boot.listen_fd < 0)
        return ls_fail_errno("LOCKSTEP_LISTEN_FD=%d", j->id.listen_fd);
    LS_TRY(net_set_cloexec(j->id.listen_fd, true));
    LS_TRY(net_set_blocking(j->boot.listen_fd, false));
    LS_TRY(net_address_of_socket(j->boot.listen_fd, &at));
    j->own.addresses[0] = at;
    return LS_OK;
}

static ls_status listen_tcp(join *j, const join_settings *s)
{
    net_address at;

    j->own.record.n_addresses = 1;
    if (j->id.listen_fd >= 0 && !j->is_one_host && (j->has_key || s->insecure)) {
        j->has_launcher_listener =
            !atomic_exchange_explicit(&listener_is_lent, true, memory_order_acquire);
        if (j->has_launcher_listener)
            return take_listener(j);
    }
    LS_TRY(choose_address(j, s, &at));
    if (!j->has_key && !s->insecure)
        return ls_fail(LS_EAUTH, "no key for TCP connections between ranks");
    return net_listen(&at, NET_STREAM, j->id.size, &j->boot.listen_fd, &j->own.addresses[0]);
}

ls_status join_listen(join *j, const join_settings *s)
{
    net_address at;

    if (!text_equal(s->transport, "tcp")) {
        LS_TRY(net_address_fresh_unix("rank", &at));
        LS_TRY(net_listen(&at, NET_PACKET, j->id.size, &j->boot.local_fd, &j->own.record.local));
    }
    if (join_needs_tcp(j, s))
        LS_TRY(listen_tcp(j, s));
    return LS_OK;
}
