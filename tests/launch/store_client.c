/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_client.c - a rank that uses MASTER_ADDR and MASTER_PORT as a PyTorch script does:
 * store_client meet|own|wait; one that waits without them, having mapped a file of that name:
 * store_client idle FILE; and a client from anywhere: store_client connect_only ADDRESS PORT
 * [USER]. Requests are those of PyTorch 1.13.
 */
#include <netdb.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

enum { SET = 0, GET = 2, WAIT = 5, NUM_KEYS = 6, TRIES = 600, TRY_US = 100000, OWN_STEP = 3 };

static int number(const char *variable)
{
    const char *text = getenv(variable);

    return text == NULL ? 0 : (int)strtol(text, NULL, 10);
}

static int dial(const char *host, int port)
{
    const struct addrinfo hints = {.ai_flags = AI_NUMERICHOST, .ai_socktype = SOCK_STREAM};
    struct addrinfo *at;
    char service[16];
    int fd;

    (void)snprintf(service, sizeof(service), "%d", port);
    if (host == NULL || getaddrinfo(host, service, &hints, &at) != 0)
        return -1;
    fd = socket(at->ai_family, SOCK_STREAM, 0);
    if (fd >= 0 && connect(fd, at->ai_addr, at->ai_addrlen) != 0) {
        (void)close(fd);
        fd = -1;
    }
    freeaddrinfo(at);
    return fd;
}

static bool write_all(int fd, const void *data, size_t bytes)
{
    return write(fd, data, bytes) == (ssize_t)bytes;
}

static bool read_all(int fd, void *data, size_t bytes)
{
    return bytes == 0 || recv(fd, data, bytes, MSG_WAITALL) == (ssize_t)bytes;
}

static bool write_command(int fd, uint8_t command)
{
    return write_all(fd, &command, 1);
}

static bool write_text(int fd, const char *text)
{
    const uint64_t bytes = strlen(text);

    return write_all(fd, &bytes, sizeof(bytes)) && write_all(fd, text, bytes);
}

static bool set(int fd, const char *key, const char *value)
{
    return write_command(fd, SET) && write_text(fd, key) && write_text(fd, value);
}

static bool get(int fd, const char *key, char *value, size_t most)
{
    const uint64_t one = 1;
    uint64_t bytes;
    uint8_t stop;

    if (!write_command(fd, WAIT) || !write_all(fd, &one, sizeof(one)) || !write_text(fd, key) ||
        !read_all(fd, &stop, 1) || !write_command(fd, GET) || !write_text(fd, key) ||
        !read_all(fd, &bytes, sizeof(bytes)) || bytes >= most)
        return false;
    value[bytes] = 0;
    return read_all(fd, value, bytes);
}

/* All ranks give a value each and read all others'. */
static bool exchange(int fd)
{
    const int size = number("WORLD_SIZE");
    char key[32];
    char value[32];

    (void)snprintf(key, sizeof(key), "/rank%d", number("RANK"));
    (void)snprintf(value, sizeof(value), "value of %d", number("RANK"));
    if (!set(fd, key, value))
        return false;
    for (int i = 0; i < size; i++) {
        char wanted[32];

        (void)snprintf(key, sizeof(key), "/rank%d", i);
        (void)snprintf(wanted, sizeof(wanted), "value of %d", i);
        if (!get(fd, key, value, sizeof(value)) || strcmp(value, wanted) != 0)
            return false;
    }
    return true;
}

/*
 * Rank 0 listens beside the store, and all others connect to it, as with TCPStore(MASTER_ADDR,
 * MASTER_PORT + 3, ...).
 */
static bool serve_own(int port)
{
    const struct sockaddr_in6 any = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)};
    const int listener = socket(AF_INET6, SOCK_STREAM, 0);

    if (listener < 0 || bind(listener, (const struct sockaddr *)&any, sizeof(any)) != 0 ||
        listen(listener, 64) != 0)
        return false;
    for (int i = 1; i < number("WORLD_SIZE"); i++) {
        const int fd = accept(listener, NULL, NULL);

        if (fd < 0 || !write_all(fd, "x", 1))
            return false;
        (void)close(fd);
    }
    (void)close(listener);
    return true;
}

static bool reach_own(const char *host, int port)
{
    char byte = 0;
    int fd = -1;

    for (int i = 0; i < TRIES && fd < 0; i++) {
        fd = dial(host, port);
        if (fd < 0)
            (void)usleep(TRY_US);
    }
    return fd >= 0 && read_all(fd, &byte, 1) && byte == 'x';
}

static bool map_file(const char *name)
{
    const int fd = memfd_create(name, 0);

    return fd >= 0 && ftruncate(fd, 4096) == 0 &&
           mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, fd, 0) != MAP_FAILED;
}

static int play_rank(const char *role)
{
    const char *host = getenv("MASTER_ADDR");
    const int port = number("MASTER_PORT");
    const int fd = dial(host, port);

    if (!map_file("libtorch_cpu.so") || fd < 0 || !exchange(fd)) {
        fprintf(stderr, "the store at %s:%d does not serve\n", host, port);
        return 1;
    }
    printf("met at %s port %d restart %d\n", host, port, number("TORCHELASTIC_RESTART_COUNT"));
    if (strcmp(role, "own") == 0) {
        if (!(number("RANK") == 0 ? serve_own(port + OWN_STEP) : reach_own(host, port + OWN_STEP)))
            return 2;
        printf("rank 0's own port is reached\n");
    }
    (void)fflush(stdout);
    if (strcmp(role, "wait") == 0)
        (void)pause();
    return 0;
}

/* 0: an answer came; 3: the connection was closed without one. */
static int connect_only(char **args)
{
    int64_t n_keys;
    int fd;

    if (args[2] != NULL && setuid((uid_t)strtol(args[2], NULL, 10)) != 0)
        return 1;
    fd = dial(args[0], (int)strtol(args[1], NULL, 10));
    if (fd < 0)
        return 1;
    (void)write_command(fd, NUM_KEYS);
    return read_all(fd, &n_keys, sizeof(n_keys)) ? 0 : 3;
}

static int idle(const char *file)
{
    if (!map_file(file))
        return 1;
    printf("idle\n");
    (void)fflush(stdout);
    (void)pause();
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "idle") == 0)
        return idle(argv[2]);
    if (argc >= 4 && strcmp(argv[1], "connect_only") == 0)
        return connect_only(argv + 2);
    return argc == 2 ? play_rank(argv[1]) : 2;
}
