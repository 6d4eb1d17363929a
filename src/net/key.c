/* SPDX-License-Identifier: Apache-2.0 */
/*
 * key.c - makes, reads and hands over keys. A key file is complete or absent, and readable by its
 * user only; copies of a key on the stack are erased. Called by launch/, store/ and cli/.
 */
#include "net/key.h"

#include "base/clock.h"
#include "base/config.h"
#include "base/file.h"
#include "base/text.h"
#include "host/memory_file.h"
#include "host/process_marks.h"
#include "net/socket.h"

#include <sodium.h>

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define KEY_DIGITS     ((size_t)2 * NET_KEY_BYTES)
#define KEY_FILE_BYTES (KEY_DIGITS + 1) /* digits and a line feed */
#define KEY_TEXT_BYTES (KEY_DIGITS + 5) /* after an editor: a byte order mark, CR and LF */
#define HANDOVER_MARK  "LSKEY01\n"
#define HANDOVER_BYTES (8 + NET_KEY_BYTES)
#define HANDOVER_MS    1000 /* the parent writes the pipe before it starts the program */

ls_status net_crypto_init(void)
{
    if (sodium_init() < 0)
        return ls_fail(LS_ESYSTEM, "libsodium found no source of random numbers");
    return LS_OK;
}

void net_key_wipe(net_key *key)
{
    if (key != NULL)
        sodium_memzero(key, sizeof(*key));
}

bool net_key_equal(const net_key *a, const net_key *b)
{
    return sodium_memcmp(a->bytes, b->bytes, NET_KEY_BYTES) == 0;
}

ls_status net_key_random(net_key *out)
{
    LS_TRY(net_crypto_init());
    memset(out, 0, sizeof(*out));
    randombytes_buf(out->bytes, NET_KEY_BYTES);
    return LS_OK;
}

ls_status net_key_of_secret(const void *secret, size_t bytes, net_key *out)
{
    LS_TRY(net_crypto_init());
    memset(out, 0, sizeof(*out));
    crypto_hash_sha256(out->bytes, secret, bytes);
    return LS_OK;
}

ls_status net_key_derive(const net_key *base, const char *purpose, const char *what, net_key *out)
{
    crypto_auth_hmacsha256_state state;
    net_key made;

    LS_TRY(net_crypto_init());
    memset(&made, 0, sizeof(made));
    memcpy(made.origin, base->origin, sizeof(made.origin));
    crypto_auth_hmacsha256_init(&state, base->bytes, NET_KEY_BYTES);
    crypto_auth_hmacsha256_update(&state, (const uint8_t *)purpose, strlen(purpose) + 1);
    crypto_auth_hmacsha256_update(&state, (const uint8_t *)what, strlen(what));
    crypto_auth_hmacsha256_final(&state, made.bytes);
    *out = made;
    sodium_memzero(&state, sizeof(state));
    net_key_wipe(&made);
    return LS_OK;
}

/* --- key files --- */

static void set_origin(net_key *key, const char *path)
{
    char absolute[PATH_MAX];

    // Both sides copy this path: it must be valid in any folder.
    text_printable(key->origin, sizeof(key->origin),
                   realpath(path, absolute) == NULL ? path : absolute);
}

static ls_status check_file(int fd, const char *path)
{
    struct stat facts;

    if (fstat(fd, &facts) != 0)
        return ls_fail_errno("key file %s", path);
    if (!S_ISREG(facts.st_mode))
        return ls_fail(LS_EAUTH, "key file %s is not a regular file", path);
    if (facts.st_uid != geteuid())
        return ls_fail(LS_EAUTH, "key file %s belongs to user %u, not to %u", path,
                       (unsigned)facts.st_uid, (unsigned)geteuid());
    if ((facts.st_mode & 077) != 0)
        return ls_fail(LS_EAUTH, "key file %s is readable by other users (mode %03o): chmod 600 %s",
                       path, (unsigned)facts.st_mode & 0777U, path);
    return LS_OK;
}

static ls_status read_digits(int fd, const char *path, net_key *out)
{
    char text[KEY_TEXT_BYTES + 1];
    const ssize_t n = file_read_fd(fd, text, sizeof(text));
    size_t done = n > 0 ? (size_t)n : 0;
    const size_t mark = text_bom_bytes(text, done);
    const char *digits = text + mark;
    size_t decoded = 0;
    ls_status st = LS_OK;

    done -= mark;
    if (done > KEY_DIGITS && digits[done - 1] == '\n')
        done--;
    if (done > KEY_DIGITS && digits[done - 1] == '\r')
        done--;
    if (n < 0)
        st = ls_fail_errno("key file %s", path);
    else if (done != KEY_DIGITS ||
             sodium_hex2bin(out->bytes, NET_KEY_BYTES, digits, KEY_DIGITS, NULL, &decoded, NULL) !=
                 0 ||
             decoded != NET_KEY_BYTES)
        st = ls_fail(LS_EFORMAT, "key file %s: expected %zu hexadecimal digits and nothing else",
                     path, KEY_DIGITS);
    sodium_memzero(text, sizeof(text));
    return st;
}

