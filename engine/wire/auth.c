/* auth.c - the proofs of the connection handshake. */
#include "engine/wire/auth.h"

#include <sodium.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/wire/wire.h"

/* Makes each guess of a short token as expensive as this. The salt is the job's name, so a table of guesses serves for
 * one name only. */
static trib_status stretch(const char *token, const char *job, unsigned char stretched[TRIB_KEY_SIZE])
{
    static const char use[] = "tributary salt 1";
    unsigned char salt[crypto_pwhash_SALTBYTES];
    crypto_generichash_state state;
    if (sodium_init() < 0) {
        return TRIB_SYSTEM;
    }
    crypto_generichash_init(&state, NULL, 0, sizeof salt);
    crypto_generichash_update(&state, (const unsigned char *)use, sizeof use);
    crypto_generichash_update(&state, (const unsigned char *)job, strlen(job));
    crypto_generichash_final(&state, salt, sizeof salt);
    return crypto_pwhash(stretched, TRIB_KEY_SIZE, token, strlen(token), salt, crypto_pwhash_OPSLIMIT_INTERACTIVE,
                         crypto_pwhash_MEMLIMIT_INTERACTIVE, crypto_pwhash_ALG_ARGON2ID13) == 0
               ? TRIB_OK
               : TRIB_NO_MEMORY;
}

trib_status trib_auth_key(const char *token, const char *job, unsigned char key_out[TRIB_KEY_SIZE])
{
    static const char use[] = "tributary key 2";
    unsigned char stretched[TRIB_KEY_SIZE];
    crypto_generichash_state state;
    const unsigned char *secret = (const unsigned char *)token;
    size_t size = token == NULL ? 0 : strlen(token);
    if (size > 0 && size < TRIB_TOKEN_LONG) {
        const trib_status status = stretch(token, job, stretched);
        if (status != TRIB_OK) {
            return status;
        }
        secret = stretched;
        size = sizeof stretched;
    }
    crypto_generichash_init(&state, NULL, 0, TRIB_KEY_SIZE);
    crypto_generichash_update(&state, (const unsigned char *)use, sizeof use);
    crypto_generichash_update(&state, (const unsigned char *)job, strlen(job) + 1);
    crypto_generichash_update(&state, secret, size);
    crypto_generichash_final(&state, key_out, TRIB_KEY_SIZE);
    sodium_memzero(&state, sizeof state);
    sodium_memzero(stretched, sizeof stretched);
    return TRIB_OK;
}

void trib_auth_wipe(void *secret, size_t size)
{
    sodium_memzero(secret, size);
}

void trib_auth_put_hello(const trib_handshake *handshake, unsigned char payload_out[TRIB_HELLO_SIZE])
{
    trib_writer writer = {.data = payload_out, .capacity = TRIB_HELLO_SIZE};
    trib_put_u32(&writer, handshake->purpose);
    trib_put_u32(&writer, handshake->member);
    trib_put_u32(&writer, handshake->reactor);
    trib_put_u32(&writer, handshake->attempt);
    trib_put_u64(&writer, handshake->session);
    trib_put_u64(&writer, handshake->received);
    trib_assert(!writer.overflow && writer.size + TRIB_NONCE_SIZE == TRIB_HELLO_SIZE);
    memcpy(payload_out + writer.size, handshake->connector_nonce, TRIB_NONCE_SIZE);
}

void trib_auth_get_hello(const unsigned char payload[TRIB_HELLO_SIZE], trib_handshake *handshake_io)
{
    trib_reader reader = {.data = payload, .left = TRIB_HELLO_SIZE};
    handshake_io->purpose = trib_get_u32(&reader);
    handshake_io->member = trib_get_u32(&reader);
    handshake_io->reactor = trib_get_u32(&reader);
    handshake_io->attempt = trib_get_u32(&reader);
    handshake_io->session = trib_get_u64(&reader);
    handshake_io->received = trib_get_u64(&reader);
    trib_assert(!reader.failed && reader.left == TRIB_NONCE_SIZE);
    memcpy(handshake_io->connector_nonce, reader.data, TRIB_NONCE_SIZE);
}

void trib_auth_prove(const unsigned char key[TRIB_KEY_SIZE], const trib_handshake *handshake, bool as_connector,
                     unsigned char proof_out[TRIB_PROOF_SIZE])
{
    const unsigned char side = as_connector ? 'c' : 'a';
    unsigned char hello[TRIB_HELLO_SIZE];
    trib_auth_put_hello(handshake, hello);
    crypto_generichash_state state;
    crypto_generichash_init(&state, key, TRIB_KEY_SIZE, TRIB_PROOF_SIZE);
    crypto_generichash_update(&state, &side, 1);
    crypto_generichash_update(&state, hello, sizeof hello);
    crypto_generichash_update(&state, handshake->acceptor_nonce, TRIB_NONCE_SIZE);
    crypto_generichash_final(&state, proof_out, TRIB_PROOF_SIZE);
}

bool trib_auth_verify(const unsigned char key[TRIB_KEY_SIZE], const trib_handshake *handshake, bool as_connector,
                      const unsigned char proof[TRIB_PROOF_SIZE])
{
    unsigned char expected[TRIB_PROOF_SIZE];
    trib_auth_prove(key, handshake, as_connector, expected);
    return sodium_memcmp(expected, proof, TRIB_PROOF_SIZE) == 0;
}
