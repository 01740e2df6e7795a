/*
 * auth.h - mutual proof of a shared token when a connection is made, by keyed BLAKE2b over both nonces (libsodium).
 *
 * The connector sends HELLO with its nonce and its claimed identity. The acceptor answers CHALLENGE with its nonce. The
 * connector sends PROOF, and the acceptor answers WELCOME with its own proof. Both nonces are fresh, so a recorded
 * handshake is useless later. The key includes the job's name, so a member of another job fails. No other frame is read
 * before the handshake is over.
 *
 * A proof lets its reader try tokens offline. So the acceptor, which anybody can connect to, shows nothing that is
 * computed from the token before it has seen a proof. Short tokens, which may be words, go through a slow hash first.
 */
#ifndef TRIB_ENGINE_AUTH_H
#define TRIB_ENGINE_AUTH_H

#include "api/tributary.h"

#define TRIB_NONCE_SIZE 32
#define TRIB_PROOF_SIZE 32
#define TRIB_KEY_SIZE 32
#define TRIB_HELLO_SIZE 64 /* bytes of HELLO's payload */
#define TRIB_WELCOME_SIZE                                                                                              \
    40 /* bytes of WELCOME's payload: the proof, and the number of frames received in the session */
#define TRIB_NO_SESSION UINT64_MAX /* in place of that number: there is no such session */

typedef struct trib_handshake {
    unsigned char connector_nonce[TRIB_NONCE_SIZE];
    unsigned char acceptor_nonce[TRIB_NONCE_SIZE];
    /* the connector's claims, which its proof covers */
    uint32_t purpose, member, reactor;
    uint32_t attempt;  /* twice the number of the connection in the session, and 1 more if the link was READY before */
    uint64_t session;  /* id of the link's session */
    uint64_t received; /* frames that the connector has received in the session */
} trib_handshake;

/* Writes and reads HELLO's payload: the claims and the connector's nonce. */
void trib_auth_put_hello(const trib_handshake *handshake, unsigned char payload_out[TRIB_HELLO_SIZE]);
void trib_auth_get_hello(const unsigned char payload[TRIB_HELLO_SIZE], trib_handshake *handshake_io);
#define TRIB_TOKEN_MIN 8u   /* bytes; a shorter token is refused */
#define TRIB_TOKEN_LONG 32u /* bytes; a token of this length counts as random */

/* Derives the key from the token, which may be NULL, and the job's name. A token shorter than TRIB_TOKEN_LONG goes
 * through Argon2id, which takes some 0.1 s and 64 MiB: not for reactors. TRIB_NO_MEMORY, TRIB_SYSTEM (no random
 * source). */
TRIB_CHECKED trib_status trib_auth_key(const char *token, const char *job, unsigned char key_out[TRIB_KEY_SIZE]);
/* Overwrites memory that held a secret. */
void trib_auth_wipe(void *secret, size_t size);
void trib_auth_prove(const unsigned char key[TRIB_KEY_SIZE], const trib_handshake *handshake, bool as_connector,
                     unsigned char proof_out[TRIB_PROOF_SIZE]);
/* Compares the proofs in constant time. */
bool trib_auth_verify(const unsigned char key[TRIB_KEY_SIZE], const trib_handshake *handshake, bool as_connector,
                      const unsigned char proof[TRIB_PROOF_SIZE]);

#endif
