/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store.h - a small key-value store through which processes find each other.
 *
 * Keys are byte strings of 1 to LS_STORE_KEY_MAX bytes, values of 0 to LS_STORE_VALUE_MAX bytes.
 * Threads    One thread at a time uses a store; threads may share a "mem:" store.
 */
#ifndef LOCKSTEP_STORE_H
#define LOCKSTEP_STORE_H

#include <lockstep/base.h>

LS_BEGIN_DECLS

#define LS_STORE_KEY_MAX   8192
#define LS_STORE_VALUE_MAX ((size_t)8 * 1024 * 1024)

typedef struct ls_store ls_store;

typedef struct ls_store_options {
    size_t size; /* sizeof(ls_store_options) */
    int serve;   /* 1: a thread of this process serves the store at `url` (tcp:// and unix:) */
    const char *key_file; /* default LOCKSTEP_KEY_FILE, else ~/.config/lockstep/key */
    int insecure;         /* 1: no key, also beyond loopback */
    int64_t timeout_ms;   /* of connecting; default 300 s */
} ls_store_options;

/*
 * Opens a store; `opt` may be NULL.
 *   tcp://HOST:PORT  served by one process (with serve, port 0 takes a free one, see ls_store_url);
 *                    connections authenticate with the key
 *   unix:@NAME       an abstract unix socket of this host; for the same user only
 *   file://PATH      a file that all processes can lock (fcntl); created when absent; the last
 *                    process to close it may remove it
 *   mem:             memory of this process, for its threads
 */
LS_API LS_MUST_USE ls_status ls_store_open(const char *url, const ls_store_options *opt,
                                           ls_store **out);
/* A store of the program, as that of PyTorch or a database. Keys are shorter than LS_STORE_KEY_MAX
 * and end with a 0 byte. A function that returns another status than LS_OK fails the call. */
typedef struct ls_store_callbacks {
    size_t size;      /* sizeof(ls_store_callbacks) */
    const char *name; /* in messages; NULL: "callbacks" */
    void *arg;        /* of all functions */
    ls_status (*set)(void *arg, const char *key, const void *value, size_t bytes);
    /* Waits at most timeout_ms (0: not at all; negative: no limit) for the key. *value stays valid
     * until the next call of a function. LS_ETIMEOUT: the key is not set yet. */
    ls_status (*get)(void *arg, const char *key, int64_t timeout_ms, const void **value,
                     size_t *bytes);
    /* Adds to a counter (absent: 0), whose value get() sees as decimal text; *out is the sum. */
    ls_status (*add)(void *arg, const char *key, int64_t delta, int64_t *out);
    void (*close)(void *arg); /* called by ls_store_close(); may be NULL */
} ls_store_callbacks;

/* A store over the program's functions, which the thread that calls a function of the store runs,
 * one at a time. For ls_init_options.store. It has no compare-and-set, deletion and count
 * (LS_EUNSUPPORTED). LS_EINVAL: set, get or add is NULL. */
LS_API LS_MUST_USE ls_status ls_store_create(const ls_store_callbacks *callbacks, ls_store **out);

LS_API void ls_store_close(ls_store *s); /* NULL is allowed */
/* The url for other processes, with the actual port. Valid as long as the store. "" for NULL. */
LS_API const char *ls_store_url(const ls_store *s);

/* A view of `s` that puts `prefix` in front of every key; `s` is borrowed. */
LS_API LS_MUST_USE ls_status ls_store_prefix(ls_store *s, const char *prefix, ls_store **out);

LS_API LS_MUST_USE ls_status ls_store_set(ls_store *s, const char *key, const void *value,
                                          size_t bytes);
/* Waits at most timeout_ms (negative: no limit) for the key. The caller frees *out with
 * ls_store_free(); a 0 byte follows the value. `bytes` may be NULL. LS_ETIMEOUT names the key. */
LS_API LS_MUST_USE ls_status ls_store_get(ls_store *s, const char *key, int64_t timeout_ms,
                                          void **out, size_t *bytes);
LS_API void ls_store_free(void *value);

/* Adds to a counter, whose value is decimal text (absent: 0); *out (may be NULL) is the sum. */
LS_API LS_MUST_USE ls_status ls_store_add(ls_store *s, const char *key, int64_t delta,
                                          int64_t *out);

/* Sets the key if its value equals `expected` (expected_bytes 0: if it is absent). *swapped (may be
 * NULL) is 1 if it did. */
LS_API LS_MUST_USE ls_status ls_store_compare_set(ls_store *s, const char *key,
                                                  const void *expected, size_t expected_bytes,
                                                  const void *desired, size_t desired_bytes,
                                                  int *swapped);

/* Waits until all keys exist. LS_ETIMEOUT names the first missing ones. */
LS_API LS_MUST_USE ls_status ls_store_wait(ls_store *s, const char *const *keys, int n,
                                           int64_t timeout_ms);

LS_API LS_MUST_USE ls_status ls_store_check(ls_store *s, const char *const *keys, int n,
                                            int *all_exist);
/* *existed (may be NULL): whether the key was there. */
LS_API LS_MUST_USE ls_status ls_store_delete(ls_store *s, const char *key, int *existed);
LS_API LS_MUST_USE ls_status ls_store_count(ls_store *s, int64_t *out);

LS_END_DECLS

#endif