ls_status net_key_read_file(const char *path, net_key *out)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
    ls_status st;

    memset(out, 0, sizeof(*out));
    if (fd < 0 && errno == ENOENT)
        return ls_fail(LS_ENOTFOUND, "key file %s does not exist", path);
    if (fd < 0 && errno == ELOOP)
        return ls_fail(LS_EAUTH, "key file %s is a symbolic link", path);
    if (fd < 0)
        return ls_fail_errno("key file %s", path);
    st = check_file(fd, path);
    if (st == LS_OK)
        st = read_digits(fd, path, out);
    file_close(&fd);
    if (st == LS_OK)
        set_origin(out, path);
    else
        net_key_wipe(out);
    return st;
}

/* Writes a temporary file and link()s it to the real name, which fails if that exists: two programs
 * that start at once agree on one key, and no program reads half of one. */
ls_status net_key_write_file(const char *path, const net_key *key)
{
    char digits[KEY_DIGITS + 2];
    char other[PATH_MAX];
    uint8_t nonce[8];
    char nonce_text[2 * sizeof(nonce) + 1];
    int fd;
    ls_status st;

    LS_TRY(net_crypto_init());
    randombytes_buf(nonce, sizeof(nonce));
    sodium_bin2hex(nonce_text, sizeof(nonce_text), nonce, sizeof(nonce));
    if (strlen(path) + sizeof(nonce_text) + 1 > sizeof(other))
        return ls_fail(LS_EINVAL, "the path of the key file is too long");
    text_format(other, sizeof(other), "%s.%s", path, nonce_text);
    fd = open(other, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return ls_fail_errno("cannot create the key file %s", path);
    sodium_bin2hex(digits, sizeof(digits), key->bytes, NET_KEY_BYTES);
    digits[KEY_DIGITS] = '\n';
    st = file_write_all(fd, other, digits, KEY_FILE_BYTES);
    if (st == LS_OK && fsync(fd) != 0)
        st = ls_fail_errno("cannot write the key file %s", path);
    file_close(&fd);
    if (st == LS_OK && link(other, path) != 0)
        st = errno == EEXIST ? ls_fail(LS_EINVAL, "key file %s exists already", path)
                             : ls_fail_errno("cannot create the key file %s", path);
    unlink(other);
    sodium_memzero(digits, sizeof(digits));
    return st;
}

/* $HOME, else the home in the user database: an agent started by ssh or Slurm may have no HOME. */
static ls_status home_folder(char *out, size_t n)
{
    const char *home = getenv("HOME"); // NOLINT(concurrency-mt-unsafe): the library does not set it
    struct passwd entry;
    struct passwd *found = NULL;
    char space[1024];

    if (home == NULL || home[0] != '/') {
        if (getpwuid_r(geteuid(), &entry, space, sizeof(space), &found) != 0 || found == NULL ||
            found->pw_dir == NULL || found->pw_dir[0] != '/')
            return ls_fail(LS_ENOTFOUND, "no home folder for the key: set %s", NET_KEY_FILE_ENV);
        home = found->pw_dir;
    }
    if (strlen(home) + sizeof("/" NET_KEY_FILE_USER) > n)
        return ls_fail(LS_EINVAL, "the path of the home folder is too long");
    text_format(out, n, "%s", home);
    return LS_OK;
}

ls_status net_key_user_path(char *out, size_t n)
{
    char home[PATH_MAX];
    const char *given;

    LS_TRY(config_text(CONFIG_KEY_FILE, &given));
    if (given[0] == 0)
        LS_TRY(home_folder(home, sizeof(home) - sizeof("/" NET_KEY_FILE_USER)));
    if (strlen(given[0] != 0 ? given : home) + sizeof("/" NET_KEY_FILE_USER) > n)
        return ls_fail(LS_EINVAL, "the path of the key file is too long");
    if (given[0] != 0)
        text_format(out, n, "%s", given);
    else
        text_format(out, n, "%s/%s", home, NET_KEY_FILE_USER);
    return LS_OK;
}

static ls_status make_folder(const char *path)
{
    if (mkdir(path, 0700) != 0 && errno != EEXIST)
        return ls_fail_errno("cannot create the folder %s for the key", path);
    return LS_OK;
}

static ls_status make_user_key(const char *home, const char *path, net_key *out)
{
    char folder[PATH_MAX];
    ls_status st;

    text_format(folder, sizeof(folder), "%s/.config", home);
    LS_TRY(make_folder(folder));
    text_format(folder, sizeof(folder), "%s/.config/lockstep", home);
    LS_TRY(make_folder(folder));
    LS_TRY(net_key_random(out));
    st = net_key_write_file(path, out);
    if (st != LS_OK && access(path, F_OK) != 0)
        return st;
    // This process's key, or the key of a process that was faster.
    return net_key_read_file(path, out);
}

ls_status net_key_of_user(const char *path, net_key *out)
{
    char home[PATH_MAX];
    char standard[PATH_MAX];
    ls_status st;

    if (path == NULL || path[0] == 0)
        LS_TRY(config_text(CONFIG_KEY_FILE, &path));
    if (path != NULL && path[0] != 0)
        return net_key_read_file(path, out);
    LS_TRY(home_folder(home, sizeof(home) - sizeof("/" NET_KEY_FILE_USER)));
    text_format(standard, sizeof(standard), "%.*s/%s",
                (int)(sizeof(standard) - sizeof("/" NET_KEY_FILE_USER)), home, NET_KEY_FILE_USER);
    st = net_key_read_file(standard, out);
    return st == LS_ENOTFOUND ? make_user_key(home, standard, out) : st;
}

/* --- handing a key to a child --- */

/* Forked children keep the descriptor whatever happens to their environment: its name shows the
 * job's agent even then. */
static void name_descriptor(char *name, size_t n)
{
    char saved[LS_ERROR_BYTES];
    char maker[PROCESS_ID_TEXT_MAX] = "";
    process_id self;

    ls_error_save(saved);
    if (process_id_self(&self) == LS_OK)
        process_id_text(maker, sizeof(maker), &self);
    ls_error_restore(saved);
    text_format(name, n, "%s%s", PROCESS_KEY_NAME, maker);
}

ls_status net_key_to_fd(const net_key *key, int *fd)
{
    uint8_t content[HANDOVER_BYTES];
    char name[sizeof(PROCESS_KEY_NAME) + PROCESS_ID_TEXT_MAX];
    ls_status st = LS_OK;

    name_descriptor(name, sizeof(name));
    LS_TRY(ls_context(memory_file_make(name, sizeof(content), fd), "the descriptor of the key"));
    memcpy(content, HANDOVER_MARK, sizeof(HANDOVER_MARK) - 1);
    memcpy(content + sizeof(HANDOVER_MARK) - 1, key->bytes, NET_KEY_BYTES);
    if (pwrite(*fd, content, sizeof(content), 0) != (ssize_t)sizeof(content))
        st = ls_fail_errno("cannot fill the descriptor for the key");
    if (st == LS_OK)
        st = memory_file_seal(*fd, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL);
    sodium_memzero(content, sizeof(content));
    if (st != LS_OK)
        file_close(fd);
    return st;
}

static bool take_content(const uint8_t *content, net_key *out)
{
    if (memcmp(content, HANDOVER_MARK, sizeof(HANDOVER_MARK) - 1) != 0)
        return false;
    memcpy(out->bytes, content + sizeof(HANDOVER_MARK) - 1, NET_KEY_BYTES);
    return true;
}

/* Reads the content of a pipe, with a time limit: its writer may not be an agent. */
static bool read_pipe(int fd, uint8_t *content)
{
    const int64_t deadline_ms = ls_deadline_ms(HANDOVER_MS);
    size_t done = 0;

    while (done < HANDOVER_BYTES) {
        ssize_t n;

        if (net_wait(fd, POLLIN, deadline_ms) != LS_OK)
            return false;
        n = read(fd, content + done, HANDOVER_BYTES - done);
        if (n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN))
            return false;
        done += n > 0 ? (size_t)n : 0;
    }
    return true;
}

