/* SPDX-License-Identifier: Apache-2.0 */
/*
 * seal.c - the record layer of seal.h over libsodium, for frame.c and comm/native. Each direction
 * of each connection has its own key (handshake.c), so the record number alone is the nonce; its 64
 * bits do not wrap.
 */
#include "net/auth/seal.h"

#include "base/config.h"
#include "base/text.h"
#include "net/wire.h"

#include <sodium.h>

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(SEAL_TAG_BYTES == crypto_aead_chacha20poly1305_ietf_ABYTES &&
                   SEAL_KEY_BYTES == crypto_aead_chacha20poly1305_ietf_KEYBYTES,
               "one format for both modes");
_Static_assert(SEAL_TAG_BYTES >= crypto_generichash_BYTES_MIN &&
                   SEAL_KEY_BYTES <= crypto_generichash_KEYBYTES_MAX,
               "BLAKE2b takes this key and gives this tag");

static const char *const names[] = {
    [NET_AUTH] = "auth", [NET_MAC] = "mac", [NET_ENCRYPT] = "encrypt"};

const char *net_security_text(net_security mode)
{
    return (unsigned)mode < LS_COUNT_OF(names) ? names[mode] : "unknown";
}

ls_status net_security_setting(net_security *out)
{
    const char *text;

    LS_TRY(config_text(CONFIG_SECURITY, &text));
    for (unsigned i = 0; i < LS_COUNT_OF(names); i++)
        if (text_equal(text, names[i]))
            *out = (net_security)i;
    return LS_OK;
}

ls_status net_security_set(const char *text, const char *what)
{
    size_t i = 0;

    while (i < LS_COUNT_OF(names) && !text_equal(text, names[i]))
        i++;
    if (i == LS_COUNT_OF(names))
        return ls_fail(LS_EINVAL, "%s %s: auth, mac or encrypt", what, text);
    if (setenv("LOCKSTEP_SECURITY", text, 1) != 0) // NOLINT(concurrency-mt-unsafe): one thread
        return ls_fail_errno("setting LOCKSTEP_SECURITY");
    return LS_OK;
}

void seal_start(seal *s, net_security mode, const uint8_t key[SEAL_KEY_BYTES])
{
    *s = (seal){.mode = mode};
    memcpy(s->key, key, SEAL_KEY_BYTES);
}

void seal_wipe(seal *s)
{
    sodium_memzero(s, sizeof(*s));
}

void seal_pair_wipe(seal_pair *p)
{
    sodium_memzero(p, sizeof(*p));
}

size_t seal_size(size_t bytes)
{
    return bytes + (bytes + SEAL_RECORD_MAX - 1) / SEAL_RECORD_MAX * SEAL_OVERHEAD;
}

/* --- the two ways --- */

typedef struct nonce {
    uint8_t bytes[crypto_aead_chacha20poly1305_ietf_NPUBBYTES];
} nonce;

static nonce nonce_of(uint64_t number)
{
    nonce n = {{0}};

    wire_put_u64(n.bytes + sizeof(n.bytes) - 8, number);
    return n;
}

static void compute_mac(const seal *s, const uint8_t *record, size_t bytes,
                        uint8_t tag[SEAL_TAG_BYTES])
{
    crypto_generichash_state state;
    uint8_t text[8];

    wire_put_u64(text, s->next);
    crypto_generichash_init(&state, s->key, SEAL_KEY_BYTES, SEAL_TAG_BYTES);
    crypto_generichash_update(&state, text, sizeof(text));
    crypto_generichash_update(&state, record, SEAL_HEAD_BYTES + bytes);
    crypto_generichash_final(&state, tag, SEAL_TAG_BYTES);
    sodium_memzero(&state, sizeof(state));
}

/* False: the tag does not match this record and number. */
static bool open_body(const seal *s, uint8_t *record, size_t bytes)
{
    uint8_t *body = record + SEAL_HEAD_BYTES;
    const uint8_t *tag = body + bytes;
    uint8_t expected[SEAL_TAG_BYTES];
    const nonce n = nonce_of(s->next);

    if (s->mode == NET_ENCRYPT)
        return crypto_aead_chacha20poly1305_ietf_decrypt_detached(
                   body, NULL, body, bytes, tag, record, SEAL_HEAD_BYTES, n.bytes, s->key) == 0;
    compute_mac(s, record, bytes, expected);
    return sodium_memcmp(expected, tag, SEAL_TAG_BYTES) == 0;
}

size_t seal_close(seal *s, uint8_t *record, size_t bytes)
{
    uint8_t *body = record + SEAL_HEAD_BYTES;
    const nonce n = nonce_of(s->next);

    LS_ASSERT(s->mode != NET_AUTH && bytes >= 1 && bytes <= SEAL_RECORD_MAX);
    wire_put_u32(record, (uint32_t)bytes);
    wire_put_u32(record + 4, (uint32_t)s->next);
    if (s->mode == NET_ENCRYPT)
        crypto_aead_chacha20poly1305_ietf_encrypt_detached(
            body, body + bytes, NULL, body, bytes, record, SEAL_HEAD_BYTES, NULL, n.bytes, s->key);
    else
        compute_mac(s, record, bytes, body + bytes);
    s->next++;
    return bytes + SEAL_OVERHEAD;
}

/* --- opening --- */

/* Checks a record's head, before its tag. */
static ls_status check_head(const seal *s, size_t claimed, uint32_t number)
{
    const uint32_t due = (uint32_t)s->next;

    if (claimed == 0 || claimed > SEAL_RECORD_MAX)
        return ls_fail(LS_EPROTO, "record %" PRIu32 " has %zu bytes, expected 1 to %zu", due,
                       claimed, SEAL_RECORD_MAX);
    if (number - due > UINT32_MAX / 2)
        return ls_fail(LS_EPROTO, "record %" PRIu32 " was repeated, expected %" PRIu32, number,
                       due);
    if (number != due)
        return ls_fail(LS_EPROTO, "record %" PRIu32 " was received, expected %" PRIu32, number,
                       due);
    return LS_OK;
}

static ls_status open_whole(seal *s, uint8_t *data, size_t held, size_t claimed, size_t *record)
{
    LS_TRY(check_head(s, claimed, wire_get_u32(data + 4)));
    if (held < claimed + SEAL_OVERHEAD)
        return LS_OK;
    if (!open_body(s, data, claimed))
        return ls_fail(LS_EPROTO, "record %" PRIu64 " was modified in transit", s->next);
    s->next++;
    *record = claimed + SEAL_OVERHEAD;
    return LS_OK;
}

ls_status seal_open(seal *s, uint8_t *data, size_t held, size_t *record, size_t *bytes)
{
    size_t claimed;
    ls_status st;

    *record = 0;
    *bytes = 0;
    if (s->is_broken)
        return ls_fail(LS_EPROTO, "an earlier record was invalid");
    if (held < SEAL_HEAD_BYTES)
        return LS_OK;
    claimed = wire_get_u32(data);
    st = open_whole(s, data, held, claimed, record);
    s->is_broken = st != LS_OK;
    if (*record > 0)
        *bytes = claimed;
    return st;
}

size_t seal_needed(const uint8_t *data, size_t held)
{
    return SEAL_OVERHEAD + (held < SEAL_HEAD_BYTES ? 1 : wire_get_u32(data));
}
