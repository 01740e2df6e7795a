/* auth.c - the proofs of the connection handshake. */
#include "engine/wire/auth.h"

#include <sodium.h>
#include <string.h>

void trib_auth_key(const char *token, const char *job, unsigned char key_out[TRIB_KEY_SIZE])
{
    crypto_generichash_state state;
    const char *secret = token == NULL ? "" : token;
    crypto_generichash_init(&state, NULL, 0, TRIB_KEY_SIZE);
    crypto_generichash_update(&state, (const unsigned char *)"tributary key 1", 16);
    crypto_generichash_update(&state, (const unsigned char *)job, strlen(job) + 1);
    crypto_generichash_update(&state, (const unsigned char *)secret, strlen(secret));
    crypto_generichash_final(&state, key_out, TRIB_KEY_SIZE);
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
