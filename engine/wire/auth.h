/*
 * auth.h - mutual proof of a shared token when a connection is made, by keyed BLAKE2b over both sides' nonces
 * (libsodium).
 *
 * The connecting side sends HELLO {its nonce, who it says it is}, the accepting side answers CHALLENGE {its nonce,
 * its proof}, the connecting side PROOF {its proof}, the accepting side WELCOME. A recorded handshake is worthless
 * later because both nonces are fresh; a member of another job fails because the job's name is part of the key.
 * Nothing else is read before it is over.
 */
#ifndef TRIB_ENGINE_AUTH_H
#define TRIB_ENGINE_AUTH_H

#include "api/tributary.h"

#define TRIB_NONCE_SIZE 32
#define TRIB_PROOF_SIZE 32
#define TRIB_KEY_SIZE 32

typedef struct trib_handshake {
    unsigned char connector_nonce[TRIB_NONCE_SIZE];
    unsigned char acceptor_nonce[TRIB_NONCE_SIZE];
    uint32_t purpose, member, reactor; /* what the connector claims; part of what is proved */
} trib_handshake;

/* token may be NULL (none). */
void trib_auth_key(const char *token, const char *job, unsigned char key_out[TRIB_KEY_SIZE]);
void trib_auth_prove(const unsigned char key[TRIB_KEY_SIZE], const trib_handshake *handshake, bool as_connector,
                     unsigned char proof_out[TRIB_PROOF_SIZE]);
/* Proves other data with the key, by a digest of 16 to 64 bytes. No handshake has the same digest. */
void trib_auth_seal(const void *key, const void *data, size_t size, unsigned char *digest_out, size_t digest_size);
/* In constant time. */
bool trib_auth_verify(const unsigned char key[TRIB_KEY_SIZE], const trib_handshake *handshake, bool as_connector,
                      const unsigned char proof[TRIB_PROOF_SIZE]);

#endif
