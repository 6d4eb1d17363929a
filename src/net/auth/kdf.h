/* SPDX-License-Identifier: Apache-2.0 */
/* kdf.h - HKDF with SHA-256 (RFC 5869): derives independent keys from one secret. */
#ifndef LS_NET_AUTH_KDF_H
#define LS_NET_AUTH_KDF_H

#include <stddef.h>
#include <stdint.h>

#define KDF_BYTES 32 /* the output of SHA-256 */
#define KDF_MAX   ((size_t)255 * KDF_BYTES)

/* The extract step. The salt is public, preferably fresh for each use, of any length including
 * 0. */
void kdf_extract(const void *salt, size_t salt_bytes, const void *secret, size_t secret_bytes,
                 uint8_t out[KDF_BYTES]);

/* The expand step: `bytes` (at most KDF_MAX) for the purpose `info`. Different `info` gives
 * different bytes. */
void kdf_expand(const uint8_t extracted[KDF_BYTES], const void *info, size_t info_bytes,
                uint8_t *out, size_t bytes);

#endif
