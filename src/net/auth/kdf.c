/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kdf.c - HKDF over libsodium's HMAC-SHA256; intermediate keys are erased. handshake.c derives
 * session keys with it.
 */
#include "net/auth/kdf.h"

#include "base/status.h"

#include <sodium.h>

#include <string.h>

_Static_assert(KDF_BYTES == crypto_auth_hmacsha256_BYTES, "one block is one HMAC");

void kdf_extract(const void *salt, size_t salt_bytes, const void *secret, size_t secret_bytes,
                 uint8_t out[KDF_BYTES])
{
    crypto_auth_hmacsha256_state state;

    crypto_auth_hmacsha256_init(&state, salt, salt_bytes);
    crypto_auth_hmacsha256_update(&state, secret, secret_bytes);
    crypto_auth_hmacsha256_final(&state, out);
    sodium_memzero(&state, sizeof(state));
}

/* T(i) = HMAC(extracted, T(i - 1) | info | i), T(0) empty; the result is T(1) | T(2) | ... */
void kdf_expand(const uint8_t extracted[KDF_BYTES], const void *info, size_t info_bytes,
                uint8_t *out, size_t bytes)
{
    crypto_auth_hmacsha256_state state;
    uint8_t block[KDF_BYTES] = {0};
    size_t block_bytes = 0;

    LS_ASSERT(bytes <= KDF_MAX);
    for (uint8_t i = 1; bytes > 0; i++) {
        const size_t n = bytes < KDF_BYTES ? bytes : KDF_BYTES;

        crypto_auth_hmacsha256_init(&state, extracted, KDF_BYTES);
        crypto_auth_hmacsha256_update(&state, block, block_bytes);
        crypto_auth_hmacsha256_update(&state, info, info_bytes);
        crypto_auth_hmacsha256_update(&state, &i, 1);
        crypto_auth_hmacsha256_final(&state, block);
        block_bytes = KDF_BYTES;
        memcpy(out, block, n);
        out += n;
        bytes -= n;
    }
    sodium_memzero(&state, sizeof(state));
    sodium_memzero(block, sizeof(block));
}
