/* auth.c - the proofs of the connection handshake. */
#include "engine/wire/auth.h"

#include <sodium.h>
#include <string.h>

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

void trib_auth_prove(const unsigned char key[TRIB_KEY_SIZE], const trib_handshake *handshake, bool as_connector,
                     unsigned char proof_out[TRIB_PROOF_SIZE])
{
    const unsigned char side = as_connector ? 'c' : 'a';
    const uint32_t claims[3] = {handshake->purpose, handshake->member, handshake->reactor};
    unsigned char claim_bytes[12];
    for (size_t i = 0; i < sizeof claim_bytes; i++) {
        claim_bytes[i] = (unsigned char)(claims[i / 4] >> (i % 4 * 8));
    }
    crypto_generichash_state state;
    crypto_generichash_init(&state, key, TRIB_KEY_SIZE, TRIB_PROOF_SIZE);
    crypto_generichash_update(&state, &side, 1);
    crypto_generichash_update(&state, handshake->connector_nonce, TRIB_NONCE_SIZE);
    crypto_generichash_update(&state, handshake->acceptor_nonce, TRIB_NONCE_SIZE);
    crypto_generichash_update(&state, claim_bytes, sizeof claim_bytes);
    crypto_generichash_final(&state, proof_out, TRIB_PROOF_SIZE);
}

void trib_auth_seal(const void *key, const void *data, size_t size, unsigned char *digest_out, size_t digest_size)
{
    const unsigned char use = 's'; /* separates seals from the proofs of handshakes, which begin with 'c' or 'a' */
    crypto_generichash_state state;
    crypto_generichash_init(&state, key, TRIB_KEY_SIZE, digest_size);
    crypto_generichash_update(&state, &use, 1);
    crypto_generichash_update(&state, data, size);
    crypto_generichash_final(&state, digest_out, digest_size);
}

bool trib_auth_verify(const unsigned char key[TRIB_KEY_SIZE], const trib_handshake *handshake, bool as_connector,
                      const unsigned char proof[TRIB_PROOF_SIZE])
{
    unsigned char expected[TRIB_PROOF_SIZE];
    trib_auth_prove(key, handshake, as_connector, expected);
    return sodium_memcmp(expected, proof, TRIB_PROOF_SIZE) == 0;
}
