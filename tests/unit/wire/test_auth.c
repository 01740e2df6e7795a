/*
 * test_auth.c - proofs of the shared token verify for the key and the handshake they were made for, and for no
 * other.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

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

static void test_proofs_verify(void **state)
{
    (void)state;
    const char *tokens[] = {NULL, "", "secret"};
    for (int t = 0; t < 3; t++) {
        unsigned char here[TRIB_KEY_SIZE], there[TRIB_KEY_SIZE], proof[TRIB_PROOF_SIZE];
        trib_handshake handshake = sample_handshake();
        trib_auth_key(tokens[t], "job", here);
        trib_auth_key(tokens[t], "job", there);
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
    trib_auth_key("secret", "job", key);
    trib_auth_prove(key, &handshake, true, proof);
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        trib_auth_key(others[i].token, others[i].job, other);
        assert_memory_not_equal(key, other, sizeof key);
        assert_false(trib_auth_verify(other, &handshake, true, proof));
    }
}

/* A proof is for one handshake: any changed bit of the nonces or the claims makes it worthless. */
static void test_proofs_fail_for_another_handshake(void **state)
{
    (void)state;
    unsigned char key[TRIB_KEY_SIZE], proof[TRIB_PROOF_SIZE];
    trib_auth_key("secret", "job", key);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_proofs_verify),
        cmocka_unit_test(test_proofs_fail_for_another_key),
        cmocka_unit_test(test_proofs_fail_for_another_handshake),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
