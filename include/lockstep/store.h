/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store.h - a small key-value store through which processes find each other.
 *
 * Keys are byte strings of 1 to LS_STORE_KEY_MAX bytes, values of 0 to LS_STORE_VALUE_MAX bytes.
 * Threads    A store is used by one thread at a time, except the in-process one, which many may share.
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
    int serve;   /* 1: this process also hosts the store at `url` (tcp:// and unix:) in a thread */
    const char *key_file; /* default LOCKSTEP_KEY_FILE, else ~/.config/lockstep/key */
    int insecure;         /* 1: no key, also off loopback */
    int64_t timeout_ms;   /* of connecting; default 300 s */
} ls_store_options;

/*
 * Opens a store; `opt` may be NULL.
 *   tcp://HOST:PORT  served by one process (port 0 with serve: any; see ls_store_url); connections prove the key
 *   unix:@NAME       an abstract unix socket of this host; the same user only
 *   file://PATH      a file that all processes can lock (fcntl); made when absent; the last one to close it may remove it
 *   mem:             in this process, for threads
 */
LS_API LS_MUST_USE ls_status ls_store_open(const char *url, const ls_store_options *opt,
                                           ls_store **out);
LS_API void ls_store_close(ls_store *s); /* NULL is allowed */

/* Where others reach it: the url with the real port. Lives as long as the store. "" for NULL. */
LS_API const char *ls_store_url(const ls_store *s);

/* A view of `s` in which every key gets `prefix` in front; `s` is borrowed. */
LS_API LS_MUST_USE ls_status ls_store_prefix(ls_store *s, const char *prefix, ls_store **out);

LS_API LS_MUST_USE ls_status ls_store_set(ls_store *s, const char *key, const void *value,
                                          size_t bytes);

/* Waits at most timeout_ms (negative: for ever) for the key. *out is the caller's, free it with
 * ls_store_free(); it has a 0 byte behind it. `bytes` may be NULL. LS_ETIMEOUT names the key. */
LS_API LS_MUST_USE ls_status ls_store_get(ls_store *s, const char *key, int64_t timeout_ms,
                                          void **out, size_t *bytes);
LS_API void ls_store_free(void *value);

/* Adds to a counter kept as decimal text (absent: 0); *out (may be NULL) is the new value. */
LS_API LS_MUST_USE ls_status ls_store_add(ls_store *s, const char *key, int64_t delta,
                                          int64_t *out);

/* Sets the key when its value equals `expected` (expected_bytes 0: when it is absent). *swapped
 * (may be NULL): whether it has done so. */
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
