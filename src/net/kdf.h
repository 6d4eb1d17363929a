/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kdf.h - HKDF with SHA-256 (RFC 5869): one secret in, as many independent keys as needed out.
 */
#ifndef LS_NET_KDF_H
#define LS_NET_KDF_H

#include <stddef.h>
#include <stdint.h>

#define KDF_BYTES 32 /* of SHA-256 */
#define KDF_MAX   ((size_t)255 * KDF_BYTES)

/* Concentrates the secret. salt: nothing secret, best fresh for each use; any length, also 0. */
void kdf_extract(const void *salt, size_t salt_bytes, const void *secret, size_t secret_bytes,
                 uint8_t out[KDF_BYTES]);

/* `bytes` (at most KDF_MAX) for one purpose; other `info`, other bytes. */
void kdf_expand(const uint8_t extracted[KDF_BYTES], const void *info, size_t info_bytes,
                uint8_t *out, size_t bytes);

#endif