ls_status net_key_inherit(net_key *out, bool *found)
{
    // NOLINTNEXTLINE(concurrency-mt-unsafe): the library does not set it
    const char *text = getenv(NET_KEY_FD_ENV);
    uint8_t content[HANDOVER_BYTES];
    struct stat facts;
    int64_t number;
    bool is_key;
    int fd;

    memset(out, 0, sizeof(*out));
    *found = false;
    if (text == NULL || text[0] == 0)
        return LS_OK;
    LS_TRY(text_parse_int(text, NET_KEY_FD_ENV, 0, INT_MAX, &number));
    fd = (int)number;
    if (fstat(fd, &facts) != 0)
        return ls_fail(LS_EAUTH,
                       "%s=%d is not open: a program between the agent and this one has closed it",
                       NET_KEY_FD_ENV, fd);
    if (S_ISFIFO(facts.st_mode)) {
        is_key = read_pipe(fd, content) && take_content(content, out);
        if (is_key)
            file_close(&fd);
    } else {
        is_key = S_ISREG(facts.st_mode) && facts.st_size == HANDOVER_BYTES &&
                 pread(fd, content, sizeof(content), 0) == (ssize_t)sizeof(content) &&
                 take_content(content, out);
        if (is_key && net_set_cloexec(fd, true) != LS_OK)
            is_key = false;
    }
    sodium_memzero(content, sizeof(content));
    if (!is_key)
        return ls_fail(LS_EAUTH, "%s=%d is not the descriptor of a key", NET_KEY_FD_ENV,
                       (int)number);
    *found = true;
    return LS_OK;
}
