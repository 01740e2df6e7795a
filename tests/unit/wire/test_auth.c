/*
 * test_auth.c - proofs of the shared token verify for the key and the handshake they were made for, and for no
 * other.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <sodium.h>

#include "engine/wire/auth.h"

static trib_handshake sample_handshake(void)
{
    trib_handshake handshake = {.purpose = 1, .member = 3, .reactor = 2};
    for (int i = 0; i < TRIB_NONCE_SIZE; i++) {
        handshake.connector_nonce[i] = (unsigned char)i;
        handshake.acceptor_nonce[i] = (unsigned char)(200 - i);
    }
    return handshake;
}

/* The key as docs/protocol.md has it for long tokens. */
static void derive_fast(const char *token, const char *job, unsigned char key[TRIB_KEY_SIZE])
{
    unsigned char bytes[256];
    size_t size = 0;
    memcpy(bytes, "tributary key 2", 16);
    size += 16;
    memcpy(bytes + size, job, strlen(job) + 1);
    size += strlen(job) + 1;
    size += (size_t)snprintf((char *)bytes + size, sizeof bytes - size, "%s", token);
    assert_int_equal(crypto_generichash(key, TRIB_KEY_SIZE, bytes, size, NULL, 0), 0);
}

static void test_proofs_verify(void **state)
{
    (void)state;
    const char *tokens[] = {NULL, "", "secret"};
    for (int t = 0; t < 3; t++) {
        unsigned char here[TRIB_KEY_SIZE], there[TRIB_KEY_SIZE], proof[TRIB_PROOF_SIZE];
        trib_handshake handshake = sample_handshake();
        assert_int_equal(trib_auth_key(tokens[t], "job", here), TRIB_OK);
        assert_int_equal(trib_auth_key(tokens[t], "job", there), TRIB_OK);
        for (int connector = 0; connector < 2; connector++) {
            trib_auth_prove(here, &handshake, connector != 0, proof);
            assert_true(trib_auth_verify(there, &handshake, connector != 0, proof));
            /* The other side's proof, sent back, proves nothing. */
            assert_false(trib_auth_verify(there, &handshake, connector == 0, proof));
            for (int bit = 0; bit < 8 * TRIB_PROOF_SIZE; bit++) {
                proof[bit / 8] ^= (unsigned char)(1 << bit % 8);
                assert_false(trib_auth_verify(there, &handshake, connector != 0, proof));
                proof[bit / 8] ^= (unsigned char)(1 << bit % 8);
            }
        }
    }
}

static void test_proofs_fail_for_another_key(void **state)
{
    (void)state;
    static const struct {
        const char *token, *job;
    } others[] = {{"secres", "job"}, {"secret", "joc"}, {"secret ", "job"}, {NULL, "job"},  {"", "job"},
                  {"cret", "jobse"}, {"bsecret", "jo"}, {"Secret", "job"},  {"secret", ""}, {"job", "secret"}};
    unsigned char key[TRIB_KEY_SIZE], other[TRIB_KEY_SIZE], proof[TRIB_PROOF_SIZE];
    trib_handshake handshake = sample_handshake();
    assert_int_equal(trib_auth_key("secret", "job", key), TRIB_OK);
    trib_auth_prove(key, &handshake, true, proof);
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        assert_int_equal(trib_auth_key(others[i].token, others[i].job, other), TRIB_OK);
        assert_memory_not_equal(key, other, sizeof key);
        assert_false(trib_auth_verify(other, &handshake, true, proof));
    }
}

/* A proof is for one handshake: any changed bit of the nonces or the claims makes it worthless. */
static void test_proofs_fail_for_another_handshake(void **state)
{
    (void)state;
    unsigned char key[TRIB_KEY_SIZE], proof[TRIB_PROOF_SIZE];
    assert_int_equal(trib_auth_key("secret", "job", key), TRIB_OK);
    const trib_handshake handshake = sample_handshake();
    trib_auth_prove(key, &handshake, true, proof);
    for (int bit = 0; bit < 8 * TRIB_NONCE_SIZE; bit++) {
        trib_handshake changed = handshake;
        changed.connector_nonce[bit / 8] ^= (unsigned char)(1 << bit % 8);
        assert_false(trib_auth_verify(key, &changed, true, proof));
        changed = handshake;
        changed.acceptor_nonce[bit / 8] ^= (unsigned char)(1 << bit % 8);
        assert_false(trib_auth_verify(key, &changed, true, proof));
    }
    for (int bit = 0; bit < 32; bit++) {
        trib_handshake changed = handshake;
        changed.purpose ^= UINT32_C(1) << bit;
        assert_false(trib_auth_verify(key, &changed, true, proof));
        changed = handshake;
        changed.member ^= UINT32_C(1) << bit;
        assert_false(trib_auth_verify(key, &changed, true, proof));
        changed = handshake;
        changed.reactor ^= UINT32_C(1) << bit;
        assert_false(trib_auth_verify(key, &changed, true, proof));
    }
    /* The two nonces, or two claims, may not change places. */
    trib_handshake swapped = handshake;
    memcpy(swapped.connector_nonce, handshake.acceptor_nonce, TRIB_NONCE_SIZE);
    memcpy(swapped.acceptor_nonce, handshake.connector_nonce, TRIB_NONCE_SIZE);
    assert_false(trib_auth_verify(key, &swapped, true, proof));
    swapped = handshake;
    swapped.member = handshake.reactor;
    swapped.reactor = handshake.member;
    assert_false(trib_auth_verify(key, &swapped, true, proof));
}

#define LONG "a token of thirty-two bytes, 1234"

/* A short token costs each guess a slow hash, and no table of guesses serves for two jobs. A long one costs nothing. */
static void test_short_tokens_are_stretched(void **state)
{
    (void)state;
    unsigned char key[TRIB_KEY_SIZE], other[TRIB_KEY_SIZE], fast[TRIB_KEY_SIZE];
    static const char *const tokens[] = {"short", "a token of thirty-one bytes, 12"};
    for (size_t i = 0; i < 2; i++) {
        assert_true(strlen(tokens[i]) < TRIB_TOKEN_LONG);
        assert_int_equal(trib_auth_key(tokens[i], "job", key), TRIB_OK);
        derive_fast(tokens[i], "job", fast);
        assert_memory_not_equal(key, fast, sizeof key);
        assert_int_equal(trib_auth_key(tokens[i], "jobs", other), TRIB_OK);
        assert_memory_not_equal(key, other, sizeof key);
    }
    assert_true(strlen(LONG) >= TRIB_TOKEN_LONG);
    assert_int_equal(trib_auth_key(LONG, "job", key), TRIB_OK);
    derive_fast(LONG, "job", fast);
    assert_memory_equal(key, fast, sizeof key);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_proofs_verify),
        cmocka_unit_test(test_short_tokens_are_stretched),
        cmocka_unit_test(test_proofs_fail_for_another_key),
        cmocka_unit_test(test_proofs_fail_for_another_handshake),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
